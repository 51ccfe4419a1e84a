//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/fault"
)

// shrinks is the program whose ranks go on after a loss without the lost rank.
const shrinks = "shrink"

// runShrinking runs collectives in rounds. Between two rounds one rank revokes the communicator,
// and all ranks shrink it, so that faults also meet these calls. After a loss, the remaining ranks
// run a last round without the lost rank.
func runShrinking(ctx context.Context, job *comm.Comm, in *instruction, over *atomic.Bool) error {
	c, reported := job, false
	for round := uint64(0); ; round++ {
		err := runRound(ctx, job, c, newRandom(in.Seed+round), func() (bool, error) {
			if c.Size() < job.Size() || !in.Ends {
				return c.Size() < job.Size(), nil
			}
			return agreeToEnd(ctx, c, over)
		})
		switch {
		case err == errEnd:
			return nil
		case errors.Is(err, fault.PeerLost), errors.Is(err, fault.LinkLost):
			if !reported {
				report(err)
			}
			reported = true
		case !errors.Is(err, fault.Revoked):
			return err
		}
		c.Revoke()
		next, err := c.Shrink(ctx)
		if err != nil {
			return err
		}
		if c != job {
			c.Close(ctx) // c is revoked, so nothing is left to deliver
		}
		c = next
	}
}

// errRevoke makes a rank revoke the communicator.
var errRevoke = &fault.Error{Kind: fault.Revoked, Op: "revoke", Rank: -1}

// runRound runs some calls, and returns errEnd if the program then ends. Otherwise one rank returns
// errRevoke, and its caller revokes the communicator. The other ranks wait for the revoke in a
// barrier, and return its error.
func runRound(ctx context.Context, job, c *comm.Comm, rng *rand.Rand, end func() (bool, error)) error {
	if err := checkMembers(ctx, job, c); err != nil {
		return err
	}
	for range 1 + rng.IntN(20) {
		if err := collective(ctx, c, rng); err != nil {
			return err
		}
	}
	if over, err := end(); err != nil {
		return err
	} else if over {
		return errEnd
	}
	if c.Rank() == rng.IntN(c.Size()) {
		return errRevoke
	}
	if err := c.Barrier(ctx); err != nil {
		return err
	}
	return fmt.Errorf("%w: a barrier has ended that one rank did not enter", errWrong)
}

// checkMembers reports which ranks of the job are not in c. It also checks the result of an Agree.
func checkMembers(ctx context.Context, job, c *comm.Comm) error {
	bits, err := c.Agree(ctx, ^(uint64(1) << c.Rank()))
	if err != nil {
		return err
	}
	all := make([]uint64, 2*c.Size())
	if err := comm.AllGather(ctx, c, all, comm.From([]uint64{uint64(job.Rank()), bits})); err != nil {
		return err
	}
	left := make(map[uint64]bool)
	for r := range c.Size() {
		left[all[2*r]] = true
		if all[2*r+1] != bits {
			return fmt.Errorf("%w: agree: got %b, and %b on rank %d", errWrong, bits, all[2*r+1], r)
		}
	}
	// Each rank clears its bit. All ranks took part, because AllGather has succeeded.
	if want := ^uint64(0) << c.Size(); bits != want {
		return fmt.Errorf("%w: agree: got %b, want %b", errWrong, bits, want)
	}
	e := event{Name: "shrunk"}
	for r := range job.Size() {
		if !left[uint64(r)] {
			e.Peers = append(e.Peers, r)
		}
	}
	if len(e.Peers) > 0 {
		e.write()
	}
	return nil
}
