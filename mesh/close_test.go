package mesh

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tutti-go/tutti/fault"
)

func TestGoodbyesComeInAnyOrderAndTheOverlayIsRebuilt(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const n = 9
		r := started(t, n, nil)
		order := []int{4, 0, 8, 5, 3, 1, 7, 2}
		for k, i := range order {
			if err := r.meshes[i].Close(t.Context()); err != nil {
				t.Errorf("rank %d: %v", i, err)
			}
			// Reason: the goodbye arrives within this time. No real time passes.
			time.Sleep(200 * time.Millisecond)
			if got := r.events[6].left(); !slices.Equal(got, order[:k+1]) {
				t.Errorf("rank 6 has heard the goodbyes of %v, want %v", got, order[:k+1])
			}
			last := order[len(order)-1]
			if i != last {
				r.meshes[last].Flood(1, nil)
				synctest.Wait()
				if got := r.events[6].floodsSeen(); len(got) != k+1 {
					t.Errorf("after %d goodbyes rank 6 has %d floods of rank %d", k+1, len(got), last)
				}
			}
		}
		if err := r.meshes[6].Close(t.Context()); err != nil {
			t.Error(err)
		}
		for i, ear := range r.events {
			if e, _ := ear.first(); e != nil {
				t.Errorf("rank %d hears %v", i, e)
			}
		}
		if got := r.logs.all(); len(got) != 0 {
			t.Errorf("logged: %q", got)
		}
	})
}

func TestAllCloseAtOnce(t *testing.T) {
	for n := 1; n <= 9; n++ {
		bubble(t, func(t *testing.T) {
			r := started(t, n, nil)
			start := time.Now()
			done := make(chan error)
			for _, m := range r.meshes {
				go func() { done <- m.Close(t.Context()) }()
			}
			for range n {
				if err := <-done; err != nil {
					t.Errorf("%d ranks: %v", n, err)
				}
			}
			if elapsed := time.Since(start); elapsed > time.Second {
				t.Errorf("%d ranks took %v to close", n, elapsed)
			}
			for i, ear := range r.events {
				if e, _ := ear.first(); e != nil {
					t.Errorf("%d ranks: rank %d hears %v", n, i, e)
				}
			}
		})
	}
}

func TestCloseDoesNotWaitForASilentNeighbourBeyondItsContext(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := started(t, 3, nil)
		defer r.close()
		defer r.freeze(1)()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start := time.Now()
		err := r.meshes[0].Close(ctx)
		if elapsed := time.Since(start); elapsed != time.Second || !errors.Is(err, fault.Timeout) {
			t.Errorf("got %v after %v, want a timeout after 1s", err, elapsed)
		}
		if again := r.meshes[0].Close(t.Context()); again != err {
			t.Errorf("the second Close returns %v, want the first one's %v", again, err)
		}
	})
}

func TestCallsAfterCloseReturn(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := started(t, 2, nil)
		r.meshes[1].Close(t.Context())
		r.meshes[0].Close(t.Context())
		m := r.meshes[0]
		m.Flood(1, nil)
		m.Suspect(1, nil)
		m.Announce(fault.New(fault.Revoked, "x", 0, "late"))
		if got := m.Ask(t.Context(), []int{0, 1}, nil); len(got) != 2 || got[0].Body != nil {
			t.Errorf("a question after Close has the answers %v", got)
		}
		if _, _, err := m.dialChannel(t.Context(), 1, channelData); !errors.Is(err, fault.Closed) {
			t.Errorf("a dial after Close: %v", err)
		}
	})
}
