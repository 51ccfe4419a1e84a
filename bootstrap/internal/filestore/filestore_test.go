package filestore

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// A result is what Exchange returned on a rank.
type result struct {
	value string
	err   error
}

// privateDir returns a new directory that Open accepts, whatever the process's umask.
func privateDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return dir
}

// open opens the directory as a rank of a job, until the end of the test.
func open(t *testing.T, dir string, rank, size int) *Directory {
	t.Helper()
	d, err := Open(dir, "job.0", rank, size)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

// start calls Exchange as a rank of a job of the given size on a new goroutine.
func start(t *testing.T, ctx context.Context, dir string, rank, size int, value string) <-chan result {
	t.Helper()
	s := open(t, dir, rank, size)
	done := make(chan result, 1)
	go func() {
		got, err := s.Exchange(ctx, value)
		done <- result{got, err}
	}()
	return done
}

// wantValue waits for the end of Exchange, which must return the value.
func wantValue(t *testing.T, done <-chan result, want string) {
	t.Helper()
	if got := <-done; got.err != nil || got.value != want {
		t.Errorf("got %q and %v, want %q", got.value, got.err, want)
	}
}

// wantEmpty checks that the job has left no file.
func wantEmpty(t *testing.T, dir string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		t.Errorf("file %s is left behind", e.Name())
	}
}

func TestAllRanksGetTheValueOfRankZero(t *testing.T) {
	for _, size := range []int{1, 2, 5} {
		synctest.Test(t, func(t *testing.T) {
			dir := filepath.Join(privateDir(t), "new")
			var all []<-chan result
			for r := size - 1; r >= 0; r-- {
				value := ""
				if r == 0 {
					value = "the-value"
				}
				all = append(all, start(t, t.Context(), dir, r, size, value))
				// Reason: the ranks must come one after the other. No real time passes.
				time.Sleep(time.Second)
			}
			for _, done := range all {
				wantValue(t, done, "the-value")
			}
			wantEmpty(t, dir)
		})
	}
}

// The files of a job that has failed at any moment must not give the next job a wrong value.
func TestFilesOfAnEarlierJobAreNotUsed(t *testing.T) {
	for name, files := range map[string]map[string]string{
		"before rank 0 came":       {"job.0.1": "1 OLD -\n", "job.0.2": "1 OLD -\n"},
		"before the value is read": {"job.0.0": "1 TOKEN old OLD OLD\n", "job.0.1": "1 OLD -\n", "job.0.2": "1 OLD -\n"},
		"after it is read":         {"job.0.0": "1 TOKEN old OLD OLD\n", "job.0.1": "1 OLD TOKEN\n", "job.0.2": "1 OLD TOKEN\n"},
		"of a larger job":          {"job.0.0": "1 TOKEN old OLD OLD OLD\n", "job.0.1": "1 OLD TOKEN\n", "job.0.3": "1 OLD TOKEN\n"},
		"of another version":       {"job.0.0": "2 old\n", "job.0.1": "2 OLD\n"},
		"garbage":                  {"job.0.0": "", "job.0.1": "1 x", "job.0.2": strings.Repeat("1 x ", 1<<16) + "\n"},
	} {
		for _, first := range []int{0, 1, 2} {
			t.Run(name+"/"+strconv.Itoa(first), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					dir := privateDir(t)
					for file, text := range files {
						if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
							t.Fatal(err)
						}
					}
					var all []<-chan result
					for i := range 3 {
						r, value := (first+i)%3, ""
						if r == 0 {
							value = "new"
						}
						all = append(all, start(t, t.Context(), dir, r, 3, value))
						// Reason: the order is part of the case. No real time passes.
						time.Sleep(time.Second)
					}
					for _, done := range all {
						wantValue(t, done, "new")
					}
				})
			})
		}
	}
}

func TestARankThatStartsAgainGetsTheValue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := privateDir(t)
		zero := start(t, t.Context(), dir, 0, 3, "v")
		s := open(t, dir, 1, 3)
		if got, _, err := s.follow(); got != "" || err != nil { // the first run ends here
			t.Fatalf("got %q and %v, want no value yet", got, err)
		}
		two := start(t, t.Context(), dir, 2, 3, "")
		wantValue(t, two, "v")
		// Reason: rank 0 must not give up within this time; the bubble's clock passes it at once.
		time.Sleep(time.Minute)
		wantValue(t, start(t, t.Context(), dir, 1, 3, ""), "v")
		wantValue(t, zero, "v")
		wantEmpty(t, dir)
	})
}

