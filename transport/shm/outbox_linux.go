package shm

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/fifo"
	"github.com/tutti-go/tutti/internal/poll"
	"github.com/tutti-go/tutti/transport"
)

// An outbox holds the frames that wait for space in the ring, and elects the one goroutine that
// writes them, the writer. Other goroutines queue their frames and return. If no frame waits, Send
// writes a small frame under the lock, which costs less than becoming the writer. Otherwise no lock
// is held while bytes are copied.
//
//	writing  blocked  queue      state
//	no       no       empty      idle: Send writes at once
//	yes      no       any        a goroutine writes; Send only queues
//	no       yes      not empty  the ring is full, or enough was written: Progress resumes
//	no       no       not empty  never outside of mu
//
// After close the outbox accepts no frames: err is set. The queue is empty once the writer, if
// there is one, has seen err.
type outbox struct {
	// blocked is set while frames wait and there is no writer, so that Progress has to resume. It
	// is written under mu.
	blocked atomic.Bool

	mu    sync.Mutex // guards what follows
	queue items
	bytes int // bytes of the queued frames that are not in the ring yet
	// stalledSince is the time when the ring last accepted bytes, or first refused some. It is zero
	// if the ring refused none.
	stalledSince time.Time
	writing      bool  // there is a writer
	inlineRun    int   // frames written under the lock since a frame was last queued
	err          error // why nothing more is accepted

	producer   producer // owned by the writer, or guarded by mu when there is none
	remaining  body     // the rest of the body of the queue's first frame; same owner as producer
	begun      bool     // a part of that frame is in the ring; same owner
	bodyLength int      // bytes of a body that goes into exposed memory; same owner
}

// An item is a queued frame and the size of its body, which would otherwise be computed several
// times.
type item struct {
	f    *transport.Frame
	size int // bytes of body
}

// body returns the whole body of the frame, for a frame of which nothing is written yet.
func (it *item) body() body { return body{one: it.f.Body, more: it.f.Parts, left: it.size} }

// validateFrame returns the reason why f can never be sent, or nil.
func validateFrame(f *transport.Frame, size int) error {
	switch {
	case len(f.Head) > transport.MaxHead:
		return failure(fault.Misuse, "send",
			fmt.Errorf("got a head of %d bytes, want at most %d", len(f.Head), transport.MaxHead))
	case int64(size) > MaxBody:
		return failure(fault.Misuse, "send", fmt.Errorf("got a body of %d bytes, want at most %d", size, MaxBody))
	}
	return nil
}

// maxInline bounds the recursion of a Done that calls Send again from inside Send. After maxInline
// frames written under the lock, the next frame is queued, and its sender becomes the writer.
// Frames that Done sends from then on are written by the writer's loop, not by recursion.
const maxInline = 64

// An enqueueResult says what enqueue did with a frame.
type enqueueResult uint8

const (
	queued       enqueueResult = iota // the writer, or a later Progress, will write it
	written                           // the frame is in the ring
	becameWriter                      // the frame is queued, and the caller has become the writer
	refused                           // the outbox is closed
)

// enqueue writes a small frame into the ring if no frame waits. Otherwise it queues the frame. The
// result due asks the caller to ring the peer's doorbell.
func (o *outbox) enqueue(it item) (did enqueueResult, due bool, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err != nil {
		return refused, false, o.err
	}
	if it.size <= maxWhole && it.f.To == (transport.Token{}) && !o.writing && o.queue.Len() == 0 && o.inlineRun < maxInline {
		b := it.body()
		done, err := o.producer.putWhole(it.f.ID, it.f.Head, &b)
		if err != nil {
			return refused, false, err
		}
		if done {
			due, o.producer.mustRing = o.producer.mustRing, false
			o.inlineRun++
			return written, due, nil
		}
	}
	// The frame is queued. If there is no writer and the outbox is not blocked, the caller becomes
	// the writer. Otherwise the writer or a later Progress writes the frame.
	o.inlineRun = 0
	o.queue.Push(it)
	o.bytes += it.size
	if o.queue.Len() == 1 {
		o.start()
	}
	if o.writing || o.blocked.Load() {
		return queued, false, nil
	}
	o.writing = true
	return becameWriter, false, nil
}

// trySend writes a small frame into the ring if no frame waits. Otherwise it does nothing. The
// result due asks the caller to ring the peer's doorbell. trySend does not report protocol errors,
// because the next enqueue reports them.
func (o *outbox) trySend(head, bytes []byte) (did, due bool) {
	o.mu.Lock()
	if o.err == nil && len(bytes) <= maxWhole && len(head) <= transport.MaxHead && !o.writing && o.queue.Len() == 0 {
		b := body{one: bytes, left: len(bytes)}
		did, _ = o.producer.putWhole(0, head, &b)
		due, o.producer.mustRing = o.producer.mustRing, false
	}
	o.mu.Unlock()
	return did, due
}

