package comm_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/fault"
	linked "github.com/tutti-go/tutti/transport/wires"
)

// perRank runs f on n ranks and returns the results of all calls of f. An error of one rank does
// not end the other ranks.
func perRank(t *testing.T, n int, f func(ctx context.Context, c *comm.Comm) error, opts ...comm.Option) []error {
	t.Helper()
	errs := make([]error, n)
	var all sync.WaitGroup
	all.Add(n)
	err := comm.Local(n, func(ctx context.Context, c *comm.Comm) error {
		errs[c.Rank()] = f(ctx, c)
		all.Done()
		all.Wait() // no rank may close before all ranks have been notified
		return nil
	}, opts...)
	if err != nil {
		t.Errorf("Local: %v", err)
	}
	return errs
}

func TestMismatchNamesBothCalls(t *testing.T) {
	sum := func(ctx context.Context, c *comm.Comm, n int) error {
		return comm.AllReduce(ctx, c, make([]float32, n), comm.Sum)
	}
	cases := map[string]func(ctx context.Context, c *comm.Comm) error{
		"different collectives": func(ctx context.Context, c *comm.Comm) error {
			if c.Rank() == 1 {
				return c.Barrier(ctx)
			}
			return sum(ctx, c, 1000)
		},
		"different lengths": func(ctx context.Context, c *comm.Comm) error { return sum(ctx, c, 1000+c.Rank()) },
		"no elements on one rank": func(ctx context.Context, c *comm.Comm) error {
			if c.Rank() == 2 {
				return sum(ctx, c, 0)
			}
			return sum(ctx, c, 1000)
		},
		"different element types": func(ctx context.Context, c *comm.Comm) error {
			if c.Rank() == 0 {
				return comm.AllReduce(ctx, c, make([]int32, 1000), comm.Sum)
			}
			return sum(ctx, c, 1000)
		},
		"different operators": func(ctx context.Context, c *comm.Comm) error {
			if c.Rank() == 0 {
				return comm.AllReduce(ctx, c, make([]float32, 1000), comm.Max)
			}
			return sum(ctx, c, 1000)
		},
		"a barrier beside a sum of nothing": func(ctx context.Context, c *comm.Comm) error {
			if c.Rank() == 1 {
				return c.Barrier(ctx)
			}
			return sum(ctx, c, 0)
		},
		"different operators, on nothing": func(ctx context.Context, c *comm.Comm) error {
			if c.Rank() == 0 {
				return comm.AllReduce(ctx, c, make([]float32, 0), comm.Max)
			}
			return sum(ctx, c, 0)
		},
		"three ranks, three roots": func(ctx context.Context, c *comm.Comm) error {
			return comm.Broadcast(ctx, c, make([]float32, 10), c.Rank())
		},
	}
	for name, f := range cases {
		for _, wire := range transports {
			t.Run(name+"/"+wire, func(t *testing.T) {
				errs := perRank(t, 3, func(ctx context.Context, c *comm.Comm) error {
					twin, err := c.Dup(ctx)
					if err != nil {
						return err
					}
					started := time.Now()
					if err = f(ctx, c); err == nil { // the rank had returned before the fault was detected
						err = c.Barrier(ctx)
					}
					if elapsed := time.Since(started); elapsed > 5*time.Second {
						return fmt.Errorf("told only after %v: %v", elapsed, err)
					}
					if e := twin.Barrier(ctx); e != nil {
						return fmt.Errorf("another communicator was harmed: %v", e)
					}
					return err
				}, comm.WithTransport(linked.All()...), comm.WithTransportName(wire))
				for r, err := range errs {
					if !errors.Is(err, fault.Mismatch) {
						t.Errorf("rank %d got %v, want a mismatch", r, err)
						continue
					}
					if text := err.Error(); strings.Count(text, "failure_test.go:") < 2 {
						t.Errorf("rank %d is not told both places: %s", r, text)
					}
				}
			})
		}
	}
}

func TestARankThatNeverCallsIsNamed(t *testing.T) {
	for _, wire := range transports {
		t.Run(wire, func(t *testing.T) {
			done := make(chan struct{})
			var waiting sync.WaitGroup
			waiting.Add(2)
			var ready sync.WaitGroup // no rank starts its clock before all ranks have joined
			ready.Add(3)
			go func() { waiting.Wait(); close(done) }()
			errs := perRank(t, 3, func(ctx context.Context, c *comm.Comm) error {
				ready.Done()
				ready.Wait()
				if c.Rank() == 1 {
					<-done
					return nil
				}
				defer waiting.Done()
				ctx, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
				defer cancel()
				return comm.AllReduce(ctx, c, make([]float64, 10), comm.Sum)
			}, comm.WithTransport(linked.All()...), comm.WithTransportName(wire))
			first := false
			for _, r := range []int{0, 2} {
				var f *fault.Error
				if !errors.As(errs[r], &f) || !errors.Is(errs[r], fault.Timeout) {
					t.Fatalf("rank %d got %v, want a timeout", r, errs[r])
				}
				if len(f.Peers) == 1 && f.Peers[0].Rank == 1 {
					first = true
					if !strings.Contains(f.Peers[0].At, "failure_test.go:") {
						t.Errorf("rank %d does not say where rank 1 is: %v", r, errs[r])
					}
				} else {
					t.Errorf("rank %d blames %v, want rank 1", r, f.Peers)
				}
			}
			if !first {
				t.Error("nobody named rank 1")
			}
		})
	}
}

