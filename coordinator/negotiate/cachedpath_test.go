package negotiate

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/tutti-go/tutti/fault"
)

// cachedJob returns a Coordinator for the given number of ranks. Its cache holds the given number
// of tensors.
func cachedJob(t *testing.T, ranks, tensors int) *Coordinator {
	t.Helper()
	l := NewCoordinator(Config{
		Size: ranks, Cycle: Second, Fusion: 1 << 30, MaxFusedTensor: 1 << 20, Partition: 1 << 20, Credit: 1 << 40, Cache: 256,
		StallWarn: 10 * Second, StallEnd: 20 * Second,
	})
	var requests RequestList
	for i := range tensors {
		requests.Requests = append(requests.Requests, cachedRequest(i))
	}
	for r := range ranks {
		l.Step(0, RequestsReceived{r, &requests})
	}
	if got := l.fast.eligible.Count(); got != tensors {
		t.Fatalf("%d numbers are quick, want %d", got, tensors)
	}
	return l
}

func cachedRequest(i int) TensorRequest {
	q := TensorRequest{Spec: sampleTensor(), Site: "train.go:12"}
	q.Set, q.Group, q.GroupSize, q.Priority, q.Name = World, 0, 0, 0, fmt.Sprint("w", i)
	return q
}

// numbers returns a request list with the given cache IDs.
func numbers(ids ...int) *RequestList {
	requests := new(RequestList)
	for _, id := range ids {
		requests.Cached.Add(id)
	}
	return requests
}

// describeOutputs formats outputs as one line.
func describeOutputs(outs []CoordinatorOutput) string {
	var words []string
	for _, o := range outs {
		words = append(words, o.String())
	}
	return strings.Join(words, "; ")
}

// TestALateSubmissionMovesNoOtherTensorToTheSlowPath fails a submission that belongs to a call
// which rank 1 has refused. The submission has no group. So no other tensor fails with it, and all
// other tensors stay on the cached path.
func TestALateSubmissionMovesNoOtherTensorToTheSlowPath(t *testing.T) {
	l := cachedJob(t, 3, 2)
	l.Step(0, RequestsReceived{0, numbers(1)})
	l.Step(0, RequestsReceived{1, &RequestList{Refused: &Refusal{Tensors: []TensorName{{World, "w0"}}, Err: &fault.Error{Kind: fault.Mismatch}}}})
	outs := describeOutputs(l.Step(0, RequestsReceived{2, numbers(0)}))
	if !strings.Contains(outs, "fail [{0 w0}] on ranks [2]") {
		t.Errorf("the call that rank 1 has refused: got %q, want that it fails", outs)
	}
	if got := l.fast.counts[1].ranks; got != 1 || l.cache[1].pending != nil {
		t.Errorf("w1 is counted for %d ranks on the cached path, want 1", got)
	}
}

// A Coordinator that uses the cached path and a Coordinator that never uses it must give equal
// responses to equal requests. This must also hold if ranks send full or changed requests, join or
// shut down, and if tensors stall.
func TestCachedAndSlowPathsGiveEqualResponses(t *testing.T) {
	const ranks, tensors = 5, 150
	for seed := range uint64(300) {
		rnd := rand.New(rand.NewPCG(seed, 7))
		one, other := cachedJob(t, ranks, tensors), cachedJob(t, ranks, tensors)
		gone := make([]bool, ranks)
		now := Time(0)
		step := func(in CoordinatorInput) {
			for w := range other.fast.eligible {
				other.fast.eligible[w] = 0
			}
			if got, want := describeOutputs(one.Step(now, in)), describeOutputs(other.Step(now, in)); got != want {
				t.Fatalf("seed %d: the leader that counts says\n%s\nand the other\n%s", seed, got, want)
			}
			if one.pendingCount != other.pendingCount || len(one.ready) != len(other.ready) {
				t.Fatalf("seed %d: %d and %d tensors wait, %d and %d are queued", seed, one.pendingCount, other.pendingCount, len(one.ready), len(other.ready))
			}
		}
		for range 3 { // steps of the program
			left := make([][]int, ranks) // the IDs that each rank has not submitted yet
			for r := range ranks {
				left[r] = rnd.Perm(tensors)
			}
			for slices.ContainsFunc(left, func(l []int) bool { return len(l) > 0 }) {
				now += Time(rnd.IntN(int(Second)))
				r := rnd.IntN(ranks)
				n := rnd.IntN(len(left[r]) + 1)
				requests := numbers(left[r][:n]...)
				left[r] = left[r][n:]
				// One request is sent in full, and may be a changed request.
				if n > 0 && rnd.IntN(8) == 0 {
					id := requests.Cached.lowest()
					requests.Cached.Remove(id)
					q := cachedRequest(id)
					q.Shape = []int{1 + rnd.IntN(2), 64, 9}
					requests.Requests = []TensorRequest{q}
				}
				if len(left[r]) == 0 && !gone[r] && rnd.IntN(9) == 0 {
					requests.Join, gone[r] = rnd.IntN(2) == 0, true
					requests.Shutdown = !requests.Join
					left[r] = nil
				} else if gone[r] {
					left[r] = nil
					continue
				}
				step(RequestsReceived{r, requests})
				step(Executed{1 << 20})
			}
			step(Tick{})
		}
	}
}

// lowest returns the smallest element of a nonempty set.
func (b Bitset) lowest() int {
	for i := range b.All {
		return i
	}
	return -1
}

func TestACacheIDSubmittedTwiceEndsTheCoordinatorOnTheCachedPath(t *testing.T) {
	l := cachedJob(t, 3, 100)
	if outs := l.Step(1, RequestsReceived{1, numbers(3, 70, 99)}); len(outs) > 0 {
		t.Fatalf("one rank of three has submitted numbers, and the leader says %s", describeOutputs(outs))
	}
	got := describeOutputs(l.Step(2, RequestsReceived{1, numbers(5, 70)}))
	if !strings.Contains(got, `rank 1 submitted "w70" twice`) {
		t.Errorf("got %q", got)
	}
}

func TestAStallReportIncludesTensorsOfTheCachedPath(t *testing.T) {
	l := cachedJob(t, 3, 100)
	l.Step(Time(Second), RequestsReceived{2, numbers(7)})
	l.Step(Time(3*Second), RequestsReceived{0, numbers(7)})
	var got string
	for now := Time(4 * Second); now < Time(14*Second); now += Time(Second) {
		got += describeOutputs(l.Step(now, Tick{}))
	}
	for _, want := range []string{"w7", "submitted by ranks [0 2]", "missing: rank 1"} {
		if !strings.Contains(got, want) {
			t.Errorf("the report is %q, and does not say %q", got, want)
		}
	}
	got = describeOutputs(l.Step(Time(22*Second), Tick{}))
	if !strings.Contains(got, fault.Timeout.Error()) || !strings.Contains(got, "submitted by ranks [0 2]") {
		t.Errorf("after the second limit the leader says %q", got)
	}
}
