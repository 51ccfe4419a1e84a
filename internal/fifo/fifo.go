// Package fifo holds a queue for what waits its turn.
package fifo

// maxIdleSlots is how many slots an emptied queue keeps for its next burst.
const maxIdleSlots = 1024

// A Queue is a first-in, first-out list that allocates only to grow, and forgets
// what it has given away. The zero Queue is empty. Its owner's lock guards it,
// and its owner bounds its length.
type Queue[T any] struct {
	slots []T // a power of two, or none
	head  int // the oldest item's slot
	n     int
}

// Len is how many items wait.
func (q *Queue[T]) Len() int { return q.n }

// Push adds an item at the end.
func (q *Queue[T]) Push(item T) {
	if q.n == len(q.slots) {
		q.grow()
	}
	*q.At(q.n) = item
	q.n++
}

// At is the i-th oldest item, from 0 on, in its place: until the next Push or Pop.
func (q *Queue[T]) At(i int) *T { return &q.slots[(q.head+i)&(len(q.slots)-1)] }

// First is At(0), or nil when the queue is empty.
func (q *Queue[T]) First() *T {
	if q.n == 0 {
		return nil
	}
	return q.At(0)
}

// Pop takes the oldest item; the queue is not empty.
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

func (q *Queue[T]) grow() {
	bigger := make([]T, max(8, 2*len(q.slots)))
	for i := range q.n {
		bigger[i] = *q.At(i)
	}
	q.slots, q.head = bigger, 0
}