// resume makes the caller the writer if frames wait and there is no writer. Progress calls it after
// it has seen that blocked is set. Meanwhile another caller of Progress or Send may have become the
// writer.
func (o *outbox) resume() (write bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.writing || o.queue.Len() == 0 {
		return false
	}
	o.writing = true
	o.blocked.Store(false)
	return true
}

// start prepares to write the queue's first frame, of which nothing is in the ring yet. o.mu is
// held.
func (o *outbox) start() {
	o.remaining, o.begun = o.queue.First().body(), false
}

// write writes one record of f, the queue's first frame. The caller is the writer. It returns how
// many bytes of the body are in the record, and whether these were the last bytes.
func (o *outbox) write(f *transport.Frame) (n int, whole bool, err error) {
	b := &o.remaining
	if !o.begun && b.left <= maxWhole {
		n = b.left
		if whole, err = o.producer.putWhole(f.ID, f.Head, b); whole {
			return n, true, nil
		}
		return 0, false, err
	}
	n, err = o.producer.putChunk(f.ID, f.Head, !o.begun, b)
	o.begun = o.begun || n > 0
	return n, n > 0 && b.left == 0, err
}

// advance records that n bytes of the first frame are in the ring. If the frame is whole, it is
// removed and returned for its Done. The caller stays the writer while it runs Done. So frames that
// Done sends are queued, and the writer's loop writes them.
func (o *outbox) advance(n int, whole bool) (done *transport.Frame) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.bytes -= n
	if (n > 0 || whole) && !o.stalledSince.IsZero() {
		o.stalledSince = time.Now()
	}
	if !whole {
		return nil
	}
	done = o.queue.Pop().f
	o.remaining, o.begun = body{}, false
	if o.queue.Len() > 0 {
		o.start()
	}
	return done
}

// next returns the frame with which the writer continues. The writer calls it after each record,
// and so notices a Close. If the argument stop is true, next leaves the rest to Progress. If next
// returns no frame, the caller is no longer the writer: no frame is left, the rest is left to
// Progress, or the outbox is closed. If the outbox is closed, the caller fails the returned frames
// with err.
func (o *outbox) next(stop bool) (f *transport.Frame, failed items, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.err != nil:
		failed, err = o.drain(), o.err
	case o.queue.Len() == 0:
		o.stalledSince = time.Time{}
	case stop:
		if o.stalledSince.IsZero() {
			o.stalledSince = time.Now()
		}
		o.blocked.Store(true)
	default:
		return o.queue.First().f, items{}, nil
	}
	o.writing = false
	return nil, failed, err
}

// close sets the Conn's first error to err, unless the first error is already set. After close,
// every frame fails with the first error. Both changes happen under mu, so for a goroutine that has
// seen the error, Send fails, too. close returns the queued frames and the first error. If there is
// a writer, close returns no frames, and the writer fails them.
func (o *outbox) close(first *poll.FirstError, err error) (failed items, _ error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	err = first.Set(err)
	if o.err == nil {
		o.err = err
	}
	if o.writing {
		return items{}, err
	}
	return o.drain(), err
}

// drain removes and returns all queued frames. o.mu is held, and there is no writer.
func (o *outbox) drain() (all items) {
	all, o.queue = o.queue, items{}
	o.remaining, o.begun = body{}, false
	o.bytes, o.stalledSince = 0, time.Time{}
	o.blocked.Store(false)
	return all
}

// awaitRoom asks the consumer to ring this end's doorbell when half of the ring is free. If it
// asked for less space, the consumer would ring for each chunk. It returns true when half of the
// ring is free already, or when the outbox is closed.
func (o *outbox) awaitRoom(mine *doorbell) (now bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err != nil || !o.blocked.Load() {
		return o.err != nil
	}
	// The order is as in wakeup_linux.go: the request comes first, and then a second check. So
	// space that becomes free in between is not missed.
	half := uint64(len(o.producer.ring) / 2)
	if o.producer.produced-o.producer.sharedConsumed.Load() <= half {
		return true
	}
	mine.wakeAt.Store(o.producer.produced - half)
	if o.producer.produced-o.producer.sharedConsumed.Load() <= half {
		mine.wakeAt.Store(0)
		return true
	}
	return false
}

// unsent implements Conn.Unsent. The outbox updates stalledSince whenever the ring accepts bytes.
// So stalledSince is old only if the consumer has returned no space since then.
func (o *outbox) unsent() (bytes int, since time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.stalledSince.IsZero() {
		return 0, time.Time{}
	}
	return max(o.bytes, 1), o.stalledSince // a frame may consist of a head only
}

// items are frames that wait.
type items = fifo.Queue[item]

// failAll runs the Done of every frame, oldest first. No lock may be held.
func failAll(q items, err error) {
	for q.Len() > 0 {
		q.Pop().f.Done(err)
	}
}
