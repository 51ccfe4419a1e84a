// Package relay forwards TCP connections between two ranks. It can cut them, and it can drop,
// double, reorder or corrupt their frames. As with a proxy, the kernel of the relay acknowledges
// everything at once, so that neither end learns from its own kernel what was lost.
//
// It knows how tcp, HTTP/2 and TLS divide a stream into frames, and not what the frames mean.
package relay

import (
	"encoding/binary"
	"net"
	"sync"
)

// A Filter returns the bytes that a relay forwards in place of the bytes p. It may keep p. Only one
// goroutine at a time calls it. While it waits, its direction of the connection stands still.
type Filter func(p []byte) []byte

// A Relay forwards connections to one address. Its methods may be called concurrently.
type Relay struct {
	listener net.Listener
	target   string
	cutters  func(conn int) (up, down Cutter)
	work     sync.WaitGroup
	accepted chan struct{} // closed when accept has ended

	mu    sync.Mutex // guards the fields below
	conns []net.Conn
}

// New starts a Relay. The function filters returns the Filters of connection number conn, counted
// from 0. The Filter up is for the bytes of the dialling side, and down is for the bytes in the
// other direction. A nil Filter forwards everything.
func New(target string, filters func(conn int) (up, down Filter)) (*Relay, error) {
	return newRelay(target, func(conn int) (up, down Cutter) {
		a, b := filters(conn)
		return a.whole, b.whole
	})
}

// A Cutter returns the bytes that a Relay forwards in place of the bytes p, and whether the Relay
// then resets both ends of the connection. Only one goroutine at a time calls it.
type Cutter func(p []byte) (out []byte, cut bool)

// whole is the Cutter of a Filter, which may be nil.
func (f Filter) whole(p []byte) ([]byte, bool) {
	if f == nil {
		return p, false
	}
	return f(p), false
}

// CutAfter returns a Cutter that passes n bytes unchanged and then cuts the connection. If n is
// negative, it passes all bytes.
func CutAfter(n int) Cutter {
	return func(p []byte) ([]byte, bool) {
		if n < 0 {
			return p, false
		}
		p = p[:min(len(p), n)]
		n -= len(p)
		return p, n == 0
	}
}

func newRelay(target string, cutters func(conn int) (up, down Cutter)) (*Relay, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	r := &Relay{listener: l, target: target, cutters: cutters, accepted: make(chan struct{})}
	r.work.Go(r.accept)
	return r, nil
}

// accept forwards each connection until Close.
func (r *Relay) accept() {
	defer close(r.accepted)
	for n := 0; ; n++ {
		near, err := r.listener.Accept()
		if err != nil {
			return
		}
		far, err := net.Dial("tcp", r.target)
		if err != nil {
			near.Close()
			continue
		}
		r.mu.Lock()
		r.conns = append(r.conns, near, far)
		r.mu.Unlock()
		up, down := r.cutters(n)
		reset := func() { resetAll(near, far) }
		r.work.Go(func() { forward(far, near, up, reset) })
		r.work.Go(func() { forward(near, far, down, reset) })
	}
}

// Addr returns the address whose connections the Relay forwards.
func (r *Relay) Addr() string { return r.listener.Addr().String() }

// Cut resets all connections at both ends. Later connections are forwarded.
func (r *Relay) Cut() {
	r.mu.Lock()
	defer r.mu.Unlock()
	resetAll(r.conns...)
	r.conns = nil
}

// resetAll resets connections.
func resetAll(conns ...net.Conn) {
	for _, c := range conns {
		c.(*net.TCPConn).SetLinger(0)
		c.Close()
	}
}

// Close ends all connections, and waits until no Filter runs any more.
func (r *Relay) Close() {
	r.listener.Close()
	<-r.accepted // it may add two more connections
	r.mu.Lock()
	for _, c := range r.conns {
		c.Close()
	}
	r.mu.Unlock()
	r.work.Wait()
}

// A TB is the part of testing.TB that Start needs.
type TB interface {
	Helper()
	Fatal(args ...any)
	Cleanup(func())
}

// Start starts a Relay to target, and returns its address. The Relay is closed when the test ends.
func Start(tb TB, target string, filters func(conn int) (up, down Filter)) (addr string) {
	tb.Helper()
	r, err := New(target, filters)
	return r.start(tb, err)
}

