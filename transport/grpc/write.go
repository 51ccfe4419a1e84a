package grpc

import (
	"slices"
	"time"

	"google.golang.org/grpc/mem"

	"github.com/tutti-go/tutti/transport"
)

// A message is the content of one SendMsg. It begins with copied preambles, heads and small bodies.
// At most one uncopied piece of a large body follows.
//
// The message is the mem.BufferPool of its own buffers, so that gRPC calls Put to release a buffer.
// gRPC releases a buffer after it has copied the bytes to the connection's write buffer
// (loopyWriter.processData), or has dropped them with the stream. If a connection fails, gRPC may
// drop a stream without a release (loopyWriter.run); drain then completes its frames.
//
// A message is reused after its last release. gRPC reads the field bufs to release the buffers, and
// only one goroutine does so at a time. So no goroutine of gRPC reads bufs after the last release.
//
//	refs  inFlight  meaning
//	0     no        in idle, or new
//	> 0   yes       gRPC holds it
//	0     yes       its last buffer is being released, under mu
type message struct {
	conn  *conn
	small []byte // capacity above 1 KiB: gRPC does not release smaller buffers
	large []byte // the caller's memory; also longer than 1 KiB
	bufs  mem.BufferSlice
	space [2]mem.Buffer    // backs bufs
	refs  int              // buffers that gRPC has not released; conn.mu guards it
	size  int              // bytes in all
	frame *transport.Frame // gets its Done when the message is released; nil: none
}

// Get satisfies mem.BufferPool. gRPC does not call it, because it only returns buffers to this
// pool.
func (m *message) Get(n int) *[]byte { b := make([]byte, n); return &b }

// Put releases one buffer. gRPC calls it, possibly with its own locks held (controlBuffer.finish).
// So Put locks only mu, and leaves the frame's Done to another goroutine: see complete. After
// drain, a release has no effect on the Conn.
//
// Put ignores its argument, because a message only counts its buffers, and gRPC releases each
// buffer once.
func (m *message) Put(*[]byte) {
	c := m.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	m.refs--
	if i := slices.Index(c.inFlight, m); m.refs == 0 && i >= 0 {
		c.inFlight = slices.Delete(c.inFlight, i, i+1)
		c.released(m)
	}
}

// released handles a message whose memory gRPC no longer needs. mu is held.
func (c *conn) released(m *message) {
	c.unsent -= m.size
	c.written += uint64(m.size)
	c.lastWrite = time.Now()
	if m.frame != nil {
		c.complete(m.frame)
	}
	*m = message{conn: c, small: m.small[:0]}
	c.idle = append(c.idle, m)
	c.cond.Broadcast()
}

// complete schedules f's Done on another goroutine. On the current goroutine gRPC may hold locks
// that Done may need, for example by calling Send. This switch of goroutines costs about a
// microsecond, but only for frames above tuning.copied. mu is held.
//
// One goroutine runs all scheduled completions, in the order in which gRPC has released the frames.
func (c *conn) complete(f *transport.Frame) {
	e := completion{frame: f}
	if c.err != nil {
		e.err = c.err
	}
	c.completions = append(c.completions, e)
	if !c.completing {
		c.completing = true
		go c.runCompletions()
	}
}

// runCompletions calls the Done of frames whose memory is free, in order.
func (c *conn) runCompletions() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.completions) > 0 {
		e := c.completions[0]
		c.completions = slices.Delete(c.completions, 0, 1)
		c.mu.Unlock()
		e.frame.Done(e.err)
		c.mu.Lock()
	}
	c.completing = false
	c.cond.Broadcast()
}

// next makes a message from queued frames, and sets writing. The queue must not be empty. next also
// returns the frames that it has copied completely, whose memory is free. mu is held, and writing
// is not set.
//
// Frames are taken in order until one of these happens:
//
//	a large piece is attached       a message carries one uncopied piece, at its end
//	a frame's last piece is copied  after uncopied pieces: its Done waits for this message
//	the batch is full               the size of a message is bounded
//	the queue is empty
func (c *conn) next() (*message, transport.Queue) {
	c.writing = true
	m := c.getMessage()
	var copied transport.Queue
	for f := c.out.First; f != nil && m.large == nil && m.frame == nil; f = c.out.First {
		if !c.begun {
			c.rest = piecesOf(f)
		}
		piece := c.rest.first
		small := len(piece) <= c.tune.copied
		if n := len(m.small); n > 0 && n+preambleSize+transport.MaxHead+len(piece) > c.tune.batch && small {
			break
		}
		if !c.begun {
			m.small = appendPreamble(m.small, f, c.seq, c.received.Load())
			c.seq++
			c.begun = true
		}
		if !small {
			c.attach(m)
			continue
		}
		m.small = append(m.small, piece...)
		switch {
		case c.rest.next():
		case c.rest.uncopied:
			m.frame = c.pop() // gRPC's release of this message frees the frame's memory
		default:
			copied.Push(c.pop())
		}
	}
	m.makeBuffers()
	c.inFlight = append(c.inFlight, m)
	return m, copied
}

