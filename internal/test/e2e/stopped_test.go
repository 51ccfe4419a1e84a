//go:build unix

package e2e

import (
	"context"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/fault"
)

// skipCall delays a sum on one rank until gate 0 opens. The other ranks wait for this rank until
// gate 1 opens, which ends their contexts like a deadline. All ranks go on with another
// communicator.
func skipCall(ctx context.Context, a *rankProcess, c *comm.Comm) error {
	twin, err := c.Dup(ctx)
	if err != nil {
		return err
	}
	at, err := callHere(), twin.Barrier(ctx)
	a.report("together", at, err)
	if a.rank == a.Victim {
		a.awaitGate(0)
		at, err = callHere(), comm.AllReduce(ctx, twin, make([]float64, 1000), comm.Sum)
		a.report("late", at, err)
	} else {
		limited := a.contextUntilGate(ctx, 1, 0)
		at, err = callHere(), comm.AllReduce(limited, twin, make([]float64, 1000), comm.Sum)
		a.report("waited", at, err)
	}
	return c.Barrier(ctx)
}

func TestRankThatNeverCallsIsNamedWithItsLastCall(t *testing.T) {
	t.Parallel()
	for _, wire := range wires() {
		t.Run(wire, func(t *testing.T) {
			t.Parallel()
			const ranks, victim = 3, 1
			o := instruction{Program: "absent", Victim: victim, Stall: 300 * time.Millisecond}
			j := run(t, ranks, wire, o)
			j.events("together", ranks)
			j.warnings(ranks-1, " waits in allreduce #")
			deadline := j.now()
			j.open(1)
			first := false
			for _, e := range j.events("waited", ranks-1) {
				if !e.is(fault.Timeout) {
					t.Errorf("rank %d got %q, want a %q", e.Rank, e.Text, fault.Timeout)
				}
				first = first || e.Kind == fault.Timeout.Error()
				j.wantBlamed(e, victim, "barrier #")
				if at := e.Peers[0].At; !strings.HasPrefix(at, "stopped_test.go:") && !strings.HasPrefix(at, "rankprocess_test.go:") {
					t.Errorf("rank %d says that rank %d is at %q, want the file where it waits: %s", e.Rank, victim, at, e.Text)
				}
				j.wantWithin(e, deadline, 2*time.Second)
				stall := []string{
					fmt.Sprintf("tutti: rank %d waits in allreduce #", e.Rank),
					fmt.Sprintf(" float64 x1000 sum at %s for %v; missing: rank %d on ", e.At, o.Stall, victim),
				}
				// The victim's place in the error may differ from that in the warning, because a
				// heartbeat may have come in between.
				n, last := 0, " last in "+e.Peers[0].Call+" at "
				for _, file := range []string{"stopped_test.go:", "rankprocess_test.go:"} {
					n += j.err.count(append(stall, last+file)...)
				}
				if n != 1 {
					t.Errorf("%d lines warn %q and %q, want 1:\n%v", n, stall, last, j.err)
				}
			}
			if !first {
				t.Errorf("nobody's own error is a %q", fault.Timeout)
			}
			j.open(0)
			late := j.events("late", 1)[0]
			if !late.is(fault.Timeout) {
				t.Errorf("the late rank got %q, want what ended the others' call", late.Text)
			}
			j.wantBlamed(late, victim, "barrier #")
			j.wantExit(0)
		})
	}
}

// sumUntilStopped sums until a sum fails, and exits when all ranks have reported. The deadline, if
// there is one, counts from the opening of gate 1.
func sumUntilStopped(ctx context.Context, a *rankProcess, c *comm.Comm) error {
	buf := make([]float32, a.Bytes/4)
	began, reported := time.Now(), false
	if a.Deadline > 0 {
		ctx = a.contextUntilGate(ctx, 1, a.Deadline)
	}
	for {
		at, err := callHere(), comm.AllReduce(ctx, c, buf, comm.Sum)
		if err != nil {
			a.report("ended", at, err)
			a.awaitGate(0)
			return err
		}
		if !reported && time.Since(began) > heartbeatDelay {
			a.log("summing", "")
			reported = true
		}
	}
}

func TestAStoppedRankTimesOutOrIsDeclaredLost(t *testing.T) {
	t.Parallel()
	for _, wire := range wires() {
		for _, c := range []struct {
			name     string
			deadline time.Duration
			kind     fault.Kind
			most     time.Duration // the limit, counted from the signal
		}{
			{"deadline before silence", 1200 * time.Millisecond, fault.Timeout, 1200*time.Millisecond + 2*time.Second},
			{"silence", 0, fault.PeerLost, 5 * time.Second},
		} {
			t.Run(wire+"/"+c.name, func(t *testing.T) {
				t.Parallel()
				suspendOne(t, wire, c.deadline, c.kind, c.most)
			})
		}
	}
}

func suspendOne(t *testing.T, wire string, deadline time.Duration, kind fault.Kind, most time.Duration) {
	t.Helper()
	const ranks, victim = 3, 1
	j := run(t, ranks, wire, instruction{Program: "stop", Victim: victim, Bytes: 4096, Deadline: deadline})
	pids := j.pids(ranks)
	j.events("summing", ranks)
	stopped := j.signal(pids[victim], syscall.SIGSTOP)
	j.open(1)
	first := false
	for _, e := range j.events("ended", ranks-1) {
		if !e.is(kind) {
			t.Errorf("rank %d got %q, want a %q", e.Rank, e.Text, kind)
		}
		first = first || e.Kind == kind.Error()
		j.wantBlamed(e, victim, "allreduce #")
		if at := e.Peers[0].Call; !strings.Contains(at, " at stopped_test.go:") {
			t.Errorf("rank %d says of rank %d's last call %q, want its place, too", e.Rank, victim, at)
		}
		j.wantWithin(e, stopped, most)
	}
	if !first {
		t.Errorf("nobody's own error is a %q", kind)
	}
	woken := j.signal(pids[victim], syscall.SIGCONT)
	e := j.events("ended", ranks)[victim]
	if !e.is(kind) {
		t.Errorf("the rank that was stopped got %q, want a %q", e.Text, kind)
	}
	j.wantBlamed(e, victim, "allreduce #")
	j.wantWithin(e, woken, 2*time.Second)
	j.open(0)
	j.wantExit(1)
}
