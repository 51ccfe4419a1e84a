package coordinator_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/coordinator"
	"github.com/tutti-go/tutti/internal/test/leak"
	linked "github.com/tutti-go/tutti/transport/wires"
)

// worlds runs f on every rank of a coordinator, over several wires and sizes.
func worlds(t *testing.T, f func(ctx context.Context, c *comm.Comm, co *coordinator.Coordinator) error, opts ...coordinator.Option) {
	t.Helper()
	for _, wire := range wires() {
		for _, n := range []int{1, 2, 3, 4} {
			t.Run(fmt.Sprintf("%s/%d", wire, n), func(t *testing.T) {
				leak.Check(t)
				if err := comm.Local(n, with(f, opts...), comm.WithTransport(linked.All()...), comm.WithTransportName(wire)); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// with returns a rank's program that starts a coordinator, runs the function and closes the
// coordinator.
func with(f func(context.Context, *comm.Comm, *coordinator.Coordinator) error, opts ...coordinator.Option) func(context.Context, *comm.Comm) error {
	return func(ctx context.Context, c *comm.Comm) error {
		co, err := coordinator.Start(ctx, c, opts...)
		if err != nil {
			return err
		}
		if err := f(ctx, c, co); err != nil {
			return err
		}
		return co.Close(ctx)
	}
}

// whileRank1HasJoined runs f on ranks 0 and 2 of three ranks. Rank 1 joins at once, and the other
// ranks join after f.
func whileRank1HasJoined(t *testing.T, f func(context.Context, *comm.Comm, *coordinator.Coordinator) error) {
	t.Helper()
	leak.Check(t)
	if err := comm.Local(3, with(func(ctx context.Context, c *comm.Comm, co *coordinator.Coordinator) error {
		if c.Rank() != 1 {
			if err := f(ctx, c, co); err != nil {
				return err
			}
		}
		_, err := co.Join(ctx)
		return err
	})); err != nil {
		t.Error(err)
	}
}

func vector(n, rank int) []float32 {
	v := make([]float32, n)
	for i := range v {
		v[i] = float32((i*7+rank*31)%1000 - 300)
	}
	return v
}

func sum(n, ranks int) []float32 {
	v := make([]float32, n)
	for r := range ranks {
		for i, x := range vector(n, r) {
			v[i] += x
		}
	}
	return v
}

func equal[T comparable](what string, got, want []T) error {
	if len(got) != len(want) {
		return fmt.Errorf("%s: %d elements, want %d", what, len(got), len(want))
	}
	for i := range got {
		if got[i] != want[i] {
			return fmt.Errorf("%s: element %d is %v, want %v", what, i, got[i], want[i])
		}
	}
	return nil
}

func TestTensorsSubmittedInAnyOrderAreReduced(t *testing.T) {
	sizes := []int{1, 0, 3, 1000, 70_000, 5, 64, 300_000, 2, 17}
	if raceEnabled {
		sizes[7] = 30_000 // two parts; more parts would find no further races
	}
	worlds(t, func(ctx context.Context, c *comm.Comm, co *coordinator.Coordinator) error {
		rnd := rand.New(rand.NewPCG(1, uint64(c.Rank())))
		for range 3 {
			bufs := make([][]float32, len(sizes))
			hs := make([]*coordinator.Handle, len(sizes))
			for _, i := range rnd.Perm(len(sizes)) {
				bufs[i] = vector(sizes[i], c.Rank())
				hs[i] = coordinator.AllReduce(co, fmt.Sprintf("w%d", i), bufs[i], comm.Sum)
			}
			if err := coordinator.WaitAll(ctx, hs...); err != nil {
				return err
			}
			for i, n := range sizes {
				if err := equal(fmt.Sprintf("w%d", i), bufs[i], sum(n, c.Size())); err != nil {
					return err
				}
			}
		}
		return nil
	}, coordinator.WithPartition(100_000))
}

func TestEveryOperationBringsItsResult(t *testing.T) {
	worlds(t, func(ctx context.Context, c *comm.Comm, co *coordinator.Coordinator) error {
		n, me := c.Size(), c.Rank()
		for step := range 3 {
			b := []int32{int32(me), 7}
			cast := coordinator.Broadcast(co, "cast", b, n-1)
			cast2 := coordinator.Broadcast(co, "cast2", []int32{1}, n-1)
			rows := slices.Repeat([]int64{int64(me)}, 2*(me+step%2))
			var gathered coordinator.Rows[int64]
			gather := coordinator.AllGather(co, "gather", &gathered, rows, coordinator.Shape(me+step%2, 2))
			src := vector(2*(n+1), me)
			lo, hi := 0, 2*2 // n+1 rows of 2: rank 0 has two
			if me > 0 {
				lo, hi = 2+2*me, 4+2*me
			}
			part := make([]float32, hi-lo)
			scatter := coordinator.ReduceScatter(co, "scatter", part, src, comm.Mean, coordinator.Shape(n+1, 2))
			splits, all := make([]int, n), []int16{}
			for r := range n {
				splits[r] = r + 1
				all = append(all, slices.Repeat([]int16{int16(100*me + r)}, r+1)...)
			}
			var exchanged coordinator.Rows[int16]
			exchange := coordinator.AllToAll(co, "exchange", &exchanged, all, splits)
			barrier := coordinator.Barrier(co, "barrier")
			if err := coordinator.WaitAll(ctx, cast, cast2, gather, scatter, exchange, barrier); err != nil {
				return err
			}
			if err := equal("broadcast", b, []int32{int32(n - 1), 7}); err != nil {
				return err
			}
			mean := sum(2*(n+1), n)[lo:hi]
			for i := range mean {
				mean[i] /= float32(n)
			}
			if err := equal("reducescatter", part, mean); err != nil {
				return err
			}
			if err := checkRows(gathered, exchanged, n, me, step); err != nil {
				return err
			}
		}
		return nil
	})
}

func checkRows(gathered coordinator.Rows[int64], exchanged coordinator.Rows[int16], n, me, step int) error {
	var want []int64
	var wantRows []int
	for r := range n {
		want = append(want, slices.Repeat([]int64{int64(r)}, 2*(r+step%2))...)
		wantRows = append(wantRows, r+step%2)
	}
	if err := equal("allgather", gathered.Values, want); err != nil {
		return err
	}
	if err := equal("allgather's rows", gathered.Counts, wantRows); err != nil {
		return err
	}
	var sent []int16
	for r := range n {
		sent = append(sent, slices.Repeat([]int16{int16(100*r + me)}, me+1)...)
	}
	if err := equal("alltoall", exchanged.Values, sent); err != nil {
		return err
	}
	return equal("alltoall's rows", exchanged.Counts, slices.Repeat([]int{me + 1}, n))
}
