package comm_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/test/leak"
)

// A twoBufferCall is a call with two buffers, on 3 ranks with parts of 2 elements.
type twoBufferCall struct {
	name     string
	dst, src int // lengths in elements
	root     int // the rank that uses both buffers; -1 if all ranks do
	// inPlace returns the offset of dst from src, in elements, in a call in place on the given
	// rank.
	inPlace func(rank int) int
	call    func(ctx context.Context, c *comm.Comm, dst, src []int32) error
}

// never is the offset for calls that have no form in place.
const never = 1000

// twoBufferCalls returns all calls with two buffers.
func twoBufferCalls() []twoBufferCall {
	same := func(int) int { return 0 }
	ownPartOfSrc := func(rank int) int { return 2 * rank }
	ownPartOfDst := func(rank int) int { return -2 * rank }
	counts := comm.Counts([]int{2, 2, 2})
	wait := func(ctx context.Context, r *comm.Request) error {
		_, err := r.Wait(ctx)
		return err
	}
	return []twoBufferCall{
		{"allreduce", 6, 6, -1, same, func(ctx context.Context, c *comm.Comm, dst, src []int32) error {
			return comm.AllReduce(ctx, c, dst, comm.Sum, comm.From(src))
		}},
		{"iallreduce", 6, 6, -1, same, func(ctx context.Context, c *comm.Comm, dst, src []int32) error {
			return wait(ctx, comm.IAllReduce(c, dst, comm.Sum, comm.From(src)))
		}},
		{"reduce", 6, 6, 1, same, func(ctx context.Context, c *comm.Comm, dst, src []int32) error {
			return comm.Reduce(ctx, c, dst, comm.Sum, 1, comm.From(src))
		}},
		{"scan", 6, 6, -1, same, func(ctx context.Context, c *comm.Comm, dst, src []int32) error {
			return comm.Scan(ctx, c, dst, comm.Sum, comm.From(src))
		}},
		{"exscan", 6, 6, -1, same, func(ctx context.Context, c *comm.Comm, dst, src []int32) error {
			return comm.ExScan(ctx, c, dst, comm.Sum, comm.From(src))
		}},
		{"allgather", 6, 2, -1, ownPartOfDst, func(ctx context.Context, c *comm.Comm, dst, src []int32) error {
			return comm.AllGather(ctx, c, dst, comm.From(src))
		}},
		{"allgatherv", 6, 2, -1, ownPartOfDst, func(ctx context.Context, c *comm.Comm, dst, src []int32) error {
			return comm.AllGather(ctx, c, dst, comm.From(src), counts)
		}},
		{"gather", 6, 2, 1, ownPartOfDst, func(ctx context.Context, c *comm.Comm, dst, src []int32) error {
			return comm.Gather(ctx, c, dst, 1, comm.From(src))
		}},
		{"gatherv", 6, 2, 1, ownPartOfDst, func(ctx context.Context, c *comm.Comm, dst, src []int32) error {
			return comm.Gather(ctx, c, dst, 1, comm.From(src), counts)
		}},
		{"scatter", 2, 6, 1, ownPartOfSrc, func(ctx context.Context, c *comm.Comm, dst, src []int32) error {
			return comm.Scatter(ctx, c, dst, 1, comm.From(src))
		}},
		{"scatterv", 2, 6, 1, ownPartOfSrc, func(ctx context.Context, c *comm.Comm, dst, src []int32) error {
			return comm.Scatter(ctx, c, dst, 1, comm.From(src), counts)
		}},
		{"reduce_scatter", 2, 6, -1, ownPartOfSrc, func(ctx context.Context, c *comm.Comm, dst, src []int32) error {
			return comm.ReduceScatter(ctx, c, dst, comm.Sum, comm.From(src))
		}},
		{"ireduce_scatter", 2, 6, -1, ownPartOfSrc, func(ctx context.Context, c *comm.Comm, dst, src []int32) error {
			return wait(ctx, comm.IReduceScatter(c, dst, comm.Sum, comm.From(src)))
		}},
		{"reduce_scatterv", 2, 6, -1, ownPartOfSrc, func(ctx context.Context, c *comm.Comm, dst, src []int32) error {
			return comm.ReduceScatter(ctx, c, dst, comm.Sum, comm.From(src), counts)
		}},
		{"alltoall", 6, 6, -1, same, func(ctx context.Context, c *comm.Comm, dst, src []int32) error {
			return comm.AllToAll(ctx, c, dst, comm.From(src))
		}},
		{"ialltoall", 6, 6, -1, same, func(ctx context.Context, c *comm.Comm, dst, src []int32) error {
			return wait(ctx, comm.IAllToAll(c, dst, comm.From(src)))
		}},
		{"alltoallv", 6, 6, -1, same, func(ctx context.Context, c *comm.Comm, dst, src []int32) error {
			return comm.AllToAll(ctx, c, dst, comm.From(src), counts)
		}},
		{"sendrecv", 6, 6, -1, func(int) int { return never }, func(ctx context.Context, c *comm.Comm, dst, src []int32) error {
			_, err := comm.SendRecv(ctx, c, (c.Rank()+1)%3, 5, src, (c.Rank()+2)%3, 5, dst)
			return err
		}},
	}
}

