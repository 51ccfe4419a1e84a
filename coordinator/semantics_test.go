package coordinator_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/coordinator"
	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/test/leak"
	"github.com/tutti-go/tutti/reduce"
	"github.com/tutti-go/tutti/tensor"
	linked "github.com/tutti-go/tutti/transport/wires"
)

func TestTheProgramsOwnCollectivesGoOnBeside(t *testing.T) {
	worlds(t, func(ctx context.Context, c *comm.Comm, co *coordinator.Coordinator) error {
		for step := range 20 {
			var hs []*coordinator.Handle
			for i := range 10 {
				hs = append(hs, coordinator.AllReduce(co, fmt.Sprint(i), vector(500*i, c.Rank()), comm.Sum))
			}
			mine := []int{c.Rank() + step}
			if err := comm.AllReduce(ctx, c, mine, comm.Max); err != nil {
				return err
			}
			if mine[0] != c.Size()-1+step {
				return fmt.Errorf("the program's own maximum is %d", mine[0])
			}
			if err := coordinator.WaitAll(ctx, hs...); err != nil {
				return err
			}
		}
		return nil
	})
}

// TestBitsDoNotDependOnFusion submits the same tensors with settings that fuse all, some and none
// of them, each time in a different order, and compares bits. Segments are so short that the larger
// tensors have several segments, even in 16 bits.
func TestBitsDoNotDependOnFusion(t *testing.T) {
	sizes := []int{1, 2, 7, 63, 64, 65, 1000, 4096, 10_000, 3, 129, 50_000, 60_000, 25_000, 40}
	const narrow = 12                         // the first tensor that is sent in 16 bits
	rough := func(n, rank, i int) []float32 { // sums of these depend on the order of the folds
		rnd := rand.New(rand.NewPCG(uint64(rank), uint64(i)))
		v := make([]float32, n)
		for j := range v {
			v[j] = float32(math.Exp(20*rnd.Float64()-10)) * float32(1-2*rnd.IntN(2))
		}
		return v
	}
	var mu sync.Mutex
	wants := make(map[bool]map[string][]float32) // the key says whether the ranks use shared memory
	for k, opts := range [][]coordinator.Option{
		{coordinator.WithFusion(0)},
		{},
		{coordinator.WithFusion(5000), coordinator.WithMaxFusedTensor(4100)},
		{coordinator.WithMaxFusedTensor(1 << 20), coordinator.WithCache(0)},
		{coordinator.WithCredit(1), coordinator.WithCycle(0)},
	} {
		for _, wire := range []string{"memory", "tcp", "memory, shared"} {
			wire, shared := strings.CutSuffix(wire, ", shared")
			limits := []comm.Option{comm.WithTransport(linked.All()...), comm.WithTransportName(wire), comm.WithParameters(comm.Parameters{Segment: 4096})}
			if !shared {
				limits = append(limits, comm.WithParameters(comm.Parameters{NoSharedMemory: true}))
			}
			got := make(map[string][]float32)
			leak.Check(t)
			err := comm.Local(4, with(func(ctx context.Context, c *comm.Comm, co *coordinator.Coordinator) error {
				rnd := rand.New(rand.NewPCG(uint64(k), uint64(c.Rank())))
				hs := make([]*coordinator.Handle, len(sizes))
				bufs := make([][]float32, len(sizes))
				for _, i := range rnd.Perm(len(sizes)) {
					bufs[i] = rough(sizes[i], c.Rank(), i)
					how := []coordinator.CallOption{coordinator.Priority(i % 3)}
					if i >= narrow {
						how = append(how, coordinator.Compress(tensor.BF16))
					}
					hs[i] = coordinator.AllReduce(co, fmt.Sprint(i), bufs[i], comm.Sum, how...)
				}
				if err := coordinator.WaitAll(ctx, hs...); err != nil {
					return err
				}
				mu.Lock()
				defer mu.Unlock()
				for i := range sizes {
					got[fmt.Sprintf("rank %d tensor %d", c.Rank(), i)] = bufs[i]
				}
				return nil
			}, opts...), limits...)
			if err != nil {
				t.Fatal(err)
			}
			if wants[shared] == nil {
				wants[shared] = got
			}
			for name, w := range wants[shared] {
				for j := range w {
					if math.Float32bits(w[j]) != math.Float32bits(got[name][j]) {
						t.Fatalf("setting %d over %s: %s, element %d is %v, and was %v", k, wire, name, j, got[name][j], w[j])
					}
				}
			}
		}
	}
}

