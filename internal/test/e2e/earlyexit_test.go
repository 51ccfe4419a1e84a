//go:build unix

package e2e

import (
	"context"
	"fmt"
	"net"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/vars"
)

// sumForAWhile sums until the heartbeats have reported this rank's call.
func sumForAWhile(ctx context.Context, a *rankProcess, c *comm.Comm) error {
	buf := make([]float32, a.Bytes/4)
	for began := time.Now(); time.Since(began) < heartbeatDelay; {
		if err := comm.AllReduce(ctx, c, buf, comm.Sum); err != nil {
			return err
		}
	}
	return nil
}

// panicOnOne panics on one rank while the other ranks sum.
func panicOnOne(ctx context.Context, a *rankProcess, c *comm.Comm) error {
	if a.rank == a.Victim {
		if err := sumForAWhile(ctx, a, c); err != nil {
			return err
		}
		a.log("about to panic", "")
		a.awaitGate(0)
		panic("out of ideas")
	}
	return sumForever(ctx, a, c)
}

func TestAPanicEndsTheJobWithItsStackPrintedOnce(t *testing.T) {
	for _, wire := range wires() {
		t.Run(wire, func(t *testing.T) {
			const ranks, victim = 3, 1
			j := run(t, ranks, wire, instruction{Program: "panic", Victim: victim, Bytes: 4000})
			j.wantPanics = true
			j.events("about to panic", 1)
			panicked := j.now()
			j.open(0)
			j.wantLost(ranks-1, victim, "allreduce #", panicked)
			j.wantExit(2, fmt.Sprintf("tuttirun: rank %d (", victim), "exited with code 2", `"panic: out of ideas`)
			j.wantQuoted(fmt.Sprintf("%v [rank %d on ", fault.PeerLost, victim))
			for _, once := range []string{"e2e.panicOnOne(", "[running]:"} {
				if n := j.err.count(once); n != 1 {
					t.Errorf("%q is printed %d times, want once:\n%v", once, n, j.err)
				}
			}
		})
	}
}

// quitOnOne exits on one rank, as a program does if its main function returns too early.
func quitOnOne(ctx context.Context, a *rankProcess, c *comm.Comm) error {
	if a.rank == a.Victim {
		if err := sumForAWhile(ctx, a, c); err != nil {
			return err
		}
		a.log("about to leave", "")
		a.awaitGate(0)
		os.Exit(0)
	}
	return sumForever(ctx, a, c)
}

func TestARankThatReturnsEarlyWithoutCloseIsNamed(t *testing.T) {
	for _, wire := range wires() {
		t.Run(wire, func(t *testing.T) {
			const ranks, victim = 3, 0
			j := run(t, ranks, wire, instruction{Program: "quit", Victim: victim, Bytes: 4000})
			j.events("about to leave", 1)
			left := j.now()
			j.open(0)
			j.wantLost(ranks-1, victim, "allreduce #", left)
			j.wantExit(1, fmt.Sprintf("%v [rank %d on ", fault.PeerLost, victim),
				fmt.Sprintf("rank %d had exited with code 0 before", victim))
		})
	}
}

// closeOneFirst calls Close on one rank. From then on, calls that need this rank must fail, and
// other calls must succeed. A collective comes last, because its failure revokes the communicator.
func closeOneFirst(ctx context.Context, a *rankProcess, c *comm.Comm) error {
	rest, err := c.Split(ctx, map[bool]int{true: 0, false: 1}[a.rank == a.Victim], a.rank)
	if err != nil {
		return err
	}
	if a.rank == a.Victim {
		// The receiver has not received this message yet. Close must deliver it nevertheless.
		if err := comm.Send(ctx, c, (a.rank+1)%c.Size(), 5, []int32{42}); err != nil {
			return err
		}
		at, err := callHere(), c.Close(ctx)
		return a.report("closed", at, err)
	}
	a.awaitGate(0)
	got := make([]int32, 1)
	if a.rank == (a.Victim+1)%c.Size() {
		if _, err := comm.Recv(ctx, c, a.Victim, 5, got); err != nil || got[0] != 42 {
			return fmt.Errorf("what was sent before the close: %v, %w", got, err)
		}
	}
	at, err := callHere(), comm.Send(ctx, c, a.Victim, 0, got)
	a.report("send", at, err)
	at = callBelow()
	_, err = comm.Recv(ctx, c, a.Victim, 0, got)
	a.report("recv", at, err)
	if err := checkCommunicator(ctx, rest); err != nil {
		return err
	}
	at, err = callHere(), c.Barrier(ctx)
	a.report("collective", at, err)
	return checkCommunicator(ctx, rest)
}

func TestCallsThatNeedAClosedRankGetClosed(t *testing.T) {
	for _, wire := range wires() {
		t.Run(wire, func(t *testing.T) {
			const ranks, victim = 3, 2
			j := run(t, ranks, wire, instruction{Program: "close", Victim: victim})
			if e := j.events("closed", 1)[0]; e.Failed {
				t.Errorf("Close: %s", e.Text)
			}
			j.open(0)
			for _, name := range []string{"send", "recv", "collective"} {
				reported := j.events(name, ranks-1)
				for _, e := range reported {
					if !e.is(fault.Closed) || len(e.Peers) != 1 || e.Peers[0].Rank != victim {
						t.Errorf("%s: rank %d got %q, want a %q that names rank %d", name, e.Rank, e.Text, fault.Closed, victim)
					}
					// In a collective another rank may have got the error first, and revoked the
					// communicator.
					if e.Kind != fault.Closed.Error() && name != "collective" {
						t.Errorf("%s: rank %d got kind %q, want %q", name, e.Rank, e.Kind, fault.Closed)
					}
					if elapsed, most := e.duration(), time.Second+starvedIn(reported); elapsed > most {
						t.Errorf("%s: rank %d was told after %v, want at most %v", name, e.Rank, elapsed, most)
					}
				}
			}
			j.wantExit(0)
		})
	}
}

// exitBeforeInit affects the processes of rank Victim only. In the program absentee the process
// exits with 0 before Init. In the program rejoin with a Phase, the first process leaves a file,
// and later processes wait for gate 1 before Init.
func exitBeforeInit(in instruction) {
	if in.Program == "rejoin" && in.Phase != "" && os.Getenv(vars.Rank) == strconv.Itoa(in.Victim) {
		if _, err := os.OpenFile(in.Phase, os.O_CREATE|os.O_EXCL, 0o600); err != nil {
			(&rankProcess{}).awaitGate(1)
		}
	}
	if in.Mistake == "unreachable" && os.Getenv(vars.Rank) == strconv.Itoa(in.Victim) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			panic(err)
		}
		go func() {
			for err == nil {
				_, err = l.Accept() // nobody answers
			}
		}()
		os.Setenv(vars.Advertise, l.Addr().String())
	}
	if in.Program == "absentee" && os.Getenv(vars.Rank) == strconv.Itoa(in.Victim) {
		os.Exit(0)
	}
}
