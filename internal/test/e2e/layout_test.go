//go:build unix

package e2e

import (
	"context"
	"fmt"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/internal/test/worldtest"
)

// reportLayout makes every collective, small and large. It then reports where the ranks run, the
// algorithms of a small and a large allreduce, and the transport to one other rank.
func reportLayout(ctx context.Context, a *rankProcess, c *comm.Comm) error {
	for _, call := range worldtest.Collectives[float32]() {
		for _, count := range []int{1, 100_003} {
			if err := call.Run(ctx, c, count, new(worldtest.BufferTracker)); err != nil {
				return fmt.Errorf("%s of %d: %w", call.Name, count, err)
			}
		}
	}
	neighbour := (c.Rank() + 2) % (c.Size() - c.Size()%2)
	a.log("placed", fmt.Sprint(c.Layout().String(), " ", c.Algorithm("allreduce", 4), " ", c.Algorithm("allreduce", 1<<20), " ", c.Bridge().Transport(neighbour)))
	return nil
}
