package comm_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/coordinator"
	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/test/leak"
	"github.com/tutti-go/tutti/transport/flaky"
)

// In each run one rank of a coordinator dies at one of the frames that it sends, from the first
// submission to the last result. The frames include the first order, parts of a large tensor, and
// steps with a cold and a warm cache. Within a second, each handle of the other ranks must succeed
// or report the loss of that rank.
func TestCoordinatorsEndWhenARankDiesAtAnyFrame(t *testing.T) {
	leak.Check(t)
	const ranks = 3
	stride := 1
	if raceEnabled && !soaking {
		stride = 7
	}
	deaths := 0
	for victim := range ranks {
		for _, m := range []flaky.Moment{flaky.Before, flaky.After} {
			for k := 1 + victim%stride; ; k += stride {
				d := &death{ranks: ranks, victim: victim}
				d.script = flaky.New(flaky.Options{Rules: []flaky.Rule{flaky.Die(m, k).From(victim)}, Counts: d.counts})
				synctest.Test(t, func(*testing.T) { d.run() })
				if !d.script.Fired(0) {
					break
				}
				deaths++
				for rank, err := range d.errs {
					if err != nil && rank != victim {
						t.Errorf("rank %d dies %v its frame %d: rank %d: %v", victim, m, k, rank, err)
					}
				}
			}
		}
	}
	if t.Logf("%d deaths", deaths); deaths < 10 {
		t.Errorf("%d deaths are too few to prove anything", deaths)
	}
}

// A death is one job in which one rank dies.
type death struct {
	ranks, victim int
	script        *flaky.Script
	gate          atomic.Bool // frames count as steps only while gate is set
	ready         sync.WaitGroup
	errs          []error
}

// counts reports whether a frame counts as a step. It excludes frames that a timer sends.
func (d *death) counts(st flaky.Step) bool {
	return d.gate.Load() && st.Kind == flaky.Frame && len(st.Head) != controlHead
}

func (d *death) run() {
	d.errs = make([]error, d.ranks)
	d.ready.Add(d.ranks)
	comm.Local(d.ranks, func(_ context.Context, c *comm.Comm) error {
		d.errs[c.Rank()] = d.rank(c)
		return nil
	}, comm.WithTransportName("memory"), comm.WithLogger(discardLog), comm.WithParameters(comm.Parameters{NoSharedMemory: true}), comm.WithWrap(wrapBy(d.script)))
}

// rank submits the tensors of three steps, and closes. The later steps come from the cache.
func (d *death) rank(c *comm.Comm) error {
	co, err := coordinator.Start(context.Background(), c, coordinator.WithPartition(4096), coordinator.WithMaxFusedTensor(1024), coordinator.WithLogger(discardLog))
	if err != nil {
		return err
	}
	d.ready.Done()
	d.ready.Wait()
	d.gate.Store(true)
	began := time.Now()
	for step := range 3 {
		var hs []*coordinator.Handle
		for i := range 5 {
			// Each rank submits in its own order.
			n := (i + c.Rank()) % 5
			hs = append(hs, coordinator.AllReduce(co, fmt.Sprint("w", n), make([]float32, 1+n*500), comm.Sum)) // some tensors are fused, some are sent alone, and one is sent in parts
		}
		failed := coordinator.WaitAll(context.Background(), hs...)
		for i, h := range hs {
			if err := h.Wait(context.Background()); err != nil && !lost(err, d.victim) {
				return fmt.Errorf("step %d, handle %d: %w", step, i, err)
			}
		}
		if failed != nil {
			break
		}
	}
	if elapsed := time.Since(began); elapsed > verdictLimit {
		return fmt.Errorf("the handles took %v", elapsed)
	}
	if err := co.Close(context.Background()); err != nil && !lost(err, d.victim) {
		return fmt.Errorf("close: %w", err)
	}
	return nil
}

func lost(err error, rank int) bool {
	var f *fault.Error
	return errors.As(err, &f) && blames(f, fault.PeerLost, rank)
}
