package coordinator_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/coordinator"
	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/test/leak"
)

// A transfer is a coordinator.Future that a test ends.
type transfer struct {
	done chan struct{}
	err  error
}

func newTransfer() *transfer { return &transfer{done: make(chan struct{})} }

func (f *transfer) end(err error) {
	f.err = err
	close(f.done)
}

func (f *transfer) Done() <-chan struct{}      { return f.done }
func (f *transfer) Wait(context.Context) error { return f.err }

// A beginner records which transfers have begun.
type beginner struct {
	mu    sync.Mutex
	names []string
	begun chan *transfer
}

func newBeginner() *beginner { return &beginner{begun: make(chan *transfer, 16)} }

func (b *beginner) declare(co *coordinator.Coordinator, name string, n int, opts ...coordinator.CallOption) *coordinator.Handle {
	return coordinator.DeclarePushPull[float32](co, name, n, func() coordinator.Future {
		b.mu.Lock()
		b.names = append(b.names, name)
		b.mu.Unlock()
		f := newTransfer()
		b.begun <- f
		return f
	}, opts...)
}

func TestTransfersAndAllReducesShareOneOrderAndOneCredit(t *testing.T) {
	leak.Check(t)
	const n, kib = 3, 256
	err := comm.Local(n, with(func(ctx context.Context, c *comm.Comm, co *coordinator.Coordinator) error {
		b := newBeginner()
		var hs []*coordinator.Handle
		for i := range 5 {
			hs = append(hs, b.declare(co, fmt.Sprintf("pushed %d", i), kib, coordinator.Priority(i)))
		}
		urgent := coordinator.Declare(co, "reduced", vector(kib, c.Rank()), comm.Sum, coordinator.Priority(9))
		late := coordinator.Declare(co, "late", vector(kib, c.Rank()), comm.Max, coordinator.Priority(-9))
		for _, h := range append(hs, urgent, late) {
			h.Submit()
		}
		if err := urgent.Wait(ctx); err != nil {
			return err
		}
		// The allreduce and two transfers have used up the credit. The other operations wait until half of
		// it has returned.
		first, second := <-b.begun, <-b.begun
		if err := c.Barrier(ctx); err != nil {
			return err
		}
		select {
		case <-b.begun:
			return errors.New("a third transfer has begun; want the credit to allow two")
		case <-late.Done():
			return errors.New("the allreduce of the lowest priority is done; want it to wait for credit")
		default:
		}
		if err := c.Barrier(ctx); err != nil {
			return err
		}
		first.end(nil)
		second.end(nil)
		for range 3 {
			(<-b.begun).end(nil)
		}
		if err := coordinator.WaitAll(ctx, append(hs, late)...); err != nil {
			return err
		}
		want := []string{"pushed 4", "pushed 3", "pushed 2", "pushed 1", "pushed 0"}
		if !slices.Equal(b.names, want) {
			return fmt.Errorf("transfers: got %q, want %q", b.names, want)
		}
		return nil
	}, coordinator.WithCredit(9*kib), coordinator.WithCycle(time.Hour)))
	if err != nil {
		t.Fatal(err)
	}
}

func TestACollectiveOverlapsWithATransfer(t *testing.T) {
	leak.Check(t)
	file := filepath.Join(t.TempDir(), "out.json")
	err := comm.Local(2, with(func(ctx context.Context, c *comm.Comm, co *coordinator.Coordinator) error {
		if err := co.StartTimeline(ctx, file); err != nil {
			return err
		}
		b := newBeginner()
		h := b.declare(co, "pushed", 100, coordinator.Priority(1))
		for range 3 {
			h.Submit()
			f := <-b.begun
			if err := coordinator.AllReduce(co, "reduced", vector(100, c.Rank()), comm.Sum).Wait(ctx); err != nil {
				return err
			}
			f.end(nil)
			if err := h.Wait(ctx); err != nil {
				return err
			}
		}
		return co.StopTimeline(ctx)
	}))
	if err != nil {
		t.Fatal(err)
	}
	spans := merged(t, file, 2)
	for r := range 2 {
		if spans, wires := count(spans, r, "pushed", 0), countNamed(spans, r, "pushed", "wire"); spans != 3 || wires != 3 {
			t.Errorf("rank %d: got %d spans, and %d on the wire, want 3", r, spans, wires)
		}
	}
}

func TestATransferThatFailsEndsTheCoordinatorOnAllRanks(t *testing.T) {
	leak.Check(t)
	const n = 3
	var got [n]error
	_ = comm.Local(n, with(func(ctx context.Context, c *comm.Comm, co *coordinator.Coordinator) error {
		ctx = context.WithoutCancel(ctx) // Local cancels it when a rank fails
		b := newBeginner()
		h := b.declare(co, "pushed", 10)
		h.Submit()
		f := <-b.begun
		if err := c.Barrier(ctx); err != nil {
			return err
		}
		if c.Rank() == 1 {
			f.end(fault.New(fault.Exhausted, "push", 1, "the server's memory is used up"))
		} else {
			defer f.end(nil)
		}
		got[c.Rank()] = h.Wait(ctx)
		return nil
	}))
	for r, err := range got {
		if err == nil || !strings.Contains(err.Error(), "the server's memory is used up") {
			t.Errorf("rank %d: got %v, want the error of rank 1's transfer", r, err)
		}
	}
}

func TestCloseWaitsForTransfers(t *testing.T) {
	leak.Check(t)
	err := comm.Local(2, func(ctx context.Context, c *comm.Comm) error {
		co, err := coordinator.Start(ctx, c)
		if err != nil {
			return err
		}
		b := newBeginner()
		h := b.declare(co, "pushed", 10)
		h.Submit()
		f := <-b.begun
		closed := make(chan error, 1)
		go func() { closed <- co.Close(ctx) }()
		if err := c.Barrier(ctx); err != nil {
			return err
		}
		select {
		case err := <-closed:
			return fmt.Errorf("Close has returned %v while a transfer is in flight", err)
		default:
		}
		f.end(nil)
		return errors.Join(h.Wait(ctx), <-closed)
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestWrongPushPullsAreRefused(t *testing.T) {
	err := comm.Local(2, with(func(ctx context.Context, c *comm.Comm, co *coordinator.Coordinator) error {
		h := coordinator.DeclarePushPull[float32](co, "nothing", 1, nil)
		h.Submit()
		if err := h.Wait(ctx); !errors.Is(err, fault.Misuse) {
			return fmt.Errorf("without a function: got %v, want misuse", err)
		}
		b := newBeginner()
		h = b.declare(co, "w", 10)
		if c.Rank() == 1 {
			h = coordinator.Declare(co, "w", vector(10, 0), comm.Sum)
		}
		h.Submit()
		if err := h.Wait(ctx); !errors.Is(err, fault.Mismatch) || !strings.Contains(err.Error(), "operation") {
			return fmt.Errorf("another operation: got %v, want a mismatch", err)
		}
		return nil
	}))
	if err != nil {
		t.Fatal(err)
	}
}
