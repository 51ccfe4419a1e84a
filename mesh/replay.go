package mesh

import (
	"bytes"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/transport"
)

// The bounds of a replay window. A frame of at most replayCopy bytes is copied while the memory has
// room. Each copy takes at least replayMinimum bytes, which bounds the number of copies.
const (
	replayMemory  = 256 << 10
	replayCopy    = 32<<10 + transport.MaxHead
	replayMinimum = 256
)

// A frame's ID carries the number of frames that its sender has received, modulo 1<<31. The highest
// bit asks the peer for an acknowledgement.
const (
	ackMask   = 1<<31 - 1
	ackWanted = 1 << 31
)

// A position says how far one end of a link has got: the number of the Conn, counted from 1, and
// how many frames have arrived whole. An epoch of 0 says that this end cannot open the link again.
// The hello and the welcome of a data Conn carry a position.
//
// The field after is not sent. It is the link's epoch when the position was taken. If another Conn
// has come up since, frames may have arrived on it, and the position is void.
type position struct {
	epoch    uint32
	received uint64
	after    uint32
}

// A replayConn is the Conn of a link that is opened again when it breaks. It outlives the Conns
// below it, one after the other, and numbers the frames. It keeps each frame until the peer has
// acknowledged it. The handshake of the next Conn tells each end how many frames the other end has
// received, and each end sends the later frames again.
//
//	wire  meaning
//	set   frames go to the Conn
//	nil   the Conn has broken, or is not open yet; frames wait in the window
//
// The window holds the frames that are not acknowledged, oldest first:
//
//	acknowledged │ the Conn has them │ unsent
//	             base             fed
//
// A small frame is copied, and its Done runs at once. A large frame, and any frame for which the
// copies have no room, stays in its sender's memory, and its Done runs at the acknowledgement. So
// the memory that waiting frames occupy is bounded by replayMemory and by the credits of the layer
// above. Most acknowledgements travel on frames. A frame without a head is only an acknowledgement.
// It answers a frame that asked for an acknowledgement.
//
// Two frames with the same number are equal. If a Conn breaks within a frame, the frame comes again
// whole, into the buffer that the Sink has chosen before.
type replayConn struct {
	l        *Link
	wire     atomic.Pointer[meteredWire]
	received atomic.Uint64 // frames that have arrived whole; owned by the link's Progress
	in       inbound       // owned by the link's Progress
	ack      transport.Frame

	mu      sync.Mutex // guards the rest; held for a few instructions, or one copy
	err     error      // set by Close
	opened  bool       // frames waited when the last Conn was opened
	ready   func()     // the wake-up, while there is no Conn to arm
	feeding bool       // a goroutine passes frames to the Conn, in order
	ackSent uint64     // the count of received frames that the last frame or acknowledgement
	// carried
	acking  bool // a Conn is sending ack
	ackMore bool // another acknowledgement was asked for meanwhile

	first, last, unsent *sentFrame
	base, fed           uint64 // the numbers of first and unsent
	acked               uint64 // frames that the peer has; at least base, at most fed
	top                 uint64 // the highest value that fed has had; resume may lower fed
	mark                uint64 // the value of acked when the last Conn was opened
	unasked             int    // bytes of mem taken since a frame asked for an acknowledgement
	free                *sentFrame

	mem               []byte // a ring of copies, in the order of the frames
	memStart, memUsed int
}

// A meteredWire is a Conn below a replayConn.
type meteredWire struct {
	transport.Conn
	meter
}

// A sentFrame is a frame in the window. Its memory may be released once the peer has acknowledged
// it and no Conn uses it.
type sentFrame struct {
	out   *outFrame
	owner *transport.Frame // its Done runs at the acknowledgement; nil: the frame was copied
	cost  int              // bytes of the ring
	asks  bool             // it asks for an acknowledgement
	uses  int              // Conns that have not called Done yet
	next  *sentFrame
}

// An outFrame is the form in which a Conn gets a sentFrame. A Conn that has broken may keep its
// outFrame for a while. The next Conn then gets another outFrame.
type outFrame struct {
	transport.Frame
	c    *replayConn
	sent *sentFrame
}

// canReplay returns the Conn with its counts, or nil if links over such Conns are not opened again.
// A link over a Conn that exposes memory is not opened again, because the peer's writes carry no
// number.
func canReplay(c transport.Conn) *meteredWire {
	t, counts := c.(meter)
	if _, exposes := c.(transport.Exposer); exposes || !counts {
		return nil
	}
	return &meteredWire{c, t}
}

