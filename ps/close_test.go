package ps_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/test/leak"
	"github.com/tutti-go/tutti/ps"
	"github.com/tutti-go/tutti/ps/optimizer"
	linked "github.com/tutti-go/tutti/transport/wires"
)

// A server whose context ends ends the calls of all clients, which name it.
func TestAServerThatEndsEarlyEndsTheCallsOfItsClients(t *testing.T) {
	for _, wire := range wires() {
		t.Run(wire, func(t *testing.T) {
			leak.Check(t)
			begun := make(chan struct{})
			err := comm.Local(3, func(ctx context.Context, c *comm.Comm) error {
				if c.Rank() == 2 {
					ended, end := context.WithCancel(ctx)
					go func() {
						<-begun
						end()
					}()
					return refusal("serve", ps.Serve(ended, c), fault.Canceled, "ps serve")
				}
				cl, err := ps.Connect(ctx, c)
				if err != nil {
					return err
				}
				w, err := ps.Declare[float32](ctx, cl, "w", 4)
				if err != nil {
					return err
				}
				if err := cl.Workers().Barrier(ctx); err != nil {
					return err
				}
				buf := make([]float32, 4)
				if c.Rank() == 0 { // worker 1 never pushes
					h := w.IPushPull(buf, buf)
					close(begun)
					err = h.Wait(ctx)
				} else {
					for err == nil {
						err = w.Pull(ctx, buf)
					}
				}
				return errors.Join(blames(err, 2), blames(cl.Close(ctx), 2))
			}, comm.WithTransportName(wire), comm.WithTransport(linked.All()...))
			if err != nil {
				t.Error(err)
			}
		})
	}
}

// The functions of the other workers fail while worker 0 waits for their pushes. Its round goes on
// without them. If they serve, too, their parts are lost, so its calls fail and name one of them. The
// job's communicator stays usable.
func TestTheRoundsGoOnWithoutAWorkerWhoseFunctionFails(t *testing.T) {
	everywhere(t, func(t *testing.T, wire string, ranks int, p ps.Placement) {
		if ranks == 1 {
			return // there is no other worker
		}
		wrong, serve := errors.New("out of data"), p.String() == "Everywhere()"
		waits := make(chan struct{})
		err := comm.Local(ranks, func(ctx context.Context, c *comm.Comm) error {
			err := ps.Run(ctx, c, p, func(ctx context.Context, cl *ps.Client) error {
				w, err := ps.Declare[float32](ctx, cl, "w", 3)
				if err != nil {
					return err
				}
				me, buf := cl.Workers().Rank(), []float32{1, 2, 3}
				if err := w.PushPull(ctx, buf, make([]float32, 3)); err != nil {
					return err
				}
				switch me {
				case 0:
					h := w.IPushPull(buf, buf)
					close(waits)
					if !serve {
						return errors.Join(h.Wait(ctx), equal("without the others", buf, []float32{1, 2, 3}))
					}
					err := h.Wait(ctx)
					for err == nil {
						err = w.PushPull(ctx, buf, buf)
					}
					return err
				default:
					<-waits
					return wrong
				}
			}, nil)
			switch {
			case errors.Is(err, wrong):
				err = nil
			case serve:
				err = refusal("the call of worker 0", err, fault.Revoked, "rank ")
			}
			return errors.Join(err, c.Barrier(ctx))
		}, comm.WithTransportName(wire), comm.WithTransport(linked.All()...))
		if err != nil {
			t.Error(err)
		}
	})
}

// The function of a worker that also serves fails while its own part has a call of it. The call ends
// with the server.
func TestACallToTheOwnServerEndsWithTheServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		wrong := errors.New("out of data")
		over := make(chan struct{})
		err := comm.Local(2, func(ctx context.Context, c *comm.Comm) error {
			var h *ps.Handle
			err := ps.Run(ctx, c, ps.Everywhere(), func(ctx context.Context, cl *ps.Client) error {
				w, err := ps.Declare[float32](ctx, cl, "w", 4) // rank 0 has it
				if err != nil {
					return err
				}
				if c.Rank() == 1 { // does not push
					<-over
					return wrong
				}
				buf := make([]float32, 4)
				h = w.IPushPull(buf, buf)
				synctest.Wait() // until the pull waits for the version
				return wrong
			}, nil)
			if !errors.Is(err, wrong) {
				return fmt.Errorf("got %v, want the error of the function", err)
			}
			if h == nil {
				return nil
			}
			defer close(over)
			select {
			case <-h.Done():
				if h.Wait(ctx) == nil {
					return errors.New("the call that waits: got no error")
				}
				return nil
			default:
				return errors.New("the call that waits: got no end, want one with the server")
			}
		})
		if err != nil {
			t.Error(err)
		}
	})
}

