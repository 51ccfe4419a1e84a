package negotiate

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/tutti-go/tutti/tensor"
)

// TestAnyScheduleEndsWithAllRanksAgreeing runs thousands of small jobs. Each job has random tensors
// over several steps, and each rank submits them in its own order. Lists are delivered, Buckets are
// executed and time passes in random order. Every submitted tensor must be executed, unless a rank
// shuts down without submitting it. All ranks must execute the same tensors in the same order.
func TestAnyScheduleEndsWithAllRanksAgreeing(t *testing.T) {
	seeds := 3000
	if testing.Short() {
		seeds = 300
	}
	for seed := range uint64(seeds) {
		j := newJob(seed)
		if err := j.run(); err != nil {
			t.Fatalf("seed %d, %+v: %v", seed, j.sim.coordinator.cfg, err)
		}
	}
}

// A job is a simulation together with the submissions that its ranks will make.
type job struct {
	*sim
	rnd *rand.Rand
	n   int
	// plans holds the submissions of each rank in order. A function returns false if its submission
	// must wait.
	plans  [][]func() bool
	mine   []map[string]SubmissionID // the last submission of each name, by rank
	times  []map[string]int          // how often each name was submitted, by rank
	join   bool
	leaver int // the rank that shuts down before its last submissions; -1: there is none
}

func newJob(seed uint64) *job {
	rnd := rand.New(rand.NewPCG(seed, 7))
	cfg := Config{
		Size: 1 + rnd.IntN(8), Cycle: Millisecond, Fusion: 1 << rnd.IntN(10), MaxFusedTensor: 1 << rnd.IntN(8),
		Partition: 16 << rnd.IntN(6), Credit: 1 << rnd.IntN(12), Cache: rnd.IntN(6),
	}
	if seed%2 == 0 {
		cfg.UnprioritizedCredit = 1 << 30
	}
	j := &job{sim: newSim(cfg), rnd: rnd, n: cfg.Size, join: rnd.IntN(3) == 0}
	j.plans = make([][]func() bool, j.n)
	for r := range j.n {
		j.mine = append(j.mine, make(map[string]SubmissionID))
		j.times = append(j.times, make(map[string]int))
		for step := range 2 + seed%4 {
			j.planStep(r, seed, step)
		}
		if j.join { // the rank joins at a random moment
			j.plans[r] = append(j.plans[r], func() bool {
				j.submissions++
				j.mine[r]["join"] = j.submissions
				j.stepWorker(r, Join{j.submissions})
				return true
			})
		}
		j.plans[r] = append(j.plans[r], func() bool { j.stepWorker(r, Shutdown{}); return true })
	}
	j.leaver = -1
	if !j.join && rnd.IntN(3) == 0 {
		j.leaver = rnd.IntN(j.n)
		plan := j.plans[j.leaver]
		last := len(plan) - 1 // the shutdown
		j.plans[j.leaver] = append(plan[:rnd.IntN(last)], plan[last])
	}
	return j
}

// planStep plans the submissions of rank r in one step. The seed and the step determine the
// tensors. Each rank submits them in its own order.
func (j *job) planStep(r int, seed, step uint64) {
	common := rand.New(rand.NewPCG(seed, step))
	var units [][]TensorRequest
	for i := range 1 + common.IntN(6) {
		q := j.tensor(common, fmt.Sprintf("w%d", i))
		if q.Operation == AllGather {
			q.Rows = (r + int(step/2)) % 3
		}
		units = append(units, []TensorRequest{q})
	}
	if common.IntN(3) == 0 {
		a, b := j.tensor(common, "g0"), j.tensor(common, "g1")
		a.Operation, b.Operation, a.Shape, b.Shape = AllReduce, AllReduce, []int{3}, []int{5}
		for _, q := range []*TensorRequest{&a, &b} {
			q.Group, q.GroupSize = 5, 2
		}
		units = append(units, []TensorRequest{a, b})
	}
	j.rnd.Shuffle(len(units), func(a, b int) { units[a], units[b] = units[b], units[a] })
	for _, u := range units {
		for i := range u {
			u[i].Site = fmt.Sprintf("rank%d:%d", r, step)
		}
		j.plans[r] = append(j.plans[r], func() bool { return j.submitUnlessInFlight(r, u) })
	}
	if j.rnd.IntN(2) == 0 {
		j.plans[r] = append(j.plans[r], func() bool { j.stepWorker(r, Flush{}); return true })
	}
}

