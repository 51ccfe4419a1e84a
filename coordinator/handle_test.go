package coordinator_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/coordinator"
	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/test/leak"
)

func TestADeclaredTensorIsSubmittedAgainAfterEachWait(t *testing.T) {
	worlds(t, func(ctx context.Context, c *comm.Comm, co *coordinator.Coordinator) error {
		buf := make([]int32, 3)
		h := coordinator.Declare(co, "a", buf, comm.Sum, coordinator.Priority(1))
		if err := h.Wait(ctx); err != nil {
			return fmt.Errorf("a Wait before the first Submit: %w", err)
		}
		for step := range 4 {
			for i := range buf {
				buf[i] = int32(step + i)
			}
			h.Submit()
			if err := h.Wait(ctx); err != nil {
				return err
			}
			n := int32(c.Size())
			if err := equal("a", buf, []int32{n * int32(step), n * int32(step+1), n * int32(step+2)}); err != nil {
				return err
			}
			select {
			case <-h.Done():
			default:
				return errors.New("Done is open after Wait")
			}
			if err := h.Wait(ctx); err != nil {
				return fmt.Errorf("a second Wait: %w", err)
			}
		}
		// This is another tensor with the same name.
		other := coordinator.AllReduce(co, "a", []int64{1, 2}, comm.Sum)
		if err := other.Wait(ctx); err != nil {
			return err
		}
		other.Submit() // the handle of a one-shot function can be submitted again, too
		return other.Wait(ctx)
	})
}

func TestASubmitBeforeWaitIsMisuseAndTheFirstGoesOn(t *testing.T) {
	leak.Check(t)
	release := make(chan struct{})
	if err := comm.Local(2, with(func(ctx context.Context, c *comm.Comm, co *coordinator.Coordinator) error {
		buf := []int32{1}
		h := coordinator.Declare(co, "a", buf, comm.Sum)
		if c.Rank() == 1 {
			<-release
			h.Submit()
			return h.Wait(ctx)
		}
		h.Submit()
		h.Submit()
		close(release)
		err := h.Wait(ctx)
		if !errors.Is(err, fault.Misuse) || strings.Count(err.Error(), "handle_test.go:") != 2 {
			return fmt.Errorf("got %v, want misuse that names both calls", err)
		}
		if buf[0] != 2 {
			return fmt.Errorf("the first submission leaves %d, want 2", buf[0])
		}
		return nil
	})); err != nil {
		t.Error(err)
	}
}

func TestADoneSubmissionIsWaitedForBeforeTheNext(t *testing.T) {
	leak.Check(t)
	if err := comm.Local(1, with(func(ctx context.Context, c *comm.Comm, co *coordinator.Coordinator) error {
		h := coordinator.AllReduce(co, "a", []int32{1}, comm.Sum)
		<-h.Done()
		h.Submit()
		if err := h.Wait(ctx); !errors.Is(err, fault.Misuse) {
			return fmt.Errorf("got %v, want misuse", err)
		}
		h.Submit()
		return h.Wait(ctx)
	})); err != nil {
		t.Error(err)
	}
}

func TestAnInvalidDeclarationFailsEachWait(t *testing.T) {
	leak.Check(t)
	if err := comm.Local(1, with(func(ctx context.Context, c *comm.Comm, co *coordinator.Coordinator) error {
		h := coordinator.Declare(co, "a", []int32{1}, comm.Sum, coordinator.Scale(2, 2))
		for range 2 {
			h.Submit()
			if err := h.Wait(ctx); !errors.Is(err, fault.Misuse) {
				return fmt.Errorf("got %v, want misuse", err)
			}
		}
		var grouped *coordinator.Handle
		co.Group(func(g *coordinator.TensorGroup) { grouped = coordinator.AllReduce(g, "b", []int32{1}, comm.Sum) })
		if err := grouped.Wait(ctx); err != nil {
			return err
		}
		grouped.Submit()
		if err := grouped.Wait(ctx); !errors.Is(err, fault.Misuse) {
			return fmt.Errorf("a tensor of a group by itself: got %v, want misuse", err)
		}
		return nil
	})); err != nil {
		t.Error(err)
	}
}