// newReplayConn returns a replayConn without a Conn.
func newReplayConn(l *Link) *replayConn {
	c := &replayConn{l: l}
	c.in.c, c.ack.Done = c, c.ackDone
	return c
}

// newOut returns an outFrame of s.
func (c *replayConn) newOut(s *sentFrame) *outFrame {
	o := &outFrame{c: c, sent: s}
	o.Done = o.done
	return o
}

// Send implements transport.Conn.
func (c *replayConn) Send(f *transport.Frame) {
	c.mu.Lock()
	if c.err != nil {
		err := c.err
		c.mu.Unlock()
		f.Done(err)
		return
	}
	s := c.push(f)
	copied := s.owner == nil
	c.mu.Unlock()
	c.feed()
	if copied {
		f.Done(nil)
	}
}

// push adds f to the window. The lock is held.
func (c *replayConn) push(f *transport.Frame) *sentFrame {
	s := c.free
	if s == nil {
		s = new(sentFrame)
		s.out = c.newOut(s)
	} else {
		c.free, s.next = s.next, nil
	}
	size := f.Size()
	if mem := c.alloc(s, len(f.Head)+size); mem != nil {
		mem = append(append(mem, f.Head...), f.Body...)
		for _, p := range f.Parts {
			mem = append(mem, p...)
		}
		s.out.Head, s.out.Body = mem[:len(f.Head):len(f.Head)], mem[len(f.Head):]
	} else {
		s.owner = f
		s.out.Head, s.out.Body, s.out.Parts = f.Head, f.Body, f.Parts
	}
	c.unasked += max(len(f.Head)+size, replayMinimum)
	if s.asks = s.owner != nil || c.unasked >= replayMemory/2; s.asks {
		c.unasked = 0
	}
	if c.first == nil {
		c.first = s
	} else {
		c.last.next = s
	}
	c.last = s
	if c.unsent == nil {
		c.unsent = s
	}
	return s
}

// alloc returns memory for n bytes of s, or nil if a frame of that size is not copied now.
func (c *replayConn) alloc(s *sentFrame, n int) []byte {
	if n > replayCopy {
		return nil
	}
	if c.mem == nil {
		c.mem = make([]byte, replayMemory)
	}
	cost := max(n, replayMinimum)
	at := (c.memStart + c.memUsed) % len(c.mem)
	if at+cost > len(c.mem) { // memory in one piece is left only at the beginning
		cost += len(c.mem) - at
		at = 0
	}
	if c.memUsed+cost > len(c.mem) {
		return nil
	}
	c.memUsed += cost
	s.cost = cost
	return c.mem[at : at : at+n]
}

// feed passes the unsent frames to the Conn. Only one goroutine at a time does so. It also passes
// the frames that other goroutines add meanwhile. So the frames keep their order, although the lock
// is free while the Conn writes.
func (c *replayConn) feed() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.feeding {
		return
	}
	c.feeding = true
	for c.unsent != nil && c.err == nil {
		w := c.wire.Load()
		if w == nil {
			break
		}
		s := c.unsent
		c.unsent = s.next
		c.fed++
		c.top = max(c.top, c.fed)
		s.uses++
		o := s.out
		c.ackSent = c.received.Load()
		o.ID = uint32(c.ackSent) & ackMask
		if s.asks {
			o.ID |= ackWanted
		}
		c.mu.Unlock()
		w.Send(&o.Frame)
		c.mu.Lock()
	}
	c.feeding = false
}

// done is called by the Conn. Most errors need no action here, because they mean that the Conn has
// failed. A fault.Misuse fails the link, because the Conn has refused the frame and goes on without
// it.
func (o *outFrame) done(err error) {
	if errors.Is(err, fault.Misuse) {
		o.c.l.DeferFailure(err)
	}
	o.c.mu.Lock()
	o.sent.uses--
	o.c.releaseAndUnlock()
}

