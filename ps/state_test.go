package ps_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/test/leak"
	"github.com/tutti-go/tutti/ps"
	"github.com/tutti-go/tutti/ps/optimizer"
	"github.com/tutti-go/tutti/tensor"
)

func TestAStateMovesToAnotherTensorWithItsSlotsAndSteps(t *testing.T) {
	leak.Check(t)
	const n, steps = 100, 5
	adam := ps.Optimizer(optimizer.Adam{Rate: 0.1})
	for _, placement := range []ps.Placement{ps.Servers(2), ps.Everywhere()} {
		err := comm.Local(4, func(ctx context.Context, c *comm.Comm) error {
			return ps.Run(ctx, c, placement, func(ctx context.Context, cl *ps.Client) error {
				me := cl.Workers()
				a, err := ps.Declare[float32](ctx, cl, "a", n, adam, ps.Compress(tensor.BF16))
				if err != nil {
					return err
				}
				b, err := ps.Declare[float32](ctx, cl, "b", n, adam, ps.Compress(tensor.BF16))
				if err != nil {
					return err
				}
				grad, va, vb := make([]float32, n), make([]float32, n), make([]float32, n)
				step := func(k int, t *ps.Tensor[float32], v []float32) error {
					for i := range grad {
						grad[i] = float32((i*7+k*5+me.Rank())%13 - 6)
					}
					return t.PushPull(ctx, grad, v)
				}
				for k := range steps {
					if err := step(k, a, va); err != nil {
						return err
					}
				}
				var s ps.State[float32]
				if err := a.PullState(ctx, &s); err != nil {
					return err
				}
				if s.Steps != steps || len(s.Slots) != 2 || len(s.Slots[1]) != n || s.Slots[1][n-1] == 0 {
					return fmt.Errorf("state: got %d steps and %d slots, want %d and 2", s.Steps, len(s.Slots), steps)
				}
				if me.Rank() == 0 {
					if err := b.SetState(ctx, &s); err != nil {
						return err
					}
				}
				for k := range steps {
					if err := errors.Join(step(k, a, va), step(k, b, vb)); err != nil {
						return err
					}
				}
				if !slices.Equal(va, vb) {
					return fmt.Errorf("values: got %v, want %v", vb[:3], va[:3])
				}
				return nil
			}, nil, ps.WithPart(80))
		})
		if err != nil {
			t.Errorf("%v: %v", placement, err)
		}
	}
}

func TestAStateIsRefusedWhilePushesAreNotAcknowledged(t *testing.T) {
	leak.Check(t)
	err := comm.Local(3, func(ctx context.Context, c *comm.Comm) error {
		return ps.Run(ctx, c, ps.Servers(1), func(ctx context.Context, cl *ps.Client) error {
			w, err := ps.Declare[float32](ctx, cl, "w", 10)
			if err != nil {
				return err
			}
			asynchronous, err := ps.Declare[float32](ctx, cl, "asynchronous", 10, ps.Asynchronous())
			if err != nil {
				return err
			}
			s := &ps.State[float32]{Values: make([]float32, 10)}
			if err := asynchronous.SetState(ctx, s); !errors.Is(err, fault.Misuse) || !strings.Contains(err.Error(), "asynchronous") {
				return fmt.Errorf("asynchronous tensor: got %v, want misuse", err)
			}
			if cl.Workers().Rank() == 0 {
				// The second push is not acknowledged before the other worker has pushed.
				first, second := w.IPush(s.Values), w.IPush(s.Values)
				if err := first.Wait(ctx); err != nil {
					return err
				}
				for _, err := range []error{w.SetState(ctx, s), w.PullState(ctx, s)} {
					if !errors.Is(err, fault.Misuse) || !strings.Contains(err.Error(), "not acknowledged") {
						return fmt.Errorf("with a push in flight: got %v, want misuse", err)
					}
				}
				if err := cl.Workers().Barrier(ctx); err != nil {
					return err
				}
				return errors.Join(second.Wait(ctx), w.SetState(ctx, s))
			}
			if err := cl.Workers().Barrier(ctx); err != nil {
				return err
			}
			return errors.Join(w.Push(ctx, s.Values), w.Push(ctx, s.Values))
		}, nil)
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestAStateOfAnotherFormIsRefused(t *testing.T) {
	err := comm.Local(2, func(ctx context.Context, c *comm.Comm) error {
		return ps.Run(ctx, c, ps.Servers(1), func(ctx context.Context, cl *ps.Client) error {
			w, err := ps.Declare[float64](ctx, cl, "w", 10, ps.Optimizer(optimizer.Momentum{Rate: 1}))
			if err != nil {
				return err
			}
			for _, s := range []ps.State[float64]{
				{Values: make([]float64, 10)},
				{Values: make([]float64, 9), Slots: [][]float64{make([]float64, 10)}},
				{Values: make([]float64, 10), Slots: [][]float64{make([]float64, 11)}},
			} {
				if err := w.SetState(ctx, &s); !errors.Is(err, fault.Misuse) {
					return fmt.Errorf("%d values and %d slots: got %v, want misuse", len(s.Values), len(s.Slots), err)
				}
			}
			_, err = ps.Declare[float64](ctx, cl, "v", 10, ps.TopK(0.5), ps.Residual(make([]float64, 9)))
			if !errors.Is(err, fault.Misuse) {
				return fmt.Errorf("a residual of 9 elements: got %v, want misuse", err)
			}
			return nil
		}, nil)
	})
	if err != nil {
		t.Fatal(err)
	}
}
