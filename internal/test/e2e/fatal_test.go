//go:build unix

package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/fault"
)

// exitOnError makes every rank end its process at its first error, as log.Fatal does: without
// Close, and before other ranks may have learned of the error. A rank may get its first error in
// the barrier: ranks that have left the barrier may have made their mistakes already, which end all
// calls.
func exitOnError(ctx context.Context, a *rankProcess, c *comm.Comm) error {
	at, err := callHere(), c.Barrier(ctx)
	if err == nil {
		at, err = mistakes()[a.Mistake](ctx, a, c)
	}
	a.report("left", at, err)
	if err == nil {
		return nil // the rank closes
	}
	os.Exit(1)
	return nil
}

const disk = "the disk is full"

// mistakes returns wrong calls of the ranks, by name.
func mistakes() map[string]func(ctx context.Context, a *rankProcess, c *comm.Comm) (callSite, error) {
	return map[string]func(ctx context.Context, a *rankProcess, c *comm.Comm) (callSite, error){
		"another operator": func(ctx context.Context, a *rankProcess, c *comm.Comm) (callSite, error) {
			op := comm.Sum
			if a.rank == a.Victim {
				op = comm.Max
			}
			return callHere(), comm.AllReduce(ctx, c, make([]float32, 1000), op)
		},
		"three roots, of nothing": func(ctx context.Context, a *rankProcess, c *comm.Comm) (callSite, error) {
			for { // without elements the root waits for no rank, so a few calls may succeed
				if err := comm.Broadcast(ctx, c, make([]float32, 0), a.rank); err != nil {
					return callHere(), err
				}
			}
		},
		"a deadline": func(ctx context.Context, a *rankProcess, c *comm.Comm) (callSite, error) {
			if a.rank == a.Victim {
				a.awaitGate(0)
				return callHere(), nil
			}
			if a.rank == 0 {
				limited, cancel := context.WithTimeout(ctx, a.Deadline)
				defer cancel()
				ctx = limited
			}
			return callHere(), comm.AllReduce(ctx, c, make([]float32, 1000), comm.Sum)
		},
		"abort": func(ctx context.Context, a *rankProcess, c *comm.Comm) (callSite, error) {
			if a.rank == a.Victim {
				a.log("about to abort", "")
				c.Abort(errors.New(disk))
				os.Exit(1)
			}
			return callHere(), comm.AllReduce(ctx, c, make([]float32, 1000), comm.Sum)
		},
	}
}

func TestRankThatExitsWithItsErrorIsNotBlamed(t *testing.T) {
	const ranks, victim = 3, 1
	for _, wire := range wires() {
		for _, program := range []struct {
			blunder  string
			events   int
			kind     fault.Kind
			wantText string
		}{
			{"another operator", ranks, fault.Mismatch, fmt.Sprintf("rank %d on ", victim)},
			{"three roots, of nothing", ranks, fault.Mismatch, "broadcast #"},
			{"a deadline", ranks - 1, fault.Timeout, fmt.Sprintf("rank %d on ", victim)},
			{"abort", ranks - 1, fault.PeerLost, disk},
		} {
			t.Run(wire+"/"+program.blunder, func(t *testing.T) {
				j := run(t, ranks, wire, instruction{Program: "fatal", Victim: victim, Mistake: program.blunder, Deadline: 300 * time.Millisecond})
				failed := 0
				for _, e := range j.events("left", program.events) {
					switch {
					case !e.is(program.kind) || !strings.Contains(e.Text, program.wantText):
						t.Errorf("rank %d got %q, want a %q that says %q", e.Rank, e.Text, program.kind, program.wantText)
					default:
						failed++
					}
				}
				if failed == 0 {
					t.Error("no rank got an error")
				}
				j.open(0)
				j.wantExit(1)
			})
		}
	}
}
