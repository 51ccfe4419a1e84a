package coordinator_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/coordinator"
	"github.com/tutti-go/tutti/internal/leak"
)

// By the bubble's clock: to wait in vain costs nothing.
func TestWaitAllDoesNotWaitForANamesNextTurn(t *testing.T) {
	leak.Check(t)
	synctest.Test(t, func(t *testing.T) {
		second, over := make(chan struct{}), make(chan struct{})
		submit := func(co *coordinator.Coordinator, name string) *coordinator.Handle {
			return coordinator.AllReduce(co, name, make([]float32, 4), comm.Sum)
		}
		if err := comm.Local(2, with(func(ctx context.Context, c *comm.Comm, co *coordinator.Coordinator) error {
			if c.Rank() == 1 {
				a := submit(co, "a")
				<-second
				b := submit(co, "b")
				if err := coordinator.WaitAll(ctx, a, b); err != nil {
					return err
				}
				<-over
				return submit(co, "a").Wait(ctx)
			}
			onto, end := sync.OnceFunc(func() { close(second) }), sync.OnceFunc(func() { close(over) })
			defer end() // should it fail
			defer onto()
			a, b := submit(co, "a"), submit(co, "b")
			limited, cancel := context.WithTimeout(ctx, 5*time.Second)
			defer cancel()
			all := make(chan error, 1)
			go func() { all <- coordinator.WaitAll(limited, a, b) }()
			synctest.Wait() // until it sleeps, as the other rank does
			if !coordinator.InWaitAll(b) {
				return errors.New("WaitAll does not wait for b")
			}
			if err := a.Wait(ctx); err != nil {
				return err
			}
			next := submit(co, "a")
			if next != a {
				return errors.New("the handle of a is not used again: this tests nothing")
			}
			onto()
			if err := <-all; err != nil {
				return fmt.Errorf("a's first turn and b are over, and WaitAll says %w", err)
			}
			end()
			return next.Wait(ctx)
		})); err != nil {
			t.Error(err)
		}
	})
}
