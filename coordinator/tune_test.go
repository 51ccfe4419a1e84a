package coordinator_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/coordinator"
	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/test/leak"
)

// tuneOut runs steps until Autotune has finished on rank 0, and then one more step. It compares
// every result with the sum, and the bits of the results between the ranks.
func tuneOut(ctx context.Context, c *comm.Comm, co *coordinator.Coordinator) error {
	for step := 0; ; step++ {
		if step > 1000 {
			return errors.New("it does not settle")
		}
		if err := sameSettings(ctx, c, co); err != nil {
			return fmt.Errorf("step %d: %w", step, err)
		}
		_, final := co.Settings()
		bufs := [][]float32{vector(3, c.Rank()), vector(1000, c.Rank()), vector(70_000, c.Rank())}
		var hs []*coordinator.Handle
		for i, b := range bufs {
			hs = append(hs, coordinator.AllReduce(co, fmt.Sprint("w", i), b, comm.Sum))
		}
		if err := coordinator.WaitAll(ctx, hs...); err != nil {
			return err
		}
		for i, b := range bufs {
			if err := equal(fmt.Sprint("w", i), b, sum(len(b), c.Size())); err != nil {
				return err
			}
		}
		rough := gradient(5000, c.Rank(), step) // the bits of the sum show the order of the folds
		if err := coordinator.AllReduce(co, "rough", rough, comm.Sum).Wait(ctx); err != nil {
			return err
		}
		if err := sameOnAll(ctx, c, fmt.Sprint("step ", step), rough); err != nil {
			return err
		}
		if final {
			return nil
		}
	}
}

// sameSettings checks that all ranks have the same settings, and agree whether these are final.
func sameSettings(ctx context.Context, c *comm.Comm, co *coordinator.Coordinator) error {
	s, final := co.Settings()
	mine := make([]byte, 200)
	copy(mine, fmt.Sprint(s, final))
	all := make([]byte, len(mine)*c.Size())
	if err := comm.AllGather(ctx, c, all, comm.From(mine)); err != nil {
		return err
	}
	for r := range c.Size() {
		if theirs := all[r*len(mine) : (r+1)*len(mine)]; !bytes.Equal(theirs, mine) {
			return fmt.Errorf("rank %d has %s, and rank %d %s", r, theirs, c.Rank(), mine)
		}
	}
	return nil
}

func TestAutotuneEndsOnAllRanksAndSavesItsChoice(t *testing.T) {
	for _, frozen := range []bool{false, true} {
		leak.Check(t)
		file := filepath.Join(t.TempDir(), "settings.json")
		var log bytes.Buffer
		opts := []coordinator.Option{coordinator.WithAutotune(coordinator.Autotune{Steps: 1, Warmup: 1, Log: &log, File: file})}
		if frozen {
			opts = append(opts, coordinator.Deterministic())
		}
		var chosen coordinator.Settings
		if err := comm.Local(3, with(func(ctx context.Context, c *comm.Comm, co *coordinator.Coordinator) error {
			if err := tuneOut(ctx, c, co); err != nil {
				return err
			}
			if c.Rank() == 0 {
				chosen, _ = co.Settings()
			}
			return sameSettings(ctx, c, co)
		}, opts...)); err != nil {
			t.Fatal(err)
		}
		if files, err := os.ReadDir(filepath.Dir(file)); err != nil || len(files) != 1 {
			t.Errorf("beside the settings there are %v, %v", files, err)
		}
		if saved, err := coordinator.LoadSettings(file); err != nil || saved != chosen {
			t.Errorf("saved are %+v (%v), and chosen %+v", saved, err, chosen)
		}
		lines := strings.Split(strings.TrimSpace(log.String()), "\n")
		if len(lines) < 9 || len(lines) > 25 {
			t.Errorf("the log has %d lines:\n%s", len(lines), log.String())
		}
		other := strings.Contains(log.String(), ",ring,") || strings.Contains(log.String(), ",reduce_scatter+allgather,")
		if other == frozen {
			t.Errorf("frozen is %v, and the log says\n%s", frozen, log.String())
		}
	}
}

// A blockedWriter is a log that blocks until free is closed.
type blockedWriter struct{ free chan struct{} }