// When all submissions are done before WaitAll, WaitAll must return the first error in the order of
// the handles, and every handle can be submitted again.
func TestWaitAllReturnsTheFirstErrorOfAllThatIsDone(t *testing.T) {
	leak.Check(t)
	if err := comm.Local(1, with(func(ctx context.Context, c *comm.Comm, co *coordinator.Coordinator) error {
		valid := func(name string) *coordinator.Handle { return coordinator.Declare(co, name, []int32{1}, comm.Sum) }
		invalid := func(name string) *coordinator.Handle {
			return coordinator.Declare(co, name, []int32{1}, comm.Sum, coordinator.Scale(2, 2))
		}
		hs := []*coordinator.Handle{valid("a"), invalid("b"), invalid("c"), valid("d")}
		for range 2 {
			for _, h := range hs {
				h.Submit()
			}
			for _, h := range hs {
				<-h.Done()
			}
			want := hs[1].Wait(ctx)
			if err := coordinator.WaitAll(ctx, hs...); !errors.Is(err, fault.Misuse) || err.Error() != want.Error() {
				return fmt.Errorf("got %w, want %w", err, want)
			}
		}
		return nil
	})); err != nil {
		t.Error(err)
	}
}

// A goroutine in Wait must get the outcome of the submission for which it waits, even if another
// goroutine submits the tensor again before the first goroutine runs. With the bubble's clock, a
// wait that lasts too long is an error.
func TestAWaitDoesNotWaitForTheNextSubmission(t *testing.T) {
	leak.Check(t)
	synctest.Test(t, func(t *testing.T) {
		second, last := make(chan struct{}), make(chan struct{})
		if err := comm.Local(2, with(func(ctx context.Context, c *comm.Comm, co *coordinator.Coordinator) error {
			a := coordinator.Declare(co, "a", make([]float32, 4), comm.Sum)
			b := coordinator.Declare(co, "b", make([]float32, 4), comm.Sum)
			a.Submit()
			if c.Rank() == 1 {
				<-second
				b.Submit()
				if err := coordinator.WaitAll(ctx, a, b); err != nil {
					return err
				}
				<-last
				a.Submit()
				return a.Wait(ctx)
			}
			submitSecond, submitLast := sync.OnceFunc(func() { close(second) }), sync.OnceFunc(func() { close(last) })
			defer submitLast() // also if this rank fails
			defer submitSecond()
			b.Submit()
			limited, cancel := context.WithTimeout(ctx, 5*time.Second)
			defer cancel()
			all := make(chan error, 1)
			go func() { all <- coordinator.WaitAll(limited, a, b) }()
			synctest.Wait() // until the goroutine sleeps, like the other rank
			if !coordinator.InWait(b) {
				return errors.New("WaitAll does not wait for b")
			}
			if err := a.Wait(ctx); err != nil {
				return err
			}
			submitSecond()
			if err := <-all; err != nil {
				return fmt.Errorf("a and b are done, and WaitAll returns %w", err)
			}
			a.Submit()
			again := make(chan error, 2)
			for range cap(again) {
				go func() { again <- a.Wait(limited) }()
			}
			synctest.Wait()
			submitLast()
			return errors.Join(<-again, <-again)
		})); err != nil {
			t.Error(err)
		}
	})
}

// A refused wait must leave nothing behind, and later waits must work.
func TestAWaitWithoutAContextOrAHandleIsRefused(t *testing.T) {
	leak.Check(t)
	if err := comm.Local(1, with(func(ctx context.Context, c *comm.Comm, co *coordinator.Coordinator) error {
		h := coordinator.Declare(co, "w", []float32{1}, comm.Sum)
		var none context.Context
		for name, err := range map[string]error{
			"Wait":                      h.Wait(none),
			"WaitAll":                   coordinator.WaitAll(none, h),
			"WaitAll, the first is nil": coordinator.WaitAll(ctx, nil, h),
			"WaitAll, the last is nil":  coordinator.WaitAll(ctx, h, nil),
		} {
			if !errors.Is(err, fault.Misuse) {
				t.Errorf("%s: got %v, want fault.Misuse", name, err)
			}
		}
		if err, want := coordinator.WaitAll(ctx, h, nil), "handle with index 1 of 2: got nil"; !strings.Contains(err.Error(), want) {
			t.Errorf("WaitAll, the last is nil: got %v, want %q in it", err, want)
		}
		if coordinator.InWait(h) {
			t.Error("somebody waits still")
		}
		h.Submit()
		return coordinator.WaitAll(ctx, h)
	})); err != nil {
		t.Error(err)
	}
}
