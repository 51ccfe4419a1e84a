package comm_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"testing"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/internal/test/leak"
)

// interleavedHosts assigns ranks to three hosts in turn. The hosts n0 and n2 are in rack a, and n1
// is in rack b, so the order of the hosts is not the order of their lowest ranks.
func interleavedHosts(rank int) (host, rack string) {
	return fmt.Sprintf("n%d", rank%3), []string{"a", "b", "a"}[rank%3]
}

// hostReport returns what c reports about this rank and its host.
func hostReport(c *comm.Comm) string {
	return fmt.Sprintf("%s, host %d, local %d of %d", c.Host(), c.HostRank(), c.LocalRank(), c.LocalSize())
}

// jobRanksOf returns the job's ranks of the members of c.
func jobRanksOf(c *comm.Comm) []int {
	ranks := make([]int, c.Size())
	for r := range ranks {
		ranks[r] = c.WorldRank(r)
	}
	return ranks
}

// Each communicator counts its own ranks and hosts. Local ranks follow the order of the
// communicator, and hosts follow its layout.
func TestRanksKnowTheirHostOnEachCommunicator(t *testing.T) {
	leak.Check(t)
	err := comm.Local(7, func(ctx context.Context, c *comm.Comm) error {
		me := c.Rank()
		reversed, err := c.Split(ctx, 0, -me)
		if err != nil {
			return err
		}
		dup, err := reversed.Dup(ctx)
		if err != nil {
			return err
		}
		checks := []struct {
			name string
			c    *comm.Comm
			want string
		}{
			{"job", c, []string{
				"n0, host 0, local 0 of 3", "n1, host 2, local 0 of 2", "n2, host 1, local 0 of 2",
				"n0, host 0, local 1 of 3", "n1, host 2, local 1 of 2", "n2, host 1, local 1 of 2",
				"n0, host 0, local 2 of 3",
			}[me]},
			{"reversed", reversed, []string{
				"n0, host 0, local 2 of 3", "n1, host 2, local 1 of 2", "n2, host 1, local 1 of 2",
				"n0, host 0, local 1 of 3", "n1, host 2, local 0 of 2", "n2, host 1, local 0 of 2",
				"n0, host 0, local 0 of 3",
			}[me]},
		}
		checks = append(checks, checks[1])
		checks[2].name, checks[2].c = "dup of reversed", dup
		if me >= 2 && me <= 5 {
			some, err := c.Sub(ctx, 5, 4, 3, 2)
			if err != nil {
				return err
			}
			checks = append(checks, checks[0])
			checks[3].name, checks[3].c = "sub", some
			checks[3].want = []string{
				"n2, host 0, local 1 of 2", "n0, host 1, local 0 of 1", "n1, host 2, local 0 of 1", "n2, host 0, local 0 of 2",
			}[me-2]
		}
		for _, check := range checks {
			if got := hostReport(check.c); got != check.want {
				t.Errorf("%s, rank %d of the job: got %s, want %s", check.name, me, got, check.want)
			}
		}
		// Close must not change the report.
		if err := reversed.Close(ctx); err != nil {
			return err
		}
		if got := hostReport(reversed); got != checks[1].want {
			t.Errorf("closed, rank %d of the job: got %s, want %s", me, got, checks[1].want)
		}
		return nil
	}, comm.WithPlaces(interleavedHosts))
	if err != nil {
		t.Fatal(err)
	}
}

// Hosts whose ranks can share memory, and hosts whose ranks cannot, must give the same
// communicators.
func TestSplitByHostKeepsTheOrderOfRanks(t *testing.T) {
	for _, share := range []bool{true, false} {
		t.Run(fmt.Sprintf("shared memory %v", share), func(t *testing.T) {
			leak.Check(t)
			err := comm.Local(7, func(ctx context.Context, c *comm.Comm) error {
				reversed, err := c.Split(ctx, 0, -c.Rank())
				if err != nil {
					return err
				}
				for _, parent := range []*comm.Comm{c, reversed} {
					want := [][]int{{0, 3, 6}, {1, 4}, {2, 5}}[c.Rank()%3]
					if parent == reversed {
						slices.Reverse(want)
					}
					if err := checkHostComm(ctx, parent, want, share); err != nil {
						return fmt.Errorf("rank %d of the job: %w", c.Rank(), err)
					}
				}
				return nil
			}, comm.WithPlaces(interleavedHosts), comm.WithParameters(comm.Parameters{NoSharedMemory: !share}))
			if err != nil {
				t.Fatal(err)
			}
		})
	}
}