func TestMeansAndScales(t *testing.T) {
	worlds(t, func(ctx context.Context, c *comm.Comm, co *coordinator.Coordinator) error {
		n, me := float64(c.Size()), float64(c.Rank())
		ranks := n * (n - 1) / 2
		for _, pre := range []float64{1, 0.5} { // alone, and fused with tensors of other scales
			mean, plain, scaled, other := []float64{1, me}, []float64{me}, []float64{1, me}, []float64{me}
			part := make([]float64, 1)
			var hs []*coordinator.Handle
			co.Group(func(g *coordinator.TensorGroup) {
				hs = []*coordinator.Handle{
					coordinator.AllReduce(g, "mean", mean, comm.Mean, coordinator.Scale(pre, 1)),
					coordinator.AllReduce(g, "plain", plain, comm.Sum),
					coordinator.AllReduce(g, "scaled", scaled, comm.Sum, coordinator.Scale(pre, 8)),
					coordinator.AllReduce(g, "other", other, comm.Sum, coordinator.Scale(2, -pre)),
					coordinator.ReduceScatter(g, "part", part, make([]float64, c.Size()), comm.Sum, coordinator.Scale(pre, pre)),
				}
			})
			if err := coordinator.WaitAll(ctx, hs...); err != nil {
				return err
			}
			err := errors.Join(
				equal("mean", mean, []float64{pre, pre * ranks / n}), equal("plain", plain, []float64{ranks}),
				equal("scaled", scaled, []float64{8 * pre * n, 8 * pre * ranks}), equal("other", other, []float64{-2 * pre * ranks}))
			if err != nil {
				return err
			}
			big := vector(100_000, c.Rank())
			if err := coordinator.AllReduce(co, "big", big, comm.Sum, coordinator.Scale(pre, 4)).Wait(ctx); err != nil {
				return err
			}
			want := sum(100_000, c.Size())
			for i := range want {
				want[i] *= float32(4 * pre)
			}
			if err := equal("big", big, want); err != nil {
				return err
			}
		}
		return nil
	})
}

func TestCompressedTensorsAreRoundedAndScaledBefore(t *testing.T) {
	worlds(t, func(ctx context.Context, c *comm.Comm, co *coordinator.Coordinator) error {
		n := c.Size()
		for _, size := range []int{3, 100_000} {
			half, brain, mean := vector(size, 0), make([]float64, size), slices.Repeat([]float32{100_000}, size)
			for i := range brain {
				brain[i] = float64(i%128 + c.Rank())
			}
			err := coordinator.WaitAll(ctx,
				coordinator.AllReduce(co, "half", half, comm.Max, coordinator.Compress(tensor.F16)),
				coordinator.AllReduce(co, "brain", brain, comm.Min, coordinator.Compress(tensor.BF16)),
				// Without the scale before the reduction, the elements would be too large for
				// float16.
				coordinator.AllReduce(co, "mean", mean, comm.Mean, coordinator.Compress(tensor.F16), coordinator.Scale(1./64, 64)))
			if err != nil {
				return err
			}
			for i, v := range vector(size, 0) { // whole numbers below 2048 are exact
				if half[i] != v || brain[i] != float64(i%128) || math.Abs(float64(mean[i])-100_000) > 100 {
					return fmt.Errorf("%d ranks: element %d is %v, %v, %v", n, i, half[i], brain[i], mean[i])
				}
			}
		}
		err := coordinator.AllReduce(co, "ints", []int{1}, comm.Sum, coordinator.Compress(tensor.F16)).Wait(ctx)
		if !errors.Is(err, fault.Misuse) {
			return fmt.Errorf("integers: got %v, want misuse", err)
		}
		return nil
	})
}