// attach adds the next bytes of the first frame's body to m. The last part of a piece may be
// slightly longer than tuning.segment, so that no part is so small that gRPC would not release it.
func (c *conn) attach(m *message) {
	n := len(c.rest.first)
	if n > c.tune.segment+c.tune.copied {
		n = c.tune.segment
	}
	m.large = c.rest.first[:n]
	c.rest.first, c.rest.uncopied = c.rest.first[n:], true
	if len(c.rest.first) == 0 && !c.rest.next() {
		m.frame = c.pop()
	}
}

// pop removes the first frame from the queue. The whole frame has been given to gRPC.
func (c *conn) pop() *transport.Frame {
	c.begun, c.rest = false, pieces{}
	return c.out.Pop()
}

// pieces is the unsent rest of a body.
type pieces struct {
	first    []byte
	more     [][]byte
	uncopied bool // part of the body is sent from the caller's memory
}

// piecesOf returns the pieces of a frame of which nothing has been sent.
func piecesOf(f *transport.Frame) pieces {
	p := pieces{first: f.Body, more: f.Parts}
	if len(p.first) == 0 {
		p.next()
	}
	return p
}

// next advances to the next piece that has bytes. It returns false when there is none.
func (p *pieces) next() bool {
	for p.first = nil; len(p.more) > 0; {
		p.first, p.more = p.more[0], p.more[1:]
		if len(p.first) > 0 {
			return true
		}
	}
	return false
}

// getMessage returns an empty message. It reuses an idle message if possible. mu is held.
func (c *conn) getMessage() *message {
	n := len(c.idle)
	if n == 0 {
		return &message{conn: c, small: make([]byte, 0, smallSize)}
	}
	m := c.idle[n-1]
	c.idle = c.idle[:n-1]
	return m
}

// makeBuffers wraps the memory of m for gRPC.
func (m *message) makeBuffers() {
	m.bufs = m.space[:0]
	for _, b := range []*[]byte{&m.small, &m.large} {
		if len(*b) > 0 {
			m.bufs = append(m.bufs, mem.NewBuffer(b, m))
			m.refs++
			m.size += len(*b)
		}
	}
}

// sendMessage gives m to gRPC and clears writing. It calls the Done of the copied frames while
// writing is still set. A Done that sends again then only queues its frame, so the stack does not
// grow.
//
// SendMsg may block in flow control. writeLoop sends the frames that are queued in the meantime.
func (c *conn) sendMessage(m *message, copied transport.Queue) {
	err := c.stream.SendMsg(m)
	finish(&copied, nil)
	c.mu.Lock()
	c.writing = false
	c.broken = c.broken || err != nil
	if c.err != nil || c.broken || c.out.First != nil {
		c.cond.Broadcast()
	}
	c.mu.Unlock()
}

// writeLoop sends the frames that Send could not send, until the Conn ends. While gRPC holds
// maxInFlight messages of the Conn, small frames are collected for the next message.
func (c *conn) writeLoop(closeSend func() error) {
	defer close(c.writeEnd)
	for {
		m, copied := c.nextMessage()
		if m == nil {
			break
		}
		finish(&copied, nil)
		c.sendMessage(m, transport.Queue{})
	}
	if closeSend != nil {
		closeSend()
	}
}

// nextMessage waits until a frame is queued and gRPC may be given another message. It returns nil
// when the Conn has ended and no goroutine is in SendMsg.
func (c *conn) nextMessage() (*message, transport.Queue) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		switch over := c.broken || c.err != nil; {
		case c.writing:
		case over:
			return nil, transport.Queue{}
		case c.out.First != nil && len(c.inFlight) < maxInFlight:
			return c.next()
		}
		c.cond.Wait()
	}
}

// drain completes the frames that gRPC has not released, and waits until every Done has returned.
// It is called after gRPC has stopped.
//
// No goroutine of gRPC runs any more, so nothing reads the frames' memory.
func (c *conn) drain() {
	c.mu.Lock()
	var rest transport.Queue
	for _, m := range c.inFlight {
		if m.frame != nil {
			rest.Push(m.frame)
		}
	}
	for f := c.out.Pop(); f != nil; f = c.out.Pop() {
		rest.Push(f)
	}
	c.inFlight, c.idle, c.unsent, c.begun = nil, nil, 0, false
	err := c.err
	for c.completing {
		c.cond.Wait()
	}
	c.mu.Unlock()
	finish(&rest, err)
}
