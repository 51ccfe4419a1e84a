package coordinator

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/internal/test/leak"
	linked "github.com/tutti-go/tutti/transport/wires"
)

func TestAClockBetweenTwoMarksDriftsEvenlyAndNeverGoesBack(t *testing.T) {
	const s = int64(time.Second)
	for what, c := range map[string]struct {
		marks    []clockSample
		at, want int64
	}{
		"no mark":             {nil, 7, 7},
		"one":                 {[]clockSample{{5, 100, 1}}, 7, 107},
		"at the first":        {[]clockSample{{s, 100, 1}, {3 * s, 300, 1}}, s, s + 100},
		"between":             {[]clockSample{{s, 100, 1}, {3 * s, 300, 1}}, 2 * s, 2*s + 200},
		"after the last":      {[]clockSample{{s, 100, 1}, {3 * s, 300, 1}}, 9 * s, 9*s + 300},
		"before the first":    {[]clockSample{{s, 100, 1}, {3 * s, 300, 1}}, 0, 100},
		"too near, the worse": {[]clockSample{{10, 500, 90}, {20, 400, 9}}, 15, 415},
	} {
		if got := newClock(c.marks).toRoot(c.at); got != c.want {
			t.Errorf("%s: got %d, want %d", what, got, c.want)
		}
	}
	c := newClock([]clockSample{{0, 0, 1}, {1000, -99, 1}})
	for i := range int64(2000) {
		if c.toRoot(i+1) < c.toRoot(i) {
			t.Fatalf("at %d it goes back", i)
		}
	}
}

// All ranks of one process read one clock, so the true offset is known. The measured offset must
// differ from it by at most half a round trip.
func TestTheOffsetOfAClockIsWithinHalfARoundTrip(t *testing.T) {
	leak.Check(t)
	for _, wire := range []string{"memory", "tcp"} {
		err := comm.Local(4, func(ctx context.Context, c *comm.Comm) error {
			co, err := Start(ctx, c)
			if err != nil {
				return err
			}
			if err := c.Barrier(ctx); err != nil {
				return err
			}
			var r recorder
			co.sampleClock(ctx, &r)
			if len(r.samples) != 1 {
				return errors.New("rank 0 did not answer")
			}
			m, want := r.samples[0], co.started.UnixNano()
			if far := m.offset - want; far < -m.maxError-1 || far > m.maxError+1 {
				return fmt.Errorf("rank %d: offset %d, within %d, and it is %d", c.Rank(), m.offset, m.maxError, want)
			}
			return co.Close(ctx)
		}, comm.WithTransport(linked.All()...), comm.WithTransportName(wire))
		if err != nil {
			t.Error(err)
		}
	}
}
