package main

import (
	"runtime"
	"slices"
	"sync/atomic"
	"time"
)

// How often exchange tries, and for how long at most.
const (
	exchangeRound  = 100
	exchangeRounds = 1000
	exchangeLimit  = 100 * time.Millisecond
)

// coreLatency is how long two cores take to show each other a number, in seconds: each
// writes a cache line of its own, and looks at the other's until it sees the same
// number there. No collective, and half of no message back and forth, is faster. It
// is the median of many rounds, and 0 where only one goroutine can run at a time.
//
// What it takes depends on where the two cores are, which a virtual machine may
// change while it runs.
func coreLatency() float64 {
	if runtime.GOMAXPROCS(0) < 2 {
		return 0
	}
	var lines [2]struct {
		n atomic.Uint64
		_ [120]byte
	}
	var stop atomic.Bool
	late := time.AfterFunc(exchangeLimit, func() { stop.Store(true) }) // also in the middle of a round, where the two share a core
	defer late.Stop()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for n := uint64(1); echo(&lines[1].n, &lines[0].n, n, &stop); n++ {
		}
	}()
	var rounds []float64
	n := uint64(1)
	for met := true; met && len(rounds) < exchangeRounds; {
		from, at := n, time.Now()
		for ; met && n < from+exchangeRound; n++ {
			met = echo(&lines[0].n, &lines[1].n, n, &stop)
		}
		if met || len(rounds) == 0 {
			rounds = append(rounds, time.Since(at).Seconds()/float64(n-from))
		}
	}
	stop.Store(true)
	<-ended
	slices.Sort(rounds)
	return rounds[len(rounds)/2]
}

// echo shows n, and returns when the other shows it, too; false when that is not
// going to happen.
func echo(own, other *atomic.Uint64, n uint64, stop *atomic.Bool) bool {
	own.Store(n)
	for looks := 1; other.Load() < n; looks++ {
		if looks%exchangeRound == 0 && stop.Load() {
			return false
		}
	}
	return true
}
