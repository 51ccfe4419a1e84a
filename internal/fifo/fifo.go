// Package fifo holds a first-in, first-out queue for hot paths.
package fifo

// maxIdleSlots is the number of slots that an empty queue keeps for its next burst.
const maxIdleSlots = 1024

// A Queue is a first-in, first-out list that allocates only to grow. It clears the slots of popped
// items, so that it keeps nothing alive. The zero Queue is empty. It has no lock: its owner guards
// it, and bounds its length.
type Queue[T any] struct {
	slots []T // a ring; its length is a power of two, or 0
	head  int // the slot of the oldest item
	n     int
}

// Len returns the number of items.
func (q *Queue[T]) Len() int { return q.n }

// Push adds an item at the end.
func (q *Queue[T]) Push(item T) {
	if q.n == len(q.slots) {
		q.grow()
	}
	*q.At(q.n) = item
	q.n++
}

// At returns a pointer to the i-th oldest item, counted from 0. The pointer is valid until the next
// Push or Pop.
func (q *Queue[T]) At(i int) *T { return &q.slots[(q.head+i)&(len(q.slots)-1)] }

// First returns At(0), or nil if the queue is empty.
func (q *Queue[T]) First() *T {
	if q.n == 0 {
		return nil
	}
	return q.At(0)
}

// Pop removes the oldest item. The queue must not be empty.
func (q *Queue[T]) Pop() T {
	var none T
	first := q.At(0)
	item := *first
	*first = none
	q.head = (q.head + 1) & (len(q.slots) - 1)
	q.n--
	if q.n == 0 && len(q.slots) > maxIdleSlots {
		*q = Queue[T]{}
	}
	return item
}

// grow doubles the ring.
func (q *Queue[T]) grow() {
	bigger := make([]T, max(8, 2*len(q.slots)))
	for i := range q.n {
		bigger[i] = *q.At(i)
	}
	q.slots, q.head = bigger, 0
}
