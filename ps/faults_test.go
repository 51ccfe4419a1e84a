package ps_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/test/leak"
	"github.com/tutti-go/tutti/ps"
	"github.com/tutti-go/tutti/ps/optimizer"
	"github.com/tutti-go/tutti/tensor"
	linked "github.com/tutti-go/tutti/transport/wires"
)

// names reports whether err is the loss of a rank and blames it.
func names(err error, rank int) bool {
	var f *fault.Error
	return errors.As(err, &f) && errors.Is(err, fault.PeerLost) && slices.ContainsFunc(f.Peers, func(p fault.Peer) bool { return p.Rank == rank })
}

// The first ranks work, and the others serve. With AlsoServe, the workers serve, too. One rank leaves
// the job, as a process does that ends, while the workers wait: for a version that needs a push which
// nobody makes, or in a declaration after the loss. Every call must end, and name the lost rank.
func TestALostRankEndsEveryCallNamingIt(t *testing.T) {
	for _, wire := range wires() {
		for _, row := range []struct {
			name    string
			workers int
			opts    []ps.Option // of the workers
		}{
			{"servers", 2, nil},
			{"workers serve", 3, []ps.Option{ps.AlsoServe()}},
		} {
			for _, dead := range []int{1, 2, 3} {
				t.Run(fmt.Sprintf("%s/%s/rank %d", wire, row.name, dead), func(t *testing.T) {
					leak.Check(t)
					loseARank(t, wire, dead, row.workers, row.opts)
				})
			}
		}
	}
}

func loseARank(t *testing.T, wire string, dead, workers int, opts []ps.Option) {
	const ranks = 4
	opts = append(opts, ps.WithPart(8000))
	var ready sync.WaitGroup
	ready.Add(ranks)
	var over sync.WaitGroup // the workers that are left
	over.Add(workers)
	if dead < workers {
		over.Done()
	}
	ended, end := context.WithCancel(context.Background())
	end()
	var goroutines [ranks]func() // end those of a rank
	err := comm.Local(ranks, func(ctx context.Context, c *comm.Comm) error {
		if c.Rank() >= workers {
			s, err := ps.NewServer(ctx, c, ps.WithPart(8000))
			if err != nil {
				return err
			}
			goroutines[c.Rank()] = func() { s.Serve(ended) }
			ready.Done()
			if ready.Wait(); c.Rank() != dead {
				over.Wait()
			}
			return nil
		}
		cl, err := ps.Connect(ctx, c, opts...)
		if err != nil {
			return err
		}
		goroutines[c.Rank()] = func() { cl.Close(ended) }
		buf := make([]float32, 60_000)
		w, err := ps.Declare[float32](ctx, cl, "w", len(buf))
		if err != nil {
			return err
		}
		other, err := ps.Declare[float32](ctx, cl, fmt.Sprint("of ", c.Rank()), len(buf))
		if err != nil {
			return err
		}
		waits := w
		if dead >= workers {
			waits = other // the workers wait for each other
		}
		if c.Rank() == dead {
			ready.Done()
			ready.Wait()
			return nil
		}
		defer over.Wait() // stay until the other workers have seen the loss, too
		defer over.Done()
		if err := waits.Push(ctx, buf); err != nil { // the version needs the others' pushes from now on
			return err
		}
		h := waits.IPushPull(buf, buf)
		ready.Done()
		h.Wait(context.Background()) // the loss is known after this call
		for _, call := range []struct {
			what string
			wait func() error
		}{
			{"pushpull", func() error { return h.Wait(context.Background()) }},
			{"pull", func() error { return waits.Pull(context.Background(), buf) }},
			{"declare", func() error {
				_, err := ps.Declare[float32](context.Background(), cl, "v", 10)
				return err
			}},
		} {
			if call.what == "declare" && dead < workers && len(opts) == 1 {
				continue // a declaration does not need the other workers
			}
			if err := blames(call.wait(), dead); err != nil {
				t.Errorf("rank %d: %s: %v", c.Rank(), call.what, err)
			}
		}
		return nil
	}, comm.WithTransportName(wire), comm.WithTransport(linked.All()...), comm.WithTimeout(time.Minute))
	for _, end := range goroutines {
		if end != nil {
			end()
		}
	}
	if err != nil && !errors.Is(err, fault.Closed) { // it says who has left
		t.Error(err)
	}
}