func (j *job) tensor(rnd *rand.Rand, name string) TensorRequest {
	q := TensorRequest{Spec: Spec{Name: name, DType: tensor.Float32, Wire: tensor.Float32, Root: -1, Pre: 1, Post: 1, Op: "sum", OpID: 1, Priority: rnd.IntN(3)}}
	q.Operation = [...]Operation{AllReduce, AllReduce, AllReduce, AllGather, Broadcast, Barrier, PushPull}[rnd.IntN(7)]
	q.Shape = []int{rnd.IntN(40)}
	switch q.Operation {
	case AllGather:
		q.Shape = []int{-1, 2}
	case Broadcast:
		q.Root = rnd.IntN(j.n)
		if j.join {
			q.Operation, q.Root = AllReduce, -1
		}
	case PushPull:
		if j.join {
			q.Operation = AllReduce
		}
	}
	return q
}

// submitUnlessInFlight submits tensors, unless one of their names is in flight on this rank.
func (j *job) submitUnlessInFlight(r int, u []TensorRequest) bool {
	for i := range u {
		if t, before := j.mine[r][u[i].Name]; before && j.fate[r][t] == "" {
			return false
		}
	}
	first := j.submit(r, u...)
	for i := range u {
		j.mine[r][u[i].Name] = first + SubmissionID(i)
		j.times[r][u[i].Name]++
	}
	return true
}

// run makes random moves until no move is left.
func (j *job) run() error {
	for turn := 0; ; turn++ {
		if turn > 200_000 {
			return fmt.Errorf("no end: %v", j.where())
		}
		moved := false
		if r := j.rnd.IntN(j.n); len(j.plans[r]) > 0 && j.plans[r][0]() {
			j.plans[r], moved = j.plans[r][1:], true
		}
		if list := j.moves(); len(list) > 0 && j.rnd.IntN(4) > 0 {
			j.do(list[j.rnd.IntN(len(list))])
			moved = true
		}
		if j.rnd.IntN(60) == 0 {
			j.stepCoordinator(Retune{Tunables{Cycle: Duration(j.rnd.IntN(int(Millisecond))), Fusion: j.rnd.IntN(1000), Cache: j.rnd.IntN(2) == 0, Class: uint8(j.rnd.IntN(3))}})
		}
		if moved {
			continue
		}
		if wait, ok := j.next(); ok {
			j.tick(max(wait, Microsecond))
		}
		if !slices.Contains(j.end, "") && len(j.moves()) == 0 {
			return j.check()
		}
	}
}

func (j *job) where() string { return strings.Join(j.end, "|") }

// check checks that every rank and every submission has ended as it should, and that the ranks have
// executed the same tensors in the same order.
func (j *job) check() error {
	for r := range j.n {
		if j.end[r] != "end" {
			return fmt.Errorf("rank %d ended with %q", r, j.end[r])
		}
		for name, t := range j.mine[r] {
			f := j.fate[r][t]
			ended := strings.HasPrefix(f, "done") || strings.HasPrefix(f, "joined")
			if j.abandoned(r, name) {
				ended = strings.Contains(f, fmt.Sprintf("rank %d", j.leaver)) && strings.Contains(f, "without submitting the tensor")
			}
			if !ended {
				return fmt.Errorf("rank %d: %s ended with %q; abandoned by rank %d: %v", r, name, f, j.leaver, j.abandoned(r, name))
			}
		}
		got, want := ran(j.log[r]), ran(j.log[0])
		if !slices.Equal(got, want) {
			return fmt.Errorf("rank %d ran\n%v\nand rank 0\n%v", r, got, want)
		}
	}
	return nil
}

// abandoned reports whether the leaver has shut down without submitting a tensor that rank r has
// submitted. All other ranks submit the same tensors in the same steps.
func (j *job) abandoned(r int, name string) bool {
	return j.leaver >= 0 && j.times[r][name] > j.times[j.leaver][name]
}

// ran returns a log without the parts that differ between participating ranks and absent ranks.
func ran(log []string) []string {
	out := make([]string, len(log))
	for i, line := range log {
		out[i] = strings.ReplaceAll(line, " (absent)", "")
	}
	return out
}

func TestTheScheduleTestDetectsAHungJob(t *testing.T) {
	j := newJob(3)
	j.paused.Add(j.n - 1)
	j.plans[j.n-1] = nil
	done := make(chan error, 1)
	go func() { done <- j.run() }()
	if err := <-done; err == nil {
		t.Error("a rank that submits nothing and never leaves went unnoticed")
	}
}