func (s *blockedWriter) Write(b []byte) (int, error) {
	<-s.free
	return len(b), nil
}

func TestABlockedLogDelaysNobody(t *testing.T) {
	leak.Check(t)
	log := &blockedWriter{make(chan struct{})}
	if err := comm.Local(2, with(func(ctx context.Context, c *comm.Comm, co *coordinator.Coordinator) error {
		if c.Rank() == 0 {
			defer close(log.free) // deferred, because Close waits for the log
		}
		return tuneOut(ctx, c, co)
	}, coordinator.WithAutotune(coordinator.Autotune{Steps: 1, Warmup: 1, Log: log}))); err != nil {
		t.Error(err)
	}
}

// By the bubble's clock, Close must wait for exactly 5 s.
func TestCloseWaitsForABlockedLogNoLongerThanItsBound(t *testing.T) {
	leak.Check(t)
	synctest.Test(t, func(t *testing.T) {
		log, warned := &blockedWriter{make(chan struct{})}, new(lines)
		var duration time.Duration
		if err := comm.Local(2, func(ctx context.Context, c *comm.Comm) error {
			co, err := coordinator.Start(ctx, c, coordinator.WithAutotune(coordinator.Autotune{Log: log}), coordinator.WithLogger(slog.New(warned)))
			if err != nil {
				return err
			}
			began := time.Now()
			if err := co.Close(context.Background()); err != nil {
				return err
			}
			if c.Rank() == 0 {
				duration = time.Since(began)
			}
			return nil
		}); err != nil {
			t.Error(err)
		}
		if duration < 5*time.Second || duration > 10*time.Second {
			t.Errorf("Close took %v, want some 5 s", duration)
		}
		if text := warned.text(); !strings.Contains(text, "is incomplete") {
			t.Errorf("the log says %q", text)
		}
		close(log.free)
	})
}

// The type lines is a log that keeps its lines, or blocks until free is closed.
type lines struct {
	free chan struct{} // nil: it does not block
	mu   sync.Mutex
	all  []string
}

func (l *lines) Enabled(context.Context, slog.Level) bool { return true }
func (l *lines) WithAttrs([]slog.Attr) slog.Handler       { return l }
func (l *lines) WithGroup(string) slog.Handler            { return l }

func (l *lines) Handle(_ context.Context, r slog.Record) error {
	if l.free != nil {
		<-l.free
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, r.Message)
	return nil
}

func (l *lines) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.all, "\n")
}

func TestABlockedLoggerStopsNoJob(t *testing.T) {
	leak.Check(t)
	synctest.Test(t, func(t *testing.T) {
		log := &lines{free: make(chan struct{})}
		ended := make(chan struct{})
		if err := comm.Local(2, func(ctx context.Context, c *comm.Comm) error {
			co, err := coordinator.Start(ctx, c, coordinator.WithStallLimits(time.Second, 10*time.Second), coordinator.WithLogger(slog.New(log)))
			if err != nil {
				return err
			}
			if c.Rank() == 0 {
				hs := []*coordinator.Handle{coordinator.AllReduce(co, "late", make([]float32, 4), comm.Sum), coordinator.Barrier(co, "too")}
				for _, h := range hs {
					if err := h.Wait(context.Background()); !errors.Is(err, fault.Timeout) {
						return fmt.Errorf("got %v, want the second limit's timeout", err)
					}
				}
				close(ended)
			}
			<-ended
			if err := co.Close(context.Background()); !errors.Is(err, fault.Timeout) {
				return fmt.Errorf("rank %d: Close says %v", c.Rank(), err)
			}
			return nil
		}); err != nil {
			t.Error(err)
		}
		if text := log.text(); text != "" {
			t.Errorf("the log has taken %q", text)
		}
		close(log.free)
		synctest.Wait()
		if text := log.text(); !strings.Contains(text, "allreduce late") || !strings.Contains(text, "barrier too") {
			t.Errorf("let go, the log says %q", text)
		}
	})
}

// With Deterministic, Autotune must not change a bit of any result, although it tries other
// settings in every step. The test runs once with the default table, and once with recursive
// doubling.
func TestAutotuneThatIsDeterministicChangesNoBit(t *testing.T) {
	for name, limits := range map[string][]comm.Option{
		"by the table": {comm.WithParameters(comm.Parameters{NoSharedMemory: true})},
		"by a tree":    {comm.WithParameters(comm.Parameters{NoSharedMemory: true}), comm.WithAlgorithm("allreduce:recursive_doubling")},
	} {
		t.Run(name, func(t *testing.T) { changesNoBit(t, limits) })
	}
}

