package comm_test

import (
	"context"
	"testing"

	"github.com/tutti-go/tutti/comm"
)

// What every collective costs before it moves anything: the choice of the
// algorithm, and the checks that are always on (context, fingerprint, single
// flight, call site). One rank has nobody to wait for.
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

// A round trip of a small message between two ranks of this process.
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
			}, comm.WithTransport(wire))
			if err != nil {
				b.Fatal(err)
			}
		})
	}
}
