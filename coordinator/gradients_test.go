package coordinator_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/coordinator"
	"github.com/tutti-go/tutti/fault"
)

func TestGradientsAreMeansAfterEachStep(t *testing.T) {
	worlds(t, func(ctx context.Context, c *comm.Comm, co *coordinator.Coordinator) error {
		g := coordinator.NewGradients[float64](co, comm.Mean, coordinator.Scale(2, 1))
		rnd := rand.New(rand.NewPCG(uint64(c.Rank()), 1))
		grads := [][]float64{make([]float64, 3), make([]float64, 1000), make([]float64, 40_000)}
		for i, grad := range grads {
			g.Declare(fmt.Sprint(i), grad, coordinator.Priority(-i))
		}
		for step := range 5 {
			for _, i := range rnd.Perm(len(grads)) {
				for j := range grads[i] {
					grads[i][j] = float64(c.Rank() + step + i)
				}
				g.Ready(fmt.Sprint(i))
			}
			if err := g.Wait(ctx); err != nil {
				return err
			}
			for i := range grads {
				want := 2*float64(step+i) + float64(c.Size()-1)
				for j, got := range grads[i] {
					if got != want {
						return fmt.Errorf("step %d, gradient %d, element %d: got %v, want %v", step, i, j, got, want)
					}
				}
			}
		}
		if steps, inFlight, hidden := g.Overlap(); steps != 5 || inFlight <= 0 || hidden <= 0 || hidden > inFlight {
			return fmt.Errorf("got %d steps, %v in flight, %v of it hidden", steps, inFlight, hidden)
		}
		return g.Wait(ctx) // a step without gradients
	})
}

func TestAGradientThatRanksDisagreeAboutFailsTheStep(t *testing.T) {
	err := comm.Local(2, with(func(ctx context.Context, c *comm.Comm, co *coordinator.Coordinator) error {
		g := coordinator.NewGradients[float32](co, comm.Sum)
		g.Declare("a", make([]float32, 4))
		g.Declare("b", make([]float32, 4+c.Rank()))
		g.Ready("a")
		g.Ready("b")
		if err := g.Wait(ctx); !errors.Is(err, fault.Mismatch) {
			return fmt.Errorf("got %v, want a mismatch", err)
		}
		g.Declare("b", make([]float32, 4))
		g.Ready("b")
		if err := g.Wait(ctx); err != nil {
			return err
		}
		g.Ready("c")
		if err := g.Wait(ctx); !errors.Is(err, fault.Misuse) {
			return fmt.Errorf("a gradient that was not declared: got %v, want misuse", err)
		}
		return g.Wait(ctx)
	}))
	if err != nil {
		t.Fatal(err)
	}
}

// In each step, rank 0 computes for 3 s after its first gradient. Then it waits for 1 s until rank
// 1 submits its gradients. Overlap must report 3 s of the 4 s of each step as hidden.
func TestOverlapIsTheTimeThatNobodyWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		if err := comm.Local(2, with(func(ctx context.Context, c *comm.Comm, co *coordinator.Coordinator) error {
			g := coordinator.NewGradients[float32](co, comm.Sum)
			g.Declare("a", make([]float32, 4))
			for range 2 {
				if c.Rank() == 1 {
					// Reason: this rank submits late. No real time passes.
					time.Sleep(4 * time.Second)
				}
				g.Ready("a")
				if c.Rank() == 0 {
					// Reason: this rank computes. No real time passes.
					time.Sleep(3 * time.Second)
				}
				if err := g.Wait(ctx); err != nil {
					return err
				}
			}
			steps, inFlight, hidden := g.Overlap()
			if c.Rank() == 0 && (steps != 2 || inFlight != 8*time.Second || hidden != 6*time.Second) {
				return fmt.Errorf("got %d steps, %v in flight, %v of it hidden; want 2 steps, 8 s and 6 s", steps, inFlight, hidden)
			}
			return nil
		})); err != nil {
			t.Error(err)
		}
	})
}
