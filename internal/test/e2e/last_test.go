//go:build unix

package e2e

import (
	"context"
	"fmt"
	"testing"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/internal/test/leak"
	linked "github.com/tutti-go/tutti/transport/wires"
)

// In most programs, ranks close right after their last call, in any order. The last call of another
// rank must not fail because of that.
func TestLastCallsSucceedThoughOthersCloseAtOnce(t *testing.T) {
	leak.Check(t)
	again := 2
	if soaking() {
		again = 500
	}
	lasts := map[string]func(ctx context.Context, c *comm.Comm, buf []byte) error{
		"a message": func(ctx context.Context, c *comm.Comm, buf []byte) error {
			if c.Rank() == 0 {
				return comm.Send(ctx, c, 1, 0, buf)
			}
			if c.Rank() > 1 {
				return nil
			}
			_, err := comm.Recv(ctx, c, 0, 0, buf)
			return err
		},
		"a sum": func(ctx context.Context, c *comm.Comm, buf []byte) error {
			return comm.AllReduce(ctx, c, buf, comm.Sum)
		},
		"a broadcast": func(ctx context.Context, c *comm.Comm, buf []byte) error {
			return comm.Broadcast(ctx, c, buf, 0)
		},
	}
	for _, wire := range append([]string{"memory"}, wires()...) {
		for name, last := range lasts {
			for drive, d := range protocols() {
				for _, bytes := range []int{1, 60_000, 250_000, 1 << 20} {
					t.Run(fmt.Sprintf("%s/%s/%s/%d", wire, name, drive, bytes), func(t *testing.T) {
						for i := range again {
							err := comm.Local(3, func(ctx context.Context, c *comm.Comm) error {
								return last(ctx, c, make([]byte, bytes))
							}, comm.WithTransport(linked.All()...), comm.WithTransportName(wire), comm.WithParameters(comm.Parameters{Protocol: d}))
							if err != nil {
								t.Fatalf("run %d: %v", i, err)
							}
						}
					})
				}
			}
		}
	}
}
