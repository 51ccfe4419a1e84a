package unixsock

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/transport"
)

// On the wire, a frame is
//
//	bytes  field
//	1      length of the head, at most transport.MaxHead
//	4      ID, little endian
//	8      size of the body, little endian
//	...    the head, then the body
const prefixSize = 1 + 4 + 8

// pieceSize is the maximum number of bytes of a body that move at a time. With larger pieces, a
// sender could not distinguish a slow peer from a stopped peer, and a receiver could not work on a
// body while it arrives.
const pieceSize = 256 << 10

// An arrival is the state of the reading side of a Conn. The read loop and Progress take turns:
//
//	state      whose turn   what happens
//	reading    read loop    reads a prefix and a head, then sets announced
//	announced  Progress     asks the Sink for a buffer, then sets filling
//	filling    read loop    reads a piece of the body into the buffer, then sets filled
//	filled     Progress     reports the bytes to the Sink, then sets filling, or reading after the last
//	ended      nobody       the connection has failed; Progress returns the error
type arrival int

const (
	reading arrival = iota
	announced
	filling
	filled
	ended
)

// A conn is one connection. Two goroutines do its blocking I/O, so that no method has to block.
//
// After a failed write, the read loop still runs, because frames that the peer sent earlier must be
// delivered first. Progress reports the error once the read loop has ended.
type conn struct {
	t *Transport
	s net.Conn

	mu       sync.Mutex // guards what follows
	sending  sync.Cond  // the queue is not empty, or the Conn has failed
	turn     sync.Cond  // arrival has changed, or the Conn has failed
	err      error      // the first failure, final
	closed   bool       // this side has closed; arriving frames are no longer delivered
	queue    transport.Queue
	unsent   int       // bytes of queued and half-written frames
	moved    time.Time // when unsent was last 0, or the socket last accepted bytes
	arrival  arrival
	header   transport.Header // the header of the arriving frame
	body     []byte           // where the body goes; nil: the body is dropped
	arrived  int              // bytes of the body that have arrived
	progress bool             // a goroutine is in Progress
	ready    func()           // what Arm left
}

func newConn(t *Transport, s net.Conn) *conn {
	c := &conn{t: t, s: s}
	c.sending.L, c.turn.L = &c.mu, &c.mu
	return c
}

// Send queues f for the write loop.
func (c *conn) Send(f *transport.Frame) {
	switch {
	case len(f.Head) > transport.MaxHead:
		f.Done(fault.New(fault.Misuse, "send", -1, "unixsock: got a head of %d bytes, want at most %d", len(f.Head), transport.MaxHead))
		return
	case f.To != transport.Token{}:
		f.Done(fault.New(fault.Misuse, "send", -1, "unixsock: no memory is ever exposed over this wire"))
		return
	}
	c.mu.Lock()
	err := c.err
	if err == nil {
		if c.unsent == 0 {
			c.moved = time.Now()
		}
		c.unsent += prefixSize + len(f.Head) + f.Size()
		c.queue.Push(f)
		c.sending.Signal()
	}
	c.mu.Unlock()
	if err != nil {
		f.Done(err)
	}
}

// TrySend always refuses, because the write loop sends everything.
func (c *conn) TrySend(head, body []byte) bool { return false }

// Progress does the Sink's part of an arriving frame, if it is Progress's turn.
func (c *conn) Progress(in transport.Sink, spins int) (transport.State, error) {
	c.mu.Lock()
	if c.progress {
		c.mu.Unlock()
		return transport.Busy, nil
	}
	c.progress = true
	state, header, arrived := c.arrival, c.header, c.arrived
	c.mu.Unlock()

	// The Sink may call Send, so it runs without the lock. Only this goroutine
	// ends the states announced and filled, unless the Conn fails.
	var body []byte
	switch state {
	case announced:
		body = in.Buffer(header)
	case filled:
		in.Arrived(header, arrived)
	}

	c.mu.Lock()
	defer c.mu.Unlock()
	c.progress = false
	switch {
	case c.arrival == ended:
		return transport.Idle, c.err
	case state == announced:
		c.body, c.arrival = body, filling
	case state == filled && arrived < header.Size:
		c.arrival = filling
	case state == filled:
		c.arrival = reading
	default:
		return transport.Idle, nil
	}
	c.turn.Broadcast()
	return transport.Moved, nil
}

// Arm stores the callback ready, which runs when it is next the turn of Progress.
func (c *conn) Arm(ready func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ready = ready
	if c.arrival != reading && c.arrival != filling {
		c.wake()
	}
}

// wake runs the callback that Arm has stored. The caller holds c.mu.
func (c *conn) wake() {
	if ready := c.ready; ready != nil {
		c.ready = nil
		c.t.start(ready)
	}
}

