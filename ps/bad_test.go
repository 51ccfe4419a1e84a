package ps_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/test/leak"
	"github.com/tutti-go/tutti/ps"
	"github.com/tutti-go/tutti/ps/optimizer"
	"github.com/tutti-go/tutti/tensor"
)

// refusal returns an error unless err is of the kind k and has all texts.
func refusal(what string, err error, k fault.Kind, texts ...string) error {
	if !errors.Is(err, k) {
		return fmt.Errorf("%s: got %v, want %v", what, err, k)
	}
	for _, text := range texts {
		if !strings.Contains(err.Error(), text) {
			return fmt.Errorf("%s: got %q, which does not say %q", what, err, text)
		}
	}
	return nil
}

func TestWrongArgumentsAreRefusedAndTheTensorStaysUsable(t *testing.T) {
	leak.Check(t)
	err := run("memory", 2, ps.Servers(1), func(ctx context.Context, cl *ps.Client) error {
		w, err := ps.Declare[float32](ctx, cl, "w", 4, ps.RejectNaN())
		if err != nil {
			return err
		}
		table, err := ps.DeclareTable[float64](ctx, cl, "t", 2, ps.Rows(10), ps.RejectNaN())
		if err != nil {
			return err
		}
		nan32, nan := float32(math.NaN()), math.NaN()
		buf := make([]float32, 6)
		for _, c := range []struct {
			what string
			err  error
			text string
		}{
			{"short push", w.Push(ctx, buf[:3]), "push w: rank 0: wrong use of the API: elements: got 3, want 4"},
			{"long pull", w.Pull(ctx, buf[:5]), "elements: got 5, want 4"},
			{"long dst", w.PushPull(ctx, buf[:4], buf[:5]), "elements: got 5, want 4"},
			{"overlap", w.PushPull(ctx, buf[:4], buf[1:5]), "overlap in part"},
			{"NaN", w.Push(ctx, []float32{0, 0, nan32, 0}), "element 2: got NaN"},
			{"NaN in a set", w.Set(ctx, []float32{nan32, 0, 0, 0}), "element 0: got NaN"},
			{"row width", table.Push(ctx, []int64{1, 2}, make([]float64, 3)), "elements for 2 rows: got 3, want 2 for each row"},
			{"row width of a pull", table.Pull(ctx, []int64{1}, make([]float64, 3)), "elements for 1 rows: got 3, want 2"},
			{"index", table.Push(ctx, []int64{9, 10}, make([]float64, 4)), "index 1 of 2: got 10, want 0 to 9"},
			{"negative index", table.Pull(ctx, []int64{-1}, make([]float64, 2)), "index 0 of 1: got -1, want 0 to 9"},
			{"NaN in a row", table.Push(ctx, []int64{5, 6}, []float64{0, 0, 0, nan}), "row 1 of 2, element 1: got NaN"},
		} {
			if err := refusal(c.what, c.err, fault.Misuse, strings.TrimPrefix(c.text, "push w: rank 0: wrong use of the API: ")); err != nil {
				return err
			}
		}
		if err := w.Push(ctx, []float32{1, 2, 3, 4}); err != nil {
			return err
		}
		if err := w.Pull(ctx, buf[:4]); err != nil {
			return err
		}
		return equal("after the refusals", buf[:4], []float32{1, 2, 3, 4})
	})
	if err != nil {
		t.Error(err)
	}
}

