package comm

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"testing"

	"github.com/tutti-go/tutti/fault"
)

// If a collective has succeeded, Wait must report success even if its context has ended. The
// communicator must stay usable.
func TestWaitWithAnEndedContextReportsACollectiveThatIsDone(t *testing.T) {
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	err := Local(2, func(ctx context.Context, c *Comm) error {
		r := c.IBarrier(Persistent())
		for range 32 { // select chooses randomly between two ready cases
			if err := r.Start(ctx); err != nil {
				return err
			}
			for !r.isDone() {
				runtime.Gosched()
			}
			if _, err := r.Wait(ended); err != nil {
				return fmt.Errorf("Wait of a barrier that is done: %w", err)
			}
		}
		return errors.Join(r.Free(), c.Barrier(ctx))
	})
	if err != nil {
		t.Error(err)
	}
}

func TestWaitAnyAndWaitSomeReportRefusedRequestsOnce(t *testing.T) {
	err := Local(1, func(ctx context.Context, c *Comm) error {
		one := []int32{1}
		for range 2 {
			r := IAllReduce(c, one, Op{})
			if i, _, err := WaitAny(ctx, r); i != 0 || !errors.Is(err, fault.Misuse) {
				return fmt.Errorf("WaitAny: got %d, %v, want 0 and misuse", i, err)
			}
			if i, _, err := WaitAny(ctx, r); i != -1 || err != nil {
				return fmt.Errorf("the second WaitAny: got %d, %v, want -1", i, err)
			}
		}
		bad, good := ISend(c, 0, 1, one, Counts(nil)), c.IBarrier()
		done, _, err := WaitSome(ctx, bad, good)
		if len(done) == 0 || done[0] != 0 || !errors.Is(err, fault.Misuse) {
			return fmt.Errorf("WaitSome: got %v, %v, want the refused request and misuse", done, err)
		}
		return WaitAll(ctx, good)
	})
	if err != nil {
		t.Error(err)
	}
}

func TestANilContextIsMisuse(t *testing.T) {
	err := Local(1, func(ctx context.Context, c *Comm) error {
		r := c.IBarrier(Persistent())
		var none context.Context
		if err := r.Start(none); !errors.Is(err, fault.Misuse) {
			return fmt.Errorf("Start: got %v, want misuse", err)
		}
		if _, err := r.Wait(none); !errors.Is(err, fault.Misuse) {
			return fmt.Errorf("Wait: got %v, want misuse", err)
		}
		return r.Free()
	})
	if err != nil {
		t.Error(err)
	}
}
