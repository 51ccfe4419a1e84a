package tcp

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/poll"
	"github.com/tutti-go/tutti/transport"
)

// An outbox holds the frames that wait to be written, and appoints the goroutine that writes them:
// the writer. There is at most one writer. Other goroutines queue their frames and return; the
// writer sends these frames, too. No lock is held during a write or a Done, and no goroutine waits
// for the writer.
//
//	queue  writing  blocked  meaning
//	empty  no       no       nothing to do; push makes its caller the writer
//	any    yes      no       a goroutine writes
//	some   no       yes      the socket is full: the next Progress becomes the writer
//	empty  no       no, err  closed: push fails its frame
type outbox struct {
	blocked atomic.Bool // frames wait and there is no writer: the next Progress becomes the writer

	received atomic.Uint64 // bytes of frames that have arrived; set by the Conn's reader
	acked    atomic.Uint64 // bytes that the peer has acknowledged; set by the Conn's reader

	mu      sync.Mutex // guards the rest
	queue   transport.Queue
	first   cursor    // the cursor of the queue's first frame, once that frame is in a batch
	sent    int       // bytes of the queue's first frame that have been written
	bytes   int       // the bytes of all frames in queue, less sent
	since   time.Time // when the wire last took bytes, or first refused some; zero: none refused
	writing bool      // there is a writer
	err     error     // why push fails; nil while the Conn lives
	frames  int       // the maximum number of frames in one batch
	seq     uint32    // number of the queue's first frame
	written uint64    // the total number of bytes of frames that have been written

	batch batch // belongs to the writer; under mu when there is none
}

// admitPeer lets batches grow, once the peer is authenticated.
func (o *outbox) admitPeer() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.frames = batchFrames
}

// A cursor is the position in a frame's body up to which all parts have been completely written.
type cursor struct {
	f       *transport.Frame
	size    int      // bytes of the whole body
	parts   [][]byte // the parts of the frame that have not been completely written
	skipped int      // bytes of the body before these parts
	ack     uint64   // the frame's acknowledgement; the same while the frame is written
}

// newCursor returns the cursor of a frame of which nothing has been written.
func newCursor(f *transport.Frame, ack uint64) cursor {
	return cursor{f: f, size: f.Size(), parts: f.Parts, skipped: len(f.Body), ack: ack}
}

// check returns an error if f can never be sent. The argument size is the size of its body.
func check(f *transport.Frame, size int) error {
	switch {
	case len(f.Head) > transport.MaxHead:
		return failure(fault.Misuse, "send",
			fmt.Errorf("got a head of %d bytes, want at most %d", len(f.Head), transport.MaxHead))
	case int64(size) > MaxBody:
		return failure(fault.Misuse, "send", fmt.Errorf("got a body of %d bytes, want at most %d", size, MaxBody))
	case f.To != transport.Token{}:
		return failure(fault.Misuse, "send", fmt.Errorf("got a frame with a Token, want none: tcp exposes no memory"))
	}
	return nil
}

// push queues f. If it returns true, the caller has become the writer, and the batch holds the
// bytes to write. A frame that cannot be sent gets its Done here.
//
// The check of the size precedes the lock. If check refuses a frame, the Conn stays usable, because
// the contract of Conn.Send requires this.
func (o *outbox) push(f *transport.Frame) (write bool) {
	size := f.Size()
	if err := check(f, size); err != nil {
		f.Done(err)
		return false
	}
	o.mu.Lock()
	if o.err != nil {
		err := o.err
		o.mu.Unlock()
		f.Done(err)
		return false
	}
	o.queue.Push(f)
	o.bytes += preambleLen + len(f.Head) + size
	write = !o.writing && !o.blocked.Load()
	if write {
		o.writing = true
		o.fill()
	}
	o.mu.Unlock()
	return write
}

// resume makes the caller the writer if frames wait and there is no writer. Progress calls it.
//
// Progress calls it on every turn while blocked is set, without knowing whether the socket has
// room. A write that gets EAGAIN costs one system call.
func (o *outbox) resume() (write bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.writing || o.queue.First == nil {
		return false
	}
	o.writing = true
	o.blocked.Store(false)
	o.fill()
	return true
}

// fill puts the next frames of the queue into the batch. The lock is held.
//
// Only the first frame may be partly written. Its cursor is kept from batch to batch. The other
// frames start at their beginning.
func (o *outbox) fill() {
	if len(o.batch.prefixes) < o.frames {
		o.batch = newBatch(o.frames)
	}
	o.batch.reset()
	o.batch.ack = o.received.Load()
	f, seq := o.queue.First, o.seq
	if o.first.f != f {
		o.first = newCursor(f, o.batch.ack)
	}
	more := o.batch.add(f, &o.first, seq, o.sent)
	for f = f.Next; f != nil && more; f = f.Next {
		seq++
		c := newCursor(f, o.batch.ack)
		more = o.batch.add(f, &c, seq, 0)
	}
}