func TestWrongDeclarationsAreRefused(t *testing.T) {
	leak.Check(t)
	err := run("memory", 2, ps.Servers(1), func(ctx context.Context, cl *ps.Client) error {
		declare := func(name string, n int, opts ...ps.TensorOption) error {
			_, err := ps.Declare[float32](ctx, cl, name, n, opts...)
			return err
		}
		table := func(width int, opts ...ps.TensorOption) error {
			_, err := ps.DeclareTable[float32](ctx, cl, "t", width, opts...)
			return err
		}
		_, integers := ps.Declare[int32](ctx, cl, "i", 3)
		_, bools := ps.Declare[bool](ctx, cl, "b", 3, ps.Reduce(comm.Sum))
		_, adam := ps.Declare[int64](ctx, cl, "a", 3, ps.Reduce(comm.Sum), ps.Optimizer(optimizer.SGD{Rate: 1}))
		_, nan := ps.Declare[int64](ctx, cl, "a", 3, ps.Reduce(comm.Sum), ps.RejectNaN())
		_, compressed := ps.Declare[int64](ctx, cl, "a", 3, ps.Reduce(comm.Sum), ps.Compress(tensor.F16))
		for _, c := range []struct {
			what string
			err  error
			text string
		}{
			{"no name", declare("", 3), "name: got 0 bytes, want 1 to 512"},
			{"long name", declare(strings.Repeat("x", 513), 3), "name: got 513 bytes"},
			{"no elements", declare("x", 0), "elements: got 0, want at least 1"},
			{"no width", table(0), "width of a row: got 0"},
			{"too wide", table(1 << 21), "at most 281474976710656, and 1048576 in a row"},
			{"staleness", declare("x", 3, ps.Bounded(-1)), "Bounded: got -1, want 0 or more"},
			{"rows of a tensor", declare("x", 3, ps.Rows(4)), "Rows: got 4, want a positive number, for a table only"},
			{"operator", declare("x", 3, ps.Reduce(comm.Max)), "Reduce: got max, want comm.Sum or comm.Mean"},
			{"mean of integers", integers, "Reduce: got mean for elements of int32, want comm.Sum"},
			{"sum of bools", bools, "Reduce: got sum for elements of bool"},
			{"optimizer of integers", adam, "want float32 or float64"},
			{"NaN of integers", nan, "RejectNaN: got elements of int64"},
			{"compressed integers", compressed, "Compress: got elements of int64 as float16"},
			{"compressed to float32", declare("x", 3, ps.Compress(tensor.Float32)), "Compress: got elements of float32 as float32"},
			{"top-k of rows", table(2, ps.TopK(0.1)), "TopK: got a share of 0.1"},
			{"top-k of more", declare("x", 3, ps.TopK(1.1)), "TopK: got a share of 1.1"},
			{"top-k, compressed", declare("x", 3, ps.TopK(0.1), ps.Compress(tensor.F16)), "without Compress"},
			{"priority", declare("x", 3, ps.Priority(1<<40)), "Priority: got 1099511627776, want -1073741824 to 1073741824"},
			{"low priority", declare("x", 3, ps.Priority(math.MinInt)), "want -1073741824 to 1073741824"},
			{"rate", declare("x", 3, ps.Optimizer(optimizer.SGD{Rate: math.NaN()})), "optimizer"},
		} {
			if err := refusal(c.what, c.err, fault.Misuse, c.text); err != nil {
				return err
			}
		}
		// A second declaration by the same worker returns the same tensor, or names the first place.
		if err := declare("w", 3); err != nil {
			return err
		}
		if err := declare("w", 3); err != nil {
			return err
		}
		return refusal("declared twice", declare("w", 4), fault.Misuse, "float32 [4]", "float32 [3]", "bad_test.go:")
	})
	if err != nil {
		t.Error(err)
	}
}

