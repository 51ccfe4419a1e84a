//go:build !race

// Under the race detector sync.Pool drops items at random, which costs allocations.

package mesh

import (
	"runtime"
	"sync"
	"testing"
	"time"
)

// A heartbeatCounter counts the heartbeats that all ranks send.
type heartbeatCounter struct {
	noEvents

	mu   sync.Mutex // guards the rest
	left int        // heartbeats that remain until the channel full is closed
	full chan struct{}
}

func (p *heartbeatCounter) LastCall(b []byte) []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.left--; p.left == 0 {
		close(p.full)
	}
	return append(b, "allreduce #41 float32 x1000 sum at train.go:88"...)
}

// heartbeatLimit bounds the time for any number of heartbeats here, on a busy machine.
const heartbeatLimit = 40 * time.Second

// waitFor waits until the given number of further heartbeats have been sent.
func (p *heartbeatCounter) waitFor(t *testing.T, beats int) {
	t.Helper()
	full := make(chan struct{})
	p.mu.Lock()
	p.left, p.full = beats, full
	p.mu.Unlock()
	select {
	case <-full:
	case <-time.After(heartbeatLimit):
		t.Fatalf("%d heartbeats have not been sent within %v", beats, heartbeatLimit)
	}
}

// grpcHeartbeatAllocs is the number of allocations that a heartbeat over grpc may cost on both
// ranks together. Every frame over grpc costs the same number; see package grpc.
const grpcHeartbeatAllocs = 12

// This test checks that an idle job allocates nothing. A garbage collection sometimes allocates,
// and so does a heartbeat that wakes a thread for the first time. So the test uses the best of
// several tries.
func TestHeartbeatsBetweenRanksDoNotAllocate(t *testing.T) {
	wires := map[string]float64{"tcp": 0, "grpc": grpcHeartbeatAllocs, "memory": 0}
	if runtime.GOOS == "linux" {
		wires["shm"] = 0
	}
	for name, most := range wires {
		t.Run(name, func(t *testing.T) {
			p := new(heartbeatCounter)
			quick := func(_ int, cfg *Config) {
				cfg.Events, cfg.Heartbeat, cfg.Silence = p, time.Millisecond, time.Hour
			}
			var r *testJob
			if name == "memory" {
				r = started(t, 3, quick)
			} else {
				r = startWired(t, 3, func(i int, cfg *Config) {
					quick(i, cfg)
					cfg.Transport = transportOf(t, name)
				}).testJob
			}
			defer r.close()
			p.waitFor(t, 200)
			const beats, tries = 500, 20
			got := most + 1
			for try := 0; try < tries && got > most+0.1; try++ {
				var before, after runtime.MemStats
				runtime.ReadMemStats(&before)
				p.waitFor(t, beats)
				runtime.ReadMemStats(&after)
				got = float64(after.Mallocs-before.Mallocs) / beats
			}
			if got > most+0.1 {
				t.Errorf("a heartbeat allocates %.2f times, of at most %v", got, most)
			}
		})
	}
}
