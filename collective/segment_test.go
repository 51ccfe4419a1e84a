package collective

import (
	"context"
	"testing"

	"github.com/tutti-go/tutti/p2p"
	"github.com/tutti-go/tutti/reduce"
)

func TestARoundMayHaveSegmentsOfItsOwn(t *testing.T) {
	tm, seen := newRecordedTeam(t, 2)
	ring := find(t, VerbAllGather, "ring")
	const width = 30 // elements of a chunk; each rank sends one chunk, as one message
	for _, c := range []struct{ segment, want int }{
		{0, 1}, {8 * width, 1}, {64, 4}, {8 * width / 2, 2}, {0, 1},
	} {
		tm.Run(t, func(ctx context.Context, r *p2p.Round) error {
			r.SetSegment(c.segment)
			return newFixture(2, r.Rank(), width, provenanceKernel(t, reduce.Commutative)).call(ctx, r, ring, 0)
		})
		if got := len(seen()); got != 2*c.want {
			t.Errorf("segments of %d bytes: %d messages, want %d", c.segment, got, 2*c.want)
		}
	}
}
