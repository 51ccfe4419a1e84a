package p2p_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/tutti-go/tutti/internal/test/teamtest"
	"github.com/tutti-go/tutti/p2p"
	"github.com/tutti-go/tutti/tensor"
)

// A ring of many ranks sends many messages, and each message is a chunk of several vectors. If the
// links do not gather, each message is first assembled by copying. All messages must use the same
// stage for that.
func TestMessagesWithoutGatherShareOneStage(t *testing.T) {
	// n is the number of ranks, and each is the number of elements of a vector. A chunk of three
	// such vectors is longer than a frame.
	const n, each = 5, 100_000
	tm := teamtest.New(t, n, 1<<20)
	tm.Run(t, func(ctx context.Context, r *p2p.Round) error {
		list := make([][]byte, 3)
		for i := range list {
			list[i] = tensor.Bytes(make([]uint64, each))
		}
		all := p2p.Vectors{List: list, Chunks: n, Elem: 8}
		value := func(i, j, chunk int) uint64 { return uint64(chunk)<<40 | uint64(i)<<32 | uint64(j) }
		fill := func(chunk int, f func(e *uint64, want uint64) error) error {
			for i, b := range list {
				s := tensor.Elements[uint64](b)
				for j := chunk * each / n; j < (chunk+1)*each/n; j++ {
					if err := f(&s[j], value(i, j, chunk)); err != nil {
						return err
					}
				}
			}
			return nil
		}
		me := r.Rank()
		fill(me, func(e *uint64, want uint64) error { *e = want; return nil })
		for step := range n - 1 {
			err := r.ExchangeVectors(ctx, (me+1)%n, all.Chunk((me-step+n)%n), (me-1+n)%n, all.Chunk((me-1-step+n)%n))
			if err != nil {
				return err
			}
		}
		if held := r.ScratchCount(); held != 2 {
			return fmt.Errorf("%d messages hold %d pieces of memory, want one for those that go out, and one for those that come in", n-1, held)
		}
		for chunk := range n {
			if err := fill(chunk, func(e *uint64, want uint64) error {
				if *e != want {
					return fmt.Errorf("chunk %d: got %x, want %x", chunk, *e, want)
				}
				return nil
			}); err != nil {
				return err
			}
		}
		return nil
	})
}
