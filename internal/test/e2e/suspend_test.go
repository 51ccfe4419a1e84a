//go:build unix

package e2e

import (
	"context"
	"fmt"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/mesh"
)

// suspended is the time for which a whole job does not run. It is longer than the default times for
// which a rank may be silent and a peer may read nothing.
const suspended = max(mesh.DefaultSilence, mesh.DefaultStall) + time.Second

// stagger is the time between two ranks when the test stops and resumes them one after the other,
// because batch systems reach nodes one by one.
const stagger = time.Second / 2

// A batch system suspends jobs, and a shell stops its jobs. No rank may count as failed because of
// that.
func TestASuspendedJobGoesOn(t *testing.T) {
	t.Parallel()
	for i, wire := range wires() {
		t.Run(wire, func(t *testing.T) {
			t.Parallel()
			const ranks = 3
			o := instruction{Program: "suspend", Bytes: 16 << 20}
			if i > 0 { // a program that expects to be suspended sets a longer silence
				o.Heartbeat, o.Silence = 3*time.Second, 20*time.Second
			}
			j := run(t, ranks, wire, o)
			pids := j.pids(ranks)
			j.events("passing", ranks)
			for _, pid := range pids {
				j.signal(pid, syscall.SIGSTOP)
				<-time.After(stagger)
			}
			<-time.After(suspended)
			for _, pid := range pids {
				j.signal(pid, syscall.SIGCONT)
				<-time.After(stagger)
			}
			j.open(0)
			for _, e := range j.events("passed", ranks) {
				if e.Failed {
					t.Errorf("rank %d: %s", e.Rank, e.Text)
				}
			}
			j.wantExit(0)
		})
	}
}

// passUntilGate passes vectors around a ring until the gate opens for all ranks. The vectors are
// too large for the buffers of any transport.
func passUntilGate(ctx context.Context, a *rankProcess, c *comm.Comm) error {
	var reported atomic.Bool
	go func() {
		a.awaitGate(0)
		reported.Store(true)
	}()
	n, rank := c.Size(), c.Rank()
	from := (rank + n - 1) % n
	out, in := make([]int32, a.Bytes/4), make([]int32, a.Bytes/4)
	at := callHere()
	for round, ending := int32(0), int32(0); ending < int32(n); round++ {
		for i := range out {
			out[i] = int32(rank)<<24 + round + int32(i)
		}
		if _, err := comm.SendRecv(ctx, c, (rank+1)%n, 1, out, from, 1, in); err != nil {
			return a.report("passed", at, err)
		}
		for i, got := range in {
			if want := int32(from)<<24 + round + int32(i); got != want {
				return a.report("passed", at, fmt.Errorf("element %d of round %d is %#x, want %#x", i, round, got, want))
			}
		}
		over := []int32{0}
		if reported.Load() {
			over[0] = 1
		}
		if err := comm.AllReduce(ctx, c, over, comm.Sum); err != nil {
			return a.report("passed", at, err)
		}
		if ending = over[0]; round == 1 {
			a.log("passing", "")
		}
	}
	return a.report("passed", at, nil)
}
