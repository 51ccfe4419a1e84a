package comm

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tutti-go/tutti/fault"
)

// A start that fails by itself must keep its own error, and return it at once, although its epoch
// is broken. A start that ran out of time, was canceled or was refused waits for the news that its
// epoch is broken.
func TestOnlyAStartThatWasGivenUpIsBlamedOnTheEpoch(t *testing.T) {
	const never = time.Hour
	for _, tc := range []struct {
		kind   fault.Kind
		breaks time.Duration // after the start has failed
		broken bool
		waits  time.Duration
	}{
		{fault.Misuse, 0, false, 0},
		{fault.Mismatch, breakLimit / 2, false, 0},
		{fault.Exhausted, breakLimit / 2, false, 0},
		{fault.PeerLost, breakLimit / 2, false, 0},
		{fault.Timeout, 0, true, 0},
		{fault.Timeout, breakLimit / 2, true, breakLimit / 2},
		{fault.Canceled, breakLimit / 2, true, breakLimit / 2},
		{fault.Refused, breakLimit / 2, true, breakLimit / 2},
		{fault.Timeout, never, false, breakLimit},
	} {
		synctest.Test(t, func(t *testing.T) {
			cause := fault.New(tc.kind, "init", 0, "a reason")
			began := time.Now()
			_, err := startEpoch(t.Context(), func(ctx context.Context) error {
				select {
				case <-time.After(tc.breaks):
					return nil
				case <-ctx.Done():
					return ctx.Err()
				}
			}, func(context.Context) (*Comm, error) {
				synctest.Wait() // a break without delay comes first
				return nil, cause
			})
			want := error(cause)
			if tc.broken {
				want = errEpochBroken
			}
			if waited := time.Since(began); !errors.Is(err, want) || waited != tc.waits {
				t.Errorf("%v, broken after %v: got %v after %v, want %v after %v", tc.kind, tc.breaks, err, waited, want, tc.waits)
			}
		})
	}
}

// A start ends as soon as the epoch is broken.
func TestABrokenEpochEndsAStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, err := startEpoch(t.Context(), func(context.Context) error { return nil }, func(ctx context.Context) (*Comm, error) {
			<-ctx.Done()
			return nil, &fault.Error{Kind: fault.Canceled, Op: "init", Err: context.Cause(ctx)}
		})
		if err != error(errEpochBroken) {
			t.Errorf("got %v, want %v", err, errEpochBroken)
		}
	})
}