func TestRanksThatRunOutGiveNothingAndAllLearnWhoWasLast(t *testing.T) {
	worlds(t, func(ctx context.Context, c *comm.Comm, co *coordinator.Coordinator) error {
		n, me := c.Size(), c.Rank()
		for step := range n { // rank r has r+1 batches
			if step > me {
				break
			}
			if err := oneBatch(ctx, co, n, me, step); err != nil {
				return fmt.Errorf("batch %d: %w", step, err)
			}
		}
		last, err := co.Join(ctx)
		if err != nil {
			return err
		}
		if last != n-1 {
			return fmt.Errorf("rank %d joined last, want %d", last, n-1)
		}
		return oneBatch(ctx, co, n, me, 0) // then all ranks go on
	})
}

// oneBatch runs the batch with number step. The ranks from number step on have data for it.
func oneBatch(ctx context.Context, co *coordinator.Coordinator, n, me, step int) error {
	givers := n - step
	least, mean, prod := []float32{float32(10 + me)}, []float64{float64(me)}, []int8{2}
	zero := []float32{float32(math.Copysign(0, -1))}
	loc := []tensor.Loc[int32]{{Value: int32(me), Index: int64(me)}}
	var gathered coordinator.Rows[int]
	gather := coordinator.AllGather(co, "gather", &gathered, []int{me, me}, coordinator.Shape(1, 2))
	splits := make([]int, n)
	for r := range splits {
		splits[r] = 1
	}
	var exchanged coordinator.Rows[int32]
	exchange := coordinator.AllToAll(co, "exchange", &exchanged, make([]int32, n), splits)
	err := coordinator.WaitAll(ctx,
		coordinator.AllReduce(co, "min", least, comm.Min),
		coordinator.AllReduce(co, "mean", mean, comm.Mean),
		coordinator.AllReduce(co, "prod", prod, comm.Prod),
		coordinator.AllReduce(co, "zero", zero, comm.Sum),
		coordinator.AllReduce(co, "loc", loc, comm.MaxLoc),
		coordinator.Broadcast(co, "cast", make([]byte, 9), n-1),
		coordinator.Barrier(co, "barrier"), gather, exchange)
	if err != nil {
		return err
	}
	total := 0
	for r := step; r < n; r++ {
		total += r
	}
	if least[0] != float32(10+step) || mean[0] != float64(total)/float64(givers) || int(prod[0]) != 1<<givers || loc[0].Index != int64(n-1) {
		return fmt.Errorf("min %v, mean %v, prod %v, maxloc %v", least, mean, prod, loc)
	}
	if math.Float32bits(zero[0]) != 1<<31 {
		return fmt.Errorf("a sum of -0 is %v", zero[0])
	}
	if rows := gathered.Counts; len(gathered.Values) != 2*givers || rows[n-1] != 1 || step > 0 && rows[0] != 0 {
		return fmt.Errorf("gathered %+v", gathered)
	}
	if rows := exchanged.Counts; step > 0 && (rows[0] != 0 || rows[n-1] != 1) {
		return fmt.Errorf("exchanged rows %v", rows)
	}
	return nil
}

