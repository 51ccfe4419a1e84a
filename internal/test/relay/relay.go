// Package relay forwards TCP connections between two ranks of a test. It can drop, double or
// reorder their frames. As with a proxy, its kernel acknowledges everything at once, so that
// neither end learns from its own kernel what was lost.
//
// It does not know what the bytes mean. A test that alters frames says how long each frame is.
package relay

import (
	"net"
	"sync"
	"testing"
)

// A Filter returns the bytes that a relay forwards in place of the bytes p. It may keep p. Only one
// goroutine at a time calls it.
type Filter func(p []byte) []byte

// Start returns an address, and forwards connections to that address to target, until the test
// ends. The function filters returns the Filters of connection number conn, counted from 0. The
// Filter up is for the bytes of the dialling side, and down is for the bytes in the other
// direction. A nil Filter forwards everything.
func Start(tb testing.TB, target string, filters func(conn int) (up, down Filter)) (addr string) {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	var work sync.WaitGroup
	var mu sync.Mutex // guards conns
	var conns []net.Conn
	work.Go(func() {
		for n := 0; ; n++ {
			near, err := l.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("tcp", target)
			if err != nil {
				near.Close()
				continue
			}
			mu.Lock()
			conns = append(conns, near, far)
			mu.Unlock()
			up, down := filters(n)
			work.Go(func() { forward(far, near, up) })
			work.Go(func() { forward(near, far, down) })
		}
	})
	tb.Cleanup(func() {
		l.Close()
		mu.Lock()
		for _, c := range conns {
			c.Close()
		}
		mu.Unlock()
		work.Wait()
	})
	return l.Addr().String()
}

// forward copies bytes until one of the connections ends. It then ends the same direction of the
// other connection.
func forward(to, from net.Conn, filter Filter) {
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 {
			p := append([]byte(nil), buf[:n]...)
			if filter != nil {
				p = filter(p)
			}
			if _, err := to.Write(p); err != nil {
				break
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
// the preamble.
type Framing struct {
	First, Preamble int
	Size            func(preamble []byte) int
}

// A Fault is a change that Alter makes to one frame.
type Fault string

// The faults. Swap exchanges the frame and the next frame, so if the frame is the last, it never
// arrives. Silence drops the frame and all later frames.
const (
	Drop    Fault = "drop"
	Double  Fault = "double"
	Swap    Fault = "swap"
	Silence Fault = "silence"
)

// Alter returns a Filter that injects the fault into frame number k of the stream, counted from 0.
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
			switch {
			case n == k && fault == Drop, n >= k && fault == Silence:
			case n == k && fault == Double:
				out = append(append(out, frame...), frame...)
			case n == k && fault == Swap:
				held = append([]byte(nil), frame...)
			default:
				out = append(append(out, frame...), held...)
				held = nil
			}
			n++
		}
		return out
	}
}
