package ps

import (
	"context"
	"slices"
	"sync"

	"github.com/tutti-go/tutti/internal/bridge"
	"github.com/tutti-go/tutti/ps/internal/message"
)

// flights is how many bodies an outlet sends at a time, and how many an inlet receives. The next
// one is announced while one is under way, so that the wire does not idle between them.
const flights = 4

// An outgoing is a message to one peer: a head, and a body, which is inline or a message of its own.
type outgoing struct {
	priority int
	order    uint64
	head     [message.RequestSize]byte
	headSize int
	body     []byte
	// load makes a body of the given size, so that no memory is used for it before the credit allows the
	// message. It is nil if there is a body.
	load func() []byte
	size int
	cost int64 // of the credit
	// sent runs when head and body may be used again. It runs on a goroutine of the outlet, or, if
	// the outlet fails, on that of another caller, and must be short.
	sent func(error)

	times   *requestTimes // nil without a timeline
	started int           // the index in times of the time at which the outlet takes the message
}

// bodySize returns the size of the body, also of one that is not made yet.
func (o *outgoing) bodySize() int {
	if o.load != nil {
		return o.size
	}
	return len(o.body)
}

// makeBody makes the body if there is none yet.
func (o *outgoing) makeBody() {
	if o.load != nil {
		o.body, o.load = o.load(), nil
	}
}

// before reports whether o is sent before p.
func (o *outgoing) before(p *outgoing) bool {
	if o.priority != p.priority {
		return o.priority > p.priority
	}
	return o.order < p.order
}

// An outlet sends messages to one peer: those of higher priority first, and those of one priority
// in their order. One goroutine starts the messages, so that heads and bodies have the same order,
// and another one waits for the ends of the bodies.
type outlet struct {
	comm             bridge.Communicator
	to               int
	headTag, bodyTag int

	mu     sync.Mutex
	wake   sync.Cond // signalled when a message is added, credit returns, or the outlet ends
	queue  queue[*outgoing]
	order  uint64
	credit int64 // bytes that may be sent before grant returns some; negative: without a bound
	inUse  int64
	ended  bool
	err    error
}

// newOutlet returns an outlet. The caller starts its method run.
func newOutlet(c bridge.Communicator, to, headTag, bodyTag int, credit int64) *outlet {
	o := &outlet{comm: c, to: to, headTag: headTag, bodyTag: bodyTag, credit: credit, queue: queue[*outgoing]{before: (*outgoing).before}}
	o.wake.L = &o.mu
	return o
}

// add queues a message. If the outlet has failed, it runs sent with the error.
func (o *outlet) add(m *outgoing) {
	o.mu.Lock()
	if o.err != nil || o.ended {
		err := o.err
		o.mu.Unlock()
		m.sent(err)
		return
	}
	o.order++
	m.order = o.order
	o.queue.push(m)
	o.mu.Unlock()
	o.wake.Signal()
}

// grant returns credit.
func (o *outlet) grant(cost int64) {
	o.mu.Lock()
	o.inUse -= cost
	o.mu.Unlock()
	o.wake.Signal()
}

// next waits for a message that the credit allows. A message that is larger than the credit goes
// when nothing else is under way. next returns nil after end, once the queue is empty, and after
// fail.
func (o *outlet) next() *outgoing {
	o.mu.Lock()
	defer o.mu.Unlock()
	for {
		if o.err != nil || o.ended && o.queue.len() == 0 {
			return nil
		}
		if o.queue.len() > 0 {
			if m := o.queue.first(); o.fits(m) {
				o.inUse += m.cost
				return o.queue.pop()
			}
		}
		o.wake.Wait()
	}
}

// fits reports whether the credit allows a message. A message that costs nothing always fits. o.mu
// is held.
func (o *outlet) fits(m *outgoing) bool {
	return o.credit < 0 || m.cost == 0 || o.inUse == 0 || o.inUse+m.cost <= o.credit
}

// load returns the number of messages that wait, and the bytes that use credit.
func (o *outlet) load() (queued int, inUse int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.queue.len(), o.inUse
}

// end lets run return when all messages have been sent.
func (o *outlet) end() {
	o.mu.Lock()
	o.ended = true
	o.mu.Unlock()
	o.wake.Signal()
}

// fail ends the outlet. Messages in the queue, and later ones, get err.
func (o *outlet) fail(err error) {
	o.mu.Lock()
	if o.err != nil {
		o.mu.Unlock()
		return
	}
	o.err = err
	left := o.queue.clear()
	o.mu.Unlock()
	o.wake.Signal()
	for _, m := range left {
		m.sent(err)
	}
}

// A flight is a body that is being sent or received.
type flight[T any] struct {
	transfer bridge.InFlight
	what     T
}

// run sends messages until end or fail. It returns the error that ended it.
func (o *outlet) run(ctx context.Context) error {
	bodies := make(chan flight[*outgoing], flights)
	var waiter sync.WaitGroup
	waiter.Go(func() {
		for f := range bodies {
			_, err := f.transfer.Wait(ctx)
			if err != nil {
				o.fail(err)
			}
			f.what.sent(err)
		}
	})
	var buf []byte
	for m := o.next(); m != nil; m = o.next() {
		m.times.mark(m.started)
		m.makeBody()
		buf = append(buf[:0], m.head[:m.headSize]...)
		inline := len(m.body) <= message.Inline
		if inline {
			buf = append(buf, m.body...)
		}
		err := o.comm.Send(ctx, o.to, o.headTag, buf)
		switch {
		case err != nil:
			m.sent(err)
			o.fail(err)
		case inline:
			m.sent(nil)
		default:
			bodies <- flight[*outgoing]{o.comm.ISend(o.to, o.bodyTag, m.body), m}
		}
	}
	close(bodies)
	waiter.Wait()
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.err
}

// A queue is a heap of messages or jobs, in the order of the function before.
type queue[T any] struct {
	before func(a, b T) bool
	items  []T
}

func (q *queue[T]) len() int { return len(q.items) }

func (q *queue[T]) first() T { return q.items[0] }

func (q *queue[T]) push(v T) {
	q.items = append(q.items, v)
	i := len(q.items) - 1
	for i > 0 && q.before(v, q.items[(i-1)/2]) {
		q.items[i] = q.items[(i-1)/2]
		i = (i - 1) / 2
	}
	q.items[i] = v
}

func (q *queue[T]) pop() T {
	var zero T
	first, n := q.items[0], len(q.items)-1
	v := q.items[n]
	q.items[n] = zero
	q.items = q.items[:n]
	if n == 0 {
		return first
	}
	i := 0
	for {
		child := 2*i + 1
		if child+1 < n && q.before(q.items[child+1], q.items[child]) {
			child++
		}
		if child >= n || !q.before(q.items[child], v) {
			break
		}
		q.items[i] = q.items[child]
		i = child
	}
	q.items[i] = v
	return first
}

// clear empties the queue and returns what it held.
func (q *queue[T]) clear() []T {
	left := slices.Clone(q.items)
	clear(q.items)
	q.items = q.items[:0]
	return left
}
