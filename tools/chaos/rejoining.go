//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"time"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/fault"
)

// rejoins is the program in which a new process replaces a lost one. Its processes are started by
// tuttirun. This command itself runs as tuttirun if the environment variable asLauncher is set.
const (
	rejoins      = "rejoin"
	asLauncher   = "TUTTI_CHAOS_LAUNCHER"
	guardianName = "tutti-guardian" // argv[0] of the guardian, a process that tuttirun starts
)

// runRejoining runs collectives in rounds. After a loss, and sometimes without one, all ranks call
// Rejoin. The program ends after a round in which a process that was started again took part.
// runRejoining returns the last communicator.
func runRejoining(ctx context.Context, c *comm.Comm, in *instruction) (*comm.Comm, error) {
	reported, epochs := false, uint64(1) // whether this process has reported a loss, and how many epochs it has seen
	for {
		last, err := runEpoch(ctx, c, in, epochs)
		if last {
			return c, err
		}
		switch {
		case err == nil, errors.Is(err, fault.Closed), errors.Is(err, fault.Revoked):
		case errors.Is(err, fault.PeerLost), errors.Is(err, fault.LinkLost):
			if !reported {
				report(err)
			}
			reported = true
		default:
			return c, err
		}
		limited, cancel := context.WithTimeout(ctx, startLimit)
		next, err := c.Rejoin(limited)
		cancel()
		if err != nil {
			return c, err
		}
		c = next
		epochs++
	}
}

// runEpoch runs some collectives. The result last says that all of them have succeeded, and that a
// process that was started again took part: one that has seen fewer epochs than another.
func runEpoch(ctx context.Context, c *comm.Comm, in *instruction, epochs uint64) (last bool, err error) {
	all := make([]uint64, c.Size())
	if err := comm.AllGather(ctx, c, all, comm.From([]uint64{epochs})); err != nil {
		return false, err
	}
	seed := in.Seed
	for _, n := range all {
		last = last || n != all[0]
		seed += n
	}
	rng := newRandom(seed)
	for range 1 + rng.IntN(200) {
		if err := collective(ctx, c, rng); err != nil {
			return false, err
		}
	}
	return last, nil
}

// runLaunched runs the trial under tuttirun. The outcomes of the result are those of the ranks, and
// then those of the processes that were started again.
func (t *trial) runLaunched() *result {
	res := &result{}
	self, err := os.Executable()
	if err != nil {
		res.err = err
		return res
	}
	cmd := exec.Command(self, "-np", strconv.Itoa(t.ranks), "--restart-ranks", "1", "--transport", t.wire, "--prepend-rank", self)
	cmd.Env = append(t.environment(), asLauncher+"=1")
	p, err := begin(cmd)
	if err != nil {
		res.err = err
		return res
	}
	defer func() {
		p.cmd.Process.Kill() // tuttirun's guardian then ends the ranks
		<-p.done
	}()
	if first := t.first(); !p.awaitMany(first, t.ranks, time.After(startLimit)) {
		res.err = fmt.Errorf("not all ranks have %s: %v\n%s", first, p.copyEvents(), p.stderr.String())
		return res
	}
	time.Sleep(t.pause)
	res.injected = time.Now()
	for _, e := range p.copyEvents() {
		if e.Rank == t.victim && e.Name == "begun" {
			syscall.Kill(e.Pid, syscall.SIGKILL) // the process exists, because no rank ends before one is killed
		}
	}
	res.over = res.injected
	ended := true
	select {
	case <-p.done:
	case <-time.After(t.limit() + startLimit):
		ended = false
		p.signal(syscall.SIGTERM)
		time.Sleep(time.Second)
		p.cmd.Process.Kill()
		<-p.done
	}
	res.outcomes = make([]outcome, t.ranks)
	at := make(map[int]int) // the index of the outcome, by pid
	for _, e := range p.copyEvents() {
		i, known := at[e.Pid]
		if !known {
			if i = e.Rank; len(res.outcomes[i].events) > 0 {
				i = len(res.outcomes)
				res.outcomes = append(res.outcomes, outcome{})
			}
			at[e.Pid] = i
		}
		res.outcomes[i].events = append(res.outcomes[i].events, e)
	}
	for i := range res.outcomes {
		o := &res.outcomes[i]
		o.ended, o.code, o.stderr = ended, p.cmd.ProcessState.ExitCode(), p.stderr.String()
	}
	return res
}
