package comm

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/mesh"
	"github.com/tutti-go/tutti/transport"
	"github.com/tutti-go/tutti/transport/memory"
)

func TestClosingASplitDeliversAcceptedSends(t *testing.T) {
	for _, size := range []int{10, 1 << 20} {
		err := Local(2, func(ctx context.Context, c *Comm) error {
			sub, err := c.Dup(ctx)
			if err != nil {
				return err
			}
			if c.Rank() == 1 {
				if err := c.Barrier(ctx); err != nil { // rank 0 has closed its communicator
					return err
				}
				_, err = Recv(ctx, sub, 0, 0, make([]byte, size))
				return err
			}
			if err := Send(ctx, sub, 1, 0, make([]byte, size)); err != nil {
				return err
			}
			if err := sub.Close(ctx); err != nil {
				return err
			}
			return c.Barrier(ctx)
		}, WithTimeout(10*time.Second))
		if err != nil {
			t.Errorf("%d bytes: %v", size, err)
		}
	}
}

func TestCloseIsBoundedByTheTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		err := Local(2, func(ctx context.Context, c *Comm) error {
			if c.Rank() == 1 {
				// Reason: this rank receives nothing meanwhile. No real time passes.
				time.Sleep(20 * time.Second)
				return nil
			}
			if err := Send(ctx, c, 1, 0, make([]byte, 1<<20)); err != nil {
				return err
			}
			started := time.Now()
			err := c.Close(context.Background())
			if elapsed := time.Since(started); !errors.Is(err, fault.Timeout) || elapsed > 6*time.Second {
				return fmt.Errorf("got %v after %v, want a timeout after 5 s", err, elapsed)
			}
			return nil
		}, WithTimeout(5*time.Second))
		if err != nil {
			t.Error(err)
		}
	})
}

