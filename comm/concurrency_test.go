package comm

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"testing"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/reduce"
)

func TestASecondGoroutineInACommunicatorsCollectiveIsMisuseAndTouchesNothing(t *testing.T) {
	err := Local(2, func(ctx context.Context, c *Comm) error {
		if c.Rank() == 1 {
			if _, err := Recv(ctx, c, 0, 0, make([]byte, 1)); err != nil {
				return err
			}
			return c.Barrier(ctx)
		}
		first := make(chan error, 1)
		go func() { first <- c.Barrier(ctx) }()
		// The loop ends, because the Barrier waits for rank 1, and rank 1 waits for this rank.
		for !c.callInProgress() {
			runtime.Gosched()
		}
		err := AllReduce(ctx, c, []int{1}, Sum)
		if !errors.Is(err, fault.Misuse) || strings.Count(err.Error(), "concurrency_test.go:") != 2 || !strings.Contains(err.Error(), "while barrier #") {
			t.Errorf("got %v, want misuse with both places and the name of the first call", err)
		}
		if err := Send(ctx, c, 1, 0, []byte{1}); err != nil {
			return err
		}
		return <-first
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestNonBlockingCollectivesOverlapInTheOrderOfTheirStarts(t *testing.T) {
	err := Local(3, func(ctx context.Context, c *Comm) error {
		var reqs []*Request
		bufs := make([][]int64, 8)
		for i := range bufs {
			bufs[i] = []int64{int64(i), int64(c.Rank())}
			reqs = append(reqs, IAllReduce(c, bufs[i], Sum))
		}
		reqs = append(reqs, c.IBarrier())
		if err := WaitAll(ctx, reqs...); err != nil {
			return err
		}
		for i, b := range bufs {
			if b[0] != int64(3*i) || b[1] != 3 {
				t.Errorf("rank %d: sum %d is %v", c.Rank(), i, b)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestSplitDupAndSubMeetOnlyTheirOwn(t *testing.T) {
	err := Local(6, func(ctx context.Context, c *Comm) error {
		half, err := c.Split(ctx, c.Rank()%2, -c.Rank())
		if err != nil {
			return err
		}
		if want := 2 - c.Rank()/2; half.Size() != 3 || half.Rank() != want {
			t.Errorf("rank %d is %d of %d in its half, want %d of 3", c.Rank(), half.Rank(), half.Size(), want)
		}
		twin, err := half.Dup(ctx)
		if err != nil {
			return err
		}
		a, b := []int{c.Rank()}, []int{1}
		ra, rb := IAllReduce(half, a, Sum), IAllReduce(twin, b, Sum)
		if err := WaitAll(ctx, rb, ra); err != nil {
			return err
		}
		if want := 6 + 3*(c.Rank()%2); a[0] != want || b[0] != 3 {
			t.Errorf("rank %d: sums %d and %d, want %d and 3", c.Rank(), a[0], b[0], want)
		}
		if c.Rank() == 4 || c.Rank() == 1 {
			pair, err := c.Sub(ctx, 4, 1)
			if err != nil {
				return err
			}
			v := []int{c.Rank()}
			if err := Broadcast(ctx, pair, v, 0); err != nil || v[0] != 4 {
				t.Errorf("rank %d got %v from the pair's root: %v", c.Rank(), v, err)
			}
		}
		none, err := c.Split(ctx, Undefined, 0)
		if none != nil || err != nil {
			t.Errorf("an undefined color gave %v, %v", none, err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// activeNames returns the names of the calls under way on this rank, oldest first.
func (cs *calls) activeNames() (all []string) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	for cl := cs.oldestListed; cl != nil; cl = cl.next {
		if cl.active() {
			all = append(all, cl.callName)
		}
	}
	return all
}

func TestCallsAreListedInTheOrderOfTheirBeginningsAndOnlyWhileTheyAreUnderWay(t *testing.T) {
	err := Local(2, func(ctx context.Context, c *Comm) error {
		twin, err := c.Dup(ctx)
		if err != nil {
			return err
		}
		calls := &c.rt.calls
		if c.Rank() == 1 {
			if _, err := Recv(ctx, c, 0, 1, make([]byte, 1)); err != nil {
				return err
			}
			return errors.Join(Broadcast(ctx, c, []int8{1}, 0), twin.Barrier(ctx), Send(ctx, c, 0, 0, []byte{1}))
		}
		done := make(chan error, 3)
		begin := func(f func() error) {
			before := len(calls.activeNames())
			go func() { done <- f() }()
			// The loop ends, because all these calls wait for rank 1, and rank 1 waits for this
			// rank.
			for len(calls.activeNames()) == before {
				runtime.Gosched()
			}
		}
		if got := calls.activeNames(); len(got) != 0 {
			t.Errorf("before the first call %q are under way", got)
		}
		begin(func() error { _, err := Recv(ctx, c, 1, 0, make([]byte, 1)); return err })
		// The blocking call of twin has been listed since the Dup that made twin, so before Recv.
		begin(func() error { return twin.Barrier(ctx) })
		if got, want := strings.Join(calls.activeNames(), " "), "recv barrier"; got != want {
			t.Errorf("%q are under way, want %q", got, want)
		}
		if err := errors.Join(Send(ctx, c, 1, 1, []byte{1}), Broadcast(ctx, c, []int8{1}, 0), <-done, <-done); err != nil {
			return err
		}
		if got := calls.activeNames(); len(got) != 0 {
			t.Errorf("after the last call %q are under way", got)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestAClosedCommunicatorIsNotKeptInTheListOfCalls(t *testing.T) {
	err := Local(2, func(ctx context.Context, c *Comm) error {
		twin, err := c.Dup(ctx)
		if err != nil {
			return err
		}
		if err := errors.Join(twin.Barrier(ctx), c.Barrier(ctx), twin.Close(ctx)); err != nil {
			return err
		}
		cs := &c.rt.calls
		cs.mu.Lock()
		defer cs.mu.Unlock()
		for cl := cs.oldestListed; cl != nil; cl = cl.next {
			if cl.c == twin {
				t.Errorf("rank %d: a call of a closed communicator is still listed", c.Rank())
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestAnOperatorThatPanicsInSharedMemoryDoesNotKeepCloseWaiting(t *testing.T) {
	bad := reduce.Func("bad", reduce.Commutative, func(a, b int32) int32 { panic("on purpose") })
	err := Local(2, func(ctx context.Context, c *Comm) error {
		if !c.group.HasShared() {
			t.Error("no memory is shared, so this test shows nothing")
		}
		return AllReduce(ctx, c, []int32{1}, bad, Algorithm("shared"))
	})
	if err == nil || !strings.Contains(err.Error(), "on purpose") {
		t.Errorf("got %v, want the panic", err)
	}
}
