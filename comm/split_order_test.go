package comm

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tutti-go/tutti/fault"
)

func TestSubWithTheRanksInAnotherOrderIsAMismatch(t *testing.T) {
	const n = 3
	synctest.Test(t, func(t *testing.T) {
		err := Local(n, func(ctx context.Context, c *Comm) error {
			list := []int{0, 1, 2}
			if c.Rank() == 1 {
				list = []int{0, 2, 1}
			}
			began := time.Now()
			_, err := c.Sub(ctx, list...)
			if !errors.Is(err, fault.Mismatch) || !strings.HasPrefix(err.Error(), "sub: ") ||
				!strings.Contains(err.Error(), "sub of ranks [0 1 2]") || !strings.Contains(err.Error(), "sub of ranks [0 2 1]") {
				t.Errorf("rank %d got %v, want a mismatch of sub that has both lists", c.Rank(), err)
			}
			if elapsed := time.Since(began); elapsed > time.Second {
				t.Errorf("rank %d was told after %v", c.Rank(), elapsed)
			}
			// The next Sub of these ranks makes a different communicator.
			_, err = c.Sub(ctx, 2, 0, 1)
			return err
		})
		if err != nil {
			t.Error(err)
		}
	})
}