func TestProcessSetsAreMadeUsedAndRemovedWhileRunning(t *testing.T) {
	leak.Check(t)
	err := comm.Local(4, with(func(ctx context.Context, c *comm.Comm, co *coordinator.Coordinator) error {
		me := c.Rank()
		under := coordinator.AllReduce(co, "w", vector(100_000, me), comm.Sum)
		odd, err := co.AddProcessSet(ctx, "odd", 3, 1)
		if err != nil {
			return err
		}
		if me%2 == 1 {
			buf, w := []int{me}, []int{me}
			// Each process set has its own names, so this is not the tensor w that all ranks have
			// submitted.
			h := coordinator.AllReduce(co, "w", w, comm.Sum, coordinator.In(odd))
			if err := coordinator.WaitAll(ctx, h, coordinator.Broadcast(co, "b", buf, 0, coordinator.In(odd))); err != nil {
				return err
			}
			if buf[0] != 3 || w[0] != 4 {
				return fmt.Errorf("in the set: broadcast %d, sum %d", buf[0], w[0])
			}
		} else if err := coordinator.Barrier(co, "b", coordinator.In(odd)).Wait(ctx); !errors.Is(err, fault.Misuse) {
			return fmt.Errorf("a stranger to the set got %v", err)
		}
		if _, err := co.AddProcessSet(ctx, "bad", 1, 1); !errors.Is(err, fault.Misuse) {
			return fmt.Errorf("a rank twice: %v", err)
		}
		if err := co.RemoveProcessSet(ctx, odd); err != nil {
			return err
		}
		if err := coordinator.Barrier(co, "b", coordinator.In(odd)).Wait(ctx); !errors.Is(err, fault.Misuse) {
			return fmt.Errorf("the removed set: %v", err)
		}
		return under.Wait(ctx)
	}))
	if err != nil {
		t.Error(err)
	}
}

func TestAGroupRunsAsOneAndFailsAsOne(t *testing.T) {
	leak.Check(t)
	err := comm.Local(2, with(func(ctx context.Context, c *comm.Comm, co *coordinator.Coordinator) error {
		for step := range 3 {
			a, b := []int{1}, make([]int, 2)
			if step == 2 && c.Rank() == 1 {
				b = make([]int, 3)
			}
			var ha, hb *coordinator.Handle
			co.Group(func(g *coordinator.TensorGroup) {
				ha = coordinator.AllReduce(g, "a", a, comm.Sum)
				hb = coordinator.AllReduce(g, "b", b, comm.Sum)
			})
			errA, errB := ha.Wait(ctx), hb.Wait(ctx)
			if step < 2 {
				if errA != nil || errB != nil || a[0] != 2 {
					return fmt.Errorf("step %d: %v, %v, %v", step, errA, errB, a)
				}
			} else if !errors.Is(errA, fault.Mismatch) || !errors.Is(errB, fault.Mismatch) {
				return fmt.Errorf("got %v and %v, want a mismatch for both", errA, errB)
			}
		}
		return nil
	}))
	if err != nil {
		t.Error(err)
	}
}

func TestUsersOperatorsAreFoldedInRankOrder(t *testing.T) {
	worlds(t, func(ctx context.Context, c *comm.Comm, co *coordinator.Coordinator) error {
		first := reduce.Func("first", reduce.RankOrder, func(a, b int32) int32 { return a })
		buf := []int32{int32(10 + c.Rank()), int32(20 + c.Rank())}
		if err := coordinator.AllReduce(co, "x", buf, first).Wait(ctx); err != nil {
			return err
		}
		return equal("first", buf, []int32{10, 20})
	})
}

func TestVariablesOfTheEnvironmentAreUnderstood(t *testing.T) {
	leak.Check(t)
	t.Setenv("HOROVOD_CACHE_CAPACITY", "many")
	program := with(func(context.Context, *comm.Comm, *coordinator.Coordinator) error { return nil })
	if err := comm.Local(1, program); !errors.Is(err, fault.Misuse) {
		t.Errorf("got %v, want misuse", err)
	}
	t.Setenv("TUTTI_CACHE_CAPACITY", "16")
	if err := comm.Local(1, program); err != nil {
		t.Errorf("tutti's own name does not win: %v", err)
	}
}
