package transport

// A Queue is a first-in, first-out list of frames that allocates nothing: the
// links lie in the frames. A frame is in at most one Queue. The zero Queue is
// empty. It is not safe for concurrent use; its owner's lock guards it.
type Queue struct {
	head, tail *Frame
}

// Empty reports whether the queue holds no frame.
func (q *Queue) Empty() bool { return q.head == nil }

// Push adds f at the end.
func (q *Queue) Push(f *Frame) {
	f.next = nil
	if q.tail == nil {
		q.head = f
	} else {
		q.tail.next = f
	}
	q.tail = f
}

// First is the oldest frame, which stays; nil when the queue is empty.
func (q *Queue) First() *Frame { return q.head }

// Pop takes the oldest frame; nil when the queue is empty.
func (q *Queue) Pop() *Frame {
	f := q.head
	if f == nil {
		return nil
	}
	q.head = f.next
	if q.head == nil {
		q.tail = nil
	}
	f.next = nil
	return f
}

// Each calls do for every frame, oldest first, until do returns false.
func (q *Queue) Each(do func(*Frame) bool) {
	for f := q.head; f != nil; f = f.next {
		if !do(f) {
			return
		}
	}
}