// releaseAndUnlock drops the frames that are no longer needed, oldest first. A frame is no longer
// needed when no Conn uses it, and the peer has it or Close was called. It unlocks mu before it
// calls the Done of their owners.
func (c *replayConn) releaseAndUnlock() {
	var done, failed transport.Queue
	for s := c.first; s != nil && s.uses == 0 && (c.base < c.acked || c.err != nil); s = c.first {
		switch {
		case s.owner == nil:
			c.memStart, c.memUsed = (c.memStart+s.cost)%len(c.mem), c.memUsed-s.cost
		case c.base < c.acked:
			done.Push(s.owner)
		default:
			failed.Push(s.owner)
		}
		c.base++
		c.first = s.next
		if c.unsent == s { // only after Close
			c.unsent = s.next
		}
		s.out.Head, s.out.Body, s.out.Parts = nil, nil, nil
		*s = sentFrame{out: s.out, next: c.free}
		c.free = s
	}
	err := c.err
	c.mu.Unlock()
	finishFrames(&done, nil)
	finishFrames(&failed, err)
}

// finishFrames calls the Done of all frames in q.
func finishFrames(q *transport.Queue, err error) {
	for f := q.Pop(); f != nil; f = q.Pop() {
		f.Done(err)
	}
}

// handleAck records that the peer has received n frames, modulo 1<<31. A newer acknowledgement may
// overtake an older one, so a count below the last one is ignored. The link's Progress calls
// handleAck.
func (c *replayConn) handleAck(n uint32) {
	if n == c.in.acked {
		return
	}
	c.in.acked = n
	c.mu.Lock()
	more := int32((n-uint32(c.acked))<<1) >> 1
	if more > 0 && c.acked+uint64(more) > c.fed {
		c.mu.Unlock()
		c.l.DeferFailure(fault.New(fault.Refused, "receive", c.l.m.Rank(), "rank %d acknowledges %d frames more than were sent", c.l.Rank, more))
		return
	}
	c.acked += uint64(max(more, 0))
	c.releaseAndUnlock()
}

// sendAck sends an acknowledgement by itself, unless a frame has carried it meanwhile. Only one
// such acknowledgement is in a Conn at a time, so a peer that asks and does not read costs no
// memory.
func (c *replayConn) sendAck() {
	c.mu.Lock()
	w, n := c.wire.Load(), c.received.Load()
	c.ackMore = c.acking
	if w == nil || c.acking || c.ackSent == n {
		c.mu.Unlock()
		return
	}
	c.acking, c.ackSent = true, n
	c.ack.ID = uint32(n) & ackMask
	c.mu.Unlock()
	w.Send(&c.ack)
}

// ackDone is called by the Conn that has sent the acknowledgement, or has failed.
func (c *replayConn) ackDone(error) {
	c.mu.Lock()
	c.acking = false
	more := c.ackMore
	c.mu.Unlock()
	if more {
		c.sendAck()
	}
}

// drop ends the use of the Conn and closes it. It returns false if there is no Conn.
func (c *replayConn) drop() bool {
	w := c.wire.Swap(nil)
	if w == nil {
		return false
	}
	w.Close()
	return true
}

// resume makes w the Conn. The argument received is the number of frames that the peer has
// received; the later frames are sent again. The caller then calls start. The result moved reports
// whether the last Conn delivered a frame to the peer, acknowledged or not.
func (c *replayConn) resume(w *meteredWire, received uint64) (moved bool, err error) {
	c.mu.Lock()
	if received < c.acked || received > c.top {
		defer c.mu.Unlock()
		if received < c.acked {
			return false, errStale
		}
		return false, fault.New(fault.Refused, "dial", c.l.m.Rank(), "frames that rank %d has received: got %d, want at most the %d that were sent", c.l.Rank, received, c.top)
	}
	moved = received > c.mark
	c.acked, c.mark, c.ackSent = received, received, c.received.Load()
	c.unsent, c.fed = c.first, received
	for n := c.base; n < received; n++ {
		c.unsent = c.unsent.next
	}
	for s := c.unsent; s != nil; s = s.next {
		if s.uses > 0 {
			out := c.newOut(s)
			out.Head, out.Body, out.Parts = s.out.Head, s.out.Body, s.out.Parts
			s.out = out
		}
	}
	c.opened = c.unsent != nil
	if c.opened {
		c.unsent.asks = true
	}
	c.unasked = replayMemory // the first frame asks, so that its delivery is known
	c.wire.Store(w)
	c.mu.Unlock()
	return moved, nil
}

// start releases the frames that the peer has received, sends the frames that wait, and arms the
// Conn if Arm was called meanwhile. It calls Done, so the caller holds no lock.
func (c *replayConn) start() {
	c.mu.Lock()
	ready := c.ready
	c.ready = nil
	c.releaseAndUnlock()
	if ready != nil {
		c.Arm(ready)
	}
	c.feed()
}

