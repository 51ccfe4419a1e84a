package comm_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/test/leak"
	linked "github.com/tutti-go/tutti/transport/wires"
)

// Each start must use the current contents of the buffers, and match the same start on the other
// ranks.
func TestAPersistentStartsManyTimes(t *testing.T) {
	for _, wire := range transports {
		leak.Check(t)
		err := comm.Local(3, func(ctx context.Context, c *comm.Comm) error {
			buf, all := make([]int64, 1000), make([]int64, 3000)
			sum := comm.IAllReduce(c, buf, comm.Sum, comm.Persistent())
			join := comm.IAllGather(c, all, comm.From(buf), comm.Persistent())
			for i := range 50 {
				for j := range buf {
					buf[j] = int64(c.Rank() + i)
				}
				if err := sum.Start(ctx); err != nil {
					return err
				}
				for done := i%2 == 0; !done; {
					var err error
					if _, done, err = sum.Test(); err != nil {
						return err
					}
					if i > 3 { // the first starts must end although no rank yields its processor
						runtime.Gosched()
					}
				}
				if _, err := sum.Wait(ctx); err != nil {
					return err
				}
				buf[7] += int64(c.Rank())
				if err := comm.StartAll(ctx, join); err != nil {
					return err
				}
				if _, err := join.Wait(ctx); err != nil {
					return err
				}
				for r := range 3 {
					if got, want := all[r*1000+7], int64(3+3*i+r); got != want || all[r*1000+8] != int64(3+3*i) {
						return fmt.Errorf("start %d: rank %d has %d of rank %d, want %d", i, c.Rank(), got, r, want)
					}
				}
			}
			return errors.Join(sum.Free(), join.Free(), join.Free())
		}, comm.WithTransport(linked.All()...), comm.WithTransportName(wire))
		if err != nil {
			t.Errorf("%s: %v", wire, err)
		}
	}
}