// advance records that n bytes of the batch were written, and moves the frames that are complete to
// the queue done.
func (o *outbox) advance(n int, refused bool, done *transport.Queue) {
	o.mu.Lock()
	defer o.mu.Unlock()
	// The clock is read only while the socket refuses bytes, so that writing at full speed does not
	// pay for reading it.
	if refusing := !o.since.IsZero(); refusing && n > 0 || !refusing && refused {
		o.since = time.Now()
	}
	o.bytes -= n
	o.written += uint64(n)
	for n > 0 {
		f := o.queue.First
		if o.first.f != f {
			o.first = newCursor(f, o.batch.ack)
		}
		left := preambleLen + len(f.Head) + o.first.size - o.sent
		if n < left {
			o.sent += n
			o.first.advance(o.sent - preambleLen - len(f.Head))
			return
		}
		n -= left
		o.sent, o.first = 0, cursor{}
		o.seq++
		done.Push(o.queue.Pop())
	}
}

// advance skips the parts that lie within the first n bytes of the body. So a write does not search
// a body of many parts from its beginning.
//
// It runs once per write, and visits each part only once in all.
func (c *cursor) advance(n int) {
	for len(c.parts) > 0 && c.skipped+len(c.parts[0]) <= n {
		c.skipped += len(c.parts[0])
		c.parts = c.parts[1:]
	}
}

// next gives the writer its next batch. It returns false if nothing is left, if the outbox is
// closed, or if the argument stop says that the socket is full. The caller is then no longer the
// writer. If the outbox is closed, next moves the waiting frames to the queue failed.
func (o *outbox) next(stop bool, failed *transport.Queue) (write bool, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.err != nil:
		o.drain(failed)
	case o.queue.First == nil:
		o.since = time.Time{}
	case stop:
		o.blocked.Store(true)
	default:
		o.fill()
		return true, nil
	}
	o.writing = false
	o.batch.reset() // drops the references to the frames' memory
	return false, o.err
}

// close makes err the Conn's first error, unless the Conn already has a first error. Every later
// frame fails with the first error, so Send also fails for a caller that has seen the error. If
// there is no writer, close moves the waiting frames to the queue failed. Otherwise the writer does
// so.
//
// The first error is set under the same lock as err. Otherwise a goroutine could see the Conn's
// error, and a later Send could still succeed.
func (o *outbox) close(first *poll.FirstError, err error, failed *transport.Queue) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	err = first.Set(err)
	if o.err == nil {
		o.err = err
	}
	if !o.writing {
		o.drain(failed)
	}
	return o.err
}

// drain moves all waiting frames to the queue failed. The lock is held, and there is no writer.
func (o *outbox) drain(failed *transport.Queue) {
	*failed = o.queue
	o.queue, o.first = transport.Queue{}, cursor{}
	o.bytes, o.sent, o.since = 0, 0, time.Time{}
	o.blocked.Store(false)
}

// beginWrite records that the writer is about to block in a write. The stream's writer calls it, so
// that the time counts as a stall if the write does not return.
func (o *outbox) beginWrite() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.since.IsZero() {
		o.since = time.Now()
	}
}

// abandon fails all waiting frames, including the frames in the writer's batch. It is called when
// the outbox is closed and its writer goroutine ends.
func (o *outbox) abandon() {
	var failed transport.Queue
	o.mu.Lock()
	o.drain(&failed)
	o.writing = false
	err := o.err
	o.mu.Unlock()
	finish(&failed, err)
}

// unsent implements Conn.Unsent. Bytes in the socket's buffer do not count.
//
// While the socket refuses bytes, the result since is the time of the last write that moved bytes.
// While the socket accepts everything, it is the zero time, however long the queue is.
//
// A closed outbox reports 0, even if its writer has not yet noticed that it is closed.
func (o *outbox) unsent() (bytes int, since time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err != nil || o.since.IsZero() {
		return 0, time.Time{}
	}
	return o.bytes, o.since
}

// noteArrival records what the decoder has delivered, for the frames that leave next and for
// traffic. The Conn's reader calls it after something has arrived.
func (o *outbox) noteArrival(d *decoder) {
	o.received.Store(d.total)
	o.acked.Store(d.ack)
}

// traffic returns the counts for the method Traffic of a Conn.
func (o *outbox) traffic() (sent, acked, received uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.written, o.acked.Load(), o.received.Load()
}

// finish calls the Done of every frame in q, oldest first. No lock may be held.
func finish(q *transport.Queue, err error) {
	for f := q.Pop(); f != nil; f = q.Pop() {
		f.Done(err)
	}
}
