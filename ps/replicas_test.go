package ps_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/test/leak"
	"github.com/tutti-go/tutti/ps"
	"github.com/tutti-go/tutti/ps/optimizer"
	linked "github.com/tutti-go/tutti/transport/wires"
)

// A replicatedJob is a job of workers and servers with replicas, in which some ranks are lost.
type replicatedJob struct {
	wire     string
	workers  int
	servers  int  // ranks that only serve
	serve    bool // the workers serve, too
	replicas int
	policy   ps.LostWorkers
	opts     []ps.Option

	lost  []int                                                  // ranks, in the order in which they are lost
	kill  []chan struct{}                                        // closed to lose the rank
	work  func(ctx context.Context, cl *ps.Client, me int) error // of each worker
	fails func(rank int, err error) error                        // judges the error of a rank that is not lost
}

// run runs the job. Every rank stays until all that are not lost have finished.
func (job *replicatedJob) run(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	ranks := job.workers + job.servers
	ended, end := context.WithCancel(ctx)
	end()
	var over sync.WaitGroup
	over.Add(ranks - len(job.lost))
	opts := []ps.Option{ps.WithPart(4000), ps.WithReplicas(job.replicas), ps.WithLostWorkers(job.policy), ps.WithLogger(slog.New(slog.DiscardHandler))}
	opts = append(opts, job.opts...)
	if job.serve {
		opts = append(opts, ps.AlsoServe())
	}
	err := comm.Local(ranks, func(_ context.Context, c *comm.Comm) error {
		victim := slices.Index(job.lost, c.Rank())
		if victim >= 0 {
			go func() {
				select {
				case <-job.kill[victim]:
				case <-ctx.Done():
				}
				c.Close(ended) // as a process does that ends
			}()
			defer over.Wait()
		}
		err := job.rank(ctx, c, opts)
		if victim >= 0 {
			return nil
		}
		defer over.Wait()
		defer over.Done()
		if job.fails != nil {
			err = job.fails(c.Rank(), err)
		}
		if err != nil {
			t.Errorf("rank %d: %v", c.Rank(), err)
		}
		return nil
	}, comm.WithTransportName(job.wire), comm.WithTransport(linked.All()...), comm.WithTimeout(50*time.Second))
	if err != nil && !errors.Is(err, fault.Closed) && !errors.Is(err, fault.PeerLost) {
		t.Error(err)
	}
}

func (job *replicatedJob) rank(ctx context.Context, c *comm.Comm, opts []ps.Option) error {
	if c.Rank() >= job.workers {
		return ps.Serve(ctx, c, opts...)
	}
	cl, err := ps.Connect(ctx, c, opts...)
	if err != nil {
		return err
	}
	err = job.work(ctx, cl, c.Rank())
	return errors.Join(err, cl.Close(ctx)) // after the loss of all servers, Close has none to tell
}

// adamSteps trains a tensor, and compares each version with a serial program.
func adamSteps(ctx context.Context, cl *ps.Client, me, workers, n, steps int, step func(int)) error {
	adam := optimizer.Adam{Rate: 0.01}
	w, err := ps.Declare[float32](ctx, cl, "w", n, ps.Optimizer(adam), ps.Initial(ps.Constant(0.5)))
	if err != nil {
		return err
	}
	want := make([]float32, n)
	for i := range want {
		want[i] = 0.5
	}
	slots := make([][]float32, len(adam.State().Slots))
	for i := range slots {
		slots[i] = make([]float32, n)
	}
	got := make([]float32, n)
	for s := range steps {
		if step != nil {
			step(s)
		}
		if s%2 == 0 {
			err = w.PushPull(ctx, vector(me, s, n), got)
		} else if err = w.Push(ctx, vector(me, s, n)); err == nil {
			err = w.Pull(ctx, got)
		}
		if err != nil {
			return fmt.Errorf("step %d: %w", s, err)
		}
		optimizer.Update[float32](adam)(want, reduced(workers, s, n, true), slots, int64(s+1))
		if err := equal(fmt.Sprintf("step %d", s), got, want); err != nil {
			return err
		}
	}
	return nil
}

// losses closes kill[i] when progress calls that all workers report have come to at[i].
type losses struct {
	at   []int64
	kill []chan struct{}
	n    atomic.Int64
}

// newLosses draws when n ranks are lost, of a number of calls in total.
func newLosses(t *testing.T, n, calls int) *losses {
	l := new(losses)
	for range n {
		l.at = append(l.at, 1+rand.Int64N(int64(calls)*3/4))
		l.kill = append(l.kill, make(chan struct{}))
	}
	slices.Sort(l.at)
	t.Logf("losses after calls %v of %d", l.at, calls)
	return l
}