// Rank 1 leaves the job without closing its client, as a process does that ends. A synchronous call
// of rank 0 then fails and names rank 1, or goes on without it, as the policy says. Asynchronous
// tensors stay usable.
func TestThePolicyDecidesWhatALostWorkerMeans(t *testing.T) {
	for _, wire := range wires() {
		for _, policy := range []ps.LostWorkers{ps.Fail, ps.Continue} {
			t.Run(fmt.Sprint(wire, "/", policy), func(t *testing.T) {
				leak.Check(t)
				loseAWorker(t, wire, policy)
			})
		}
	}
}

func loseAWorker(t *testing.T, wire string, policy ps.LostWorkers) {
	pushed := make(chan struct{})
	err := comm.Local(3, func(ctx context.Context, c *comm.Comm) error {
		if c.Rank() == 2 {
			err := ps.Serve(ctx, c, ps.WithLostWorkers(policy))
			if policy == ps.Continue {
				return err
			}
			return blames(err, 1)
		}
		cl, err := ps.Connect(ctx, c, ps.WithLostWorkers(policy))
		if err != nil {
			return err
		}
		w, err := ps.Declare[float32](ctx, cl, "w", 3, ps.Reduce(comm.Sum))
		if err != nil {
			return err
		}
		free, err := ps.Declare[float32](ctx, cl, "free", 3, ps.Asynchronous())
		if err != nil {
			return err
		}
		got := make([]float32, 3)
		if err := w.PushPull(ctx, []float32{1, 2, 3}, got); err != nil {
			return err
		}
		if c.Rank() == 1 {
			<-pushed
			return nil
		}
		h := w.IPushPull([]float32{5, 6, 7}, got)
		close(pushed)
		err = h.Wait(ctx)
		if policy == ps.Fail {
			if err := blames(err, 1); err != nil {
				return err
			}
			if err := blames(w.Push(ctx, got), 1); err != nil {
				return fmt.Errorf("after the loss: %w", err)
			}
		} else if err != nil {
			return err
		} else if err := equal("the round without worker 1", got, []float32{5, 6, 7}); err != nil {
			return err
		}
		if err := free.PushPull(ctx, []float32{1, 2, 3}, got); err != nil {
			return fmt.Errorf("asynchronous: %w", err)
		}
		return cl.Close(ctx)
	}, comm.WithTransportName(wire), comm.WithTransport(linked.All()...))
	if err != nil {
		t.Error(err)
	}
}

// blames returns an error unless err names a rank.
func blames(err error, rank int) error {
	var f *fault.Error
	if !errors.As(err, &f) || !slices.ContainsFunc(f.Peers, func(p fault.Peer) bool { return p.Rank == rank }) {
		return fmt.Errorf("got %v, want an error that names rank %d", err, rank)
	}
	return nil
}

func TestAPushThatIsSentTwiceCountsOnce(t *testing.T) {
	for _, wire := range wires() {
		for _, mode := range modes {
			t.Run(wire+"/"+mode.name, func(t *testing.T) {
				leak.Check(t)
				err := run(wire, 2, ps.Servers(1), func(ctx context.Context, cl *ps.Client) error {
					w, err := ps.Declare[float32](ctx, cl, "w", 3000, mode.mode(), ps.Optimizer(optimizer.SGD{Rate: 1}))
					if err != nil {
						return err
					}
					src, got := make([]float32, 3000), make([]float32, 3000)
					for i := range src {
						src[i] = -1
					}
					for range 2 {
						if err := w.Push(ctx, src); err != nil {
							return err
						}
						ps.PushAgain(w)
						if err := w.Push(ctx, src); err != nil {
							return fmt.Errorf("the resend: %w", err)
						}
						ps.PushAgain(w)
						if err := w.PushPull(ctx, src, got); err != nil {
							return fmt.Errorf("the resend with a pull: %w", err)
						}
					}
					if got[0] != 2 || got[2999] != 2 {
						return fmt.Errorf("got %v and %v after two pushes of 1, want 2", got[0], got[2999])
					}
					return nil
				}, ps.WithPart(4000))
				if err != nil {
					t.Error(err)
				}
			})
		}
	}
}

