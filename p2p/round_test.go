package p2p_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/test/teamtest"
	"github.com/tutti-go/tutti/p2p"
	"github.com/tutti-go/tutti/reduce"
	"github.com/tutti-go/tutti/tensor"
)

// smallSegment is the size in bytes of a segment with two elements.
const smallSegment = 16

// lengths holds message lengths in elements: no element, part of a segment, and lengths just below
// and above whole segments and the window.
var lengths = []int{0, 1, 2, 3, 2*p2p.Window - 1, 2 * p2p.Window, 2*p2p.Window + 1, 9 * p2p.Window}

// numbers returns count elements that are unique to the given rank and message.
func numbers(rank, count int) []uint64 {
	s := make([]uint64, count)
	for i := range s {
		s[i] = uint64(rank+1)<<32 | uint64(i)
	}
	return s
}

// The two directions of an exchange may end at different times. The longer direction must then go
// on alone.
func TestExchangesOfAnyTwoLengthsComplete(t *testing.T) {
	tm := teamtest.New(t, 2, smallSegment)
	for _, there := range lengths {
		for _, back := range lengths {
			tm.Run(t, func(ctx context.Context, r *p2p.Round) error {
				out, in := there, back
				if r.Rank() == 1 {
					out, in = back, there
				}
				got := make([]uint64, in)
				if err := r.Exchange(ctx, 1-r.Rank(), tensor.Bytes(numbers(r.Rank(), out)), 1-r.Rank(), tensor.Bytes(got)); err != nil {
					return err
				}
				if want := numbers(1-r.Rank(), in); !bytes.Equal(tensor.Bytes(got), tensor.Bytes(want)) {
					return fmt.Errorf("%d there, %d back: got %x, want %x", there, back, got, want)
				}
				return nil
			})
		}
	}
}

// A rank in the middle of a chain forwards a message that it is still receiving. No rank may wait
// for an event that happens only after this rank itself has gone on.
func TestChainForwardsWhileReceiving(t *testing.T) {
	const n = 4
	tm := teamtest.New(t, n, smallSegment)
	for _, count := range lengths {
		tm.Run(t, func(ctx context.Context, r *p2p.Round) error {
			buf := numbers(0, count)
			if r.Rank() > 0 {
				buf = make([]uint64, count)
				if err := r.Recv(ctx, r.Rank()-1, tensor.Bytes(buf)); err != nil {
					return err
				}
			}
			if r.Rank() < n-1 {
				if err := r.Send(ctx, r.Rank()+1, tensor.Bytes(buf)); err != nil {
					return err
				}
			}
			if !bytes.Equal(tensor.Bytes(buf), tensor.Bytes(numbers(0, count))) {
				return fmt.Errorf("%d elements: got %x", count, buf)
			}
			return nil
		})
	}
}

