package coordinator

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/tutti-go/tutti/internal/leak"
)

func TestAScribeDropsWithACountAndNeverWhatMustBeWritten(t *testing.T) {
	leak.Check(t)
	synctest.Test(t, func(t *testing.T) {
		var told []string
		s := &scribe{most: 3, failed: func(text string) { told = append(told, text) }}
		free := make(chan struct{})
		s.do(func() error { <-free; return nil })
		synctest.Wait() // it has been taken, and does not count
		var written []int
		for i := range 5 {
			s.do(func() error { written = append(written, i); return nil })
		}
		s.must(func() error { written = append(written, 100); return errors.New("no room") })
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
		if want := []string{"2 entries were dropped, since it took none for too long", "no room"}; !slices.Equal(told, want) {
			t.Errorf("told was %q, want %q", told, want)
		}
	})
}

func TestALogHasRoomForAllThatOneSearchSays(t *testing.T) {
	leak.Check(t)
	synctest.Test(t, func(t *testing.T) {
		s := newTuneScribe(maxSamples, nil) // which would be told
		free := make(chan struct{})
		written := 0
		for range maxSamples + 1 {
			s.do(func() error { <-free; written++; return nil })
		}
		close(free)
		if err := s.wait(t.Context()); err != nil || written != maxSamples+1 {
			t.Errorf("%d lines are written, want %d; %v", written, maxSamples+1, err)
		}
	})
}
