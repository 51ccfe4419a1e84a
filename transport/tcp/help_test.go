package tcp

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/tutti-go/tutti/transport"
)

// waitTime bounds each wait of these tests. Normal waits are much shorter.
const waitTime = 20 * time.Second

// pair connects two Transports with these options, and returns the two Conns. Admit has not been
// called on the accepted Conn.
func pair(tb testing.TB, o Options) (dialled, accepted transport.Conn) {
	tb.Helper()
	near, far := New(o), New(o)
	tb.Cleanup(func() { near.Close(); far.Close() })
	conns := make(chan transport.Conn, 1)
	addr, err := far.Serve(listen(tb), func(c transport.Conn) { conns <- c })
	if err != nil {
		tb.Fatal(err)
	}
	dialled, err = near.Dial(soon(tb), addr)
	if err != nil {
		tb.Fatal(err)
	}
	return dialled, receive(tb, conns)
}

// soon returns a context that ends with the test, or after waitTime.
func soon(tb testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), waitTime)
	tb.Cleanup(cancel)
	return ctx
}

// receive waits for a value.
func receive[T any](tb testing.TB, from <-chan T) T {
	tb.Helper()
	select {
	case v := <-from:
		return v
	case <-time.After(waitTime):
		tb.Fatalf("nothing came within %v", waitTime)
		panic("not reached")
	}
}

// unprovenPeer returns a plain TCP connection to a serving Transport, and the Conn that the
// Transport has made from it. Admit has not been called on the Conn.
func unprovenPeer(tb testing.TB, o Options) (net.Conn, transport.Conn) {
	tb.Helper()
	t := New(o)
	conns := make(chan transport.Conn, 1)
	addr, err := t.Serve(listen(tb), func(c transport.Conn) { conns <- c })
	if err != nil {
		tb.Fatal(err)
	}
	nc, err := net.Dial("tcp", addr)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { nc.Close(); t.Close() })
	return nc, receive(tb, conns)
}

// A bufferSink is a Sink with one buffer, which it reuses for each frame, and a count of frames.
type bufferSink struct {
	head   []byte
	body   []byte
	frames int
	last   int // bytes of the last frame's body
}

func (s *bufferSink) Buffer(h transport.Header) []byte {
	if len(s.body) < h.Size {
		s.body = make([]byte, h.Size)
	}
	s.head = append(s.head[:0], h.Head...)
	return s.body
}

func (s *bufferSink) Arrived(h transport.Header, n int) {
	if n == h.Size {
		s.frames++
		s.last = n
	}
}

// move calls Progress until the function done returns true. If Progress fails earlier, move returns
// the error.
func move(tb testing.TB, c transport.Conn, in transport.Sink, done func() bool) error {
	tb.Helper()
	deadline := time.Now().Add(waitTime)
	for i := 1; !done(); i++ {
		state, err := c.Progress(in, 1)
		if err != nil {
			return err
		}
		if state == transport.Idle && i%1024 == 0 && time.Now().After(deadline) {
			tb.Fatalf("it has not happened within %v", waitTime)
		}
	}
	return nil
}
