package comm_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/tutti-go/tutti/comm"
	linked "github.com/tutti-go/tutti/transport/wires"
)

// BenchmarkCallAlone measures what every collective costs before it moves any data: the choice of
// the algorithm, and the checks that are always on (context, fingerprint, concurrent calls, call
// site). The job has one rank, so no call waits.
func BenchmarkCallAlone(b *testing.B) {
	err := comm.Local(1, func(ctx context.Context, c *comm.Comm) error {
		buf := []float32{1}
		b.ReportAllocs()
		for b.Loop() {
			if err := comm.AllReduce(ctx, c, buf, comm.Sum); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		b.Fatal(err)
	}
}

// BenchmarkRoundTrip measures a round trip of a small message between two ranks of this process.
func BenchmarkRoundTrip(b *testing.B) {
	for _, wire := range []string{"memory", "shm", "tcp"} {
		b.Run(wire, func(b *testing.B) {
			err := comm.Local(2, func(ctx context.Context, c *comm.Comm) error {
				buf := []float32{1}
				for range b.N {
					if err := around(ctx, c, buf, buf); err != nil {
						return err
					}
				}
				return nil
			}, comm.WithTransport(linked.All()...), comm.WithTransportName(wire))
			if err != nil {
				b.Fatal(err)
			}
		})
	}
}

// redials makes a link keep each frame until the peer has acknowledged it.
var redials = []comm.Option{comm.WithRedial(10 * time.Second)}

// BenchmarkRedial measures what WithRedial costs while nothing fails: the round trip of a message of
// some elements over tcp, without and with it.
func BenchmarkRedial(b *testing.B) {
	for _, count := range []int{1, 1 << 10, 1 << 14, 1 << 20} {
		for i, opts := range [][]comm.Option{nil, redials} {
			b.Run(fmt.Sprintf("%s/%d", [...]string{"off", "on"}[i], count), func(b *testing.B) {
				err := comm.Local(2, func(ctx context.Context, c *comm.Comm) error {
					buf := make([]float32, count)
					for range b.N {
						if err := around(ctx, c, buf, buf); err != nil {
							return err
						}
					}
					return nil
				}, append(opts[:len(opts):len(opts)], comm.WithTransportName("tcp"))...)
				if err != nil {
					b.Fatal(err)
				}
			})
		}
	}
}

// around sends a message from each rank to the next until it is back at rank 0.
func around(ctx context.Context, c *comm.Comm, out, in []float32) error {
	next, last := (c.Rank()+1)%c.Size(), (c.Rank()+c.Size()-1)%c.Size()
	if c.Rank() == 0 {
		if err := comm.Send(ctx, c, next, 1, out); err != nil {
			return err
		}
	}
	if _, err := comm.Recv(ctx, c, last, 1, in); err != nil || c.Rank() == 0 {
		return err
	}
	return comm.Send(ctx, c, next, 1, out)
}