func changesNoBit(t *testing.T, limits []comm.Option) {
	t.Helper()
	leak.Check(t)
	const steps = 45
	run := func(opts ...coordinator.Option) (results [][]float64, tried string) {
		var log bytes.Buffer
		if opts != nil {
			opts = append(opts, coordinator.WithAutotune(coordinator.Autotune{Steps: 1, Warmup: 1, Log: &log}))
		}
		if err := comm.Local(5, with(func(ctx context.Context, c *comm.Comm, co *coordinator.Coordinator) error {
			for step := range steps {
				var hs []*coordinator.Handle
				var bufs [][]float64
				for i, n := range []int{1, 17, 500, 3001} {
					bufs = append(bufs, gradient(n, c.Rank(), step))
					hs = append(hs, coordinator.AllReduce(co, fmt.Sprint("w", i), bufs[i], comm.Sum))
				}
				if err := coordinator.WaitAll(ctx, hs...); err != nil {
					return err
				}
				if c.Rank() == 0 {
					results = append(results, slices.Concat(bufs...))
				}
			}
			return nil
		}, opts...), limits...); err != nil {
			t.Fatal(err)
		}
		return results, log.String()
	}
	want, _ := run()
	got, tried := run(coordinator.Deterministic())
	if n := strings.Count(tried, "\n"); n < 10 {
		t.Errorf("only %d lines of samples:\n%s", n, tried)
	}
	for step := range want {
		for i, w := range want[step] {
			if math.Float64bits(w) != math.Float64bits(got[step][i]) {
				t.Fatalf("step %d, element %d is %v, and was %v", step, i, got[step][i], w)
			}
		}
	}
}

func TestSettingsHoldOnAllRanksFromTheFirstTensorOn(t *testing.T) {
	leak.Check(t)
	want := coordinator.Settings{Cycle: 3 * time.Millisecond, Fusion: 12345, Cache: false, Algorithm: coordinator.Ring}
	file := filepath.Join(t.TempDir(), "settings.json")
	if err := want.Save(file); err != nil {
		t.Fatal(err)
	}
	t.Setenv("TUTTI_AUTOTUNE_FILE", file)
	t.Setenv("TUTTI_AUTOTUNE", "1") // the file has settings, so Autotune does not search
	if err := comm.Local(3, with(func(ctx context.Context, c *comm.Comm, co *coordinator.Coordinator) error {
		buf := vector(9, c.Rank())
		if err := coordinator.AllReduce(co, "w", buf, comm.Sum).Wait(ctx); err != nil {
			return err
		}
		if got, _ := co.Settings(); got != want {
			return fmt.Errorf("rank %d has %+v, want %+v", c.Rank(), got, want)
		}
		return equal("w", buf, sum(9, 3))
	})); err != nil {
		t.Error(err)
	}
}

