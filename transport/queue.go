package transport

// A Queue is a first-in, first-out list of frames that allocates nothing: the Next fields of the
// frames are its links. A frame is in at most one Queue. The zero Queue is empty. A Queue is not
// safe for concurrent use, so its owner guards it by a lock.
type Queue struct {
	First *Frame // the oldest frame; nil when the queue is empty
	last  *Frame
}

// Push adds f at the end.
func (q *Queue) Push(f *Frame) {
	f.Next = nil
	if q.First == nil {
		q.First = f
	} else {
		q.last.Next = f
	}
	q.last = f
}

// Pop removes and returns the oldest frame. It returns nil when the queue is empty.
func (q *Queue) Pop() *Frame {
	f := q.First
	if f == nil {
		return nil
	}
	q.First, f.Next = f.Next, nil
	if q.First == nil {
		q.last = nil
	}
	return f
}
