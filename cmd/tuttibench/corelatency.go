package main

import (
	"runtime"
	"slices"
	"sync/atomic"
	"time"
)

// The number of rounds of coreLatency, and its longest duration.
const (
	exchangeRound  = 100
	exchangeRounds = 1000
	exchangeLimit  = 100 * time.Millisecond
)

// coreLatency returns how many seconds two cores need to show each other a number: each writes
// a cache line of its own, and polls the other's until it has the same number. No collective,
// and no message in one direction, can be faster. The result is the median of many rounds, and
// 0 if only one goroutine can run at a time.
//
// It depends on which two cores they are, which a virtual machine may change while it runs.
func coreLatency() float64 {
	if runtime.GOMAXPROCS(0) < 2 {
		return 0
	}
	var lines [2]struct {
		n atomic.Uint64
		_ [120]byte
	}
	var stop atomic.Bool
	late := time.AfterFunc(exchangeLimit, func() { stop.Store(true) }) // also within a round: if both share a core, a round takes forever
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

// echo writes n, and returns once the other core has written it, too. It returns false if that
// will not happen.
func echo(own, other *atomic.Uint64, n uint64, stop *atomic.Bool) bool {
	own.Store(n)
	for looks := 1; other.Load() < n; looks++ {
		if looks%exchangeRound == 0 && stop.Load() {
			return false
		}
	}
	return true
}
