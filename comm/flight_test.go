package comm

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"testing"

	"github.com/tutti-go/tutti/fault"
)

func TestASecondGoroutineInACommunicatorsCollectiveIsMisuseAndTouchesNothing(t *testing.T) {
	err := Local(2, func(ctx context.Context, c *Comm) error {
		if c.Rank() == 1 {
			if _, err := Recv(ctx, c, 0, 0, make([]byte, 1)); err != nil {
				return err
			}
			return Barrier(ctx, c)
		}
		first := make(chan error, 1)
		go func() { first <- Barrier(ctx, c) }()
		for c.inside.Load() == nil { // ends: the Barrier waits for rank 1, which waits for us
			runtime.Gosched()
		}
		err := AllReduce(ctx, c, []int{1}, Sum)
		if !errors.Is(err, fault.Misuse) || strings.Count(err.Error(), "flight_test.go:") != 2 {
			t.Errorf("got %v, want misuse with both places", err)
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
		reqs = append(reqs, IBarrier(c))
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
