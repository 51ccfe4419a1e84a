package comm_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/internal/stream"
)

// The ranks agree on sharing memory by collectives, which cannot use it yet.
func TestAlgorithmsInSharedMemoryMayBeForced(t *testing.T) {
	err := comm.Local(3, func(ctx context.Context, c *comm.Comm) error {
		buf := []int32{1}
		if err := comm.AllReduce(ctx, c, buf, comm.Sum); err != nil {
			return err
		}
		if got := c.Algorithm("allreduce", 4); got != "shared" || buf[0] != 3 {
			t.Errorf("rank %d: algorithm %q brought %d", c.Rank(), got, buf[0])
		}
		return comm.Broadcast(ctx, c, buf, 1)
	}, comm.WithAlgorithm("allreduce:shared,broadcast:shared"))
	if err != nil {
		t.Fatal(err)
	}
}

// Results that are larger than the caches are written past them.
func TestSharedCollectivesAreRightWhenTheirResultsFitNoCache(t *testing.T) {
	const n = 3
	const count = stream.Least/4/n/n*n + 7*n
	at := func(rank, i int) int32 { return int32(rank*count + i) }
	err := comm.Local(n, func(ctx context.Context, c *comm.Comm) error {
		src, dst := make([]int32, count), make([]int32, count)
		for i := range src {
			src[i] = at(c.Rank(), i)
		}
		check := func(name string, want func(i int) int32) error {
			if got := c.Algorithm(name, 4*count); got != "shared" {
				return fmt.Errorf("%s runs by %q", name, got)
			}
			for i := range dst {
				if dst[i] != want(i) {
					return fmt.Errorf("%s: element %d is %d, want %d", name, i, dst[i], want(i))
				}
			}
			return nil
		}
		const part = count / n
		for _, step := range []struct {
			name string
			run  func() error
			want func(i int) int32
		}{
			{"allreduce", func() error { return comm.AllReduceTo(ctx, c, dst, src, comm.Sum) }, func(i int) int32 { return at(0, i) + at(1, i) + at(2, i) }},
			{"reduce", func() error { return comm.Reduce(ctx, c, dst, src, comm.Max, 1) }, func(i int) int32 {
				if c.Rank() == 1 {
					return at(2, i)
				}
				return at(0, i) + at(1, i) + at(2, i) // as it was
			}},
			{"alltoall", func() error { return comm.AllToAll(ctx, c, dst, src) }, func(i int) int32 { return at(i/part, c.Rank()*part+i%part) }},
			{"allgather", func() error { return comm.AllGather(ctx, c, dst, src[:part]) }, func(i int) int32 { return at(i/part, i%part) }},
			{"broadcast", func() error {
				if c.Rank() == 2 {
					copy(dst, src)
				}
				return comm.Broadcast(ctx, c, dst, 2)
			}, func(i int) int32 { return at(2, i) }},
		} {
			if err := step.run(); err != nil {
				return err
			}
			if err := check(step.name, step.want); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
