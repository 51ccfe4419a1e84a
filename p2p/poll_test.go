package p2p_test

import (
	"context"
	"errors"
	"testing"

	"github.com/tutti-go/tutti/internal/test/teamtest"
	"github.com/tutti-go/tutti/p2p"
)

// A rank that sets a flag wakes the ranks that have stored their asleep word. A rank reads the
// flag, stores its asleep word, and must then read the flag once more. Without the second read it
// would miss a flag that is set between the first read and the store.
func TestFlagSetWhileRankFallsAsleepIsSeen(t *testing.T) {
	teamtest.New(t, 2, smallSegment).Run(t, func(_ context.Context, r *p2p.Round) error {
		if !r.SeesFlagSetWhileFallingAsleep() {
			return errors.New("the flag was not seen: its setter would have found nobody to nudge")
		}
		return nil
	})
}
