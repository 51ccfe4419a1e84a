package coordinator_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"testing"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/coordinator"
	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/test/leak"
)

type state struct {
	Epoch int
	Rates map[string]float64
}

func TestParametersAndObjectsBecomeTheRoots(t *testing.T) {
	worlds(t, func(ctx context.Context, c *comm.Comm, co *coordinator.Coordinator) error {
		root := c.Size() - 1
		params := map[string][]float32{"a": vector(3, c.Rank()), "b": vector(100_000, c.Rank()), "c": {}}
		if err := coordinator.BroadcastParameters(ctx, co, params, root); err != nil {
			return err
		}
		if err := errors.Join(equal("a", params["a"], vector(3, root)), equal("b", params["b"], vector(100_000, root))); err != nil {
			return err
		}
		// The root's epoch is 0.
		s := state{Epoch: root - c.Rank(), Rates: map[string]float64{"w": float64(c.Rank())}}
		if err := coordinator.BroadcastObject(ctx, co, "state", &s, root); err != nil {
			return err
		}
		if s.Epoch != 0 || !maps.Equal(s.Rates, map[string]float64{"w": float64(root)}) {
			return fmt.Errorf("got %+v", s)
		}
		s = state{Epoch: root - c.Rank(), Rates: map[string]float64{fmt.Sprint("w", c.Rank()): 1}}
		if err := coordinator.BroadcastJSON(ctx, co, "state", &s, root); err != nil {
			return err
		}
		// None of this rank's own names may remain.
		if s.Epoch != 0 || !maps.Equal(s.Rates, map[string]float64{fmt.Sprint("w", root): 1}) {
			return fmt.Errorf("as JSON: got %+v", s)
		}
		return nil
	})
}

func TestWhatTheRootCannotEncodeIsMisuseEverywhere(t *testing.T) {
	leak.Check(t)
	err := comm.Local(2, with(func(ctx context.Context, c *comm.Comm, co *coordinator.Coordinator) error {
		var f func()
		if err := coordinator.BroadcastObject(ctx, co, "f", &f, 0); !errors.Is(err, fault.Misuse) {
			return fmt.Errorf("got %v, want misuse", err)
		}
		if err := coordinator.BroadcastJSON(ctx, co, "f", &f, 1); !errors.Is(err, fault.Misuse) {
			return fmt.Errorf("as JSON: got %v, want misuse", err)
		}
		return nil
	}))
	if err != nil {
		t.Error(err)
	}
}

func TestWhatARankCannotDecodeIsMisuseThere(t *testing.T) {
	leak.Check(t)
	err := comm.Local(2, with(func(ctx context.Context, c *comm.Comm, co *coordinator.Coordinator) error {
		if c.Rank() == 0 {
			text := "a text"
			return errors.Join(coordinator.BroadcastObject(ctx, co, "v", &text, 0), coordinator.BroadcastJSON(ctx, co, "j", &text, 0))
		}
		number := 5
		for _, err := range []error{coordinator.BroadcastObject(ctx, co, "v", &number, 0), coordinator.BroadcastJSON(ctx, co, "j", &number, 0)} {
			if !errors.Is(err, fault.Misuse) || number != 5 {
				return fmt.Errorf("got %v and %d, want misuse and nothing changed", err, number)
			}
		}
		return nil
	}))
	if err != nil {
		t.Error(err)
	}
}
