package comm

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/tutti-go/tutti/collective"
)

// BenchmarkChecks measures only the checks that are always on: the context, the fingerprint,
// concurrent calls, the call site, and the list of calls, which tells other ranks where this rank
// is. All of them together may take checksMost nanoseconds. The benchmark uses the shortest of many
// rounds, because other work on the machine lengthens some rounds but not all. BenchmarkCallAlone
// measures a whole call.
func BenchmarkChecks(b *testing.B) {
	err := Local(1, func(ctx context.Context, c *Comm) error {
		buf := []float32{1}
		var pl plan
		allReduce(&pl, buf, Sum)
		if err := errors.Join(pl.bind(c, nil), pl.prepare(c)); err != nil {
			return err
		}
		b.ReportAllocs()
		for b.Loop() {
			if err := checked(ctx, c, &pl); err != nil {
				return err
			}
		}
		least, err := shortest(func() error { return checked(ctx, c, &pl) })
		if err != nil {
			return err
		}
		b.ReportMetric(float64(least)/1000, "ns/shortest")
		if least > checksMost*1000 {
			b.Errorf("the checks take %.1f ns at the least, of at most %d", float64(least)/1000, checksMost)
		}
		return nil
	})
	if err != nil {
		b.Fatal(err)
	}
}

// checksMost is how many nanoseconds the checks of a call may take.
const checksMost = 60

// shortest returns the duration of a thousand calls in the fastest of 300 rounds.
func shortest(call func() error) (least time.Duration, err error) {
	for round := range 300 {
		began := time.Now()
		for range 1000 {
			if err := call(); err != nil {
				return 0, err
			}
		}
		if elapsed := time.Since(began); round == 0 || elapsed < least {
			least = elapsed
		}
	}
	return least, nil
}

// checked makes a call without running its collective. It has a separate stack frame, as
// Comm.execute has.
//
//go:noinline
func checked(ctx context.Context, c *Comm, pl *plan) error {
	cl := &c.blocking
	if err := c.begin(ctx, pl, cl); err != nil {
		return err
	}
	c.round = c.group.ReuseRound(c.round, cl.seq, cl.fingerprint, cl)
	c.round.SetHistoryHash(cl.historyHash)
	if _, ok := c.round.Unreceived(); ok {
		return collective.CheckSegment(-1)
	}
	c.round.Clear()
	return c.finish(cl, nil)
}
