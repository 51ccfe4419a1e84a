package coordinator_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/coordinator"
	"github.com/tutti-go/tutti/internal/test/leak"
	linked "github.com/tutti-go/tutti/transport/wires"
)

// TestRandomTensorsInRandomOrdersOnRealWires runs jobs of up to 8 ranks, which submit at their own
// pace.
func TestRandomTensorsInRandomOrdersOnRealWires(t *testing.T) {
	for i, wire := range wires() {
		for n := 1; n <= 8; n++ {
			t.Run(fmt.Sprintf("%s/%d", wire, n), func(t *testing.T) {
				leak.Check(t)
				p := &schedule{seed: uint64(100*i + n), n: n, rounds: 6, pause: delay}
				if err := p.run(comm.WithTransport(linked.All()...), comm.WithTransportName(wire)); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// delay sleeps for up to a tenth of a millisecond, or not at all.
func delay(rnd *rand.Rand) {
	switch rnd.IntN(4) {
	case 0:
		// Reason: random delays are the purpose of this test. Nothing waits for this delay.
		time.Sleep(time.Duration(rnd.IntN(100)) * time.Microsecond)
	case 1:
		runtime.Gosched()
	}
}

// TestThousandsOfSchedulesAgree runs jobs in synctest bubbles. There a rank can be late by many
// cycles, and a job that hangs reaches its own limits at once. Each round of a job has other
// tensors, orders and pauses.
func TestThousandsOfSchedulesAgree(t *testing.T) {
	jobs, rounds := 150, 20
	if raceEnabled || testing.Short() {
		jobs = 20
	}
	for seed := range jobs {
		p := &schedule{seed: uint64(seed), n: 1 + seed%8, rounds: rounds, pause: idle}
		limits := []comm.Option{comm.WithTransportName("memory")}
		if seed%3 > 0 {
			limits = append(limits, comm.WithParameters(comm.Parameters{NoSharedMemory: true}))
		}
		var err error
		synctest.Test(t, func(*testing.T) { err = p.run(limits...) })
		if err != nil {
			t.Fatalf("seed %d, %d ranks: %v", seed, p.n, err)
		}
	}
}

// idle sleeps for up to a few cycles, or not at all.
func idle(rnd *rand.Rand) {
	if rnd.IntN(2) == 0 {
		// Reason: random delays are the purpose of this test. They pass in the bubble's time, when
		// all goroutines wait.
		time.Sleep(time.Duration(rnd.IntN(4000)) * time.Microsecond)
	}
}

// A schedule is one job. The seed determines the tensors, so all ranks know them. Each rank draws
// its own order and times of submission.
type schedule struct {
	seed      uint64
	n, rounds int
	pause     func(*rand.Rand)
	ran       [][]coordinator.Carried // the tensors that each rank has executed
	last      []int                   // the last rank to join, according to each rank
}

func (p *schedule) run(opts ...comm.Option) error {
	p.ran, p.last = make([][]coordinator.Carried, p.n), make([]int, p.n)
	rnd := rand.New(rand.NewPCG(p.seed, 1))
	settings := []coordinator.Option{
		coordinator.WithPartition(1000 << rnd.IntN(4)), coordinator.WithMaxFusedTensor(100 << rnd.IntN(8)), coordinator.WithFusion(200 << rnd.IntN(8)),
		coordinator.WithCredit(500 << rnd.IntN(8)), coordinator.WithCache(rnd.IntN(12)), coordinator.WithCycle(time.Duration(rnd.IntN(2000)) * time.Microsecond),
	}
	if err := comm.Local(p.n, with(p.rank, settings...), opts...); err != nil {
		return err
	}
	return p.agree()
}

// rank runs the program of one rank: rounds with all ranks, further rounds until its data runs out,
// and the join.
func (p *schedule) rank(ctx context.Context, c *comm.Comm, co *coordinator.Coordinator) error {
	me := c.Rank()
	coordinator.Record(co)
	some := []int{p.n - 1, 0}[:min(2, p.n)] // not in the order of the ranks
	set, err := co.AddProcessSet(ctx, "some", some...)
	if err != nil {
		return err
	}
	for round := range p.rounds {
		if err := p.round(ctx, co, set, me, round); err != nil {
			return fmt.Errorf("rank %d, round %d: %w", me, round, err)
		}
	}
	own := rand.New(rand.NewPCG(p.seed, uint64(me)))
	for batch := range p.batches(me) {
		p.pause(own)
		givers := 0
		for r := range p.n {
			if p.batches(r) > batch {
				givers++
			}
		}
		ones, mean := []int32{1, 1, 1}, []float32{float32(batch)}
		if err := coordinator.WaitAll(ctx, coordinator.AllReduce(co, "ones", ones, comm.Sum), coordinator.AllReduce(co, "batch", mean, comm.Mean)); err != nil {
			return err
		}
		if int(ones[2]) != givers || mean[0] != float32(batch) {
			return fmt.Errorf("rank %d, batch %d: %v and %v of %d ranks", me, batch, ones, mean, givers)
		}
	}
	p.pause(own)
	if p.last[me], err = co.Join(ctx); err != nil {
		return err
	}
	if err := co.RemoveProcessSet(ctx, set); err != nil {
		return err
	}
	p.ran[me] = coordinator.Sequence(co)
	return nil
}

// batches returns the number of rounds of a rank after the common rounds.
func (p *schedule) batches(rank int) int { return int(p.seed+uint64(rank)*7) % 4 }

// agree checks that any two ranks have executed their common tensors in the same order.
func (p *schedule) agree() error {
	for r := range p.n {
		mine, first := p.ran[r], p.ran[0]
		if r != 0 && r != p.n-1 { // this rank is not in the process set
			first = slices.DeleteFunc(slices.Clone(first), func(c coordinator.Carried) bool { return c.Set != 0 })
		}
		if len(mine) == 0 || len(mine) != len(first) {
			return fmt.Errorf("rank %d has carried out %d things, and rank 0 %d", r, len(mine), len(first))
		}
		for i := range mine {
			if mine[i] != first[i] {
				return fmt.Errorf("what rank %d has carried out as number %d is %v, and rank 0 %v", r, i, mine[i], first[i])
			}
		}
		if p.last[r] != p.last[0] {
			return fmt.Errorf("rank %d joined last, says rank %d, and rank 0 says %d", p.last[r], r, p.last[0])
		}
	}
	return nil
}

// round submits some tensors and waits for them, in an order that the rank draws.
func (p *schedule) round(ctx context.Context, co *coordinator.Coordinator, set *coordinator.ProcessSet, me, round int) error {
	common := rand.New(rand.NewPCG(p.seed, 1000+uint64(round)))
	own := rand.New(rand.NewPCG(p.seed, 1_000_000+uint64(1000*me+round)))
	var all []task
	for i := range 1 + common.IntN(8) {
		all = append(all, p.draw(common, i, round))
	}
	var checks []func(context.Context) error
	for _, i := range own.Perm(len(all)) {
		p.pause(own)
		k := all[i]
		k.me, k.n = me, p.n
		if k.inSet {
			k.opts = append(k.opts, coordinator.In(set))
			if k.me, k.n = slices.Index(set.Ranks(), me), len(set.Ranks()); k.me < 0 {
				continue
			}
		}
		checks = append(checks, k.submit(co))
	}
	own.Shuffle(len(checks), func(i, j int) { checks[i], checks[j] = checks[j], checks[i] })
	for _, check := range checks {
		p.pause(own)
		if err := check(ctx); err != nil {
			return err
		}
	}
	return nil
}

// A task is one tensor or one group of tensors, with the expected result.
type task struct {
	name  string
	kind  int
	size  int // number of elements or rows
	round int
	root  int
	inSet bool
	opts  []coordinator.CallOption
	me, n int // index of this rank and number of ranks in the set
}

// draw returns a random task. Its name may have stood for another tensor before.
func (p *schedule) draw(rnd *rand.Rand, i, round int) task {
	k := task{name: fmt.Sprint("t", i), kind: rnd.IntN(10), size: []int{0, 1, 2, 5, 40, 300, 1500}[rnd.IntN(7)], round: round}
	k.inSet = rnd.IntN(5) == 0
	k.root = rnd.IntN(p.n)
	if k.inSet {
		k.root %= min(2, p.n)
	}
	k.opts = []coordinator.CallOption{coordinator.Priority(rnd.IntN(3))}
	return k
}

// submit submits a task on this rank. It returns a function that waits for the result and checks
// it.
func (k task) submit(co *coordinator.Coordinator) func(context.Context) error {
	switch k.kind {
	case 0:
		return k.gather(co)
	case 1:
		return k.exchange(co)
	case 2:
		return k.broadcast(co)
	case 3:
		return coordinator.Barrier(co, k.name, k.opts...).Wait
	case 4:
		return k.scatter(co)
	case 5:
		return k.group(co)
	case 6:
		return k.reduce(co, k.name, comm.Max, func(v int) float64 { return float64(k.n * v) })
	case 7:
		return k.reduce(co, k.name, comm.Mean, func(v int) float64 { return float64((k.n+1)*v) / 2 })
	}
	return k.reduce(co, k.name, comm.Sum, k.sum)
}

// share returns this rank's share of an element: v times the rank's index in the set plus 1.
func (k task) share(v int) float64 { return float64((k.me + 1) * v) }

func (k task) sum(v int) float64 { return float64(k.n * (k.n + 1) / 2 * v) }

// shares returns this rank's shares of the given number of elements.
func (k task) shares(size int) []float64 {
	buf := make([]float64, size)
	for i := range buf {
		buf[i] = k.share(value(i))
	}
	return buf
}

func value(i int) int { return 2 * (i%11 + 1) }

func (k task) reduce(to coordinator.Submitter, name string, op comm.Op, want func(v int) float64) func(context.Context) error {
	buf := k.shares(k.size)
	h := coordinator.AllReduce(to, name, buf, op, k.opts...)
	return func(ctx context.Context) error {
		if err := h.Wait(ctx); err != nil {
			return err
		}
		return matches(name, buf, func(i int) float64 { return want(value(i)) })
	}
}

// matches compares elements with the expected elements.
func matches[T comparable](what string, got []T, want func(i int) T) error {
	for i, v := range got {
		if v != want(i) {
			return fmt.Errorf("%s: element %d of %d is %v, want %v", what, i, len(got), v, want(i))
		}
	}
	return nil
}

func (k task) group(co *coordinator.Coordinator) func(context.Context) error {
	var a, b func(context.Context) error
	co.Group(func(g *coordinator.TensorGroup) {
		a = k.reduce(g, k.name+"a", comm.Sum, k.sum)
		b = k.reduce(g, k.name+"b", comm.Max, func(v int) float64 { return float64(k.n * v) })
	})
	return func(ctx context.Context) error { return errors.Join(a(ctx), b(ctx)) }
}

func (k task) broadcast(co *coordinator.Coordinator) func(context.Context) error {
	buf := k.shares(k.size)
	h := coordinator.Broadcast(co, k.name, buf, k.root, k.opts...)
	return func(ctx context.Context) error {
		if err := h.Wait(ctx); err != nil {
			return err
		}
		return matches(k.name, buf, func(i int) float64 { return float64((k.root + 1) * value(i)) })
	}
}

func (k task) scatter(co *coordinator.Coordinator) func(context.Context) error {
	lo, hi := k.part(k.me)
	dst := make([]float64, hi-lo)
	h := coordinator.ReduceScatter(co, k.name, dst, k.shares(k.size), comm.Sum, k.opts...)
	return func(ctx context.Context) error {
		if err := h.Wait(ctx); err != nil {
			return err
		}
		return matches(k.name, dst, func(i int) float64 { return k.sum(value(lo + i)) })
	}
}

// part returns the range of rows that a rank gets.
func (k task) part(rank int) (lo, hi int) {
	longer := k.size % k.n
	lo = rank*(k.size/k.n) + min(rank, longer)
	hi = lo + k.size/k.n
	if rank < longer {
		hi++
	}
	return lo, hi
}

// rows returns the number of rows that a rank contributes to a gather. It differs from round to
// round.
func (k task) rows(rank int) int { return (k.size + rank*k.round) % 37 }

func (k task) gather(co *coordinator.Coordinator) func(context.Context) error {
	src := slices.Repeat([]int32{int32(k.me)}, k.rows(k.me))
	got := new(coordinator.Rows[int32])
	h := coordinator.AllGather(co, k.name, got, src, k.opts...)
	return func(ctx context.Context) error {
		if err := h.Wait(ctx); err != nil {
			return err
		}
		var want []int32
		for r := range k.n {
			want = append(want, slices.Repeat([]int32{int32(r)}, k.rows(r))...)
		}
		return errors.Join(equal(k.name, got.Values, want), matches(k.name+"'s rows", got.Counts, k.rows))
	}
}

func (k task) exchange(co *coordinator.Coordinator) func(context.Context) error {
	var src []int32
	splits := make([]int, k.n)
	for r := range k.n {
		splits[r] = (k.me + r + k.size) % 5
		src = append(src, slices.Repeat([]int32{int32(10*k.me + r)}, splits[r])...)
	}
	got := new(coordinator.Rows[int32])
	h := coordinator.AllToAll(co, k.name, got, src, splits, k.opts...)
	return func(ctx context.Context) error {
		if err := h.Wait(ctx); err != nil {
			return err
		}
		var want []int32
		for r := range k.n {
			want = append(want, slices.Repeat([]int32{int32(10*r + k.me)}, (r+k.me+k.size)%5)...)
		}
		return errors.Join(equal(k.name, got.Values, want), matches(k.name+"'s rows", got.Counts, func(r int) int { return (r + k.me + k.size) % 5 }))
	}
}
