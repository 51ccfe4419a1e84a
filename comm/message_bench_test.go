package comm_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/tutti-go/tutti/comm"
	linked "github.com/tutti-go/tutti/transport/wires"
)

// BenchmarkMessageBothEnds measures the instructions of a round trip of small messages on both
// ranks together. One goroutine plays both ranks, so there are no waits, failed polls or context
// switches.
func BenchmarkMessageBothEnds(b *testing.B) {
	for _, wire := range []string{"memory", "shm", "tcp"} {
		for _, n := range []int{4, 1024, 4096} {
			b.Run(fmt.Sprintf("%s/%d", wire, n), func(b *testing.B) { bothEnds(b, wire, n) })
		}
	}
}

// run is the number of round trips that are timed together. The benchmark reports the shortest of
// these times, because other work on the machine can only lengthen a time.
const run = 64

func bothEnds(b *testing.B, wire string, n int) {
	other := make(chan *comm.Comm)
	err := comm.Local(2, func(ctx context.Context, c *comm.Comm) error {
		if c.Rank() == 1 {
			other <- c
			return c.Barrier(ctx)
		}
		ends := [2]*comm.Comm{c, <-other}
		buf := make([]byte, n)
		turn := func(from int) error {
			if err := comm.Send(ctx, ends[from], 1-from, 7, buf); err != nil {
				return err
			}
			_, err := comm.Recv(ctx, ends[1-from], from, 7, buf)
			return err
		}
		b.ReportAllocs()
		least, trips, start := time.Duration(0), 0, time.Now()
		for b.Loop() {
			for from := range 2 {
				if err := turn(from); err != nil {
					return err
				}
			}
			if trips++; trips%run == 0 {
				now := time.Now()
				if elapsed := now.Sub(start); least == 0 || elapsed < least {
					least = elapsed
				}
				start = now
			}
		}
		b.ReportMetric(float64(least)/run, "least-ns/op")
		return c.Barrier(ctx)
	}, comm.WithTransport(linked.All()...), comm.WithTransportName(wire))
	if err != nil {
		b.Fatal(err)
	}
}
