package main

import (
	"runtime"
	"slices"
	"sync/atomic"
	"time"
)

// coreLatency times exchangeRounds rounds of exchangeRound exchanges. It stops after exchangeLimit.
const (
	exchangeRound  = 100
	exchangeRounds = 1000
	exchangeLimit  = 100 * time.Millisecond
)

// coreLatency returns the time in which two cores exchange a number, in seconds. Each core writes
// the number to its own cache line, and polls the other core's line until that line holds the same
// number. No collective, and no message in one direction, can be faster. The result is the median
// of many rounds, and 0 if only one goroutine can run at a time.
//
// The result depends on the two cores, which a hypervisor may change while the program runs.
func coreLatency() float64 {
	if runtime.GOMAXPROCS(0) < 2 {
		return 0
	}
	var lines [2]struct {
		n atomic.Uint64
		_ [120]byte
	}
	var stop atomic.Bool
	// The timer also ends a round, because a round never ends if both goroutines share a core.
	late := time.AfterFunc(exchangeLimit, func() { stop.Store(true) })
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

// echo writes n to own, and returns true when other contains n, too. It returns false after stop is
// set.
func echo(own, other *atomic.Uint64, n uint64, stop *atomic.Bool) bool {
	own.Store(n)
	for looks := 1; other.Load() < n; looks++ {
		if looks%exchangeRound == 0 && stop.Load() {
			return false
		}
	}
	return true
}
