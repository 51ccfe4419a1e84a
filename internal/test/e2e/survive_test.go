//go:build unix

package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"testing"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/fault"
)

// sumAndSurvive sums until a rank is lost, shrinks the communicator, and sums again. It does so
// until Left ranks remain. It then makes every kind of call on the last communicator.
func sumAndSurvive(ctx context.Context, a *rankProcess, c *comm.Comm) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for c.Size() > a.Left {
		a.log("summing", members(c))
		var err error
		for err == nil {
			err = sumRanks(ctx, c)
		}
		a.report("lost", callSite{}, err)
		if !errors.Is(err, fault.PeerLost) && !errors.Is(err, fault.LinkLost) && !errors.Is(err, fault.Revoked) {
			return err
		}
		c.Revoke()
		at := callBelow()
		small, err := c.Shrink(ctx)
		if err != nil {
			return a.report("stopped", at, err)
		}
		c = small
	}
	if err := useAll(ctx, c); err != nil {
		return a.report("survived", callSite{}, err)
	}
	a.log("survived", members(c))
	return nil
}

// members returns the job's ranks of the members of c.
func members(c *comm.Comm) string {
	ranks := make([]int, c.Size())
	for r := range ranks {
		ranks[r] = c.WorldRank(r)
	}
	return fmt.Sprint(ranks)
}

// sumRanks sums the job's ranks of all members in a vector of 64 KiB.
func sumRanks(ctx context.Context, c *comm.Comm) error {
	v := make([]int64, 8192)
	want := int64(0)
	for r := range c.Size() {
		want += int64(c.WorldRank(r))
	}
	for i := range v {
		v[i] = int64(c.WorldRank(c.Rank()))
	}
	if err := comm.AllReduce(ctx, c, v, comm.Sum); err != nil {
		return err
	}
	for i, got := range v {
		if got != want {
			return fmt.Errorf("sum %d of the ranks: got %d, want %d", i, got, want)
		}
	}
	return nil
}

// useAll uses messages, collectives, Agree and Split.
func useAll(ctx context.Context, c *comm.Comm) error {
	if err := sumRanks(ctx, c); err != nil {
		return err
	}
	next, before := (c.Rank()+1)%c.Size(), (c.Rank()+c.Size()-1)%c.Size()
	if c.Size() > 1 {
		got := make([]int, 1)
		send := comm.ISend(c, next, 3, []int{c.Rank()})
		if _, err := comm.Recv(ctx, c, before, 3, got); err != nil {
			return err
		}
		if _, err := send.Wait(ctx); err != nil {
			return err
		}
		if got[0] != before {
			return fmt.Errorf("message: got %d, want %d", got[0], before)
		}
	}
	if bits, err := c.Agree(ctx, 6|1<<c.Rank()); err != nil || bits&6 != 6 {
		return fmt.Errorf("agree: got %b, %w, want at least 110", bits, err)
	}
	half, err := c.Split(ctx, c.Rank()%2, 0)
	if err != nil {
		return err
	}
	return sumRanks(ctx, half)
}

// wantLosses checks the errors that ended the sums of the survivors. Each error names the rank that
// was killed, or is the revoke of a survivor that noticed the kill first. The parameter n is the
// number of these errors.
func (j *job) wantLosses(n int, victims ...int) {
	j.t.Helper()
	kill := make(map[int]int)           // how many errors of each rank have been checked
	named := make([]bool, len(victims)) // whether any error names the victim
	for _, e := range j.events("lost", n) {
		k := kill[e.Rank]
		kill[e.Rank]++
		if k >= len(victims) {
			j.t.Errorf("rank %d: got loss number %d, want %d: %s", e.Rank, k+1, len(victims), e.Text)
			continue
		}
		if e.Kind == fault.Revoked.Error() {
			continue
		}
		if !slices.ContainsFunc(e.Peers, func(p fault.Peer) bool { return p.Rank == victims[k] }) {
			j.t.Errorf("rank %d: got peers %v after kill %d, want rank %d: %s", e.Rank, e.Peers, k+1, victims[k], e.Text)
		}
		named[k] = true
	}
	for k, ok := range named {
		if !ok {
			j.t.Errorf("after kill %d no error names rank %d", k+1, victims[k])
		}
	}
}

// TestSurvivorsGoOnAfterEachOfTwoKills kills a rank in the middle, and then rank 0, which leads and
// knows the addresses of the other ranks. The two ranks that are left must go on.
func TestSurvivorsGoOnAfterEachOfTwoKills(t *testing.T) {
	t.Parallel()
	for _, wire := range wires() {
		t.Run(wire, func(t *testing.T) {
			t.Parallel()
			j := run(t, 4, wire, instruction{Program: "survive", Left: 2}, "--enable-recovery")
			pids := j.pids(4)
			j.events("summing", 4)
			j.signal(pids[1], syscall.SIGKILL)
			j.events("summing", 4+3)
			j.signal(pids[0], syscall.SIGKILL)
			for _, e := range j.events("survived", 2) {
				if e.Text != "[2 3]" {
					t.Errorf("rank %d: got %s, want to survive as one of 2 and 3", e.Rank, e.Text)
				}
			}
			j.wantLosses(3+2, 1, 0)
			j.wantExit(0, "was killed by signal 9 (SIGKILL)")
		})
	}
}

// TestOneOfTwoGoesOnAfterAKill kills one of two ranks. The other rank must go on, even if it is the
// higher one, because tuttirun has seen the victim end.
func TestOneOfTwoGoesOnAfterAKill(t *testing.T) {
	t.Parallel()
	for _, victim := range []int{0, 1} {
		t.Run(fmt.Sprint("rank", victim), func(t *testing.T) {
			t.Parallel()
			j := run(t, 2, "auto", instruction{Program: "survive", Left: 1}, "--enable-recovery")
			pids := j.pids(2)
			j.events("summing", 2)
			j.signal(pids[victim], syscall.SIGKILL)
			if e := j.events("survived", 1)[0]; e.Text != fmt.Sprintf("[%d]", 1-victim) {
				t.Errorf("got %s, want rank %d alone", e.Text, 1-victim)
			}
			j.wantLosses(1, victim)
			j.wantExit(0)
		})
	}
}

// TestTheHigherOfTwoStopsWithoutNewsOfTheDeath kills rank 0 of a job without tuttirun. Rank 1
// cannot know whether rank 0 goes on, so it must stop with fault.NoQuorum.
func TestTheHigherOfTwoStopsWithoutNewsOfTheDeath(t *testing.T) {
	t.Parallel()
	j := spawn(t, 2, "tcp", instruction{Program: "survive", Left: 1})
	pids := j.pids(2)
	j.events("summing", 2)
	j.signal(pids[0], syscall.SIGKILL)
	if e := j.events("stopped", 1)[0]; e.Kind != fault.NoQuorum.Error() || len(e.Peers) != 1 || e.Peers[0].Rank != 0 {
		t.Errorf("got kind %q and peers %v, want %q and rank 0: %s", e.Kind, e.Peers, fault.NoQuorum, e.Text)
	}
	j.ranks[1].wantExit(j, 1)
}
