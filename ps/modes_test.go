package ps_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/internal/test/leak"
	"github.com/tutti-go/tutti/ps"
	"github.com/tutti-go/tutti/ps/optimizer"
)

// The modes of consistency, for tensors and for tables.
var modes = []struct {
	name string
	mode func() ps.TensorOption
}{
	{"synchronous", ps.Synchronous},
	{"asynchronous", ps.Asynchronous},
	{"bounded(2)", func() ps.TensorOption { return ps.Bounded(2) }},
}

// Every worker pushes whole numbers in each step, so that sums are exact in any order. Each pull
// must show all own pushes, and a synchronous one exactly those of all workers up to its version.
// When all workers have finished, the values are the sums of all pushes.
func TestEveryModeCountsEachPushOnce(t *testing.T) {
	const n, steps = 3000, 6
	everywhere(t, func(t *testing.T, wire string, ranks int, p ps.Placement) {
		for _, mode := range modes {
			err := run(wire, ranks, p, func(ctx context.Context, cl *ps.Client) error {
				me, workers := cl.Workers().Rank(), cl.Workers().Size()
				w, err := ps.Declare[float32](ctx, cl, "w", n, mode.mode(), ps.Reduce(comm.Sum), ps.Optimizer(optimizer.SGD{Rate: 1}))
				if err != nil {
					return err
				}
				src, dst := make([]float32, n), make([]float32, n)
				for i := range src {
					src[i] = -float32(me + 1)
				}
				all := float32(workers * (workers + 1) / 2)
				for step := range steps {
					if err := w.PushPull(ctx, src, dst); err != nil {
						return err
					}
					low, high := float32((me+1)*(step+1)), all*steps
					if mode.name == "synchronous" {
						low, high = all*float32(step+1), all*float32(step+1)
					}
					for i, v := range dst {
						if v < low || v > high {
							return fmt.Errorf("%s, step %d: element %d: got %v, want %v to %v", mode.name, step, i, v, low, high)
						}
					}
				}
				if err := cl.Workers().Barrier(ctx); err != nil {
					return err
				}
				if err := w.Pull(ctx, dst); err != nil {
					return err
				}
				for i, v := range dst {
					if v != all*steps {
						return fmt.Errorf("%s, at the end: element %d: got %v, want %v", mode.name, i, v, all*steps)
					}
				}
				return nil
			}, ps.WithPart(4000))
			if err != nil {
				t.Error(err)
			}
		}
	})
}

// Each worker pushes rows of its own and rows of all workers, some of them repeatedly.
func TestEveryModeOfATableCountsEachRowOnce(t *testing.T) {
	const width, steps, own, common = 5, 4, 700, 40
	everywhere(t, func(t *testing.T, wire string, ranks int, p ps.Placement) {
		for _, mode := range modes {
			err := run(wire, ranks, p, func(ctx context.Context, cl *ps.Client) error {
				me, workers := cl.Workers().Rank(), cl.Workers().Size()
				w, err := ps.DeclareTable[float32](ctx, cl, "t", width, mode.mode(), ps.Rows(1<<40), ps.Reduce(comm.Sum), ps.Initial(ps.Constant(1)))
				if err != nil {
					return err
				}
				var indices []int64
				for i := range common {
					indices = append(indices, int64(i), int64(i))
				}
				for i := range own {
					indices = append(indices, int64(me+1)<<30+int64(i))
				}
				ones := make([]float32, width*len(indices))
				for i := range ones {
					ones[i] = 1
				}
				dst := make([]float32, len(ones))
				for step := range steps {
					if err := w.Push(ctx, indices, ones); err != nil {
						return err
					}
					if err := w.Pull(ctx, indices, dst); err != nil {
						return err
					}
					for i := 2 * common * width; i < len(dst); i++ {
						if want := float32(2 + step); dst[i] != want {
							return fmt.Errorf("%s, step %d: element %d: got %v, want %v", mode.name, step, i, dst[i], want)
						}
					}
				}
				if err := cl.Workers().Barrier(ctx); err != nil {
					return err
				}
				if err := w.Pull(ctx, indices[:2*common], dst[:2*common*width]); err != nil {
					return err
				}
				for i, v := range dst[:2*common*width] {
					if want := float32(1 + 2*steps*workers); v != want {
						return fmt.Errorf("%s, at the end: element %d: got %v, want %v", mode.name, i, v, want)
					}
				}
				// A row that nobody has pushed has its initial values.
				row := make([]float32, width)
				if err := w.Pull(ctx, []int64{1<<40 - 1}, row); err != nil {
					return err
				}
				return equal("a new row", row, []float32{1, 1, 1, 1, 1})
			})
			if err != nil {
				t.Error(err)
			}
		}
	})
}

