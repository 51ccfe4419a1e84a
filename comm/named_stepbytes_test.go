package comm_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/test/leak"
)

// TestStepBytesBoundsTheNamedSendsOfAStep sends two tensors before the other rank receives. Each
// has more bytes than the credit. Either both tensors fit into the bound, or only the first fits.
// The sends of one step must not count against the next step.
func TestStepBytesBoundsTheNamedSendsOfAStep(t *testing.T) {
	const size, envelope = 6 << 20, 256
	for _, tc := range []struct {
		bound   int64
		refused bool
	}{{2 * (size + envelope), false}, {2*(size+envelope) - 1, true}} {
		leak.Check(t)
		err := comm.Local(2, func(ctx context.Context, c *comm.Comm) error {
			send := func(step uint64, name string) error {
				return c.SendNamed(step, 1, name, comm.NewTensor(make([]byte, size)), nil)
			}
			recv := func(step uint64, name string) error {
				_, err := c.RecvNamed(ctx, step, 0, name, make([]byte, size))
				return err
			}
			if c.Rank() == 1 {
				if err := c.Barrier(ctx); err != nil {
					return err
				}
				if err := errors.Join(recv(1, "a"), recv(2, "a")); err != nil || tc.refused {
					return err
				}
				return recv(1, "b")
			}
			if err := send(1, "a"); err != nil {
				return err
			}
			err := send(1, "b")
			if refused := errors.Is(err, fault.Exhausted); refused != tc.refused || !refused && err != nil {
				return fmt.Errorf("a bound of %d bytes: got %v, want it refused: %v", tc.bound, err, tc.refused)
			}
			if tc.refused && !strings.Contains(err.Error(), fmt.Sprint("StepBytes of ", tc.bound)) {
				return fmt.Errorf("%q does not name the bound", err)
			}
			return errors.Join(send(2, "a"), c.Barrier(ctx))
		}, comm.WithParameters(comm.Parameters{StepBytes: tc.bound}))
		if err != nil {
			t.Error(err)
		}
	}
}
