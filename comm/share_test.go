package comm_test

import (
	"context"
	"testing"

	"github.com/tutti-go/tutti/comm"
)

// The ranks agree on sharing memory by collectives, which cannot use it yet.
func TestAlgorithmsInSharedMemoryMayBeForced(t *testing.T) {
	err := comm.Local(3, func(ctx context.Context, c *comm.Comm) error {
		buf := []int32{1}
		if err := comm.AllReduce(ctx, c, buf, comm.Sum); err != nil {
			return err
		}
		if got := c.Algorithm("allreduce", 4); got != "shared" || buf[0] != 3 {
			t.Errorf("rank %d: algorithm %q brought %d", c.Rank(), got, buf[0])
		}
		return comm.Broadcast(ctx, c, buf, 1)
	}, comm.WithAlgorithm("allreduce:shared,broadcast:shared"))
	if err != nil {
		t.Fatal(err)
	}
}