// orderedKernel returns an operator that is not commutative: it concatenates decimal digits,
// beginning with the digits of the earlier operand.
func orderedKernel(t *testing.T) reduce.Kernel {
	t.Helper()
	k, err := reduce.Func("before", reduce.RankOrder, func(a, b uint64) uint64 { return 10*a + b }).Kernel(tensor.Uint64)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func TestFoldsKeepTheirSide(t *testing.T) {
	tm := teamtest.New(t, 2, smallSegment)
	k := orderedKernel(t)
	for _, count := range lengths {
		for _, side := range []p2p.Side{p2p.Earlier, p2p.Later} {
			for _, outOfPlace := range []bool{false, true} {
				tm.Run(t, func(ctx context.Context, r *p2p.Round) error {
					me, peer := r.Rank(), 1-r.Rank()
					own, out, dst := make([]uint64, count), make([]uint64, count), make([]uint64, count)
					for i := range own {
						own[i], out[i] = uint64(me+1), uint64(me+1)
					}
					var err error
					if outOfPlace {
						err = r.ExchangeFoldTo(ctx, peer, tensor.Bytes(out), peer, tensor.Bytes(dst), tensor.Bytes(own), k, side)
					} else {
						dst = own
						err = r.ExchangeFold(ctx, peer, tensor.Bytes(out), peer, tensor.Bytes(own), k, side)
					}
					if err != nil {
						return err
					}
					want := uint64(10*(peer+1) + me + 1)
					if side == p2p.Later {
						want = uint64(10*(me+1) + peer + 1)
					}
					for i := range dst {
						if dst[i] != want || outOfPlace && own[i] != uint64(me+1) {
							return fmt.Errorf("%d elements, side %d, apart %v: element %d is %d, want %d", count, side, outOfPlace, i, dst[i], want)
						}
					}
					return nil
				})
			}
		}
	}
}

// There are more fragments than flag sets and slots, so ranks must use each slot again while slower
// ranks may still be reading. Each rank publishes its own fragments as far ahead of its reads as is
// allowed. Operations follow each other without a pause.
func TestFragmentsAreNotOverwrittenWhileRead(t *testing.T) {
	for _, n := range []int{2, 3, 9} {
		tm := teamtest.New(t, n, smallSegment)
		for _, size := range []int{8, p2p.SmallSize, p2p.SmallSize + 8, p2p.SlotSize / 4, p2p.SlotSize} {
			tm.Run(t, func(ctx context.Context, r *p2p.Round) error {
				for _, fragments := range []int{1, 70, 5, 1, 40} {
					if err := exchangeFragments(ctx, r, fragments, size); err != nil {
						return err
					}
				}
				return nil
			})
		}
	}
}

// exchangeFragments makes every rank publish a number of fragments, and checks the fragments of all
// other ranks.
func exchangeFragments(ctx context.Context, r *p2p.Round, fragments, size int) error {
	const stride = 64 // distance between the elements that are written and read
	lead := r.MaxLead()
	if size <= p2p.SmallSize {
		lead = 0
	}
	in := r.Fragments(fragments, size)
	out := in
	number := func(i, rank int) uint64 { return uint64(i*r.Size() + rank) }
	for i := range fragments + lead {
		if i < fragments {
			if err := in.AwaitFree(ctx); err != nil {
				return err
			}
			own := tensor.Elements[uint64](in.Slot(r.Rank())[:size])
			for j := 0; j < len(own); j += stride {
				own[j] = number(i, r.Rank())
			}
			in.SetDone()
			in = in.Next()
		}
		if i < lead {
			continue
		}
		for rank := range r.Size() {
			if err := out.AwaitDone(ctx, rank); err != nil {
				return err
			}
			share := tensor.Elements[uint64](out.Slot(rank)[:size])
			for j := 0; j < len(share); j += stride {
				if got, want := share[j], number(i-lead, rank); got != want {
					return fmt.Errorf("piece %d of %d bytes, rank %d of %d, element %d: got %d, want %d", i-lead, size, rank, r.Size(), j, got, want)
				}
			}
		}
		out = out.Next()
	}
	return nil
}

// In some operations all ranks wait for each other, and in others one rank only sends. They have
// few or many fragments, which are small or large. The test runs them in all orders. No rank may
// take a fragment of the next operation for a fragment of the current one, or overwrite a fragment
// that another rank still reads.
func TestOperationsOfAllKindsFollowEachOther(t *testing.T) {
	const operations = 1000
	sizes := []int{8, p2p.SmallSize, p2p.SmallSize + 8, p2p.SlotSize / 4, p2p.SlotSize/2 + 8, p2p.SlotSize}
	type operation struct{ fragments, size, root int }
	const nobody = -1
	for _, n := range []int{2, 3, 5} {
		tm := teamtest.New(t, n, smallSegment)
		rng := rand.New(rand.NewPCG(1, uint64(n)))
		all := make([]operation, operations)
		for i := range all {
			all[i] = operation{1 + 6*rng.IntN(2), sizes[rng.IntN(len(sizes))], nobody}
			if rng.IntN(2) == 0 {
				all[i].fragments, all[i].root = 3*all[i].fragments, rng.IntN(n)
			}
		}
		tm.Each(t, func(ctx context.Context, rank int) error {
			for i, op := range all {
				r := tm.Ranks[rank].Group.NewRound(uint32(i+1), uint64(100+i), nil)
				var err error
				if op.root == nobody {
					err = exchangeFragments(ctx, r, op.fragments, op.size)
				} else {
					err = broadcastFragments(ctx, r, i, op.root, op.fragments, op.size)
				}
				if err != nil {
					return fmt.Errorf("operation %d, %+v: %w", i, op, err)
				}
				r.End()
			}
			return nil
		})
	}
}

// broadcastFragments publishes a number of fragments on the root, and all other ranks read them.
// The first and the last word of a fragment identify the operation and the fragment.
func broadcastFragments(ctx context.Context, r *p2p.Round, operation, root, fragments, size int) error {
	number := func(i int) uint64 { return uint64(operation+1)<<32 | uint64(i) }
	p := r.Fragments(fragments, size)
	for i := range fragments {
		last := size/8 - 1
		if r.Rank() == root {
			if err := p.AwaitFree(ctx); err != nil {
				return err
			}
			own := tensor.Elements[uint64](p.Slot(root)[:size])
			own[0], own[last] = number(i), number(i)
		} else {
			if err := p.AwaitDone(ctx, root); err != nil {
				return err
			}
			share := tensor.Elements[uint64](p.Slot(root)[:size])
			if share[0] != number(i) || share[last] != number(i) {
				return fmt.Errorf("piece %d of %d bytes of rank %d's: got %x and %x, want %x", i, size, root, share[0], share[last], number(i))
			}
		}
		p.SetDone()
		p = p.Next()
	}
	return nil
}

func TestRanksInDifferentOperationsReportMismatch(t *testing.T) {
	tm := teamtest.New(t, 2, smallSegment)
	tm.Each(t, func(ctx context.Context, i int) error {
		r := tm.Ranks[i].Group.NewRound(1, uint64(100+i), nil)
		defer r.End()
		p := r.Fragments(1, 8)
		p.SetDone()
		err := p.AwaitDone(ctx, 1-i)
		var f *fault.Error
		if !errors.As(err, &f) || f.Kind != fault.Mismatch || len(f.Peers) != 1 || f.Peers[0].Rank != 1-i {
			// The other rank may have revoked its own group first, which has no effect on this
			// rank's group.
			return fmt.Errorf("got %v, want a mismatch with rank %d", err, 1-i)
		}
		return nil
	})
}
