package comm_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/transport/flaky"
)

// makers returns the calls that make a communicator of all ranks.
func makers() map[string]func(ctx context.Context, c *comm.Comm) (*comm.Comm, error) {
	return map[string]func(ctx context.Context, c *comm.Comm) (*comm.Comm, error){
		"dup":   func(ctx context.Context, c *comm.Comm) (*comm.Comm, error) { return c.Dup(ctx) },
		"split": func(ctx context.Context, c *comm.Comm) (*comm.Comm, error) { return c.Split(ctx, 0, 0) },
		"sub":   func(ctx context.Context, c *comm.Comm) (*comm.Comm, error) { return c.Sub(ctx, 0, 1, 2, 3) },
	}
}

// A rank dies while the other ranks wait for it to map the memory that all ranks share. They wait
// up to 10 s for a live rank, but must not wait for a rank that is known to be lost.
func TestALossEndsTheWaitForSharedMemory(t *testing.T) {
	const n, victim = 4, 1
	for name, make1 := range makers() {
		for _, hosts := range []int{1, 2} {
			t.Run(fmt.Sprintf("%s/%d hosts", name, hosts), func(t *testing.T) {
				// The victim's first Share happens in Init.
				script := flaky.New(flaky.Options{
					Counts: func(s flaky.Step) bool { return s.Kind == flaky.Share },
					Rules:  []flaky.Rule{flaky.Die(flaky.Before, 2).From(victim)},
				})
				synctest.Test(t, func(t *testing.T) {
					var survivors atomic.Int32
					comm.Local(n, func(ctx context.Context, c *comm.Comm) error {
						began := time.Now()
						_, err := make1(ctx, c)
						if c.Rank() == victim {
							// Reason: if this rank returned, it would end the job in another way.
							// The bubble's clock passes the time at once.
							time.Sleep(20 * time.Second)
							return err
						}
						// Ranks on other hosts share no memory with the victim. They wait for it in
						// the next collective.
						wantLoss(t, c.Rank(), err, victim)
						if !strings.HasPrefix(err.Error(), name+": rank ") {
							t.Errorf("rank %d got %v, want an error of %s", c.Rank(), err, name)
						}
						if elapsed := time.Since(began); elapsed > time.Second {
							t.Errorf("rank %d was told after %v, want at most 1 s", c.Rank(), elapsed)
						}
						survivors.Add(1)
						// Reason: no rank may close before all ranks have been notified. The
						// bubble's clock passes the time at once.
						time.Sleep(5 * time.Second)
						return err
					}, roundRobinHosts(hosts), comm.WithWrap(wrapBy(script)), comm.WithLogger(discardLog))
					if survivors.Load() != n-1 || !script.Fired(0) {
						t.Errorf("%d ranks have reported, want %d; the victim has died: %v", survivors.Load(), n-1, script.Fired(0))
					}
				})
			})
		}
	}
}

// wantLoss checks that err names the lost rank and no other rank.
func wantLoss(t *testing.T, rank int, err error, victim int) {
	t.Helper()
	var f *fault.Error
	if !errors.As(err, &f) || f.Kind != fault.PeerLost || len(f.Peers) != 1 || f.Peers[0].Rank != victim {
		t.Errorf("rank %d got %v, want %v that names rank %d", rank, err, fault.PeerLost, victim)
	}
}