func (l *losses) progress() {
	n := l.n.Add(1)
	for i, at := range l.at {
		if n == at {
			close(l.kill[i])
		}
	}
}

// With replicas, a synchronous run has the same bits as a serial program. So it does if servers are
// lost at any time: each of them, the lead included, and two of them one after the other.
func TestReplicasGiveTheSameBitsThroughLosses(t *testing.T) {
	const workers, servers, n, steps = 2, 4, 2500, 12
	for _, wire := range wires() {
		for _, row := range []struct {
			replicas int
			lost     []int
		}{{2, nil}, {2, []int{2}}, {2, []int{4}}, {2, []int{5}}, {3, []int{2, 3}}, {3, []int{5, 2}}, {8, []int{4, 2, 3}}} {
			t.Run(fmt.Sprintf("%s/%d copies/lost%v", wire, row.replicas, row.lost), func(t *testing.T) {
				leak.Check(t)
				l := newLosses(t, len(row.lost), workers*steps)
				job := &replicatedJob{wire: wire, workers: workers, servers: servers, replicas: row.replicas, lost: row.lost, kill: l.kill}
				job.work = func(ctx context.Context, cl *ps.Client, me int) error {
					return adamSteps(ctx, cl, me, workers, n, steps, func(int) { l.progress() })
				}
				job.run(t)
			})
		}
	}
}

// Workers push ones to a tensor and to rows of a table, some of them without waiting, while servers are
// lost. At the end the values are the numbers of acknowledged pushes, in every mode.
func TestReplicasLoseNoAcknowledgedPush(t *testing.T) {
	const workers, servers, n, steps = 3, 3, 2500, 10
	for _, wire := range wires() {
		for _, mode := range modes {
			for _, lost := range [][]int{{3}, {5}} {
				t.Run(fmt.Sprintf("%s/%s/lost%v", wire, mode.name, lost), func(t *testing.T) {
					leak.Check(t)
					l := newLosses(t, len(lost), workers*steps)
					job := &replicatedJob{wire: wire, workers: workers, servers: servers, replicas: 2, lost: lost, kill: l.kill}
					job.work = func(ctx context.Context, cl *ps.Client, me int) error {
						return pushOnesThrough(ctx, cl, mode.mode, n, steps, l.progress)
					}
					job.run(t)
				})
			}
		}
	}
}

func pushOnesThrough(ctx context.Context, cl *ps.Client, mode func() ps.TensorOption, n, steps int, progress func()) error {
	workers := cl.Workers().Size()
	w, err := ps.Declare[float32](ctx, cl, "w", n, mode(), ps.Reduce(comm.Sum), ps.Optimizer(optimizer.SGD{Rate: 1}), ps.Initial(ps.Constant(0)))
	if err != nil {
		return err
	}
	rows, err := ps.DeclareTable[float32](ctx, cl, "rows", 3, mode(), ps.Reduce(comm.Sum))
	if err != nil {
		return err
	}
	ones, gradient, got := make([]float32, n), make([]float32, n), make([]float32, n)
	for i := range ones {
		ones[i], gradient[i] = 1, -1
	}
	indices := make([]int64, 100)
	for i := range indices {
		indices[i] = int64(i) * 1_000_003
	}
	for range steps {
		progress()
		// The second push is behind a pull.
		hs := []*ps.Handle{w.IPushPull(gradient, got), w.IPush(gradient), rows.IPush(indices, ones[:300])}
		if err := ps.WaitAll(ctx, hs...); err != nil {
			return err
		}
		if err := rows.Pull(ctx, indices, make([]float32, 300)); err != nil {
			return err
		}
	}
	if err := cl.Workers().Barrier(ctx); err != nil {
		return err
	}
	if err := w.Pull(ctx, got); err != nil {
		return err
	}
	for i, v := range got {
		if want := float32(2 * steps * workers); v != want {
			return fmt.Errorf("element %d: got %v, want %v", i, v, want)
		}
	}
	pulled := make([]float32, 300)
	if err := rows.Pull(ctx, indices, pulled); err != nil {
		return err
	}
	for i, v := range pulled {
		if want := float32(steps * workers); v != want {
			return fmt.Errorf("row %d: got %v, want %v", i/3, v, want)
		}
	}
	return nil
}

