package comm

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/mesh"
	"github.com/tutti-go/tutti/transport"
	"github.com/tutti-go/tutti/transport/auto"
	"github.com/tutti-go/tutti/transport/flaky"
	"github.com/tutti-go/tutti/transport/memory"
)

// startAll starts n ranks in this process, as Local does, and returns their errors and how long
// each start took. Unlike Local, it does not end the others when one fails.
func startAll(t *testing.T, n int, script *flaky.Script) (errs []error, took []time.Duration) {
	t.Helper()
	hub := memory.New()
	o := newOptions([]Option{WithTransportName(memory.Name), WithLogger(slog.New(slog.DiscardHandler)),
		WithWrap(func(rank int, t transport.Transport) transport.Transport { return script.Wrap(t, rank) })})
	peers := make([]string, n)
	wires := make([]transport.Transport, n)
	for r := range n {
		peers[r] = hub.Addr(r)
		var err error
		if wires[r], err = o.wire(auto.Options{Hub: hub, Rank: r}); err != nil {
			t.Fatal(err)
		}
	}
	errs, took = make([]error, n), make([]time.Duration, n)
	comms := make([]*Comm, n)
	var all sync.WaitGroup
	for r := range n {
		all.Go(func() {
			began := time.Now()
			comms[r], errs[r] = start(context.Background(), o, wires[r], mesh.Config{Rank: r, Size: n, Job: hub.ID(), InProcess: true, Peers: peers})
			took[r] = time.Since(began)
		})
	}
	all.Wait()
	for _, c := range comms {
		if c != nil {
			c.Close(context.Background())
		}
	}
	return errs, took
}

// A rank dies in Init where the others wait for it to map the memory that all share.
func TestALossEndsTheWaitForSharedMemoryInInit(t *testing.T) {
	const n, victim = 3, 1
	script := flaky.New(flaky.Options{
		Counts: func(s flaky.Step) bool { return s.Kind == flaky.Share },
		Rules:  []flaky.Rule{flaky.Die(flaky.Before, 1).From(victim)},
	})
	synctest.Test(t, func(t *testing.T) {
		errs, took := startAll(t, n, script)
		for r := range n {
			if r == victim {
				continue
			}
			var f *fault.Error
			if !errors.As(errs[r], &f) || f.Kind != fault.PeerLost || len(f.Peers) != 1 || f.Peers[0].Rank != victim {
				t.Errorf("rank %d got %v, want %v that names rank %d", r, errs[r], fault.PeerLost, victim)
			}
			if took[r] > time.Second {
				t.Errorf("rank %d was told after %v, want at most 1 s", r, took[r])
			}
		}
	})
	if !script.Fired(0) {
		t.Error("no rank has died")
	}
}
