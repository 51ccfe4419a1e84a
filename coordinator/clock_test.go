package coordinator

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/internal/leak"
)

func TestAClockBetweenTwoMarksDriftsEvenlyAndNeverGoesBack(t *testing.T) {
	const s = int64(time.Second)
	for what, c := range map[string]struct {
		marks    []clockMark
		at, want int64
	}{
		"no mark":             {nil, 7, 7},
		"one":                 {[]clockMark{{5, 100, 1}}, 7, 107},
		"at the first":        {[]clockMark{{s, 100, 1}, {3 * s, 300, 1}}, s, s + 100},
		"between":             {[]clockMark{{s, 100, 1}, {3 * s, 300, 1}}, 2 * s, 2*s + 200},
		"after the last":      {[]clockMark{{s, 100, 1}, {3 * s, 300, 1}}, 9 * s, 9*s + 300},
		"before the first":    {[]clockMark{{s, 100, 1}, {3 * s, 300, 1}}, 0, 100},
		"too near, the worse": {[]clockMark{{10, 500, 90}, {20, 400, 9}}, 15, 415},
	} {
		if got := newClock(c.marks).at(c.at); got != c.want {
			t.Errorf("%s: got %d, want %d", what, got, c.want)
		}
	}
	c := newClock([]clockMark{{0, 0, 1}, {1000, -99, 1}})
	for i := range int64(2000) {
		if c.at(i+1) < c.at(i) {
			t.Fatalf("at %d it goes back", i)
		}
	}
}

// All ranks of one process read one clock, so the true offset is known.
func TestTheOffsetOfAClockIsWithinHalfARoundTrip(t *testing.T) {
	leak.Check(t)
	for _, wire := range []string{"memory", "tcp"} {
		began := make([]time.Time, 4)
		err := comm.Local(4, func(ctx context.Context, c *comm.Comm) error {
			co, err := Start(ctx, c)
			if err != nil {
				return err
			}
			began[c.Rank()] = co.began
			if err := comm.Barrier(ctx, c); err != nil {
				return err
			}
			var r recorder
			co.markClock(ctx, &r)
			if len(r.marks) != 1 {
				return errors.New("rank 0 did not answer")
			}
			m, want := r.marks[0], int64(co.began.Sub(began[0]))
			if far := m.offset - want; far < -m.off-1 || far > m.off+1 {
				return fmt.Errorf("rank %d: offset %d, within %d, and it is %d", c.Rank(), m.offset, m.off, want)
			}
			return co.Close(ctx)
		}, comm.WithTransport(wire))
		if err != nil {
			t.Error(err)
		}
	}
}

func TestARecorderKeepsTheLastAndCountsTheOthers(t *testing.T) {
	var r recorder
	for i := range maxLives + 5 {
		r.add(life{bytes: i})
	}
	if len(r.lives) != maxLives || r.dropped != 5 || r.lives[r.next].bytes != 5 {
		t.Errorf("it has %d, dropped %d, and the oldest is %d; want %d, 5 and 5", len(r.lives), r.dropped, r.lives[r.next].bytes, maxLives)
	}
}