// A rank that works and serves is lost. Under Continue the others go on without its later pushes. Under
// Fail their synchronous calls name it.
func TestALossOfAWorkerThatServes(t *testing.T) {
	const ranks, n = 4, 2500
	for _, wire := range wires() {
		for _, policy := range []ps.LostWorkers{ps.Fail, ps.Continue} {
			for lost := range 2 {
				t.Run(fmt.Sprintf("%s/%v/lost %d", wire, policy, lost), func(t *testing.T) {
					leak.Check(t)
					job := &replicatedJob{wire: wire, workers: ranks, serve: true, replicas: 2, policy: policy, lost: []int{lost}, kill: []chan struct{}{make(chan struct{})}}
					var ready sync.WaitGroup
					ready.Add(ranks)
					job.work = func(ctx context.Context, cl *ps.Client, me int) error {
						w, err := ps.Declare[float32](ctx, cl, "w", n, ps.Reduce(comm.Sum))
						if err != nil {
							return err
						}
						ones := make([]float32, n)
						for i := range ones {
							ones[i] = 1
						}
						if err := w.PushPull(ctx, ones, make([]float32, n)); err != nil {
							return err
						}
						ready.Done()
						ready.Wait()
						if me == lost {
							close(job.kill[0])
							for err == nil {
								err = w.Pull(ctx, make([]float32, n)) // until the loss is known
							}
							return nil
						}
						got := make([]float32, n)
						for range 3 {
							err := w.PushPull(ctx, ones, got)
							if policy == ps.Fail {
								return blames(err, lost)
							}
							if err != nil {
								return err
							}
							if got[0] != ranks-1 || got[n-1] != ranks-1 {
								return fmt.Errorf("got %v and %v, want %d", got[0], got[n-1], ranks-1)
							}
						}
						return nil
					}
					job.fails = func(rank int, err error) error {
						if policy == ps.Fail && err != nil && blames(err, lost) == nil {
							return nil // Close of a rank that serves reports the lost worker
						}
						return err
					}
					job.run(t)
				})
			}
		}
	}
}

// Beyond r-1 losses, calls that need the lost parts name them.
func TestFurtherLossesNameTheLostParts(t *testing.T) {
	const workers, servers = 5, 2 // more than half of the ranks are left
	for _, wire := range wires() {
		t.Run(wire, func(t *testing.T) {
			leak.Check(t)
			kill := make(chan struct{})
			job := &replicatedJob{wire: wire, workers: workers, servers: servers, replicas: 2, lost: []int{5, 6}, kill: []chan struct{}{kill, kill}}
			job.work = func(ctx context.Context, cl *ps.Client, me int) error {
				w, err := ps.Declare[float32](ctx, cl, "w", 1000)
				if err != nil {
					return err
				}
				buf := make([]float32, 1000)
				for step := 0; err == nil; step++ {
					if step == 3 && me == 0 {
						close(kill)
					}
					err = w.PushPull(ctx, buf, buf)
				}
				for what, err := range map[string]error{"pushpull": err, "pull": w.Pull(ctx, buf), "set": w.Set(ctx, buf)} {
					if !errors.Is(err, fault.PeerLost) || !strings.Contains(err.Error(), "; lost parts: 0 of w; ") {
						return fmt.Errorf("%s: got %w, want a loss that lists the parts", what, err)
					}
				}
				return nil
			}
			job.run(t)
		})
	}
}

// A snapshot of a job with replicas is restored in a job with other numbers of servers and copies, and a
// loss after that changes nothing.
func TestASnapshotOfReplicasCanBeRestored(t *testing.T) {
	leak.Check(t)
	const n = 2500
	dir := t.TempDir()
	want, rows := make([]float32, n), make([]float32, 300)
	indices := make([]int64, 100)
	for i := range indices {
		indices[i] = int64(i) * 77
	}
	declare := func(ctx context.Context, cl *ps.Client) (*ps.Tensor[float32], *ps.Table[float32], error) {
		w, err := ps.Declare[float32](ctx, cl, "w", n, ps.Optimizer(optimizer.Adam{Rate: 0.1}))
		if err != nil {
			return nil, nil, err
		}
		table, err := ps.DeclareTable[float32](ctx, cl, "rows", 3)
		return w, table, err
	}
	first := &replicatedJob{wire: "memory", workers: 1, servers: 3, replicas: 2}
	first.work = func(ctx context.Context, cl *ps.Client, _ int) error {
		w, table, err := declare(ctx, cl)
		if err != nil {
			return err
		}
		for step := range 3 {
			if err := errors.Join(w.PushPull(ctx, vector(0, step, n), want), table.Push(ctx, indices, vector(1, step, 300)), table.Pull(ctx, indices, rows)); err != nil {
				return err
			}
		}
		_, err = cl.Snapshot(ctx, dir)
		return err
	}
	first.run(t)
	second := &replicatedJob{wire: "memory", workers: 2, servers: 4, replicas: 3, lost: []int{3}, kill: []chan struct{}{make(chan struct{})}}
	second.work = func(ctx context.Context, cl *ps.Client, me int) error {
		if me == 0 {
			r, err := cl.Restore(ctx, dir)
			if err != nil {
				return err
			}
			if len(r.Tensors) != 2 || r.Tensors[0].After != 3 {
				return fmt.Errorf("got %+v, want two tensors, the first one at version 3", r.Tensors)
			}
		}
		if err := cl.Workers().Barrier(ctx); err != nil {
			return err
		}
		w, table, err := declare(ctx, cl)
		if err != nil {
			return err
		}
		for step := range 4 {
			got, gotRows := make([]float32, n), make([]float32, 300)
			if err := errors.Join(w.Pull(ctx, got), table.Pull(ctx, indices, gotRows)); err != nil {
				return err
			}
			if err := errors.Join(equal("tensor", got, want), equal("table", gotRows, rows)); err != nil {
				return fmt.Errorf("step %d: %w", step, err)
			}
			if step == 1 && me == 0 {
				close(second.kill[0])
			}
			if err := cl.Workers().Barrier(ctx); err != nil {
				return err
			}
		}
		return nil
	}
	second.run(t)
}

