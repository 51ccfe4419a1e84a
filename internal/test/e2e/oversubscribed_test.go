//go:build unix

package e2e

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/tutti-go/tutti/comm"
)

// A latencyBound is how long an allreduce may take among 16 ranks on two idle cores.
type latencyBound struct {
	bytes, calls int // of a round
	max          time.Duration
}

func latencyBounds() []latencyBound {
	return []latencyBound{{4, 40, 2 * time.Millisecond}, {1 << 20, 3, 100 * time.Millisecond}}
}

// event is the name of the event in which rank 0 reports it.
func (p latencyBound) event() string { return fmt.Sprint("paced ", p.bytes) }

// paceRounds is how many medians are taken, of which the smallest counts: other programs may
// use the cores.
const paceRounds = 5

// oversubscribedRanks is how many ranks share the cores. Under the race detector that many
// processes take long, and show nothing that fewer do not.
func oversubscribedRanks() int {
	if raceEnabled {
		return 4
	}
	return 16
}

// measureLatency reduces vectors of each size on all ranks; rank 0 reports how long it took.
func measureLatency(ctx context.Context, a *rankProcess, c *comm.Comm) error {
	for _, p := range latencyBounds() {
		var medians []time.Duration
		for range paceRounds {
			var elapsed []time.Duration
			for range p.calls {
				buf := slices.Repeat([]float32{1}, p.bytes/4)
				began := time.Now()
				if err := comm.AllReduce(ctx, c, buf, comm.Sum); err != nil {
					return err
				}
				elapsed = append(elapsed, time.Since(began))
				if first, last := buf[0], buf[len(buf)-1]; first != float32(c.Size()) || last != first {
					return fmt.Errorf("the sums are %v and %v, want %d", first, last, c.Size())
				}
			}
			slices.Sort(elapsed)
			medians = append(medians, elapsed[len(elapsed)/2])
		}
		if a.rank == 0 {
			a.log(p.event(), slices.Min(medians).String())
		}
	}
	return nil
}

// Ranks that outnumber the cores yield to those they wait for, and sleep soon. That every job
// makes progress is always checked; the latency only in a soak, because other programs may use
// the cores.
func TestOversubscribedRanksMakeProgress(t *testing.T) {
	wire := "shm"
	if runtime.GOOS != "linux" {
		wire = "tcp"
	}
	j := run(t, oversubscribedRanks(), wire, instruction{Program: "pace"})
	for _, p := range latencyBounds() {
		text := j.events(p.event(), 1)[0].Text
		t.Logf("%d ranks, %d bytes: %s", oversubscribedRanks(), p.bytes, text)
		if elapsed, err := time.ParseDuration(text); err != nil || soaking() && elapsed > p.max {
			t.Errorf("%d ranks take %s for an allreduce of %d bytes (%v), and may take %v", oversubscribedRanks(), text, p.bytes, err, p.max)
		}
	}
	j.wantExit(0)
}
