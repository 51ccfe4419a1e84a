package fifo

import (
	"math/rand/v2"
	"testing"
)

func TestAQueueKeepsTheOrderOfASlice(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	var q Queue[int]
	var want []int
	for step := range 100_000 {
		if rng.IntN(1000) < 500+100*(step/10_000%3-1) { // the queue grows for a while, then shrinks
			q.Push(step)
			want = append(want, step)
		} else if len(want) > 0 {
			if got := q.Pop(); got != want[0] {
				t.Fatalf("step %d: got %d, want %d", step, got, want[0])
			}
			want = want[1:]
		}
		if q.Len() != len(want) {
			t.Fatalf("step %d: length %d, want %d", step, q.Len(), len(want))
		}
		if len(want) == 0 {
			if q.First() != nil {
				t.Fatalf("step %d: an empty queue has a first item", step)
			}
			continue
		}
		if i := rng.IntN(len(want)); *q.First() != want[0] || *q.At(i) != want[i] {
			t.Fatalf("step %d: item %d is %d, want %d", step, i, *q.At(i), want[i])
		}
	}
}

func TestAQueueForgetsWhatItHasGivenAway(t *testing.T) {
	var q Queue[*int]
	for range 8 {
		q.Push(new(int))
	}
	for range 8 {
		q.Pop()
	}
	for i, p := range q.slots {
		if p != nil {
			t.Errorf("slot %d still holds its item", i)
		}
	}
}

func TestAnEmptiedQueueKeepsFewSlots(t *testing.T) {
	var q Queue[int]
	for i := range 100 * maxIdleSlots {
		q.Push(i)
	}
	for q.Len() > 0 {
		q.Pop()
	}
	if len(q.slots) > maxIdleSlots {
		t.Errorf("%d slots are kept, of at most %d", len(q.slots), maxIdleSlots)
	}
}

func TestASteadyQueueAllocatesNothing(t *testing.T) {
	var q Queue[int]
	turn := func() {
		for i := range 5 {
			q.Push(i)
		}
		for range 5 {
			q.Pop()
		}
	}
	turn()
	if n := testing.AllocsPerRun(100, turn); n != 0 {
		t.Errorf("%v allocations per turn", n)
	}
}
