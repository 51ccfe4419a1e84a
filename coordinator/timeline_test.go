package coordinator_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/coordinator"
	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/test/leak"
	"github.com/tutti-go/tutti/internal/timeline"
)

// merged merges the parts of n ranks, and returns the checked timeline.
func merged(t *testing.T, file string, n int) []timeline.ReadSpan {
	t.Helper()
	var parts []io.Reader
	for r := range n {
		b, err := os.ReadFile(timeline.PartName(file, r))
		if err != nil {
			t.Fatal(err)
		}
		parts = append(parts, bytes.NewReader(b))
	}
	var all bytes.Buffer
	if err := timeline.Merge(&all, parts...); err != nil {
		t.Fatal(err)
	}
	spans, infos, err := timeline.Check(&all)
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range infos {
		if i.Dropped != 0 {
			t.Errorf("rank %d dropped %d", i.Rank, i.Dropped)
		}
	}
	return spans
}

func TestATimelineShowsEveryTensorOnEveryRank(t *testing.T) {
	leak.Check(t)
	const n, steps = 4, 3
	file := filepath.Join(t.TempDir(), "out.json")
	names := []string{"small a", "small b", `a "large" one`, "cast", "gather", "barrier"}
	// Nothing is sent before WaitAll, so a slow machine fuses both small tensors, too.
	err := comm.Local(n, with(func(ctx context.Context, c *comm.Comm, co *coordinator.Coordinator) error {
		submit := func() error {
			return coordinator.WaitAll(ctx,
				coordinator.AllReduce(co, names[0], vector(5, c.Rank()), comm.Sum),
				coordinator.AllReduce(co, names[1], vector(7, c.Rank()), comm.Sum),
				coordinator.AllReduce(co, names[2], vector(50_000, c.Rank()), comm.Mean),
				coordinator.Broadcast(co, names[3], vector(9, c.Rank()), 1),
				coordinator.AllGather(co, names[4], new(coordinator.Rows[float32]), vector(c.Rank(), c.Rank())),
				coordinator.Barrier(co, names[5]))
		}
		if err := submit(); err != nil { // this submission is not recorded
			return err
		}
		if err := c.Barrier(ctx); err != nil {
			return err
		}
		if err := co.StartTimeline(ctx, file); err != nil {
			return err
		}
		if err := co.StartTimeline(ctx, file); !errors.Is(err, fault.Misuse) {
			return fmt.Errorf("a second start: got %v, want misuse", err)
		}
		for range steps {
			if err := submit(); err != nil {
				return err
			}
		}
		if err := co.StopTimeline(ctx); err != nil {
			return err
		}
		return submit() // this submission is not recorded
	}, coordinator.WithPartition(80_000), coordinator.WithCycle(time.Hour)))
	if err != nil {
		t.Fatal(err)
	}
	spans := merged(t, file, n)
	for r := range n {
		for _, name := range names {
			want := steps
			if name == names[2] {
				want *= 3 // the parts of the tensor
			}
			if got := count(spans, r, name, 0); got != want {
				t.Errorf("rank %d, %s: %d spans, want %d", r, name, got, want)
			}
			if got := countNamed(spans, r, name, "negotiate"); got != steps {
				t.Errorf("rank %d, %s: negotiated %d times, want %d", r, name, got, steps)
			}
		}
		if got := countNamed(spans, r, names[0], "fuse"); got != steps {
			t.Errorf("rank %d: fused %d times, want %d", r, got, steps)
		}
	}
}

func count(spans []timeline.ReadSpan, rank int, on string, depth int) (n int) {
	for _, s := range spans {
		if s.Rank == rank && s.Thread == on && s.Depth == depth {
			n++
		}
	}
	return n
}

func countNamed(spans []timeline.ReadSpan, rank int, on, name string) (n int) {
	for _, s := range spans {
		if s.Rank == rank && s.Thread == on && s.Name == name && s.Depth == 1 {
			n++
		}
	}
	return n
}

func TestTheEnvironmentStartsATimelineThatCloseWrites(t *testing.T) {
	for _, variable := range []string{"TUTTI_TIMELINE", "HOROVOD_TIMELINE"} {
		t.Run(variable, func(t *testing.T) {
			leak.Check(t)
			file := filepath.Join(t.TempDir(), "t.json")
			t.Setenv(variable, file)
			err := comm.Local(2, with(func(ctx context.Context, c *comm.Comm, co *coordinator.Coordinator) error {
				return coordinator.AllReduce(co, "w", vector(5, c.Rank()), comm.Sum).Wait(ctx)
			}))
			if err != nil {
				t.Fatal(err)
			}
			if spans := merged(t, file, 2); count(spans, 0, "w", 0) != 1 || count(spans, 1, "w", 0) != 1 {
				t.Errorf("got %+v", spans)
			}
			left, _ := filepath.Glob(file + "*")
			if slices.ContainsFunc(left, func(s string) bool { return strings.HasSuffix(s, ".new") }) || len(left) != 2 {
				t.Errorf("left are %v", left)
			}
		})
	}
}

