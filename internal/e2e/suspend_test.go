//go:build unix

package e2e

import (
	"context"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/mesh"
)

// suspended is for how long a whole job does not run: longer than a rank may be silent,
// and than a wire may refuse bytes.
const suspended = max(mesh.DefaultSilence, mesh.DefaultStall) + time.Second

// A batch system suspends jobs, and a shell stops what runs in it: nobody has failed.
func TestASuspendedJobGoesOn(t *testing.T) {
	t.Parallel()
	for _, wire := range wires() {
		t.Run(wire, func(t *testing.T) {
			t.Parallel()
			const ranks = 3
			j := run(t, ranks, wire, order{Scene: "suspend", Bytes: 8 << 20})
			pids := j.pids(ranks)
			j.events("summing", ranks)
			for _, pid := range pids {
				j.signal(pid, syscall.SIGSTOP)
			}
			<-time.After(suspended)
			for _, pid := range pids {
				j.signal(pid, syscall.SIGCONT)
			}
			j.open(0)
			for _, e := range j.events("summed", ranks) {
				if e.Failed {
					t.Errorf("rank %d: %s", e.Rank, e.Text)
				}
			}
			j.ends(0)
		})
	}
}

// sumUntilTold sums vectors that no wire takes at once, until all ranks have been told
// to end.
func sumUntilTold(ctx context.Context, a *actor, c *comm.Comm) error {
	var told atomic.Bool
	go func() {
		a.wait(0)
		told.Store(true)
	}()
	buf := make([]float32, a.Bytes/4)
	at := here()
	for rounds, ending := 0, float32(0); ending < float32(c.Size()); rounds++ {
		if buf[0] = 0; told.Load() {
			buf[0] = 1
		}
		if err := comm.AllReduce(ctx, c, buf, comm.Sum); err != nil {
			return a.tell("summed", at, err)
		}
		if ending = buf[0]; rounds == 1 {
			a.say("summing", "")
		}
	}
	return a.tell("summed", at, nil)
}
