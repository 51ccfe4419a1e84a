package coordinator

import (
	"context"
	"encoding/binary"
	"time"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/tensor"
)

// Rank 0 answers pings with its time, on the goroutine that receives them, so that the answer does
// not wait for what the coordinator is doing.
const (
	clockStep = step + 1
	pingName  = "ping"
	pongName  = "pong"

	pings = 16 // whose fastest round trip counts
	// pingLimit is for all pings together. A rank 0 that needs longer is gone or very busy.
	pingLimit = time.Second
)

// A clockSample compares the clocks at a time of this rank: rank 0's shows offset more, give or
// take maxError, half a round trip (Cristian, "Probabilistic clock synchronization", 1989).
type clockSample struct{ at, offset, maxError int64 }

// A clock translates this rank's time into rank 0's. It assumes that the offset changes evenly
// between two samples.
type clock struct {
	from, to int64
	offset   [2]int64
	maxError int64
}

// newClock makes a clock of any number of samples, of which the first and the last count.
func newClock(marks []clockSample) clock {
	if len(marks) == 0 {
		return clock{}
	}
	a, b := marks[0], marks[len(marks)-1]
	c := clock{a.at, b.at, [2]int64{a.offset, b.offset}, max(a.maxError, b.maxError)}
	if drift := b.offset - a.offset; 10*max(drift, -drift) >= b.at-a.at {
		// Too near to each other to say anything of drift.
		if b.maxError < a.maxError {
			a = b
		}
		c.offset, c.maxError = [2]int64{a.offset, a.offset}, a.maxError
	}
	return c
}

// toRoot is a time of this rank in rank 0's time. It keeps the order of times.
func (c clock) toRoot(t int64) int64 {
	if c.to <= c.from {
		return t + c.offset[0]
	}
	share := float64(min(max(t, c.from), c.to)-c.from) / float64(c.to-c.from)
	return t + c.offset[0] + int64(share*float64(c.offset[1]-c.offset[0]))
}

// answerPings has rank 0 send its time to a rank that asks, until the coordinator ends.
func (co *Coordinator) answerPings(from int) {
	err := co.control.OnNamed(clockStep, from, pingName, nil, func(_ comm.Tensor, err error) {
		if err != nil {
			return
		}
		body := binary.LittleEndian.AppendUint64(nil, uint64(co.now()))
		t := comm.Tensor{DType: tensor.Uint8, Shape: []int{len(body)}, Data: body}
		if co.control.SendNamed(clockStep, from, pongName, t, nil) == nil {
			co.answerPings(from)
		}
	})
	_ = err // the communicator has failed, which its other receives report
}

// sampleClock compares the clocks. Of several pings the fastest counts, whose error is the
// smallest. If rank 0 does not answer there is no sample, and it is not asked again: a late answer
// would be mistaken for that of the next ping.
func (co *Coordinator) sampleClock(ctx context.Context, r *recorder) {
	m := clockSample{at: int64(co.now())}
	if co.rank != 0 {
		co.clockMu.Lock()
		defer co.clockMu.Unlock()
		if co.clockUnavailable {
			return
		}
		ctx, cancel := context.WithTimeout(ctx, pingLimit)
		defer cancel()
		var ok bool
		for range pings {
			if one := co.ping(ctx); one.maxError < 0 {
				co.clockUnavailable = true // a late answer would be mistaken for that of the next ping
				break
			} else if !ok || one.maxError < m.maxError {
				m, ok = one, true
			}
		}
		if !ok {
			return
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.samples = append(r.samples, m)
}

// ping asks rank 0 for its time once:
//
//	this rank  sent ─────┐               ┌───► back
//	rank 0               └──► theirs ────┘
//
// If the ways there and back take equally long, rank 0's clock showed theirs at the middle of sent
// and back. At worst one of them took no time, so the error is at most half the round trip.
// maxError is -1 when there is no answer.
func (co *Coordinator) ping(ctx context.Context) clockSample {
	none := clockSample{maxError: -1}
	answer := make(chan int64, 1)
	err := co.control.OnNamed(clockStep, 0, pongName, nil, func(t comm.Tensor, err error) {
		if err == nil && len(t.Data) == 8 {
			answer <- int64(binary.LittleEndian.Uint64(t.Data))
		} else {
			answer <- -1
		}
	})
	if err != nil {
		return none
	}
	sent := int64(co.now())
	t := comm.Tensor{DType: tensor.Uint8, Shape: []int{1}, Data: make([]byte, 1)}
	if err := co.control.SendNamed(clockStep, 0, pingName, t, nil); err != nil {
		return none
	}
	select {
	case theirs := <-answer:
		back := int64(co.now())
		if theirs < 0 {
			return none
		}
		half := (back - sent) / 2
		return clockSample{at: sent + half, offset: theirs - sent - half, maxError: half}
	case <-co.ended:
	case <-ctx.Done():
	}
	return none
}