func TestTheErrorNamesTheRanksThatDoNotCome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := privateDir(t)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		zero, two := start(t, ctx, dir, 0, 12, "v"), start(t, ctx, dir, 2, 12, "")
		got := <-zero
		if want := "no file " + filepath.Join(dir, "job.0") + ".RANK of ranks 1, 3, 4, 5, 6, 7, 8, 9 and 2 more"; !errors.Is(got.err, context.DeadlineExceeded) || !strings.Contains(got.err.Error(), want) {
			t.Errorf("rank 0: got %v, want the deadline and %q", got.err, want)
		}
		if got = <-two; !errors.Is(got.err, context.DeadlineExceeded) || !strings.Contains(got.err.Error(), "rank 0 or another rank has not come") {
			t.Errorf("rank 2: got %v, want the deadline and what it waits for", got.err)
		}
		wantEmpty(t, dir)
	})
}

// The files of ranks that ran before must not hide that these ranks do not come now.
func TestTheErrorNamesTheRanksOfWhichOnlyOldFilesExist(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := privateDir(t)
		for _, r := range []string{"1", "3"} {
			if err := os.WriteFile(filepath.Join(dir, "job.0."+r), []byte("1 OLD TOKEN\n"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		zero, two := start(t, ctx, dir, 0, 4, "v"), start(t, ctx, dir, 2, 4, "")
		wantValue(t, two, "v")
		got := <-zero
		if want := "not read by ranks 1, 3, whose files may be of an earlier job"; !errors.Is(got.err, context.DeadlineExceeded) || !strings.Contains(got.err.Error(), want) {
			t.Errorf("rank 0: got %v, want the deadline and %q", got.err, want)
		}
	})
}

// Two processes that claim the same rank, or two jobs of one name, must not mix.
func TestASecondProcessOfTheSameRankIsReported(t *testing.T) {
	for rank, value := range []string{"v", ""} {
		synctest.Test(t, func(t *testing.T) {
			dir := privateDir(t)
			if rank == 0 {
				stay := start(t, t.Context(), dir, 1, 3, "")
				other := start(t, t.Context(), dir, 2, 3, "")
				defer func() { wantValue(t, stay, "v"); wantValue(t, other, "v") }()
			}
			first := open(t, dir, rank, 3)
			if err := first.write([]string{version, first.own, value}); err != nil {
				t.Fatal(err)
			}
			second := open(t, dir, rank, 3)
			if err := second.write([]string{version, second.own, value}); err != nil {
				t.Fatal(err)
			}
			if err := first.write([]string{version, first.own, value}); err == nil || !strings.Contains(err.Error(), "another process has replaced it") {
				t.Errorf("rank %d: got %v, want the error that another process has replaced the file", rank, err)
			}
			if rank == 0 {
				got, err := second.Exchange(t.Context(), "v")
				if got != "v" || err != nil {
					t.Errorf("the second: got %q and %v, want v", got, err)
				}
			}
		})
	}
}

func TestOpenRefusesADirectoryThatOthersMayWriteTo(t *testing.T) {
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o770); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir, "job", 0, 2); Private && (err == nil || !strings.Contains(err.Error(), "chmod go-w")) {
		t.Errorf("got %v, want the remedy chmod go-w", err)
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(file, "job", 0, 2); err == nil || !strings.Contains(err.Error(), "not a directory") {
		t.Errorf("a file: got %v, want that it is no directory", err)
	}
	if _, err := Open(filepath.Join(dir, "no", "such"), "job", 0, 2); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no parent: got %v, want ErrNotExist", err)
	}
	if s, err := Open(privateDir(t), "job", 0, 2); err != nil {
		t.Fatal(err)
	} else if _, err := s.Exchange(t.Context(), "a b"); err == nil {
		t.Error("a value with a space: got no error")
	}
}