// Workers declare tensors and use them once, while two of them close and a server is lost. The others
// stay until the loss is known: with more ranks closed or lost than left there would be no quorum.
func TestDeclarationsAndClosesGoThroughALoss(t *testing.T) {
	const workers, servers, early = 5, 3, 2
	for _, wire := range wires() {
		for _, lost := range []int{5, 6} {
			t.Run(fmt.Sprint(wire, "/lost ", lost), func(t *testing.T) {
				leak.Check(t)
				l := newLosses(t, 1, 60)
				known := &firstLog{Handler: slog.DiscardHandler, seen: make(chan struct{})}
				job := &replicatedJob{wire: wire, workers: workers, servers: servers, replicas: 2, lost: []int{lost}, kill: l.kill,
					opts: []ps.Option{ps.WithLogger(slog.New(known))}}
				job.work = func(ctx context.Context, cl *ps.Client, me int) error {
					for i := 0; i < 10*(me+1) || me >= early && !known.has(); i++ {
						l.progress()
						w, err := ps.Declare[float32](ctx, cl, fmt.Sprint(i), 1500, ps.Asynchronous(), ps.Optimizer(optimizer.SGD{Rate: 1}))
						if err != nil {
							return fmt.Errorf("declaration %d: %w", i, err)
						}
						got := make([]float32, 1500)
						if err := w.PushPull(ctx, slices.Repeat([]float32{-1}, 1500), got); err != nil {
							return fmt.Errorf("tensor %d: %w", i, err)
						}
						if got[0] < 1 || got[0] > workers || got[1499] < 1 {
							return fmt.Errorf("tensor %d: got %v and %v, want 1 to %d pushes", i, got[0], got[1499], workers)
						}
					}
					return nil
				}
				job.run(t)
			})
		}
	}
}

// A firstLog closes seen when a rank logs that it goes on after a loss.
type firstLog struct {
	slog.Handler
	once sync.Once
	seen chan struct{}
}

// Enabled implements slog.Handler.
func (*firstLog) Enabled(context.Context, slog.Level) bool { return true }

// Handle implements slog.Handler.
func (h *firstLog) Handle(context.Context, slog.Record) error {
	h.once.Do(func() { close(h.seen) })
	return nil
}

func (h *firstLog) has() bool {
	select {
	case <-h.seen:
		return true
	default:
		return false
	}
}

// Servers have memory for the copies that they have, and not for more. A loss then leaves some parts with
// one copy.
func TestALossWithoutMemoryForMoreCopies(t *testing.T) {
	leak.Check(t)
	const n, steps = 3000, 6
	var text strings.Builder
	log := slog.New(slog.NewTextHandler(&text, nil)) // it writes one line at a time
	job := &replicatedJob{wire: "memory", workers: 1, servers: 3, replicas: 2, lost: []int{2}, kill: []chan struct{}{make(chan struct{})},
		opts: []ps.Option{ps.WithMemory(3*2*4000 + 1000), ps.WithLogger(log)}} // of two parts with Adam's state
	job.work = func(ctx context.Context, cl *ps.Client, me int) error {
		return adamSteps(ctx, cl, me, 1, n, steps, func(s int) {
			if s == 2 {
				close(job.kill[0])
			}
		})
	}
	job.run(t)
	if !strings.Contains(text.String(), "cannot keep a copy of a part") {
		t.Errorf("got the log %q, want copies that do not fit", text.String())
	}
}