func TestCancelledRecvConsumesNoMessage(t *testing.T) {
	err := comm.Local(2, func(ctx context.Context, c *comm.Comm) error {
		if c.Rank() == 1 {
			if err := c.Barrier(ctx); err != nil {
				return err
			}
			return comm.Send(ctx, c, 0, 7, []int32{42})
		}
		short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
		defer cancel()
		if _, err := comm.Recv(short, c, 1, 7, make([]int32, 1)); !errors.Is(err, fault.Timeout) {
			return fmt.Errorf("got %v, want a timeout", err)
		}
		if err := c.Barrier(ctx); err != nil {
			return err
		}
		buf := make([]int32, 1)
		if _, err := comm.Recv(ctx, c, 1, 7, buf); err != nil || buf[0] != 42 {
			return fmt.Errorf("got %v, %v", buf, err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestBadArgumentsAreRefusedBeforeAnythingIsSent(t *testing.T) {
	errs := perRank(t, 2, func(ctx context.Context, c *comm.Comm) error {
		calls := map[string]error{
			"destination":  comm.Send(ctx, c, 2, 0, []int{1}),
			"negative tag": comm.Send(ctx, c, 0, -5, []int{1}),
			"no operator":  comm.AllReduce(ctx, c, []int{1}, comm.Op{}),
			"mean of ints": comm.AllReduce(ctx, c, []int{1}, comm.Mean),
			"root":         comm.Broadcast(ctx, c, []int{1}, -1),
			"lengths":      comm.AllGather(ctx, c, make([]int, 3), comm.From(make([]int, 2))),
			"counts":       comm.AllGather(ctx, c, make([]int, 3), comm.From(make([]int, 2)), comm.Counts([]int{3})),
		}
		for name, err := range calls {
			if !errors.Is(err, fault.Misuse) {
				return fmt.Errorf("%s: got %v, want misuse", name, err)
			}
		}
		return c.Barrier(ctx) // the communicator is still usable
	})
	for r, err := range errs {
		if err != nil {
			t.Errorf("rank %d: %v", r, err)
		}
	}
}

func TestTooSmallReceiveIsMisuse(t *testing.T) {
	for _, size := range []int{10, 1 << 20} {
		err := comm.Local(2, func(ctx context.Context, c *comm.Comm) error {
			if c.Rank() == 0 {
				if err := comm.Send(ctx, c, 1, 0, make([]byte, size)); err != nil {
					return err
				}
				return comm.Send(ctx, c, 1, 0, []byte{7})
			}
			if _, err := comm.Recv(ctx, c, 0, 0, make([]byte, 3)); !errors.Is(err, fault.Misuse) {
				return fmt.Errorf("got %v, want misuse", err)
			}
			buf := make([]byte, 1)
			_, err := comm.Recv(ctx, c, 0, 0, buf)
			if err == nil && buf[0] != 7 {
				err = fmt.Errorf("got %v", buf)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

func TestAPanicEndsTheJobAndIsReported(t *testing.T) {
	err := comm.Local(3, func(ctx context.Context, c *comm.Comm) error {
		if c.Rank() == 1 {
			panic("the reason")
		}
		err := c.Barrier(ctx)
		if !errors.Is(err, fault.PeerLost) {
			return fmt.Errorf("rank %d got %v, want PeerLost", c.Rank(), err)
		}
		return err
	})
	if err == nil || !strings.Contains(err.Error(), "rank 1 panicked: the reason") {
		t.Errorf("got %v", err)
	}
}

func TestCollectiveWithAClosedRankGetsClosed(t *testing.T) {
	for _, wire := range transports {
		t.Run(wire, func(t *testing.T) {
			errs := make([]error, 3)
			err := comm.Local(3, func(ctx context.Context, c *comm.Comm) error {
				err := c.Barrier(ctx) // without the Barrier, a rank that is still in Init would fail there
				if c.Rank() == 2 {
					return err // the rank returns without Close
				}
				if err != nil { // another rank is already in the next call
					errs[c.Rank()] = err
					return nil
				}
				ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
				defer cancel()
				errs[c.Rank()] = c.Barrier(ctx)
				return nil
			}, comm.WithTransport(linked.All()...), comm.WithTransportName(wire))
			if err != nil {
				t.Fatal(err)
			}
			for r, err := range errs[:2] {
				var f *fault.Error
				if !errors.As(err, &f) || !errors.Is(err, fault.Closed) || len(f.Peers) != 1 || f.Peers[0].Rank != 2 {
					t.Errorf("rank %d got %v, want closed, naming rank 2", r, err)
				}
			}
		})
	}
}