// The class of algorithms in the settings must be the class that folds. Each of the three classes
// folds these floats in a different order, and the bits of the results show the order.
func TestTheAlgorithmOfTheSettingsIsTheOneThatRuns(t *testing.T) {
	leak.Check(t)
	const n, size = 5, 1000
	forced := func(ctx context.Context, c *comm.Comm, class string, buf []float32) error {
		switch class {
		case coordinator.DefaultAlgorithm:
			return comm.AllReduce(ctx, c, buf, comm.Sum)
		case coordinator.Ring:
			return comm.AllReduce(ctx, c, buf, comm.Sum, comm.Algorithm("ring"))
		}
		return errors.Join(comm.ReduceScatter(ctx, c, buf, comm.Sum, comm.Algorithm("linear")), comm.AllGather(ctx, c, buf))
	}
	classes := []string{coordinator.DefaultAlgorithm, coordinator.Ring, coordinator.ReduceScatterAllGather}
	for i, class := range classes {
		settings := coordinator.Settings{Cycle: time.Millisecond, Fusion: 1 << 20, Cache: true, Algorithm: class}
		err := comm.Local(n, with(func(ctx context.Context, c *comm.Comm, co *coordinator.Coordinator) error {
			input := make([]float32, size)
			random := rand.New(rand.NewPCG(1, uint64(c.Rank())))
			for k := range input {
				input[k] = float32(random.NormFloat64() * math.Pow(2, 20*random.Float64()))
			}
			var want [][]float32
			for k, class := range classes {
				sum := slices.Clone(input)
				if err := forced(ctx, c, class, sum); err != nil {
					return err
				}
				if k > 0 && slices.Equal(sum, want[k-1]) {
					return fmt.Errorf("%s and %s give equal bits: this test compares nothing", classes[k-1], class)
				}
				want = append(want, sum)
			}
			for range 2 { // the second time through the response cache
				got := slices.Clone(input)
				if err := coordinator.AllReduce(co, "w", got, comm.Sum).Wait(ctx); err != nil {
					return err
				}
				if !slices.Equal(got, want[i]) {
					return errors.New("got bits of another class")
				}
			}
			return nil
		}, coordinator.WithSettings(settings)), comm.WithAlgorithm("allreduce:pairwise,reduce_scatterv:linear"), comm.WithParameters(comm.Parameters{NoSharedMemory: true}))
		if err != nil {
			t.Errorf("%s: %v", class, err)
		}
	}
}

func TestEveryClassOfAlgorithmRunsOnAnyNumberOfRanksAndInProcessSets(t *testing.T) {
	for n := 1; n <= 4; n++ {
		for _, a := range []string{coordinator.DefaultAlgorithm, coordinator.Ring, coordinator.ReduceScatterAllGather} {
			leak.Check(t)
			start := coordinator.WithSettings(coordinator.Settings{Cycle: time.Millisecond, Fusion: 1 << 20, Cache: true, Algorithm: a})
			if err := comm.Local(n, with(func(ctx context.Context, c *comm.Comm, co *coordinator.Coordinator) error {
				last, err := co.AddProcessSet(ctx, "last", n-1)
				if err != nil {
					return err
				}
				buf, alone := vector(1001, c.Rank()), vector(7, c.Rank())
				hs := []*coordinator.Handle{coordinator.AllReduce(co, "w", buf, comm.Sum)}
				if c.Rank() == n-1 {
					hs = append(hs, coordinator.AllReduce(co, "alone", alone, comm.Sum, coordinator.In(last)))
				}
				if err := coordinator.WaitAll(ctx, hs...); err != nil {
					return err
				}
				return errors.Join(equal("w", buf, sum(1001, n)), equal("alone", alone, vector(7, c.Rank())))
			}, start)); err != nil {
				t.Errorf("%d ranks, %s: %v", n, a, err)
			}
		}
	}
}

func TestTheEnvironmentTurnsAutotuneOn(t *testing.T) {
	leak.Check(t)
	log := filepath.Join(t.TempDir(), "log.csv")
	t.Setenv("HOROVOD_AUTOTUNE", "1")
	t.Setenv("HOROVOD_AUTOTUNE_LOG", log)
	if err := comm.Local(2, with(func(ctx context.Context, c *comm.Comm, co *coordinator.Coordinator) error {
		for range 45 { // 30 steps to warm up, 10 for a sample
			if err := coordinator.AllReduce(co, "w", vector(9, c.Rank()), comm.Sum).Wait(ctx); err != nil {
				return err
			}
		}
		return nil
	})); err != nil {
		t.Error(err)
	}
	if b, err := os.ReadFile(log); err != nil || strings.Count(string(b), "\n") < 2 || !strings.HasPrefix(string(b), "sample,cycle_ms,") {
		t.Errorf("the log is %q, %v", b, err)
	}
}

func TestTheEnvironmentBoundsTheSamples(t *testing.T) {
	leak.Check(t)
	log := filepath.Join(t.TempDir(), "log.csv")
	t.Setenv("TUTTI_AUTOTUNE", "1")
	t.Setenv("TUTTI_AUTOTUNE_LOG", log)
	t.Setenv("HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE", "1")
	t.Setenv("HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES", "3")
	if err := comm.Local(2, with(tuneOut)); err != nil {
		t.Error(err)
	}
	if b, err := os.ReadFile(log); err != nil || strings.Count(string(b), "\n") != 4 {
		t.Errorf("the log is %q, %v; want three samples and what they are of", b, err)
	}
}

