package comm

import (
	"context"
	"testing"

	"github.com/tutti-go/tutti/collective"
)

// The checks that are always on, alone: the context, the fingerprint, single flight,
// the call site, and what is listed for those who ask where this rank is. The aim is
// 60 ns; BenchmarkCallAlone has the rest of a call, too.
func BenchmarkChecks(b *testing.B) {
	err := Local(1, func(ctx context.Context, c *Comm) error {
		buf := []float32{1}
		var pl plan
		allReduce(&pl, buf, buf, Sum)
		if err := pl.prepare(c); err != nil {
			return err
		}
		b.ReportAllocs()
		for b.Loop() {
			if err := checked(ctx, c, &pl); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		b.Fatal(err)
	}
}

// checked is a call without what it is for. It has a frame of its own, as plan.do has.
//
//go:noinline
func checked(ctx context.Context, c *Comm, pl *plan) error {
	cl := &c.own
	if err := c.begin(ctx, pl, cl); err != nil {
		return err
	}
	c.round = c.g.Again(c.round, cl.seq, cl.fprint, cl)
	c.round.Follow(cl.trail)
	if _, ok := c.round.Leftover(); ok {
		return collective.CheckSegment(-1)
	}
	c.round.Clear()
	return c.leave(cl, nil)
}