// Worker 0 closes, and serves on while worker 1 works for longer than the communicator's Timeout.
func TestCloseServesOtherWorkersLongerThanTheTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		err := run("memory", 2, ps.Everywhere(), func(ctx context.Context, cl *ps.Client) error {
			w, err := ps.Declare[float32](ctx, cl, "w", 4, ps.Asynchronous()) // rank 0 has it
			if err != nil || cl.Workers().Rank() == 0 {
				return err
			}
			// Reason: an hour of the synctest bubble's clock lets the Timeout of Close pass. The sleep
			// takes no real time.
			time.Sleep(time.Hour)
			return w.Push(ctx, make([]float32, 4))
		})
		if err != nil {
			t.Error(err)
		}
	})
}

// Close waits for operations in flight, and ends with its context if they do not end.
func TestCloseEndsWithItsContext(t *testing.T) {
	leak.Check(t)
	over := make(chan struct{})
	err := comm.Local(3, func(ctx context.Context, c *comm.Comm) error {
		if c.Rank() == 2 {
			return blames(ps.Serve(ctx, c), 0)
		}
		cl, err := ps.Connect(ctx, c)
		if err != nil {
			return err
		}
		w, err := ps.Declare[float32](ctx, cl, "w", 4)
		if err != nil {
			return err
		}
		if err := cl.Workers().Barrier(ctx); err != nil {
			return err
		}
		if c.Rank() == 1 { // does not push
			<-over
			return blames(cl.Close(ctx), 0)
		}
		buf := make([]float32, 4)
		h := w.IPushPull(buf, buf)
		ended, end := context.WithCancel(ctx)
		end()
		err = refusal("close", cl.Close(ended), fault.Canceled, "ps close")
		close(over)
		if h.Wait(ctx) == nil {
			err = fmt.Errorf("the operation that Close has ended: got no error")
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// While a Serve and a Close wait, second ones end with their contexts.
func TestASecondCloseOrServeEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ended, end := context.WithCancel(t.Context())
		end()
		err := comm.Local(3, func(ctx context.Context, c *comm.Comm) error {
			if c.Rank() == 2 {
				s, err := ps.NewServer(ctx, c)
				if err != nil {
					return err
				}
				first := make(chan error)
				go func() { first <- s.Serve(ctx) }()
				// Reason: the sleep ends when the first one waits. It takes no real time.
				time.Sleep(time.Second)
				second := refusal("the second serve", s.Serve(ended), fault.Canceled, "ps serve")
				return errors.Join(second, <-first, s.Serve(ended))
			}
			cl, err := ps.Connect(ctx, c)
			if err != nil {
				return err
			}
			w, err := ps.Declare[float32](ctx, cl, "w", 4)
			if err != nil {
				return err
			}
			buf := make([]float32, 4)
			if c.Rank() == 1 {
				if _, err := comm.Recv(ctx, cl.Workers(), 0, 0, make([]int, 1)); err != nil {
					return err
				}
				return errors.Join(w.Push(ctx, buf), cl.Close(ctx))
			}
			h := w.IPushPull(buf, buf) // waits for the push of rank 1
			first := make(chan error)
			go func() { first <- cl.Close(ctx) }()
			// Reason: the sleep ends when the first one waits, after that of rank 2. It takes no real time.
			time.Sleep(2 * time.Second)
			second := refusal("the second close", cl.Close(ended), fault.Canceled, "ps close")
			return errors.Join(second, comm.Send(ctx, cl.Workers(), 1, 0, []int{1}), <-first, h.Wait(ctx), cl.Close(ended))
		})
		if err != nil {
			t.Error(err)
		}
	})
}

// The function of worker 1 fails while it pushes. One of two servers is busy then. The version has the
// push in all parts.
func TestAWorkerThatFailsTearsNoVersion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 4000
		wrong, free := errors.New("out of data"), make(chan struct{})
		slow := optimizer.Func{Name: "slow", Float32: func([]float32, []float32, [][]float32, int64) { <-free }}
		err := comm.Local(4, func(ctx context.Context, c *comm.Comm) error {
			err := ps.Run(ctx, c, ps.Servers(2), func(ctx context.Context, cl *ps.Client) error {
				busy, err := ps.Declare[float32](ctx, cl, "busy", 1, ps.Asynchronous(), ps.Optimizer(slow))
				if err != nil {
					return err
				}
				w, err := ps.Declare[float32](ctx, cl, "w", n, ps.Reduce(comm.Sum))
				if err != nil {
					return err
				}
				src, got := make([]float32, n), make([]float32, n)
				for i := range src {
					src[i] = 1
				}
				if cl.Workers().Rank() == 1 {
					busy.IPush(src[:1])
					w.IPush(src)
					synctest.Wait() // until the servers have what the credit allows
					time.AfterFunc(time.Millisecond, func() { close(free) })
					return wrong
				}
				if err := w.PushPull(ctx, src, got); err != nil {
					return err
				}
				for i, v := range got {
					if v != 2 {
						return fmt.Errorf("element %d: got %v, want 2, the pushes of both workers", i, v)
					}
				}
				return nil
			}, nil, ps.WithPart(400), ps.WithCredit(400), ps.WithEngines(1), ps.WithOptimizers(slow))
			if errors.Is(err, wrong) {
				return nil
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	})
}
