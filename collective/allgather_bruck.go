package collective

import (
	"context"

	"github.com/tutti-go/tutti/p2p"
)

// bruckAllGather gives every rank the chunks of all other ranks. On entry, each rank's own chunk is
// in buf. All chunks are equally long.
//
// Each rank holds a run of consecutive chunks that begins with its own chunk. In every step it
// receives the run of the rank whose chunk follows this run. So the run doubles in each step. With
// five ranks:
//
//	         step 0   step 1   step 2
//	rank 0   0 → 4    01 → 3   0 → 1
//	rank 1   1 → 0    12 → 4   1 → 2
//	rank 2   2 → 1    23 → 0   2 → 3
//	rank 3   3 → 2    34 → 1   3 → 4
//	rank 4   4 → 3    40 → 2   4 → 0
//
// Cost: ⌈log₂n⌉α + m(n-1)/n β, and m bytes of scratch memory.
//
// Nothing is folded.
//
// Bruck, Ho, Kipnis, Upfal and Weathersby, "Efficient algorithms for all-to-all communications
// in multiport message-passing systems", IEEE TPDS 8(11), 1997.
func bruckAllGather(ctx context.Context, r *p2p.Round, buf chunks) error {
	n, me := r.Size(), r.Rank()
	run := r.Scratch(len(buf.buf)) // chunks me, me+1, …
	size := len(buf.of(me))
	copy(run, buf.of(me))

	for held := 1; held < n; held *= 2 {
		more := min(held, n-held)
		before, behind := modulo(me-held, n), modulo(me+held, n)
		if err := r.Exchange(ctx, before, run[:more*size], behind, run[held*size:][:more*size]); err != nil {
			return err
		}
	}
	first := (n - me) * size // number of bytes of chunks me to n-1 in the run
	copy(buf.buf[me*size:], run[:first])
	copy(buf.buf, run[first:])
	return nil
}