func TestAnUnknownTensorIsRefused(t *testing.T) {
	for _, p := range placements {
		t.Run(p.name, func(t *testing.T) {
			leak.Check(t)
			err := run("memory", p.ranks, p.p, func(ctx context.Context, cl *ps.Client) error {
				w, err := ps.Declare[float32](ctx, cl, "w", 3000)
				if err != nil {
					return err
				}
				buf := make([]float32, 3000)
				ps.Forget(w)
				if err := refusal("push", w.Push(ctx, buf), fault.Misuse, "push w", "this server has no such part"); err != nil {
					return err
				}
				return refusal("pull", w.Pull(ctx, buf), fault.Misuse, "pull w", "this server has no such part")
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
}

// The optimizer of the server waits until the worker has begun all pushes. Until then the worker has
// sent no more than the credit, and the server holds no more.
func TestASlowServerBoundsWhatIsInFlight(t *testing.T) {
	for _, wire := range wires() {
		t.Run(wire, func(t *testing.T) {
			leak.Check(t)
			const n, pushes, credit = 10_000, 50, 100_000
			begun := make(chan struct{})
			slow := optimizer.Func{Name: "slow", Float32: func(values, gradient []float32, _ [][]float32, _ int64) {
				<-begun
				for i, g := range gradient {
					values[i] += g
				}
			}}
			err := run(wire, 2, ps.Servers(1), func(ctx context.Context, cl *ps.Client) error {
				w, err := ps.Declare[float32](ctx, cl, "w", n, ps.Asynchronous(), ps.Optimizer(slow))
				if err != nil {
					return err
				}
				src := make([]float32, n)
				for i := range src {
					src[i] = 1
				}
				var hs []*ps.Handle
				for range pushes {
					hs = append(hs, w.IPush(src))
					if st := cl.Stats(); st.InFlight > credit {
						return fmt.Errorf("got %d bytes in flight, want at most %d", st.InFlight, credit)
					}
				}
				if st := cl.Stats(); st.Queued < pushes-credit/(4*n)-1 {
					return fmt.Errorf("got %d pushes that wait for credit, want the others", st.Queued)
				}
				close(begun)
				if err := ps.WaitAll(ctx, hs...); err != nil {
					return err
				}
				if st := cl.Stats(); st.InFlight != 0 || st.Queued != 0 {
					return fmt.Errorf("at the end: got %d bytes in flight and %d queued, want none", st.InFlight, st.Queued)
				}
				if err := w.Pull(ctx, src); err != nil {
					return err
				}
				if src[0] != pushes {
					return fmt.Errorf("got %v, want %d", src[0], pushes)
				}
				return nil
			}, ps.WithCredit(credit), ps.WithOptimizers(slow))
			if err != nil {
				t.Error(err)
			}
		})
	}
}

// Each worker pulls rows of its own table, and then pushes to the table of the other one. Each pull
// waits for the other worker's push, and its indices are larger than the credit.
func TestAPullThatWaitsHoldsNoCredit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		err := run("memory", 3, ps.Servers(1), func(ctx context.Context, cl *ps.Client) error {
			ctx, cancel := context.WithTimeout(ctx, 30*time.Second) // ends a deadlock
			defer cancel()
			var tables [2]*ps.Table[float32]
			for i := range tables {
				table, err := ps.DeclareTable[float32](ctx, cl, fmt.Sprint("table ", i), 1, ps.Reduce(comm.Sum))
				if err != nil {
					return err
				}
				tables[i] = table
			}
			own, other := tables[cl.Workers().Rank()], tables[1-cl.Workers().Rank()]
			indices, rows := make([]int64, 1000), make([]float32, 1000)
			for i := range indices {
				indices[i] = int64(i)
			}
			if err := own.Push(ctx, indices[:1], []float32{1}); err != nil {
				return err
			}
			pull := own.IPull(indices, rows)
			if err := other.Push(ctx, indices[:1], []float32{2}); err != nil {
				return fmt.Errorf("the push behind the pull: %w", err)
			}
			if err := pull.Wait(ctx); err != nil {
				return err
			}
			return equal("the row of both pushes", rows[:1], []float32{3})
		}, ps.WithCredit(1000))
		if err != nil {
			t.Error(err)
		}
	})
}

// A Wait that ends with its context does not end the operation.
func TestAnOperationOutlivesAWait(t *testing.T) {
	leak.Check(t)
	err := run("memory", 3, ps.Servers(1), func(ctx context.Context, cl *ps.Client) error {
		w, err := ps.Declare[float32](ctx, cl, "w", 3, ps.Reduce(comm.Sum))
		if err != nil {
			return err
		}
		buf := []float32{1, 2, 3}
		if cl.Workers().Rank() == 1 {
			if err := cl.Workers().Barrier(ctx); err != nil {
				return err
			}
			return w.Push(ctx, buf)
		}
		h := w.IPushPull(buf, buf)
		short, cancel := context.WithTimeout(ctx, time.Millisecond)
		defer cancel()
		if err := refusal("wait", h.Wait(short), fault.Timeout, "pushpull w"); err != nil {
			return err
		}
		if err := cl.Workers().Barrier(ctx); err != nil {
			return err
		}
		if err := h.Wait(ctx); err != nil {
			return err
		}
		return equal("after the second wait", buf, []float32{2, 4, 6})
	})
	if err != nil {
		t.Error(err)
	}
}

func TestEveryElementTypeCanBePushed(t *testing.T) {
	leak.Check(t)
	err := run("memory", 3, ps.Everywhere(), func(ctx context.Context, cl *ps.Client) error {
		return errors.Join(pushOnes[int8](ctx, cl, 1), pushOnes[uint64](ctx, cl, 1), pushOnes[int](ctx, cl, 1), pushOnes[float64](ctx, cl, 1),
			pushOnes[complex128](ctx, cl, 1), pushOnes(ctx, cl, tensor.Float16From(1)), pushOnes(ctx, cl, tensor.BFloat16From(1)))
	})
	if err != nil {
		t.Error(err)
	}
}

func pushOnes[T interface {
	comm.Element
	comparable
}](ctx context.Context, cl *ps.Client, one T) error {
	name := tensor.TypeOf[T]().String()
	w, err := ps.Declare[T](ctx, cl, name, 5, ps.Reduce(comm.Sum))
	if err != nil {
		return err
	}
	src := []T{one, one, one, one, one}
	dst := slices.Clone(src)
	if err := w.PushPull(ctx, src, dst); err != nil {
		return err
	}
	want := slices.Clone(src)
	if err := comm.AllReduce(ctx, cl.Workers(), want, comm.Sum); err != nil {
		return err
	}
	if !slices.Equal(dst, want) {
		return fmt.Errorf("%s: got %v, want %v", name, dst, want)
	}
	return nil
}

// A declaration waits for credit, because the server's optimizer is slow. Another one ends with its
// own deadline all the same.
func TestADeclarationDoesNotWaitOutAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := make(chan struct{})
		slow := optimizer.Func{Name: "slow", Float32: func([]float32, []float32, [][]float32, int64) { <-begun }}
		err := run("memory", 2, ps.Servers(1), func(ctx context.Context, cl *ps.Client) error {
			w, err := ps.Declare[float32](ctx, cl, "w", 10_000, ps.Asynchronous(), ps.Optimizer(slow))
			if err != nil {
				return err
			}
			h := w.IPush(make([]float32, 10_000)) // uses all credit
			first := make(chan error)
			go func() {
				_, err := ps.Declare[float32](ctx, cl, "first", 10)
				first <- err
			}()
			synctest.Wait() // until the first one waits for credit
			short, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			_, err = ps.Declare[float32](short, cl, "second", 10)
			if err := refusal("the second declaration", err, fault.Timeout, "declare second"); err != nil {
				return err
			}
			close(begun)
			return errors.Join(<-first, h.Wait(ctx))
		}, ps.WithCredit(40_000), ps.WithOptimizers(slow))
		if err != nil {
			t.Error(err)
		}
	})
}