func TestSavedSettingsReplaceAFileAndKeepItsPermissions(t *testing.T) {
	dir := t.TempDir()
	file, link := filepath.Join(dir, "settings.json"), filepath.Join(dir, "link")
	if err := os.WriteFile(file, []byte("an old text that is longer than settings are: "+strings.Repeat("x", 1000)), 0o600); err != nil {
		t.Fatal(err)
	}
	want := coordinator.Settings{Cycle: time.Second, Fusion: 3, Algorithm: coordinator.Ring}
	if err := want.Save(file); err != nil {
		t.Fatal(err)
	}
	if got, err := coordinator.LoadSettings(file); err != nil || got != want {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
	if info, err := os.Stat(file); err != nil || runtime.GOOS != "windows" && info.Mode().Perm() != 0o600 {
		t.Errorf("got %v, %v, want the old permissions", info, err)
	}
	if err := os.Symlink(file, link); err == nil { // some systems do not let a user create links
		if err := want.Save(link); err == nil {
			t.Error("a link was replaced")
		}
	}
	if err := want.Save(dir); err == nil {
		t.Error("a directory was replaced")
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) > 2 {
		t.Errorf("beside the file there are %v, %v", entries, err)
	}
}

func TestSettingsThatCannotBeAreRefused(t *testing.T) {
	leak.Check(t)
	file := filepath.Join(t.TempDir(), "settings.json")
	for _, text := range []string{"", "{", `{"algorithm":"fast"}`, `{"algorithm":"ring","fusion_bytes":-1}`} {
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if s, err := coordinator.LoadSettings(file); !errors.Is(err, fault.Misuse) || !strings.Contains(err.Error(), "remove this one") {
			t.Errorf("%q: got %+v and %v, want misuse with a remedy", text, s, err)
		}
	}
	// The first file does not exist. The second one is a directory.
	for _, file := range []string{filepath.Join(t.TempDir(), "none.json"), t.TempDir()} {
		_, err := coordinator.LoadSettings(file)
		if !errors.Is(err, fault.Misuse) || strings.Contains(err.Error(), "remove") || strings.Count(err.Error(), file) != 1 {
			t.Errorf("%s: got %v, want misuse that names it once, and nothing to remove", file, err)
		}
	}
	err := comm.Local(1, func(ctx context.Context, c *comm.Comm) error {
		_, err := coordinator.Start(ctx, c, coordinator.WithSettings(coordinator.Settings{Algorithm: "fast"}))
		return err
	})
	if !errors.Is(err, fault.Misuse) {
		t.Errorf("got %v, want misuse", err)
	}
	err = comm.Local(1, func(ctx context.Context, c *comm.Comm) error {
		_, err := coordinator.Start(ctx, c, coordinator.WithAutotune(coordinator.Autotune{Samples: 65}))
		return err
	})
	if !errors.Is(err, fault.Misuse) || !strings.Contains(err.Error(), "at most 64") {
		t.Errorf("65 samples: got %v, want misuse", err)
	}
	for _, v := range [][2]string{
		{"TUTTI_AUTOTUNE_MAX_SAMPLES", "0"}, {"TUTTI_AUTOTUNE_MAX_SAMPLES", "65"}, {"TUTTI_AUTOTUNE_STEPS_PER_SAMPLE", "few"}, {"TUTTI_AUTOTUNE", "yes"},
		{"HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES", "65"}, {"HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE", "0"}, {"HOROVOD_AUTOTUNE", "yes"},
	} {
		if v[0] != "HOROVOD_AUTOTUNE" {
			t.Setenv("TUTTI_AUTOTUNE", "1")
		}
		t.Setenv(v[0], v[1])
		err = comm.Local(1, func(ctx context.Context, c *comm.Comm) error {
			_, err := coordinator.Start(ctx, c)
			return err
		})
		if !errors.Is(err, fault.Misuse) || !strings.Contains(err.Error(), v[0]) {
			t.Errorf("%s=%s: got %v, want misuse that names it", v[0], v[1], err)
		}
		t.Setenv(v[0], "")
		t.Setenv("TUTTI_AUTOTUNE", "")
	}
}
