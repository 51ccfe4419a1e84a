//go:build unix

package e2e

import (
	"context"
	"fmt"
	"os"
	"testing"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/internal/test/worldtest"
)

// reportLayout reports this rank's place, and the ranks on its host. It then makes every
// collective, small and large. Finally it reports where the ranks run, the algorithms of a small
// and a large allreduce, and the transport to one other rank.
func reportLayout(ctx context.Context, a *rankProcess, c *comm.Comm) error {
	host, err := c.SplitByHost(ctx)
	if err != nil {
		return err
	}
	ranks := make([]int, host.Size())
	if err := comm.AllGather(ctx, host, ranks, comm.From([]int{c.Rank()})); err != nil {
		return err
	}
	a.log("place", fmt.Sprintf("%s, host %d, local %d of %d, with %v", c.Host(), c.HostRank(), c.LocalRank(), c.LocalSize(), ranks))
	for _, call := range worldtest.Collectives[float32]() {
		for _, count := range []int{1, 100_003} {
			if err := call.Run(ctx, c, count, new(worldtest.BufferTracker)); err != nil {
				return fmt.Errorf("%s of %d: %w", call.Name, count, err)
			}
		}
	}
	neighbour := (c.Rank() + 2) % (c.Size() - c.Size()%2)
	a.log("placed", fmt.Sprint(c.Layout().String(), " ", c.Bridge().Algorithm("allreduce", 4, comm.Sum), " ", c.Bridge().Algorithm("allreduce", 1<<20, comm.Sum), " ", c.Bridge().Transport(neighbour)))
	return nil
}

// tuttirun starts all ranks on this host, so local ranks are ranks.
func TestRanksOfTuttirunAreOnOneHost(t *testing.T) {
	t.Parallel()
	const ranks = 3
	name, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	j := run(t, ranks, "auto", instruction{Program: "places"})
	for _, e := range j.events("place", ranks) {
		if want := fmt.Sprintf("%s, host 0, local %d of 3, with [0 1 2]", name, e.Rank); e.Text != want {
			t.Errorf("rank %d is at %q, want %q", e.Rank, e.Text, want)
		}
	}
	j.launcher.wantExit(j, 0)
}
