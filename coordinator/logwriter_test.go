package coordinator

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/test/leak"
)

func TestALogWriterDropsWithACountAndNeverWhatMustBeWritten(t *testing.T) {
	leak.Check(t)
	synctest.Test(t, func(t *testing.T) {
		var reported []string
		s := &logWriter{capacity: 3, onError: func(text string) { reported = append(reported, text) }}
		free := make(chan struct{})
		s.enqueue(func() error { <-free; return nil })
		synctest.Wait() // run has taken the entry, so it no longer counts as waiting
		var written []int
		for i := range 5 {
			s.enqueue(func() error { written = append(written, i); return nil })
		}
		s.enqueueAlways(func() error { written = append(written, 100); return errors.New("no room") })
		ended, end := context.WithCancel(t.Context())
		end()
		if err := s.wait(ended); !errors.Is(err, context.Canceled) {
			t.Errorf("waiting with a context that has ended: %v", err)
		}
		if err := s.wait(t.Context()); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("waiting for what is stuck: %v, want the bound's end", err)
		}
		close(free)
		if err := s.wait(t.Context()); err != nil {
			t.Errorf("waiting for what is free again: %v", err)
		}
		if want := []int{0, 1, 2, 100}; !slices.Equal(written, want) {
			t.Errorf("written are %v, want %v", written, want)
		}
		if want := []string{"2 entries were dropped because the writer was blocked", "no room"}; !slices.Equal(reported, want) {
			t.Errorf("reported was %q, want %q", reported, want)
		}
	})
}

// A slowHandler is a logger's handler that blocks until free is closed. If free is nil, it does not
// block.
type slowHandler struct{ free chan struct{} }

func (s slowHandler) Enabled(context.Context, slog.Level) bool { return true }
func (s slowHandler) WithAttrs([]slog.Attr) slog.Handler       { return s }
func (s slowHandler) WithGroup(string) slog.Handler            { return s }
func (s slowHandler) Handle(context.Context, slog.Record) error {
	if s.free != nil {
		<-s.free
	}
	return nil
}

// If only Autotune's log blocks, drainLogs must log a warning and return no error, even if its
// context has ended meanwhile. If the logger blocks as well, drainLogs must return an error.
func TestWhatAutotuneLacksIsNoFaultOfALogger(t *testing.T) {
	for _, tc := range []struct {
		name  string
		stuck bool // whether the logger blocks, too
		ends  func(context.Context) (context.Context, context.CancelFunc)
		want  error
	}{
		{"in time", false, withEnd(time.Minute), nil},
		{"deadline", false, withEnd(2 * time.Second), nil},
		{"cancelled", false, withCancel, nil},
		{"no logger, in time", true, withEnd(time.Minute), fault.Timeout},
		{"no logger, deadline", true, withEnd(2 * time.Second), fault.Timeout},
		{"no logger, cancelled", true, withCancel, fault.Canceled},
	} {
		t.Run(tc.name, func(t *testing.T) {
			leak.Check(t)
			synctest.Test(t, func(t *testing.T) {
				free := make(chan struct{})
				defer close(free)
				to := slowHandler{}
				if tc.stuck {
					to.free = free
				}
				co := &Coordinator{worldRank: func(rank int) int { return rank }, log: newLogWriter(slog.New(to))}
				co.tuneLog = newTuneLogWriter(1, co.log)
				co.tuneLog.enqueue(func() error { <-free; return nil })
				ctx, end := tc.ends(t.Context())
				defer end()
				err := co.drainLogs(ctx)
				if tc.want == nil && err != nil || !errors.Is(err, tc.want) {
					t.Errorf("got %v, want %v", err, tc.want)
				}
			})
		})
	}
}

func withEnd(d time.Duration) func(context.Context) (context.Context, context.CancelFunc) {
	return func(ctx context.Context) (context.Context, context.CancelFunc) { return context.WithTimeout(ctx, d) }
}

// withCancel returns a context that is cancelled after a while.
func withCancel(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	time.AfterFunc(2*time.Second, cancel)
	return ctx, cancel
}

func TestALogHasRoomForAllOfOneSearch(t *testing.T) {
	leak.Check(t)
	synctest.Test(t, func(t *testing.T) {
		s := newTuneLogWriter(maxSamples, nil) // a dropped entry would panic, because there is no log
		free := make(chan struct{})
		written := 0
		for range maxSamples + 1 {
			s.enqueue(func() error { <-free; written++; return nil })
		}
		close(free)
		if err := s.wait(t.Context()); err != nil || written != maxSamples+1 {
			t.Errorf("%d lines are written, want %d; %v", written, maxSamples+1, err)
		}
	})
}