// Several persistent requests are active at the same time, together with other collectives. All of
// them must match across ranks in the order of the starts.
func TestPersistentsOverlapWithAllElse(t *testing.T) {
	err := comm.Local(4, func(ctx context.Context, c *comm.Comm) error {
		var ps []*comm.Request
		bufs := make([][]int32, 4)
		for i := range bufs {
			bufs[i] = []int32{int32(i), int32(c.Rank())}
			p := comm.IAllReduce(c, bufs[i], comm.Sum, comm.Persistent())
			defer p.Free()
			ps = append(ps, p)
		}
		if err := comm.StartAll(ctx, ps...); err != nil {
			return err
		}
		v := []int32{1}
		r := comm.IAllReduce(c, v, comm.Sum)
		if err := c.Barrier(ctx); err != nil {
			return err
		}
		for i := range ps {
			if _, err := ps[len(ps)-1-i].Wait(ctx); err != nil {
				return err
			}
		}
		if _, err := r.Wait(ctx); err != nil || v[0] != 4 {
			return fmt.Errorf("the sum beside them is %v: %w", v, err)
		}
		for i, b := range bufs {
			if b[0] != int32(4*i) || b[1] != 6 {
				return fmt.Errorf("sum %d is %v", i, b)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// A persistent start must match the plain non-blocking call of the same collective on other ranks.
// Against a different collective it must fail with fault.Mismatch.
func TestAPersistentIsComparedAsEveryCallIs(t *testing.T) {
	err := comm.Local(2, func(ctx context.Context, c *comm.Comm) error {
		twin, err := c.Dup(ctx)
		if err != nil {
			return err
		}
		buf := []float64{1}
		p := comm.IAllReduce(c, buf, comm.Sum, comm.Persistent())
		defer p.Free()
		if c.Rank() == 0 {
			err = p.Start(ctx)
			if err == nil {
				_, err = p.Wait(ctx)
			}
		} else {
			_, err = comm.IAllReduce(c, buf, comm.Sum).Wait(ctx)
		}
		if err != nil || buf[0] != 2 {
			return fmt.Errorf("the sum is %v: %w", buf, err)
		}
		if c.Rank() == 1 {
			p.Free()
			p = comm.IAllReduce(c, buf, comm.Max, comm.Persistent())
			defer p.Free()
		}
		if err = p.Start(ctx); err == nil {
			_, err = p.Wait(ctx)
		}
		if !errors.Is(err, fault.Mismatch) || strings.Count(err.Error(), "persistent_test.go:") != 2 {
			t.Errorf("rank %d: got %v, want a mismatch with both places", c.Rank(), err)
		}
		if err := p.Start(ctx); !errors.Is(err, fault.Revoked) {
			t.Errorf("rank %d: after that, got %v, want %v", c.Rank(), err, fault.Revoked)
		}
		if _, done, err := p.Test(); !done || err != nil {
			t.Errorf("what was not started is %v, %v", done, err)
		}
		// The Barrier keeps the communicator open, so that the other rank can be asked for its
		// call.
		return twin.Barrier(ctx)
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestInvalidPersistentCallsAreMisuse(t *testing.T) {
	err := comm.Local(2, func(ctx context.Context, c *comm.Comm) error {
		if err := comm.IReduce(c, []int8{1}, comm.Sum, 2, comm.Persistent()).Start(ctx); !errors.Is(err, fault.Misuse) {
			t.Errorf("a root that is none: got %v", err)
		}
		if err := comm.IAllGather(c, make([]int8, 3), comm.From(make([]int8, 1)), comm.Persistent()).Start(ctx); !errors.Is(err, fault.Misuse) {
			t.Errorf("a dst that is too long: got %v", err)
		}
		if err := comm.IAllReduce(c, []complex64{1}, comm.Max, comm.Persistent()).Start(ctx); err == nil {
			t.Error("an operator without a meaning for the type is prepared")
		}
		p := c.IBarrier(comm.Persistent())
		if _, err := p.Wait(ctx); err != nil { // returns at once, because the request is inactive
			return err
		}
		if c.Rank() == 1 { // rank 0's request is active for a while
			if _, err := comm.Recv(ctx, c, 0, 0, make([]byte, 1)); err != nil {
				return err
			}
		}
		if err := p.Start(ctx); err != nil {
			return err
		}
		if c.Rank() == 0 {
			if err := p.Start(ctx); !errors.Is(err, fault.Misuse) {
				t.Errorf("started while active: got %v", err)
			}
			if err := p.Free(); !errors.Is(err, fault.Misuse) {
				t.Errorf("freed while active: got %v", err)
			}
			if err := comm.Send(ctx, c, 1, 0, []byte{1}); err != nil {
				return err
			}
		}
		_, err := p.Wait(ctx)
		if err := errors.Join(err, p.Free(), p.Free()); err != nil {
			return err
		}
		if err := p.Start(ctx); !errors.Is(err, fault.Misuse) {
			t.Errorf("started after Free: got %v", err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// If the context of Start or of Wait ends, all ranks must get an error that names the missing rank.
func TestAPersistentEndsWithItsContexts(t *testing.T) {
	for _, which := range []string{"Start", "Wait"} {
		err := comm.Local(2, func(ctx context.Context, other *comm.Comm) error {
			c, err := other.Dup(ctx)
			if err != nil {
				return err
			}
			p := c.IBarrier(comm.Persistent())
			defer p.Free()
			if c.Rank() == 1 {
				_, err := comm.Recv(ctx, other, 0, 0, make([]byte, 1))
				if err == nil {
					err = p.Start(ctx)
				}
				if err == nil { // rank 0 had sent everything that this rank needs before it gave up
					_, err = p.Wait(ctx)
				}
				if err != nil && !errors.Is(err, fault.Revoked) {
					t.Errorf("%s: rank 1 got %v, want %v", which, err, fault.Revoked)
				}
				return nil
			}
			short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
			defer cancel()
			start, wait := ctx, short
			if which == "Start" {
				start, wait = short, ctx
			}
			if err := p.Start(start); err != nil {
				return err
			}
			var f *fault.Error
			if _, err := p.Wait(wait); !errors.As(err, &f) || f.Kind != fault.Timeout || len(f.Peers) != 1 || f.Peers[0].Rank != 1 {
				t.Errorf("%s: rank 0 got %v, want a timeout that names rank 1", which, err)
			}
			// The communicator other was not revoked.
			return comm.Send(ctx, other, 1, 0, []byte{1})
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// Close of the job must not wait for a request that is active or prepared. A rank that waits for
// such a request must not hang either.
func TestCloseEndsPersistents(t *testing.T) {
	leak.Check(t)
	err := comm.Local(2, func(ctx context.Context, c *comm.Comm) error {
		idle, active := c.IBarrier(comm.Persistent()), c.IBarrier(comm.Persistent())
		if c.Rank() == 0 {
			if err := active.Start(ctx); err != nil {
				return err
			}
		}
		if err := c.Close(ctx); err != nil {
			return err
		}
		if _, err := active.Wait(ctx); c.Rank() == 0 && !errors.Is(err, fault.Closed) && !errors.Is(err, fault.Revoked) {
			t.Errorf("the active one got %v", err)
		}
		if err := idle.Start(ctx); !errors.Is(err, fault.Closed) {
			t.Errorf("a start afterwards got %v, want %v", err, fault.Closed)
		}
		if err := c.IBarrier(comm.Persistent()).Start(ctx); !errors.Is(err, fault.Closed) {
			t.Errorf("one made afterwards got %v, want %v", err, fault.Closed)
		}
		return errors.Join(idle.Free(), active.Free())
	})
	if err != nil {
		t.Fatal(err)
	}
}