// The push of worker 1 comes first, and is held until worker 0 has pushed. All of its rows are in one
// part, so that its pushes to the other parts have no rows.
func TestAPushWithoutRowsForAPartCounts(t *testing.T) {
	everywhere(t, func(t *testing.T, wire string, ranks int, p ps.Placement) {
		err := run(wire, ranks, p, func(ctx context.Context, cl *ps.Client) error {
			me, workers := cl.Workers().Rank(), cl.Workers().Size()
			w, err := ps.DeclareTable[float32](ctx, cl, "t", 1, ps.Reduce(comm.Sum))
			if err != nil {
				return err
			}
			for step := range 3 {
				for r := workers - 1; r >= 0; r-- {
					if r == me {
						err = w.Push(ctx, []int64{7}, []float32{1})
					}
					if err := errors.Join(err, cl.Workers().Barrier(ctx)); err != nil {
						return err
					}
				}
				if err := w.Push(ctx, nil, nil); err != nil {
					return err
				}
				row := make([]float32, 1)
				if err := w.Pull(ctx, []int64{7}, row); err != nil {
					return err
				}
				if want := float32(workers * (step + 1)); row[0] != want {
					return fmt.Errorf("step %d: got %v, want %v", step, row[0], want)
				}
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	})
}

// A server applies the mean of a version's pushes once, with the same bits as a serial program that
// adds the pushes in the order of the workers' ranks.
func TestASynchronousOptimizerEqualsASerialProgram(t *testing.T) {
	const n, steps = 2500, 5
	adam := optimizer.Adam{Rate: 0.01}
	everywhere(t, func(t *testing.T, wire string, ranks int, p ps.Placement) {
		err := run(wire, ranks, p, func(ctx context.Context, cl *ps.Client) error {
			me, workers := cl.Workers().Rank(), cl.Workers().Size()
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
			for step := range steps {
				if err := w.PushPull(ctx, vector(me, step, n), got); err != nil {
					return err
				}
				adam.Update32(want, reduced(workers, step, n, true), slots, int64(step+1))
				if err := equal(fmt.Sprintf("step %d", step), got, want); err != nil {
					return err
				}
			}
			return nil
		}, ps.WithPart(3000))
		if err != nil {
			t.Error(err)
		}
	})
}

// In a bounded tensor, a worker that is staleness pushes ahead of the slowest worker need not wait,
// and one that is further ahead waits until the slowest has pushed. In a bubble, synctest.Wait
// returns when every goroutine waits, so a pull that is not done then waits for the other worker.
func TestABoundedPullWaitsForTheSlowestWorker(t *testing.T) {
	const staleness = 2
	synctest.Test(t, func(t *testing.T) {
		err := run("memory", 3, ps.Servers(1), func(ctx context.Context, cl *ps.Client) error {
			w, err := ps.Declare[float32](ctx, cl, "w", 4, ps.Bounded(staleness), ps.Reduce(comm.Sum))
			if err != nil {
				return err
			}
			one, got := []float32{1, 1, 1, 1}, make([]float32, 4)
			if cl.Workers().Rank() == 1 {
				// The first worker says how often it has pushed before it pulls.
				var ahead [1]int
				for {
					if _, err := comm.Recv(ctx, cl.Workers(), 0, 0, ahead[:]); err != nil || ahead[0] < 0 {
						return err
					}
					if err := w.Push(ctx, one); err != nil {
						return err
					}
				}
			}
			for pushed := 1; pushed <= 8; pushed++ {
				if err := w.Push(ctx, one); err != nil {
					return err
				}
				h := w.IPull(got)
				synctest.Wait()
				select {
				case <-h.Done():
					if pushed > staleness {
						return fmt.Errorf("after %d pushes, %d of them ahead: the pull did not wait", pushed, staleness+1)
					}
				default:
					if pushed <= staleness {
						return fmt.Errorf("after %d pushes, at most %d ahead: the pull waits", pushed, staleness)
					}
					if err := comm.Send(ctx, cl.Workers(), 1, 0, []int{pushed}); err != nil {
						return err
					}
				}
				if err := h.Wait(ctx); err != nil {
					return err
				}
				if low := float32(pushed + max(0, pushed-staleness)); got[0] < low {
					return fmt.Errorf("after %d pushes: got %v, want at least %v", pushed, got[0], low)
				}
			}
			return comm.Send(ctx, cl.Workers(), 1, 0, []int{-1})
		})
		if err != nil {
			t.Error(err)
		}
	})
}

// An asynchronous pull waits for no other worker, and a synchronous one for the pushes of all.
func TestAPullWaitsForOtherWorkersOnlyIfItMust(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		err := run("memory", 4, ps.Servers(2), func(ctx context.Context, cl *ps.Client) error {
			free, err := ps.Declare[float32](ctx, cl, "free", 4, ps.Asynchronous())
			if err != nil {
				return err
			}
			round, err := ps.Declare[float32](ctx, cl, "round", 4, ps.Reduce(comm.Sum))
			if err != nil {
				return err
			}
			one, got := []float32{1, 1, 1, 1}, make([]float32, 4)
			if cl.Workers().Rank() == 1 {
				if _, err := comm.Recv(ctx, cl.Workers(), 0, 0, make([]int, 1)); err != nil {
					return err
				}
				return round.Push(ctx, one)
			}
			if err := free.PushPull(ctx, one, got); err != nil {
				return err
			}
			if err := equal("asynchronous", got, one); err != nil {
				return err
			}
			h := round.IPushPull(one, got)
			synctest.Wait()
			select {
			case <-h.Done():
				return fmt.Errorf("the pull did not wait for worker 1")
			default:
			}
			if err := comm.Send(ctx, cl.Workers(), 1, 0, []int{0}); err != nil {
				return err
			}
			if err := h.Wait(ctx); err != nil {
				return err
			}
			return equal("synchronous", got, []float32{2, 2, 2, 2})
		})
		if err != nil {
			t.Error(err)
		}
	})
}

// A worker may be several pushes ahead without a pull. Its later pushes belong to later versions.
func TestPushesOfAFastWorkerBelongToLaterVersions(t *testing.T) {
	leak.Check(t)
	const n, steps = 50, 10
	err := run("tcp", 3, ps.Servers(1), func(ctx context.Context, cl *ps.Client) error {
		me := cl.Workers().Rank()
		w, err := ps.Declare[float32](ctx, cl, "w", n)
		if err != nil {
			return err
		}
		var hs []*ps.Handle
		if me == 1 { // the rank that is folded last
			for step := range steps {
				hs = append(hs, w.IPush(vector(me, step, n)))
			}
		}
		if err := cl.Workers().Barrier(ctx); err != nil {
			return err
		}
		got := make([]float32, n)
		for step := range steps {
			if me == 1 {
				continue
			}
			if err := w.PushPull(ctx, vector(me, step, n), got); err != nil {
				return err
			}
			if err := equal(fmt.Sprintf("step %d", step), got, reduced(2, step, n, true)); err != nil {
				return err
			}
		}
		return ps.WaitAll(ctx, hs...)
	})
	if err != nil {
		t.Error(err)
	}
}
