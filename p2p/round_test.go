package p2p_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/teamtest"
	"github.com/tutti-go/tutti/p2p"
	"github.com/tutti-go/tutti/reduce"
	"github.com/tutti-go/tutti/tensor"
)

// tiny is a segment that holds two elements.
const tiny = 16

// lengths are messages of none, parts and many segments, in elements: around the
// ends of a segment and of the window.
var lengths = []int{0, 1, 2, 3, 2*p2p.Window - 1, 2 * p2p.Window, 2*p2p.Window + 1, 9 * p2p.Window}

// numbers are count elements that only this rank and message have.
func numbers(rank, count int) []uint64 {
	s := make([]uint64, count)
	for i := range s {
		s[i] = uint64(rank+1)<<32 | uint64(i)
	}
	return s
}

// The two directions of an exchange end at different times; whoever is done with
// one goes on with the other.
func TestExchangesOfAnyTwoLengthsEnd(t *testing.T) {
	tm := teamtest.New(t, 2, tiny)
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

// A rank in the middle of a chain passes on what it is still receiving: nobody is
// to wait for an end that comes only when it goes on itself.
func TestAChainOfMessagesFlows(t *testing.T) {
	const n = 4
	tm := teamtest.New(t, n, tiny)
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

// before is an operator that tells its operands apart: decimal digits, the
// earlier ones first.
func before(t *testing.T) reduce.Kernel {
	t.Helper()
	k, err := reduce.Func("before", reduce.RankOrder, func(a, b uint64) uint64 { return 10*a + b }).Kernel(tensor.Uint64)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func TestFoldsKeepTheSideTheyAreGiven(t *testing.T) {
	tm := teamtest.New(t, 2, tiny)
	k := before(t)
	for _, count := range lengths {
		for _, side := range []p2p.Side{p2p.Earlier, p2p.Later} {
			for _, apart := range []bool{false, true} {
				tm.Run(t, func(ctx context.Context, r *p2p.Round) error {
					me, peer := r.Rank(), 1-r.Rank()
					own, out, dst := make([]uint64, count), make([]uint64, count), make([]uint64, count)
					for i := range own {
						own[i], out[i] = uint64(me+1), uint64(me+1)
					}
					var err error
					if apart {
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
						if dst[i] != want || apart && own[i] != uint64(me+1) {
							return fmt.Errorf("%d elements, side %d, apart %v: element %d is %d, want %d", count, side, apart, i, dst[i], want)
						}
					}
					return nil
				})
			}
		}
	}
}

// More pieces than there are notes and slots, small and large, so that each is
// used again while slower ranks still look at it.
func TestPiecesAreNotOverwrittenWhileTheyAreRead(t *testing.T) {
	const n, pieces = 3, 200
	tm := teamtest.New(t, n, tiny)
	for _, size := range []int{8, p2p.SmallSize, p2p.SmallSize + 8, p2p.SlotSize} {
		tm.Run(t, func(ctx context.Context, r *p2p.Round) error {
			p := r.Pieces(pieces, size)
			for i := range pieces {
				if err := p.Claim(ctx); err != nil {
					return err
				}
				own := tensor.Elements[uint64](p.Slot(r.Rank())[:size])
				for j := range own {
					own[j] = uint64(i*n + r.Rank())
				}
				p.Done()
				for rank := range n {
					if err := p.AwaitDone(ctx, rank); err != nil {
						return err
					}
					for j, got := range tensor.Elements[uint64](p.Slot(rank)[:size]) {
						if want := uint64(i*n + rank); got != want {
							return fmt.Errorf("piece %d of %d bytes, rank %d, element %d: got %d, want %d", i, size, rank, j, got, want)
						}
					}
				}
				p = p.Next()
			}
			return nil
		})
	}
}

func TestRanksInDifferentOperationsDoNotTakeEachOthersPieces(t *testing.T) {
	tm := teamtest.New(t, 2, tiny)
	tm.Each(t, func(ctx context.Context, i int) error {
		r := tm.Ranks[i].Group.NewRound(1, uint64(100+i), nil)
		defer r.End()
		p := r.Pieces(1, 8)
		p.Done()
		err := p.AwaitDone(ctx, 1-i)
		var f *fault.Error
		if !errors.As(err, &f) || f.Kind != fault.Mismatch || len(f.Peers) != 1 || f.Peers[0].Rank != 1-i {
			// The other may have revoked its own group first; it shares nothing else with ours.
			return fmt.Errorf("got %v, want a mismatch with rank %d", err, 1-i)
		}
		return nil
	})
}
