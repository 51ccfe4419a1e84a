package comm_test

import (
	"context"
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tutti-go/tutti/comm"
	linked "github.com/tutti-go/tutti/transport/wires"
)

// Rank 0 computes without calling this module. Meanwhile the operations that it has started must
// make progress, and must complete on the other ranks. This must hold even if all goroutines share
// one thread, which rank 0 never yields.
func TestNonBlockingCallsProgressWhileTheCallerComputes(t *testing.T) {
	for _, threads := range []int{runtime.GOMAXPROCS(0), 1} {
		for _, wire := range []string{"memory", "tcp", "shm"} {
			if wire == "shm" && runtime.GOOS != "linux" {
				continue
			}
			for _, w := range computations {
				t.Run(fmt.Sprintf("%s/%s/%d threads", wire, w.name, threads), func(t *testing.T) {
					defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(threads))
					if err := computeBeside(wire, w); err != nil {
						t.Error(err)
					}
				})
			}
		}
	}
}

// A computation is an operation that runs in the background. All ranks call start, and then wait
// until the operation has ended on every rank.
type computation struct {
	name  string
	start func(ctx context.Context, c *comm.Comm) (wait func() error, err error)
}

var computations = []computation{
	{"iallreduce", func(ctx context.Context, c *comm.Comm) (func() error, error) {
		buf := make([]float32, 300_000)
		return waiting(ctx, comm.IAllReduce(c, buf, comm.Sum)), nil
	}},
	{"iallgather and ibarrier", func(ctx context.Context, c *comm.Comm) (func() error, error) {
		all := make([]float32, 3*1000)
		return waiting(ctx, comm.IAllGather(c, all), c.IBarrier()), nil
	}},
	{"persistent", func(ctx context.Context, c *comm.Comm) (func() error, error) {
		p := comm.IAllReduce(c, make([]float32, 100_000), comm.Sum, comm.Persistent())
		return func() error { defer p.Free(); return comm.WaitAll(ctx, p) }, p.Start(ctx)
	}},
	{"irecv and isend", func(ctx context.Context, c *comm.Comm) (func() error, error) {
		var rs []*comm.Request
		// The messages are large, so the receiver requests the bytes, and then the sender sends
		// them.
		for r := range c.Size() {
			if r != c.Rank() {
				rs = append(rs, comm.IRecv(c, r, 1, make([]float32, 300_000)), comm.ISend(c, r, 1, make([]float32, 300_000)))
			}
		}
		return waiting(ctx, rs...), nil
	}},
}

func waiting(ctx context.Context, rs ...*comm.Request) func() error {
	return func() error { return comm.WaitAll(ctx, rs...) }
}

// computeBeside starts w on three ranks. Rank 0 then only counts until the other ranks are done.
func computeBeside(wire string, w computation) error {
	var done atomic.Int32
	return comm.Local(3, func(ctx context.Context, c *comm.Comm) error {
		if err := c.Barrier(ctx); err != nil { // opens the Conns, which Local need not have opened
			return err
		}
		wait, err := w.start(ctx, c)
		if err != nil {
			return err
		}
		if c.Rank() == 0 {
			limit := time.Now().Add(60 * time.Second)
			for n := 1; done.Load() < 2; n++ {
				if n%(1<<20) == 0 && time.Now().After(limit) {
					return fmt.Errorf("after a minute of computing %d of 2 others are done", done.Load())
				}
			}
			return wait()
		}
		err = wait()
		done.Add(1)
		return err
	}, comm.WithTransport(linked.All()...), comm.WithTransportName(wire))
}
