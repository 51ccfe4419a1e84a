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

// A latencyBound is the time that an allreduce among 16 ranks may take on two idle cores.
type latencyBound struct {
	bytes, calls int // of one round
	max          time.Duration
}

func latencyBounds() []latencyBound {
	return []latencyBound{{4, 40, 2 * time.Millisecond}, {1 << 20, 3, 100 * time.Millisecond}}
}

// event returns the name of the event by which rank 0 reports the time.
func (p latencyBound) event() string { return fmt.Sprint("paced ", p.bytes) }

// paceRounds is the number of rounds. The smallest of their medians counts, because other programs
// may use the cores.
const paceRounds = 5

// oversubscribedRanks returns how many ranks share the cores. Under the race detector it returns
// fewer, because many processes take long, and show nothing that fewer do not show.
func oversubscribedRanks() int {
	if raceEnabled {
		return 4
	}
	return 16
}

// measureLatency reduces vectors of each size on all ranks. Rank 0 reports the smallest median for
// each size.
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

// If there are more ranks than cores, ranks must yield to the ranks that they wait for, and must
// sleep soon. The test always checks that every job makes progress. It checks the latency only in a
// soak, because other programs may use the cores.
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