// Unsent returns the number of bytes that the socket has not accepted, and the time since which it
// has accepted none.
func (c *conn) Unsent() (int, time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.unsent == 0 || c.err != nil {
		return 0, time.Time{}
	}
	return c.unsent, c.moved
}

// Close ends the Conn at once. The write loop gives queued frames their Done. Close waits for the
// read loop, so that nothing writes into the Sink's buffers once Progress returns the error. That
// wait is short, because a closed socket ends the loop, and the loop does not call the layers
// above.
func (c *conn) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	c.fail(fault.New(fault.Closed, "close", -1, "unixsock: the connection is closed"))
	c.s.Close()
	for c.arrival != ended {
		c.turn.Wait()
	}
	c.t.remove(c)
	return nil
}

// fail records the first failure, lets both loops end, and returns the first failure. The caller
// holds c.mu.
func (c *conn) fail(err error) error {
	if c.err == nil {
		c.err = err
	}
	c.sending.Signal()
	c.turn.Broadcast()
	return c.err
}

// writeLoop writes the queued frames in order. After a failure it calls the Done of each frame with
// the error.
func (c *conn) writeLoop() {
	for {
		c.mu.Lock()
		for c.queue.First == nil && c.err == nil {
			c.sending.Wait()
		}
		f, err := c.queue.Pop(), c.err
		c.mu.Unlock()
		if f == nil {
			return
		}
		if err == nil {
			err = c.writeFrame(f)
		}
		f.Done(err)
	}
}

// writeFrame writes one frame, and blocks as long as the peer does not read. It returns the Conn's
// first error.
func (c *conn) writeFrame(f *transport.Frame) error {
	b := make([]byte, 0, prefixSize+transport.MaxHead)
	b = append(b, byte(len(f.Head)))
	b = binary.LittleEndian.AppendUint32(b, f.ID)
	b = binary.LittleEndian.AppendUint64(b, uint64(f.Size()))
	if err := c.write(append(b, f.Head...)); err != nil {
		return err
	}
	if err := c.write(f.Body); err != nil {
		return err
	}
	for _, p := range f.Parts {
		if err := c.write(p); err != nil {
			return err
		}
	}
	return nil
}

// write writes b in pieces and counts what the socket has accepted.
func (c *conn) write(b []byte) error {
	for len(b) > 0 {
		n, err := c.s.Write(b[:min(len(b), pieceSize)])
		b = b[n:]
		c.mu.Lock()
		c.unsent -= n
		c.moved = time.Now()
		if err != nil {
			err = c.fail(lost(err))
		}
		c.mu.Unlock()
		if err != nil {
			return err
		}
	}
	return nil
}

// readLoop reads frame after frame until the connection ends.
func (c *conn) readLoop() {
	r := bufio.NewReader(c.s)
	for {
		err := c.readFrame(r)
		if err == nil {
			continue
		}
		c.mu.Lock()
		c.arrival = ended // from here on nothing writes into the Sink's buffers
		c.fail(lost(err))
		c.wake()
		c.mu.Unlock()
		return
	}
}

// readFrame reads one frame and takes turns with Progress, as type arrival says.
func (c *conn) readFrame(r io.Reader) error {
	var prefix [prefixSize]byte
	if _, err := io.ReadFull(r, prefix[:]); err != nil {
		return err
	}
	size := binary.LittleEndian.Uint64(prefix[5:])
	if prefix[0] > transport.MaxHead || size > 1<<46 {
		return fmt.Errorf("got a frame with a head of %d bytes and a body of %d, want at most %d and %d", prefix[0], size, transport.MaxHead, 1<<46)
	}
	head := make([]byte, prefix[0])
	if _, err := io.ReadFull(r, head); err != nil {
		return err
	}
	h := transport.Header{Head: head, ID: binary.LittleEndian.Uint32(prefix[1:]), Size: int(size)}
	body, err := c.pass(announced, h, 0)
	for n := 0; err == nil; {
		piece := min(h.Size-n, pieceSize)
		if body == nil {
			_, err = io.CopyN(io.Discard, r, int64(piece))
		} else {
			_, err = io.ReadFull(r, body[n:n+piece])
		}
		if err != nil {
			return err
		}
		n += piece
		if _, err = c.pass(filled, h, n); n == h.Size {
			return err
		}
	}
	return err
}

// pass gives the turn to Progress and returns when it is the read loop's turn again.
func (c *conn) pass(state arrival, h transport.Header, arrived int) (body []byte, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.arrival, c.header, c.arrived = state, h, arrived
	c.wake()
	for c.arrival == state && !c.closed {
		c.turn.Wait()
	}
	if c.arrival == state {
		return nil, c.err
	}
	return c.body, nil
}

// lost returns the error for a broken connection, with the system's reason.
func lost(err error) error {
	return &fault.Error{Kind: fault.LinkLost, Op: "unixsock", Rank: -1, Err: err}
}
