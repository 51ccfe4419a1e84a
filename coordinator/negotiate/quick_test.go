package negotiate

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/tutti-go/tutti/fault"
)

// quickJob is a leader of some ranks to which so many tensors are known by number.
func quickJob(t *testing.T, ranks, tensors int) *Leader {
	t.Helper()
	l := NewLeader(Config{
		Size: ranks, Cycle: Second, Fusion: 1 << 30, Alone: 1 << 20, Partition: 1 << 20, Credit: 1 << 40, Cache: 256,
		StallWarn: 10 * Second, StallEnd: 20 * Second,
	})
	var up Up
	for i := range tensors {
		up.Requests = append(up.Requests, quickRequest(i))
	}
	for r := range ranks {
		l.Step(0, Told{r, &up})
	}
	if got := l.quick.can.Count(); got != tensors {
		t.Fatalf("%d numbers are quick, want %d", got, tensors)
	}
	return l
}

func quickRequest(i int) Request {
	q := Request{Tensor: sampleTensor(), Site: "train.go:12"}
	q.Set, q.Group, q.GroupSize, q.Priority, q.Name = World, 0, 0, 0, fmt.Sprint("w", i)
	return q
}

// numbers is a Member's message of some numbers.
func numbers(ids ...int) *Up {
	up := new(Up)
	for _, id := range ids {
		up.Cached.Add(id)
	}
	return up
}

// told is what a leader says, in words.
func told(outs []Output) string {
	var words []string
	for _, o := range outs {
		words = append(words, o.String())
	}
	return strings.Join(words, "; ")
}

// Whatever is asked about numbers that were only counted, the answer is that of a
// leader that counts none: with ranks that send some in full, and otherwise than
// before; that join, or leave; and with reports of what stalls.
func TestNumbersThatAreCountedAndThoseThatAreNotAreToldAlike(t *testing.T) {
	const ranks, tensors = 5, 150
	for seed := range uint64(300) {
		rnd := rand.New(rand.NewPCG(seed, 7))
		one, other := quickJob(t, ranks, tensors), quickJob(t, ranks, tensors)
		gone := make([]bool, ranks)
		now := Time(0)
		step := func(in LeaderInput) {
			for w := range other.quick.can {
				other.quick.can[w] = 0
			}
			if got, want := told(one.Step(now, in)), told(other.Step(now, in)); got != want {
				t.Fatalf("seed %d: the leader that counts says\n%s\nand the other\n%s", seed, got, want)
			}
			if one.waiting != other.waiting || len(one.queue) != len(other.queue) {
				t.Fatalf("seed %d: %d and %d tensors wait, %d and %d are queued", seed, one.waiting, other.waiting, len(one.queue), len(other.queue))
			}
		}
		for range 3 { // steps of the program's
			left := make([][]int, ranks) // what each rank has yet to submit
			for r := range ranks {
				left[r] = rnd.Perm(tensors)
			}
			for slices.ContainsFunc(left, func(l []int) bool { return len(l) > 0 }) {
				now += Time(rnd.IntN(int(Second)))
				r := rnd.IntN(ranks)
				n := rnd.IntN(len(left[r]) + 1)
				up := numbers(left[r][:n]...)
				left[r] = left[r][n:]
				if n > 0 && rnd.IntN(8) == 0 { // one in full, and perhaps otherwise
					id := up.Cached.lowest()
					up.Cached.Remove(id)
					q := quickRequest(id)
					q.Shape = []int{1 + rnd.IntN(2), 64, 9}
					up.Requests = []Request{q}
				}
				if len(left[r]) == 0 && !gone[r] && rnd.IntN(9) == 0 {
					up.Join, gone[r] = rnd.IntN(2) == 0, true
					up.Leave = !up.Join
					left[r] = nil
				} else if gone[r] {
					left[r] = nil
					continue
				}
				step(Told{r, up})
				step(Carried{1 << 20})
			}
			step(Tick{})
		}
	}
}

// lowest is the smallest number of a set that is not empty.
func (b Bits) lowest() int {
	for i := range b.All {
		return i
	}
	return -1
}

func TestARankThatSubmitsANumberTwiceEndsTheCoordinatorAlsoWhereItIsCounted(t *testing.T) {
	l := quickJob(t, 3, 100)
	if outs := l.Step(1, Told{1, numbers(3, 70, 99)}); len(outs) > 0 {
		t.Fatalf("one rank of three has submitted numbers, and the leader says %s", told(outs))
	}
	got := told(l.Step(2, Told{1, numbers(5, 70)}))
	if !strings.Contains(got, `rank 1 submits "w70" twice`) {
		t.Errorf("got %q", got)
	}
}

func TestAReportOfWhatStallsKnowsNumbersThatWereCounted(t *testing.T) {
	l := quickJob(t, 3, 100)
	l.Step(Time(Second), Told{2, numbers(7)})
	l.Step(Time(3*Second), Told{0, numbers(7)})
	var got string
	for now := Time(4 * Second); now < Time(14*Second); now += Time(Second) {
		got += told(l.Step(now, Tick{}))
	}
	for _, want := range []string{"w7", "submitted by ranks [0 2]", "missing: rank 1"} {
		if !strings.Contains(got, want) {
			t.Errorf("the report is %q, and does not say %q", got, want)
		}
	}
	got = told(l.Step(Time(22*Second), Tick{}))
	if !strings.Contains(got, fault.Timeout.Error()) || !strings.Contains(got, "submitted by ranks [0 2]") {
		t.Errorf("after the second limit the leader says %q", got)
	}
}