// The receiver receives the message only after the sender has begun Close, and closes nothing
// itself. Close must wait for that receive, unless the message was sent eagerly.
func TestCloseWaitsForLateReceives(t *testing.T) {
	// The first size is sent eagerly. The others are offered, or spilled to the heap.
	for _, bytes := range []int{1000, 100_000, 1 << 20, 8 << 20} {
		synctest.Test(t, func(t *testing.T) {
			const late = 3 * time.Second
			err := Local(2, func(ctx context.Context, c *Comm) error {
				began := time.Now()
				buf := make([]byte, bytes)
				if c.Rank() == 0 {
					if err := Send(ctx, c, 1, 1, buf); err != nil {
						return err
					}
					err := c.Close(ctx)
					if elapsed := time.Since(began); bytes > 64<<10 && elapsed < late || elapsed > 2*late {
						t.Errorf("%d bytes: Close returned after %v, with %v; the message was taken after %v", bytes, elapsed, err, late)
					}
					return err
				}
				// Reason: the test needs a late receive. The sleep uses the synctest bubble's
				// clock, so no real time passes. The clock advances only once rank 0 waits in
				// Close.
				time.Sleep(late)
				if _, err := Recv(ctx, c, 0, 1, buf); err != nil {
					return err
				}
				_, err := Recv(ctx, c, 0, 2, buf)
				if elapsed := time.Since(began); !errors.Is(err, fault.Closed) || elapsed > 2*late {
					t.Errorf("%d bytes: another receive got %v after %v, want closed", bytes, err, elapsed)
				}
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
}

func TestARankThatEndsByGoexitEndsTheJob(t *testing.T) {
	err := Local(2, func(ctx context.Context, c *Comm) error {
		if c.Rank() == 0 {
			runtime.Goexit() // as t.FailNow does
		}
		return c.Barrier(ctx)
	}, WithTimeout(10*time.Second))
	if !errors.Is(err, fault.Misuse) || !strings.Contains(err.Error(), "Goexit") {
		t.Errorf("got %v, want misuse by rank 0", err)
	}
}

func TestDupAndSplitDoNotMatchAllGather(t *testing.T) {
	for words, make1 := range map[int]func(ctx context.Context, c *Comm) (*Comm, error){
		1: func(ctx context.Context, c *Comm) (*Comm, error) { return c.Dup(ctx) },
		2: func(ctx context.Context, c *Comm) (*Comm, error) { return c.Split(ctx, 0, 0) },
	} {
		err := Local(2, func(ctx context.Context, c *Comm) error {
			var err error
			if c.Rank() == 0 {
				_, err = make1(ctx, c)
			} else {
				err = AllGather(ctx, c, make([]int64, 2*words), From(make([]int64, words)))
			}
			if err == nil { // the rank had returned before the fault was detected
				err = c.Barrier(ctx)
			}
			if !errors.Is(err, fault.Mismatch) {
				t.Errorf("%d words: rank %d got %v, want a mismatch", words, c.Rank(), err)
			}
			_, err = SendRecv(ctx, c, 1-c.Rank(), 0, []byte{1}, 1-c.Rank(), 0, make([]byte, 1))
			if !errors.Is(err, fault.Mismatch) {
				t.Errorf("%d words: rank %d got %v from its next call", words, c.Rank(), err)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}
}

func TestRevokesOfUnknownCommunicatorsDoNotDisplaceLaterOnes(t *testing.T) {
	var er earlyRevokes
	const n = 3 * maxEarly
	for id := range uint64(n) {
		er.add(id, &fault.Error{Rank: int(id)})
	}
	if len(er.why) != maxEarly || len(er.order) != maxEarly {
		t.Errorf("%d and %d are kept, want %d", len(er.why), len(er.order), maxEarly)
	}
	if e := er.remove(n - 1); e == nil || e.Rank != n-1 {
		t.Errorf("the last one is %v", e)
	}
	if e := er.remove(0); e != nil {
		t.Errorf("the first one is %v still", e)
	}
	if len(er.why) != maxEarly-1 || len(er.order) != maxEarly-1 {
		t.Errorf("%d and %d are left, want %d", len(er.why), len(er.order), maxEarly-1)
	}
}

func TestACommunicatorMadeAfterALinkWasLostKnowsSo(t *testing.T) {
	err := Local(3, func(ctx context.Context, c *Comm) error {
		var err error
		if c.Rank() == 0 {
			if err = Send(ctx, c, 1, 0, []byte{1}); err != nil {
				return err
			}
			c.rt.mesh.Link(1).Conn().Close()
		}
		for err == nil {
			err = c.Barrier(ctx)
		}
		if !errors.Is(err, fault.LinkLost) {
			return err
		}
		if _, err = c.Sub(ctx, 0, 1, 2); !errors.Is(err, fault.LinkLost) || errors.Is(err, fault.Timeout) {
			t.Errorf("rank %d got %v, want the lost link", c.Rank(), err)
		}
		return nil
	}, WithTimeout(10*time.Second), WithParameters(Parameters{NoSharedMemory: true}))
	if err != nil {
		t.Error(err)
	}
}

func TestCallsOnASplitAfterCloseGetClosed(t *testing.T) {
	err := Local(2, func(ctx context.Context, c *Comm) error {
		sub, err := c.Dup(ctx)
		if err != nil {
			return err
		}
		if err := c.Close(ctx); err != nil {
			return err
		}
		if err := AllReduce(ctx, sub, []int{1}, Sum); !errors.Is(err, fault.Closed) {
			t.Errorf("got %v, want closed", err)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// A closeRecorder is a transport that records whether it was closed.
type closeRecorder struct {
	transport.Transport
	closed bool
}

func (w *closeRecorder) Close() error {
	w.closed = true
	return w.Transport.Close()
}

func TestUnusableCertificateClosesListenerAndTransport(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	recorder := &closeRecorder{Transport: memory.New().Transport()}
	o := newOptions([]Option{WithTLS(TLS{CertFile: "none", KeyFile: "none"})})
	if _, err := (&member{wire{recorder}, mesh.Config{Size: 1, Listener: listener}}).start(t.Context(), o); err == nil {
		t.Fatal("no error")
	}
	if _, err := listener.Accept(); !recorder.closed || !errors.Is(err, net.ErrClosed) {
		t.Errorf("the transport is closed: %v; the listener: %v", recorder.closed, err)
	}
}
