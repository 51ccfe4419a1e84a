package coordinator

import (
	"context"
	"encoding/binary"
	"time"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/tensor"
)

// Rank 0 answers a ping with its time. It answers on the goroutine that receives the ping, so the
// answer does not wait for other work of the coordinator.
const (
	clockStep = step + 1
	pingName  = "ping"
	pongName  = "pong"

	pings = 16 // number of pings; the one with the fastest round trip is used
	// pingLimit bounds the time of all pings together. If rank 0 needs more time, it is gone or
	// very busy.
	pingLimit = time.Second
)

// A clockSample compares the clocks of this rank and rank 0. This rank's clock counts from the
// coordinator's start, and rank 0's answers count from 1970, so that all parts of a timeline count
// alike. At the time at of this rank's clock, rank 0's clock shows at + offset, with an error of at
// most maxError. The value of maxError is half a round trip (Cristian, "Probabilistic clock
// synchronization", 1989).
type clockSample struct{ at, offset, maxError int64 }

// A clock translates this rank's time into rank 0's. It assumes that the offset changes linearly
// between two samples.
type clock struct {
	from, to int64
	offset   [2]int64
	maxError int64
}

// newClock returns a clock for any number of samples. It uses the first and the last sample.
func newClock(marks []clockSample) clock {
	if len(marks) == 0 {
		return clock{}
	}
	a, b := marks[0], marks[len(marks)-1]
	c := clock{a.at, b.at, [2]int64{a.offset, b.offset}, max(a.maxError, b.maxError)}
	if drift := b.offset - a.offset; 10*max(drift, -drift) >= b.at-a.at {
		// The two samples are too close together to measure the drift.
		if b.maxError < a.maxError {
			a = b
		}
		c.offset, c.maxError = [2]int64{a.offset, a.offset}, a.maxError
	}
	return c
}

// toRoot translates a time of this rank into rank 0's time. The translation preserves the order of
// times.
func (c clock) toRoot(t int64) int64 {
	if c.to <= c.from {
		return t + c.offset[0]
	}
	share := float64(min(max(t, c.from), c.to)-c.from) / float64(c.to-c.from)
	return t + c.offset[0] + int64(share*float64(c.offset[1]-c.offset[0]))
}

// answerPings runs on rank 0. It answers each ping of one other rank with rank 0's time, until the
// coordinator ends.
func (co *Coordinator) answerPings(from int) {
	err := co.control.OnNamed(clockStep, from, pingName, nil, func(_ comm.Tensor, err error) {
		if err != nil {
			return
		}
		body := binary.LittleEndian.AppendUint64(nil, uint64(co.started.UnixNano()+int64(co.now())))
		t := comm.Tensor{DType: tensor.Uint8, Shape: []int{len(body)}, Data: body}
		if co.control.SendNamed(clockStep, from, pongName, t, nil) == nil {
			co.answerPings(from)
		}
	})
	_ = err // the communicator has failed; its other receives report the error
}

// sampleClock compares the clocks with several pings, and records the sample of the fastest ping,
// because it has the smallest error. If rank 0 does not answer a ping, sampleClock uses the answers
// so far, if there are any. It then never pings again, because a late answer would be mistaken for
// the answer to the next ping.
func (co *Coordinator) sampleClock(ctx context.Context, r *recorder) {
	m := clockSample{at: int64(co.now()), offset: co.started.UnixNano()}
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
				// A late answer would be mistaken for the answer to the next ping.
				co.clockUnavailable = true
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

// ping asks rank 0 for its time once. The variables sent and back are times of this rank, and
// theirs is a time of rank 0:
//
//	this rank  sent ─────┐               ┌───► back
//	rank 0               └──► theirs ────┘
//
// If both directions take equally long, rank 0 has read its clock halfway between sent and back. In
// the worst case one direction took no time, so the error is at most half the round trip. maxError
// is -1 if there is no answer.
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
