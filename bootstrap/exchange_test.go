package bootstrap

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tutti-go/tutti/bootstrap/internal/filestore"
)

// A place is where the ranks of a job meet in a test.
type place interface {
	open(t *testing.T, rank, size int) Entries
	put(t *testing.T, rank int, text string) // as a process of an earlier job
	left(t *testing.T) []string              // what is still there
}

// inEveryPlace runs a test in each kind of place, and in a bubble of its own.
func inEveryPlace(t *testing.T, f func(t *testing.T, p place)) {
	for name, make := range map[string]func(t *testing.T) place{
		"memory":    func(*testing.T) place { return &memoryPlace{texts: map[int]string{}, changed: make(chan struct{})} },
		"directory": func(t *testing.T) place { return directoryPlace(privateDir(t)) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { f(t, make(t)) })
		})
	}
}

// letAllLook returns after every rank has seen what is in the place.
func letAllLook() {
	// Reason: a directory announces no changes. Ranks look again by a timer, in the bubble's time.
	time.Sleep(time.Minute)
}

// privateDir returns the path of a directory that does not exist, in one that only this user may
// write in.
func privateDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, "meet")
}

// A directoryPlace is the path of a directory. The job's name is job.0.
type directoryPlace string

func (p directoryPlace) open(t *testing.T, rank, size int) Entries {
	t.Helper()
	d, err := filestore.Open(string(p), "job.0", rank, size)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

func (p directoryPlace) put(t *testing.T, rank int, text string) {
	t.Helper()
	if err := os.Mkdir(string(p), 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(string(p), "job.0."+strconv.Itoa(rank)), []byte(text+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
}

func (p directoryPlace) left(t *testing.T) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(string(p))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// A memoryPlace is a place in memory, which notifies its readers of changes, as etcd does.
type memoryPlace struct {
	mu      sync.Mutex // guards the fields below
	texts   map[int]string
	changed chan struct{} // closed at the next change
}

func (p *memoryPlace) open(_ *testing.T, rank, size int) Entries {
	return &memoryEntries{place: p, rank: rank, size: size}
}

func (p *memoryPlace) put(_ *testing.T, rank int, text string) { p.set(text, rank) }

// set sets or removes texts.
func (p *memoryPlace) set(text string, ranks ...int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, r := range ranks {
		if p.texts[r] = text; text == "" {
			delete(p.texts, r)
		}
	}
	close(p.changed)
	p.changed = make(chan struct{})
}

func (p *memoryPlace) left(*testing.T) (ranks []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for r := range p.texts {
		ranks = append(ranks, strconv.Itoa(r))
	}
	return ranks
}

// memoryEntries are a rank's view of a memoryPlace.
type memoryEntries struct {
	place      *memoryPlace
	rank, size int
	changed    <-chan struct{} // since the last call of Next; nil before the first
}

func (e *memoryEntries) Next(ctx context.Context) ([]string, error) {
	if e.changed != nil {
		select {
		case <-e.changed:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	p := e.place
	p.mu.Lock()
	defer p.mu.Unlock()
	e.changed = p.changed
	texts := make([]string, e.size)
	for r := range texts {
		if e.rank == 0 || r == 0 || r == e.rank {
			texts[r] = p.texts[r]
		}
	}
	return texts, nil
}

func (e *memoryEntries) Write(_ context.Context, text string) error {
	e.place.set(text, e.rank)
	return nil
}

func (e *memoryEntries) Remove(_ context.Context, ranks ...int) error {
	e.place.set("", ranks...)
	return nil
}

func (e *memoryEntries) Close() error { return nil }

// A result is what an exchange returned on a rank.
type result struct {
	value string
	err   error
}

// start runs the exchange of a rank on a new goroutine. After an error the rank removes its text.
func start(t *testing.T, ctx context.Context, p place, rank, size int, value string) <-chan result {
	t.Helper()
	e, x := p.open(t, rank, size), newExchange("the place", rank, size, value)
	done := make(chan result, 1)
	go func() {
		got, err := x.run(ctx, e)
		if err != nil {
			x.withdraw(context.WithoutCancel(ctx), e)
		}
		done <- result{got, err}
	}()
	return done
}

// wantValue waits for the end of an exchange, which must return the value.
func wantValue(t *testing.T, done <-chan result, want string) {
	t.Helper()
	if got := <-done; got.err != nil || got.value != want {
		t.Errorf("got %q and %v, want %q", got.value, got.err, want)
	}
}

// wantEmpty checks that the job has left nothing.
func wantEmpty(t *testing.T, p place) {
	t.Helper()
	if left := p.left(t); len(left) > 0 {
		t.Errorf("left behind: got %v, want nothing", left)
	}
}

func TestAllRanksGetTheValueOfRankZero(t *testing.T) {
	inEveryPlace(t, func(t *testing.T, p place) {
		for _, size := range []int{1, 2, 5} {
			var all []<-chan result
			for r := size - 1; r >= 0; r-- {
				value := ""
				if r == 0 {
					value = "the-value"
				}
				all = append(all, start(t, t.Context(), p, r, size, value))
				letAllLook()
			}
			for _, done := range all {
				wantValue(t, done, "the-value")
			}
			wantEmpty(t, p)
		}
	})
}

// A job may fail at any moment and leave texts. These texts must not give the next job a wrong
// value.
func TestTextsOfAnEarlierJobAreNotUsed(t *testing.T) {
	for name, texts := range map[string]map[int]string{
		"before rank 0 came":       {1: "1 OLD -", 2: "1 OLD -"},
		"before the value is read": {0: "1 TOKEN old OLD OLD", 1: "1 OLD -", 2: "1 OLD -"},
		"after it is read":         {0: "1 TOKEN old OLD OLD", 1: "1 OLD TOKEN", 2: "1 OLD TOKEN"},
		"of a larger job":          {0: "1 TOKEN old OLD OLD OLD", 1: "1 OLD TOKEN"},
		"of another version":       {0: "2 old", 1: "2 OLD"},
		"garbage":                  {0: "", 1: "1 x", 2: strings.Repeat("1 x ", 1<<10)},
	} {
		for first := range 3 {
			t.Run(name+"/"+strconv.Itoa(first), func(t *testing.T) {
				inEveryPlace(t, func(t *testing.T, p place) {
					for r, text := range texts {
						p.put(t, r, text)
					}
					var all []<-chan result
					for i := range 3 {
						r, value := (first+i)%3, ""
						if r == 0 {
							value = "new"
						}
						all = append(all, start(t, t.Context(), p, r, 3, value))
						letAllLook()
					}
					for _, done := range all {
						wantValue(t, done, "new")
					}
					wantEmpty(t, p)
				})
			})
		}
	}
}

func TestARankThatStartsAgainGetsTheValue(t *testing.T) {
	inEveryPlace(t, func(t *testing.T, p place) {
		zero := start(t, t.Context(), p, 0, 3, "v")
		p.put(t, 1, "1 FIRST -") // the first run of rank 1 ends here
		two := start(t, t.Context(), p, 2, 3, "")
		wantValue(t, two, "v")
		letAllLook()
		wantValue(t, start(t, t.Context(), p, 1, 3, ""), "v")
		wantValue(t, zero, "v")
		wantEmpty(t, p)
	})
}

// A store may remove the text of a rank that has read the value and gone on, while another rank
// takes its time.
func TestARankThatHasReadTheValueNeedsItsTextNoMore(t *testing.T) {
	inEveryPlace(t, func(t *testing.T, p place) {
		zero := start(t, t.Context(), p, 0, 3, "v")
		p.put(t, 2, "1 SLOW -")
		wantValue(t, start(t, t.Context(), p, 1, 3, ""), "v")
		letAllLook()
		if err := p.open(t, 0, 3).Remove(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
		letAllLook()
		wantValue(t, start(t, t.Context(), p, 2, 3, ""), "v")
		wantValue(t, zero, "v")
		wantEmpty(t, p)
	})
}

// An earlier job of the same name removes all texts when it ends. A rank must then write its text
// again.
func TestARankWritesItsTextAgainAfterAnotherJobHasRemovedIt(t *testing.T) {
	inEveryPlace(t, func(t *testing.T, p place) {
		one := start(t, t.Context(), p, 1, 2, "")
		letAllLook()
		if err := p.open(t, 0, 2).Remove(t.Context(), 0, 1); err != nil {
			t.Fatal(err)
		}
		letAllLook()
		wantValue(t, start(t, t.Context(), p, 0, 2, "v"), "v")
		wantValue(t, one, "v")
	})
}

func TestTheErrorNamesTheRanksThatDoNotCome(t *testing.T) {
	inEveryPlace(t, func(t *testing.T, p place) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		zero, two := start(t, ctx, p, 0, 12, "v"), start(t, ctx, p, 2, 12, "")
		got := <-zero
		if want := "no entry of ranks 1, 3, 4, 5, 6, 7, 8, 9 and 2 more in the place"; !errors.Is(got.err, context.DeadlineExceeded) || !strings.Contains(got.err.Error(), want) {
			t.Errorf("rank 0: got %v, want the deadline and %q", got.err, want)
		}
		if got = <-two; !errors.Is(got.err, context.DeadlineExceeded) || !strings.Contains(got.err.Error(), "rank 0 or another rank has not come") {
			t.Errorf("rank 2: got %v, want the deadline and what it waits for", got.err)
		}
		wantEmpty(t, p)
	})
}

// The texts of ranks that ran before must not hide that these ranks do not come now.
func TestTheErrorNamesTheRanksOfWhichOnlyOldTextsExist(t *testing.T) {
	inEveryPlace(t, func(t *testing.T, p place) {
		p.put(t, 1, "1 OLD TOKEN")
		p.put(t, 3, "1 OLD TOKEN")
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		zero, two := start(t, ctx, p, 0, 4, "v"), start(t, ctx, p, 2, 4, "")
		wantValue(t, two, "v")
		got := <-zero
		if want := "not read by ranks 1, 3, whose entries may be of an earlier job"; !errors.Is(got.err, context.DeadlineExceeded) || !strings.Contains(got.err.Error(), want) {
			t.Errorf("rank 0: got %v, want the deadline and %q", got.err, want)
		}
	})
}

// Two processes that claim the same rank, or two jobs of one name, must not mix. The later process
// goes on, and the earlier process leaves the text of the later one alone.
func TestASecondProcessOfTheSameRankIsReported(t *testing.T) {
	inEveryPlace(t, func(t *testing.T, p place) {
		for rank, value := range []string{"v", ""} {
			first := start(t, t.Context(), p, rank, 2, value)
			letAllLook()
			if rank == 0 {
				p.put(t, 1, "1 SLOW -") // so that rank 0 has written its value
				letAllLook()
				p.put(t, 0, "1 OTHER w x")
			} else {
				p.put(t, 1, "1 OTHER -")
			}
			got := <-first
			if got.err == nil || !strings.Contains(got.err.Error(), "another process has replaced its entry") {
				t.Errorf("rank %d: got %v, want the error that another process has replaced the text", rank, got.err)
			}
			if left := p.left(t); !slices.ContainsFunc(left, func(name string) bool { return strings.HasSuffix(name, strconv.Itoa(rank)) }) {
				t.Errorf("rank %d: left: got %v, want the text of the second process", rank, left)
			}
			p.open(t, 0, 2).Remove(t.Context(), 0, 1)
		}
	})
}

func TestAValueWithSpacesIsRefused(t *testing.T) {
	for _, value := range []string{"", "a b", "a\nb"} {
		e := (&memoryPlace{texts: map[int]string{}, changed: make(chan struct{})}).open(t, 0, 2)
		if _, err := newExchange("the place", 0, 2, value).run(t.Context(), e); err == nil {
			t.Errorf("%q: got no error", value)
		}
	}
}
