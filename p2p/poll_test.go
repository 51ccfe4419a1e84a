package p2p_test

import (
	"context"
	"errors"
	"testing"

	"github.com/tutti-go/tutti/internal/test/teamtest"
	"github.com/tutti-go/tutti/p2p"
)

// A rank that sets a flag wakes the ranks that have stored their asleep word. A flag that is set
// between another rank's read and its store would wake nobody, so that rank reads the flag once
// more.
func TestFlagSetWhileRankFallsAsleepIsSeen(t *testing.T) {
	teamtest.New(t, 2, smallSegment).Run(t, func(_ context.Context, r *p2p.Round) error {
		if !r.SeesFlagSetWhileFallingAsleep() {
			return errors.New("the flag was not seen: its setter would have found nobody to nudge")
		}
		return nil
	})
}