// isStuck reports whether the link was opened again while frames waited, and has not delivered a
// frame since. A link that was opened again while no frame waited is not stuck.
func (c *replayConn) isStuck() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.opened && c.first != nil && c.acked == c.mark
}

// TrySend implements transport.Conn. It sends nothing, because a frame must be kept in the window.
func (c *replayConn) TrySend(head, body []byte) bool { return false }

// Progress implements transport.Conn. If the Conn below has failed, the first caller gets its
// error. A Conn whose peer breaks the protocol (fault.Refused) is not replaced, because the link
// fails.
func (c *replayConn) Progress(in transport.Sink, spins int) (transport.State, error) {
	w := c.wire.Load()
	if w == nil {
		return transport.Idle, nil
	}
	c.in.sink = in
	state, err := w.Progress(&c.in, spins)
	if c.in.ackNeeded {
		c.in.ackNeeded = false
		c.sendAck()
	}
	if err != nil && !errors.Is(err, fault.Refused) {
		if !c.wire.CompareAndSwap(w, nil) {
			return transport.Idle, nil
		}
		w.Close()
	}
	return state, err
}

// Arm implements transport.Conn.
func (c *replayConn) Arm(ready func()) {
	c.mu.Lock()
	w := c.wire.Load()
	if w == nil {
		c.ready = ready
	}
	c.mu.Unlock()
	if w != nil {
		w.Arm(ready)
	}
}

// Unsent implements transport.Conn.
func (c *replayConn) Unsent() (bytes int, since time.Time) {
	if w := c.wire.Load(); w != nil {
		return w.Unsent()
	}
	return 0, time.Time{}
}

// Close implements transport.Conn.
func (c *replayConn) Close() error {
	c.mu.Lock()
	if c.err == nil {
		c.err = fault.New(fault.Closed, "send", c.l.m.Rank(), "the link to rank %d is closed", c.l.Rank)
	}
	c.releaseAndUnlock()
	c.drop()
	return nil
}

// An inbound is the Sink of the Conns below a replayConn. It passes each frame to the layer above
// once.
type inbound struct {
	c         *replayConn
	sink      transport.Sink
	acked     uint32 // the last acknowledgement
	ackNeeded bool   // a frame asked for an acknowledgement
	bare      bool   // the arriving frame is only an acknowledgement
	asks      bool   // the arriving frame asks for an acknowledgement

	// The frame for which the Sink has chosen a buffer and which has not arrived whole. It is kept
	// when its Conn breaks.
	active bool
	header transport.Header
	head   [transport.MaxHead]byte
	dst    []byte
	most   int // the number of bytes in the last call of the Sink's Arrived; 0: no call yet
}

// Buffer implements transport.Sink.
func (in *inbound) Buffer(h transport.Header) []byte {
	in.c.handleAck(h.ID & ackMask)
	in.bare = len(h.Head) == 0
	if in.bare {
		if h.Size != 0 { // the preamble is damaged, and the following frames would be read as a
			// body
			in.c.l.DeferFailure(fault.New(fault.Refused, "receive", in.c.l.m.Rank(), "rank %d has sent an acknowledgement with a body of %d bytes, want 0", in.c.l.Rank, h.Size))
		}
		return nil
	}
	in.asks = h.ID&ackWanted != 0
	if in.active {
		if h.Size != in.header.Size || !bytes.Equal(h.Head, in.header.Head) {
			in.c.l.DeferFailure(fault.New(fault.Refused, "receive", in.c.l.m.Rank(), "rank %d has repeated a frame with another head or size", in.c.l.Rank))
			in.bare = true
			return nil
		}
		return in.dst
	}
	in.active, in.most = true, 0
	in.header = transport.Header{Head: in.head[:copy(in.head[:], h.Head)], Size: h.Size}
	in.dst = in.sink.Buffer(in.header)
	return in.dst
}

// Arrived implements transport.Sink. It counts a frame before the layer above learns of it, so that
// an answer acknowledges the frame.
func (in *inbound) Arrived(h transport.Header, n int) {
	if in.bare {
		return
	}
	if n == h.Size {
		in.active, in.dst = false, nil
		in.ackNeeded = in.ackNeeded || in.asks
		in.c.received.Add(1)
	} else if n <= in.most {
		return
	}
	in.most = n
	in.sink.Arrived(in.header, n)
}
