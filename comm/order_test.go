package comm_test

import (
	"context"
	"fmt"
	"runtime"
	"testing"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/internal/test/leak"
	linked "github.com/tutti-go/tutti/transport/wires"
)

// Ranks of one process may share variables, and calls order the accesses. The race detector must
// see that order over every transport. Otherwise it would report a race in the caller.
func TestCallsOrderTheRanksOfOneProcess(t *testing.T) {
	wires := []string{"memory", "tcp", "grpc"}
	if runtime.GOOS == "linux" {
		wires = append(wires, "shm")
	}
	for _, wire := range wires {
		t.Run(wire, func(t *testing.T) {
			leak.Check(t)
			var all [3]int
			err := comm.Local(len(all), func(ctx context.Context, c *comm.Comm) error {
				for i := range 50 {
					all[c.Rank()] = i
					if err := c.Barrier(ctx); err != nil {
						return err
					}
					for rank, got := range all {
						if got != i {
							return fmt.Errorf("rank %d has %d in round %d", rank, got, i)
						}
					}
					for _, size := range []int{1, 256 << 10} {
						if err := forwardToken(ctx, c, &all[0], size); err != nil {
							return err
						}
					}
				}
				return nil
			}, comm.WithTransport(linked.All()...), comm.WithTransportName(wire))
			if err != nil {
				t.Error(err)
			}
		})
	}
}

// forwardToken passes a message of the given size from rank 0 to the last rank. Each rank writes to
// a shared variable before it passes the message on.
func forwardToken(ctx context.Context, c *comm.Comm, shared *int, size int) error {
	message := make([]byte, size)
	if err := c.Barrier(ctx); err != nil {
		return err
	}
	if c.Rank() > 0 {
		if _, err := comm.Recv(ctx, c, c.Rank()-1, 0, message); err != nil {
			return err
		}
	}
	*shared = -c.Rank()
	if c.Rank() < c.Size()-1 {
		if err := comm.Send(ctx, c, c.Rank()+1, 0, message); err != nil {
			return err
		}
	}
	return c.Barrier(ctx)
}