func TestWorkersThatDeclareDifferentlyGetBothLines(t *testing.T) {
	leak.Check(t)
	err := run("memory", 3, ps.Servers(1), func(ctx context.Context, cl *ps.Client) error {
		if cl.Workers().Rank() == 0 {
			_, err := ps.Declare[float32](ctx, cl, "w", 10, ps.Asynchronous())
			return errors.Join(err, cl.Workers().Barrier(ctx))
		}
		if err := cl.Workers().Barrier(ctx); err != nil {
			return err
		}
		_, err := ps.Declare[float32](ctx, cl, "w", 11, ps.Asynchronous())
		err = refusal("the second", err, fault.Mismatch, "float32 [11] asynchronous mean", "float32 [10] asynchronous mean", "on rank 0", "on rank 1")
		var f *fault.Error
		if err != nil {
			return err
		}
		_, again := ps.Declare[float32](ctx, cl, "w", 11, ps.Asynchronous())
		if !errors.As(again, &f) || len(f.Peers) != 2 || f.Peers[0].At == f.Peers[1].At || !strings.HasPrefix(f.Peers[0].At, "bad_test.go:") || !strings.HasPrefix(f.Peers[1].At, "bad_test.go:") {
			return fmt.Errorf("got %v, want both places", again)
		}
		_, err = ps.Declare[float32](ctx, cl, "w", 10, ps.Asynchronous())
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

func TestRanksThatDisagreeAboutOptionsCannotConnect(t *testing.T) {
	leak.Check(t)
	err := comm.Local(2, func(ctx context.Context, c *comm.Comm) error {
		err := ps.Run(ctx, c, ps.Servers(1), func(context.Context, *ps.Client) error { return nil }, nil, ps.WithPart(1000+1000*c.Rank()))
		return refusal("parts", err, fault.Mismatch, "WithPart: got 1000 on rank 0 and 2000 on rank 1")
	})
	if err != nil {
		t.Error(err)
	}
}

func TestAJobNeedsWorkersAndServers(t *testing.T) {
	leak.Check(t)
	err := comm.Local(2, func(ctx context.Context, c *comm.Comm) error {
		_, err := ps.Connect(ctx, c)
		if err := refusal("no server", err, fault.Misuse, "got 2 workers and 0 servers"); err != nil {
			return err
		}
		if err := refusal("no worker", ps.Serve(ctx, c), fault.Misuse, "got 0 workers and 2 servers"); err != nil {
			return err
		}
		worker := func(context.Context, *ps.Client) error { return nil }
		if err := refusal("too many", ps.Run(ctx, c, ps.Servers(2), worker, nil), fault.Misuse, "Servers(2): got 2 servers of 2 ranks, want 1 to 1"); err != nil {
			return err
		}
		return refusal("no role", ps.Run(ctx, c, ps.ByRole(), worker, nil), fault.Misuse, "ByRole(): got no role")
	})
	if err != nil {
		t.Error(err)
	}
}

func TestAServersMemoryIsBounded(t *testing.T) {
	leak.Check(t)
	err := run("memory", 2, ps.Servers(1), func(ctx context.Context, cl *ps.Client) error {
		_, err := ps.Declare[float32](ctx, cl, "large", 30_000)
		if err := refusal("a large tensor", err, fault.Exhausted, "large"); err != nil {
			return err
		}
		table, err := ps.DeclareTable[float32](ctx, cl, "t", 100, ps.Asynchronous())
		if err != nil {
			return err
		}
		indices, rows := make([]int64, 50), make([]float32, 5000)
		for step := range 20 {
			for i := range indices {
				indices[i] = int64(step*len(indices) + i)
			}
			if err = table.Push(ctx, indices, rows); err != nil {
				break
			}
		}
		if err := refusal("many rows", err, fault.Exhausted, "push t"); err != nil {
			return err
		}
		return table.Pull(ctx, indices, rows) // the table stays usable
	}, ps.WithMemory(100_000))
	if err != nil {
		t.Error(err)
	}
}

func TestAClosedClientRefusesCalls(t *testing.T) {
	leak.Check(t)
	err := comm.Local(2, func(ctx context.Context, c *comm.Comm) error {
		if c.Rank() == 1 {
			return ps.Serve(ctx, c)
		}
		cl, err := ps.Connect(ctx, c)
		if err != nil {
			return err
		}
		w, err := ps.Declare[float32](ctx, cl, "w", 3)
		if err != nil {
			return err
		}
		if err := cl.Close(ctx); err != nil {
			return err
		}
		if err := cl.Close(ctx); err != nil {
			return fmt.Errorf("the second Close: %w", err)
		}
		_, err = ps.Declare[float32](ctx, cl, "v", 3)
		if err := refusal("declare", err, fault.Closed); err != nil {
			return err
		}
		return refusal("push", w.Push(ctx, make([]float32, 3)), fault.Closed, "push w")
	})
	if err != nil {
		t.Error(err)
	}
}
