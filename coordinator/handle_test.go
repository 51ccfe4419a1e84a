package coordinator

import (
	"context"
	"errors"
	"testing"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/fault"
)

// Whatever a WaitAll before it has left.
func TestAWaiterKeepsNoMoreRoomThanItsBound(t *testing.T) {
	co := &Coordinator{}
	h := &Handle{co: co}
	h.state.Store(succeeded)
	hs := make([]*Handle, 1<<20)
	for i := range hs {
		hs[i] = h
	}
	for _, tc := range []struct {
		handles int
		kept    bool
	}{{1, true}, {1000, true}, {2560, true}, {maxTurns*5/6 + 1, true}, {maxTurns, true}, {maxTurns + 1, false}, {2000, true}, {1 << 20, false}} {
		if err := WaitAll(t.Context(), hs[:tc.handles]...); err != nil {
			t.Fatal(err)
		}
		if room := cap(co.idleWaiters[0].turns); len(co.idleWaiters) != 1 || (room > 0) != tc.kept || room > maxTurns {
			t.Errorf("after %d handles %d waiters have room for %d; kept: want %v", tc.handles, len(co.idleWaiters), room, tc.kept)
		}
	}
}

// Nothing of it stays, and others can wait.
func TestWhoWaitsWithoutAContextIsRefused(t *testing.T) {
	if err := comm.Local(1, func(ctx context.Context, c *comm.Comm) error {
		co, err := Start(ctx, c)
		if err != nil {
			return err
		}
		co.mu.Lock()
		stuck := &Handle{co: co} // of which nothing will be heard
		co.mu.Unlock()
		var none context.Context
		for name, err := range map[string]error{
			"Wait":                   stuck.Wait(none),
			"WaitAll":                WaitAll(none, stuck),
			"WaitAll, none of them":  WaitAll(ctx, nil, stuck),
			"WaitAll, no second one": WaitAll(ctx, stuck, nil),
		} {
			if !errors.Is(err, fault.Misuse) {
				t.Errorf("%s: got %v, want fault.Misuse", name, err)
			}
		}
		if n := co.waiting.Load(); n != 0 || stuck.waiters != nil || stuck.crowd != nil {
			t.Errorf("%d wait still", n)
		}
		if err := WaitAll(ctx, AllReduce(co, "w", []float32{1}, comm.Sum)); err != nil {
			return err
		}
		return co.Close(ctx)
	}); err != nil {
		t.Error(err)
	}
}