// StartCutting is like Start, but the function cutters returns Cutters.
func StartCutting(tb TB, target string, cutters func(conn int) (up, down Cutter)) (addr string) {
	tb.Helper()
	r, err := newRelay(target, cutters)
	return r.start(tb, err)
}

// start returns the address of r. It fails the test if err is not nil, and closes r when the test
// ends.
func (r *Relay) start(tb TB, err error) (addr string) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(r.Close)
	return r.Addr()
}

// forward copies bytes until one of the connections ends. It then ends the same direction of the
// other connection.
func forward(to, from net.Conn, filter Cutter, reset func()) {
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 {
			p, cut := filter(append([]byte(nil), buf[:n]...))
			if _, err := to.Write(p); err != nil {
				break
			}
			if cut {
				reset()
				return
			}
		}
		if err != nil {
			break
		}
	}
	to.(*net.TCPConn).CloseWrite()
}

// A Framing describes how a stream consists of frames. After the first bytes of the stream, each
// frame begins with a preamble of a fixed length. Size computes the length of the whole frame from
// the preamble. Counts reports whether a frame is counted; nil counts all frames.
type Framing struct {
	First, Preamble int
	Size            func(preamble []byte) int
	Counts          func(frame []byte) bool
}

// TCP describes a stream of transport tcp, whose dialling side sends 4 bytes before its first
// frame.
func TCP(up bool) Framing {
	const preamble = 24
	l := Framing{Preamble: preamble, Size: func(p []byte) int {
		word := binary.LittleEndian.Uint64(p)
		return preamble + int(word>>48&0xFF) + int(word&(1<<48-1))
	}}
	if up {
		l.First = 4
	}
	return l
}

// HTTP2 describes a stream of HTTP/2 (RFC 9113, 3.4 and 4.1), in which it counts frames with data.
func HTTP2(up bool) Framing {
	const preamble = 9
	l := Framing{
		Preamble: preamble,
		Size:     func(p []byte) int { return preamble + int(p[0])<<16 + int(p[1])<<8 + int(p[2]) },
		Counts:   func(frame []byte) bool { return frame[3] == 0 && len(frame) > preamble },
	}
	if up {
		l.First = len("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
	}
	return l
}

// TLS describes a stream of TLS records (RFC 8446, 5.1), in which it counts encrypted records.
func TLS() Framing {
	const preamble = 5
	return Framing{
		Preamble: preamble,
		Size:     func(p []byte) int { return preamble + int(binary.BigEndian.Uint16(p[3:])) },
		Counts:   func(frame []byte) bool { return frame[0] == 23 },
	}
}

// A Fault is a change that Alter makes to one frame.
type Fault string

// The faults. Swap exchanges the frame and the next frame, so if the frame is the last, it never
// arrives. Corrupt flips a bit in the middle of the frame. Silence drops the frame and all later
// frames.
const (
	Drop    Fault = "drop"
	Double  Fault = "double"
	Swap    Fault = "swap"
	Corrupt Fault = "corrupt"
	Silence Fault = "silence"
)

// Alter returns a Filter that injects the fault into counted frame number k of the stream, counted
// from 0.
func (l Framing) Alter(fault Fault, k int) Filter {
	first, n := l.First, 0
	var stream, held []byte
	return func(p []byte) (out []byte) {
		stream = append(stream, p...)
		skip := min(first, len(stream))
		out, stream, first = append(out, stream[:skip]...), stream[skip:], first-skip
		for first == 0 && len(stream) >= l.Preamble && len(stream) >= l.Size(stream) {
			frame := stream[:l.Size(stream)]
			stream = stream[len(frame):]
			counted := l.Counts == nil || l.Counts(frame)
			switch hit := counted && n == k; {
			case hit && fault == Drop, n >= k && fault == Silence:
			case hit && fault == Double:
				out = append(append(out, frame...), frame...)
			case hit && fault == Swap:
				held = append([]byte(nil), frame...)
			case hit && fault == Corrupt:
				out = append(out, frame...)
				out[len(out)-len(frame)/2] ^= 1
			default:
				out = append(append(out, frame...), held...)
				held = nil
			}
			if counted {
				n++
			}
		}
		return out
	}
}
