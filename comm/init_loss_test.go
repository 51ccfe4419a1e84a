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
	"github.com/tutti-go/tutti/transport"
	"github.com/tutti-go/tutti/transport/flaky"
)

// startAll starts n ranks in this process, as Local does. It returns their errors and the duration
// of each start. Unlike Local, it does not end the other ranks when one fails.
func startAll(t *testing.T, n int, script *flaky.Script) (errs []error, lasted []time.Duration) {
	t.Helper()
	o := newOptions([]Option{WithLogger(slog.New(slog.DiscardHandler)),
		WithWrap(func(rank int, t transport.Transport) transport.Transport { return script.Wrap(t, rank) })})
	wires, err := o.newLocalWires(n, nil)
	if err != nil {
		t.Fatal(err)
	}
	errs, lasted = make([]error, n), make([]time.Duration, n)
	comms := make([]*Comm, n)
	var all sync.WaitGroup
	for r := range n {
		all.Go(func() {
			began := time.Now()
			m, err := wires.localMember(r, o, "")
			if err == nil {
				comms[r], err = m.start(context.Background(), o)
			}
			errs[r] = err
			lasted[r] = time.Since(began)
		})
	}
	all.Wait()
	for _, c := range comms {
		if c != nil {
			c.Close(context.Background())
		}
	}
	return errs, lasted
}

// A rank dies in Init while the other ranks wait for it to map the memory that all ranks share.
// Within a second, their Init must fail with the loss of that rank.
func TestALossEndsTheWaitForSharedMemoryInInit(t *testing.T) {
	const n, victim = 3, 1
	script := flaky.New(flaky.Options{
		Counts: func(s flaky.Step) bool { return s.Kind == flaky.Share },
		Rules:  []flaky.Rule{flaky.Die(flaky.Before, 1).From(victim)},
	})
	synctest.Test(t, func(t *testing.T) {
		errs, lasted := startAll(t, n, script)
		for r := range n {
			if r == victim {
				continue
			}
			var f *fault.Error
			if !errors.As(errs[r], &f) || f.Kind != fault.PeerLost || len(f.Peers) != 1 || f.Peers[0].Rank != victim {
				t.Errorf("rank %d got %v, want %v that names rank %d", r, errs[r], fault.PeerLost, victim)
			}
			if lasted[r] > time.Second {
				t.Errorf("rank %d was told after %v, want at most 1 s", r, lasted[r])
			}
		}
	})
	if !script.Fired(0) {
		t.Error("no rank has died")
	}
}
