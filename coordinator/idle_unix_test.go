//go:build unix

package coordinator_test

import (
	"context"
	"syscall"
	"testing"
	"time"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/coordinator"
)

// BenchmarkIdle reports the share of one core that two idle ranks use over tcp, including
// heartbeats. The ranks have worked before.
func BenchmarkIdle(b *testing.B) {
	const idle = 2 * time.Second
	err := comm.Local(2, with(func(ctx context.Context, c *comm.Comm, co *coordinator.Coordinator) error {
		s := newSteps(100, 100)
		for range 3 {
			if err := s.step(ctx, co); err != nil {
				return err
			}
		}
		if c.Rank() > 0 {
			return nil // then wait in Close
		}
		before := cpuTime(b)
		for b.Loop() {
			// Reason: the benchmark measures what ranks cost that do nothing.
			time.Sleep(idle)
		}
		b.ReportMetric(100*float64(cpuTime(b)-before)/float64(b.Elapsed()), "%core")
		return nil
	}), comm.WithTransportName("tcp"))
	if err != nil {
		b.Fatal(err)
	}
}

// cpuTime returns the processor time that the process has used.
func cpuTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