// on makes the call with dst at the given offset from src, in elements, and returns dst.
func (b *twoBufferCall) on(ctx context.Context, c *comm.Comm, shift int) (dst []int32, err error) {
	memory := make([]int32, 40)
	src := memory[12:][:b.src]
	dst = memory[12+shift:][:b.dst]
	for i := range src {
		src[i] = int32(100*c.Rank() + i)
	}
	err = b.call(ctx, c, dst, src)
	if err != nil && !strings.Contains(err.Error(), fmt.Sprintf("bytes at %p", src)) && !strings.Contains(err.Error(), fmt.Sprintf("bytes at %p", dst)) {
		err = fmt.Errorf("the error does not say where the buffers are: %w", err)
	}
	return dst, err
}

// Overlapping buffers would give wrong results without an error, so every call must refuse them
// before it sends anything, at every offset. Two kinds of buffers must give the same result as
// separate buffers: the buffers of a call in place, and buffers that are adjacent.
func TestEveryCallRefusesBuffersThatOverlap(t *testing.T) {
	leak.Check(t)
	for _, noShared := range []bool{false, true} {
		err := comm.Local(3, func(ctx context.Context, c *comm.Comm) error {
			for _, b := range twoBufferCalls() {
				uses := b.root < 0 || b.root == c.Rank()
				want, err := b.on(ctx, c, 12)
				if err != nil {
					return fmt.Errorf("%s of separate buffers: %w", b.name, err)
				}
				inPlace := b.inPlace(c.Rank())
				for shift := 1 - b.dst; shift < b.src && uses; shift++ {
					if shift == inPlace {
						continue
					}
					if _, err := b.on(ctx, c, shift); !errors.Is(err, fault.Misuse) {
						return fmt.Errorf("%s of a dst %d elements behind src, which has %d: got %v, want %v", b.name, shift, b.src, err, fault.Misuse)
					}
				}
				shifts := []int{-b.dst, b.src, inPlace}
				if inPlace == never {
					shifts = shifts[:2]
				}
				for _, shift := range shifts {
					got, err := b.on(ctx, c, shift)
					// exscan leaves rank 0's dst unchanged, so its contents before the call are the
					// result.
					unchanged := b.name == "exscan" && c.Rank() == 0
					if err != nil || uses && !unchanged && !slices.Equal(got, want) {
						return fmt.Errorf("%s of a dst %d elements behind src: got %v and %v, want %v", b.name, shift, got, err, want)
					}
				}
			}
			return nil
		}, comm.WithParameters(comm.Parameters{NoSharedMemory: noShared}))
		if err != nil {
			t.Error(err)
		}
	}
}

// If a rank does not use one of its buffers, any slice is valid there.
func TestRanksThatAreNotTheRootMayGiveOverlappingBuffers(t *testing.T) {
	err := comm.Local(3, func(ctx context.Context, c *comm.Comm) error {
		for _, b := range twoBufferCalls() {
			if b.root < 0 {
				continue
			}
			shift := 1
			if c.Rank() == b.root {
				shift = 12
			}
			if _, err := b.on(ctx, c, shift); err != nil {
				return fmt.Errorf("%s: %w", b.name, err)
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// Each rank reads its own environment. An error about it must name that rank, and not rank 0.
func TestInvalidOptionsNameTheirRank(t *testing.T) {
	for name, value := range map[string]string{
		"TUTTI_RANK": "1", "TUTTI_SIZE": "2", "TUTTI_ROOT": "127.0.0.1:1", "TUTTI_RACK": "a b",
	} {
		t.Setenv(name, value)
	}
	_, err := comm.Init(t.Context())
	var e *fault.Error
	if !errors.As(err, &e) || e.Kind != fault.Misuse || e.Rank != 1 {
		t.Errorf("got %v, want a misuse that rank 1 noticed", err)
	}
}