// A rank must not learn that all ranks have submitted a tensor before all of them have. With
// corrected clocks, this must hold for times of different ranks, within the errors of the clocks.
func TestNoRankRunsATensorBeforeAllHaveSubmittedIt(t *testing.T) {
	leak.Check(t)
	const n = 3
	file := filepath.Join(t.TempDir(), "t.json")
	err := comm.Local(n, with(func(ctx context.Context, c *comm.Comm, co *coordinator.Coordinator) error {
		if err := co.StartTimeline(ctx, file); err != nil {
			return err
		}
		for step := range 10 {
			if step%n == c.Rank() { // this rank submits last
				if err := c.Barrier(ctx); err != nil {
					return err
				}
			}
			h := coordinator.AllReduce(co, "w", vector(5, c.Rank()), comm.Sum)
			if step%n != c.Rank() {
				if err := c.Barrier(ctx); err != nil {
					return err
				}
			}
			if err := h.Wait(ctx); err != nil {
				return err
			}
		}
		return co.StopTimeline(ctx)
	}))
	if err != nil {
		t.Fatal(err)
	}
	spans := merged(t, file, n)
	checkOrder(t, spans, n, "w", errorOf(t, file, n))
}

// errorOf returns twice the largest error of a clock, plus 2 for rounding.
func errorOf(t *testing.T, file string, n int) (worst int64) {
	t.Helper()
	for r := range n {
		f, err := os.Open(timeline.PartName(file, r))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		_, infos, err := timeline.Check(f)
		if err != nil || len(infos) != 1 {
			t.Fatal(err)
		}
		worst = max(worst, 2*infos[0].Error)
	}
	return worst + 2
}

func checkOrder(t *testing.T, spans []timeline.ReadSpan, n int, on string, off int64) {
	t.Helper()
	begins, runs := make([][]int64, n), make([][]int64, n)
	for _, s := range spans {
		switch {
		case s.Thread != on:
		case s.Depth == 0:
			begins[s.Rank] = append(begins[s.Rank], s.Begin)
		case s.Name == "negotiate":
			runs[s.Rank] = append(runs[s.Rank], s.End)
		}
	}
	for r := range n {
		if len(begins[r]) == 0 || len(begins[r]) != len(runs[r]) || len(begins[r]) != len(begins[0]) {
			t.Fatalf("rank %d: %d times, %d negotiated; rank 0 %d", r, len(begins[r]), len(runs[r]), len(begins[0]))
		}
		for other := range n {
			for i, at := range runs[r] {
				if at+off < begins[other][i] {
					t.Errorf("time %d: rank %d runs it at %d ns, and rank %d submits it at %d, with clocks within %d", i, r, at, other, begins[other][i], off)
				}
			}
		}
	}
}

func TestATimelineThatCannotBeWrittenAtTheEndIsAnErrorWithAnEmptyPart(t *testing.T) {
	leak.Check(t)
	file := filepath.Join(t.TempDir(), "out.json")
	part := timeline.PartName(file, 0)
	if err := comm.Local(1, with(func(ctx context.Context, c *comm.Comm, co *coordinator.Coordinator) error {
		if err := co.StartTimeline(ctx, file); err != nil {
			return err
		}
		if err := os.MkdirAll(filepath.Join(part+".new", "in the way"), 0o755); err != nil {
			return err
		}
		if err := co.StopTimeline(ctx); err == nil || !strings.Contains(err.Error(), part) {
			return fmt.Errorf("got %v, want an error that names the file", err)
		}
		return nil
	})); err != nil {
		t.Error(err)
	}
	if info, err := os.Stat(part); err != nil || info.Size() != 0 {
		t.Errorf("the part: got %v, %v, want it empty", info, err)
	}
}

func TestATimelineThatCannotBeWrittenIsRefusedAtOnce(t *testing.T) {
	leak.Check(t)
	err := comm.Local(1, with(func(ctx context.Context, c *comm.Comm, co *coordinator.Coordinator) error {
		if err := co.StartTimeline(ctx, filepath.Join(t.TempDir(), "no", "such", "folder")); !errors.Is(err, fault.Misuse) {
			return fmt.Errorf("got %v, want misuse", err)
		}
		return co.StopTimeline(ctx)
	}))
	if err != nil {
		t.Error(err)
	}
}