// checkHostComm checks that SplitByHost returns a communicator of the ranks in want, which are
// numbered in the job.
func checkHostComm(ctx context.Context, parent *comm.Comm, want []int, share bool) error {
	host, err := parent.SplitByHost(ctx)
	if err != nil {
		return err
	}
	if got := jobRanksOf(host); !slices.Equal(got, want) {
		return fmt.Errorf("members: got %v, want %v", got, want)
	}
	if host.Rank() != parent.LocalRank() || host.Size() != parent.LocalSize() {
		return fmt.Errorf("got rank %d of %d, want %d of %d", host.Rank(), host.Size(), parent.LocalRank(), parent.LocalSize())
	}
	report := fmt.Sprintf("%s, host 0, local %d of %d", parent.Host(), host.Rank(), host.Size())
	if got := hostReport(host); got != report {
		return fmt.Errorf("got %s, want %s", got, report)
	}
	if got := host.HostShares(); got != share {
		return fmt.Errorf("memory is shared: got %v, want %v", got, share)
	}
	sum, total := []int{host.WorldRank(host.Rank())}, 0
	for _, r := range want {
		total += r
	}
	if err := comm.AllReduce(ctx, host, sum, comm.Sum); err != nil {
		return err
	}
	if sum[0] != total {
		return fmt.Errorf("sum: got %d, want %d", sum[0], total)
	}
	return host.Close(ctx)
}

// The communicators that the comment of HostRank describes must be Horovod's: one per local rank,
// in the order of hosts, without the hosts that have fewer ranks.
func TestSplitByLocalRankMakesTheGroupsAcrossHosts(t *testing.T) {
	leak.Check(t)
	err := comm.Local(7, func(ctx context.Context, c *comm.Comm) error {
		cross, err := c.Split(ctx, c.LocalRank(), c.HostRank())
		if err != nil {
			return err
		}
		want := [][]int{{0, 2, 1}, {3, 5, 4}, {6}}[c.LocalRank()]
		if got := jobRanksOf(cross); !slices.Equal(got, want) {
			return fmt.Errorf("rank %d of the job: members: got %v, want %v", c.Rank(), got, want)
		}
		if got := hostReport(cross); got != fmt.Sprintf("%s, host %d, local 0 of 1", c.Host(), cross.Rank()) {
			return fmt.Errorf("rank %d of the job: got %s, want a host for each rank", c.Rank(), got)
		}
		return nil
	}, comm.WithPlaces(interleavedHosts))
	if err != nil {
		t.Fatal(err)
	}
}

// After a loss the new communicator must count only the ranks and hosts that are left. The old
// communicator still counts all of them.
func TestShrinkCountsTheRanksThatAreLeftOnEachHost(t *testing.T) {
	leak.Check(t)
	err := comm.Local(7, func(ctx context.Context, c *comm.Comm) error {
		if c.Rank() == 0 || c.Rank() == 2 || c.Rank() == 5 {
			return nil // the rank closes; n2 has no other ranks
		}
		before := hostReport(c)
		small, err := c.Shrink(ctx)
		if err != nil {
			return err
		}
		want := map[int]string{
			1: "n1, host 0, local 0 of 2", 3: "n0, host 1, local 0 of 2", 4: "n1, host 0, local 1 of 2", 6: "n0, host 1, local 1 of 2",
		}[c.Rank()]
		if got := hostReport(small); got != want {
			return fmt.Errorf("rank %d of the job: got %s, want %s", c.Rank(), got, want)
		}
		if got := hostReport(c); got != before {
			return fmt.Errorf("rank %d of the job: got %s before Shrink, and %s after it", c.Rank(), before, got)
		}
		return nil
	}, comm.WithPlaces(interleavedHosts))
	if err != nil {
		t.Fatal(err)
	}
}

// The variables of launchers must not change what Local and a job of one rank report.
func TestRanksWithoutALauncherAreOnOneHost(t *testing.T) {
	leak.Check(t)
	t.Setenv("TUTTI_LOCAL_RANK", "5")
	t.Setenv("TUTTI_LOCAL_SIZE", "6")
	t.Setenv("LOCAL_RANK", "3")
	t.Setenv("LOCAL_WORLD_SIZE", "4")
	t.Setenv("TF_CONFIG", `{"cluster":{"ps":["127.0.0.1:2222"]},"task":{"type":"ps","index":0}}`)
	name, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	check := func(c *comm.Comm, role string) error {
		want := fmt.Sprintf("%s, host 0, local %d of %d", name, c.Rank(), c.Size())
		if got := hostReport(c); got != want || c.Role() != role {
			return fmt.Errorf("got %s, with the role %q, want %s, with the role %q", got, c.Role(), want, role)
		}
		return nil
	}
	if err := comm.Local(3, func(_ context.Context, c *comm.Comm) error { return check(c, "") }); err != nil {
		t.Errorf("Local: %v", err)
	}
	c, err := comm.Init(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(context.WithoutCancel(t.Context()))
	dup, err := c.Dup(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, one := range []*comm.Comm{c, dup} {
		if err := check(one, "ps"); err != nil {
			t.Errorf("Init: %v", err)
		}
	}
}
