package p2p_test

import (
	"context"
	"errors"
	"testing"

	"github.com/tutti-go/tutti/internal/test/teamtest"
	"github.com/tutti-go/tutti/p2p"
)

// Whoever sets a flag nudges those who have said that they sleep. A rank that has looked,
// says so, and sleeps, would miss a flag that was set in between: it looks once more.
func TestFlagSetWhileRankFallsAsleepIsSeen(t *testing.T) {
	teamtest.New(t, 2, smallSegment).Run(t, func(_ context.Context, r *p2p.Round) error {
		if !r.SeesFlagSetWhileFallingAsleep() {
			return errors.New("the flag was not seen: its setter would have found nobody to nudge")
		}
		return nil
	})
}
