//go:build unix

package e2e

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/tutti-go/tutti/comm"
)

// The times of a job in which a rank is declared lost after a short silence. The ranks are busy for
// longer than that silence, in each of two ways.
const (
	busyBeat    = 100 * time.Millisecond
	busySilence = 20 * busyBeat
	busyFor     = busySilence + busySilence/4
)

// Each process has one P. Whatever polls must still let heartbeats be sent and received: in ranks
// that call the library without a pause, in a rank that waits in a call, and in a rank that
// computes without calling the library.
func TestPollingStarvesNoHeartbeats(t *testing.T) {
	polled := wires()
	if !soaking() {
		polled = polled[len(polled)-1:] // shared memory, if it is available, because it polls most
	}
	for _, wire := range polled {
		for _, ranks := range []int{2, 4} {
			t.Run(fmt.Sprintf("%s/%d ranks", wire, ranks), func(t *testing.T) {
				j := newJob(t)
				j.listen()
				o := instruction{Program: "busy", Heartbeat: busyBeat, Silence: busySilence}
				for r := range ranks {
					j.rank(r, ranks, wire, o, "GOMAXPROCS=1")
				}
				for _, name := range []string{"summed", "met"} {
					for _, e := range j.events(name, ranks) {
						if e.Failed {
							t.Errorf("rank %d: %s", e.Rank, e.Text)
						}
					}
				}
				for _, p := range j.ranks {
					p.wantExit(j, 0)
				}
			})
		}
	}
}

// stayBusy sums without a pause for a while. It then makes all ranks wait for the last rank, which
// computes.
func stayBusy(ctx context.Context, a *rankProcess, c *comm.Comm) error {
	over := []int32{0}
	began := time.Now()
	at := callHere()
	for over[0] == 0 {
		if c.Rank() == 0 && time.Since(began) > busyFor {
			over[0] = 1 // the sum tells all ranks that the time is over
		}
		if err := comm.AllReduce(ctx, c, over, comm.Sum); err != nil {
			return a.report("summed", at, err)
		}
	}
	a.report("summed", at, nil)
	last := c.Size() - 1
	if c.Rank() == last {
		compute(busyFor)
		for r := range last {
			if err := comm.Send(ctx, c, r, 1, over); err != nil {
				return a.report("met", at, err)
			}
		}
		return a.report("met", at, nil)
	}
	_, err := comm.Recv(ctx, c, last, 1, over)
	return a.report("met", at, err)
}

// compute keeps a P busy for some time.
func compute(d time.Duration) {
	for began := time.Now(); time.Since(began) < d; {
	}
}
