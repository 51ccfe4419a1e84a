package coordinator

import (
	"context"
	"encoding/binary"
	"time"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/tensor"
)

// Rank 0 answers pings with its time, on the goroutine that reads them, so that
// the answer does not wait for what the coordinator is doing.
const (
	clockStep = step + 1
	pingName  = "ping"
	pongName  = "pong"

	pings     = 16          // of which the fastest counts
	pingLimit = time.Second // for all of them: then rank 0 is gone, or very busy
)

// A clockMark is what rank 0's clock has more than this rank's, at a moment of
// this rank's, give or take off, half a round trip (Cristian, 1989).
type clockMark struct{ at, offset, off int64 }

// A clock translates this rank's time into rank 0's. The offset is taken to
// change evenly between two marks.
type clock struct {
	from, to int64
	offset   [2]int64
	off      int64
}

// newClock makes the best of none to several marks, of which the first and the
// last count.
func newClock(marks []clockMark) clock {
	if len(marks) == 0 {
		return clock{}
	}
	a, b := marks[0], marks[len(marks)-1]
	c := clock{a.at, b.at, [2]int64{a.offset, b.offset}, max(a.off, b.off)}
	if drift := b.offset - a.offset; 10*max(drift, -drift) >= b.at-a.at {
		// Too near to each other to say anything of drift.
		if b.off < a.off {
			a = b
		}
		c.offset, c.off = [2]int64{a.offset, a.offset}, a.off
	}
	return c
}

// at is a moment of this rank's in rank 0's time. Later is later there, too.
func (c clock) at(t int64) int64 {
	if c.to <= c.from {
		return t + c.offset[0]
	}
	share := float64(min(max(t, c.from), c.to)-c.from) / float64(c.to-c.from)
	return t + c.offset[0] + int64(share*float64(c.offset[1]-c.offset[0]))
}

// answerPings has rank 0 tell its time to a rank, until the coordinator ends.
func (co *Coordinator) answerPings(from int) {
	err := comm.OnNamed(co.nego, clockStep, from, pingName, nil, func(_ comm.Tensor, err error) {
		if err != nil {
			return
		}
		body := binary.LittleEndian.AppendUint64(nil, uint64(co.now()))
		t := comm.Tensor{DType: tensor.Uint8, Shape: []int{len(body)}, Data: body}
		if comm.SendNamed(co.nego, clockStep, from, pongName, t, nil) == nil {
			co.answerPings(from)
		}
	})
	_ = err // the communicator has ended, and what listens to it hears so
}

// markClock notes how this rank's clock stands to rank 0's. When rank 0 does not
// answer there is no mark, and after that none any more.
func (co *Coordinator) markClock(ctx context.Context, r *recorder) {
	m := clockMark{at: int64(co.now())}
	if co.rank != 0 {
		co.clockMu.Lock()
		defer co.clockMu.Unlock()
		if co.mute {
			return
		}
		ctx, cancel := context.WithTimeout(ctx, pingLimit)
		defer cancel()
		var ok bool
		for range pings {
			if one := co.ping(ctx); one.off < 0 {
				co.mute = true // an answer may come yet, and would be taken for another's
				break
			} else if !ok || one.off < m.off {
				m, ok = one, true
			}
		}
		if !ok {
			return
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.marks = append(r.marks, m)
}

// ping asks rank 0 for its time once; off is -1 when there is no answer.
func (co *Coordinator) ping(ctx context.Context) clockMark {
	none := clockMark{off: -1}
	answer := make(chan int64, 1)
	err := comm.OnNamed(co.nego, clockStep, 0, pongName, nil, func(t comm.Tensor, err error) {
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
	if err := comm.SendNamed(co.nego, clockStep, 0, pingName, t, nil); err != nil {
		return none
	}
	select {
	case theirs := <-answer:
		back := int64(co.now())
		if theirs < 0 {
			return none
		}
		half := (back - sent) / 2
		return clockMark{at: sent + half, offset: theirs - sent - half, off: half}
	case <-co.ended:
	case <-ctx.Done():
	}
	return none
}
