package grpc

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"github.com/tutti-go/tutti/internal/test/leak"
	"github.com/tutti-go/tutti/transport"
)

// ReadOnReady must return a buffer exactly when it returns bytes, because gRPC's framer requires
// this.
func TestReadOnReadyHasABufferExactlyWhenItHasBytes(t *testing.T) {
	l := listen(t)
	defer l.Close()
	peer, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer peer.Close()
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var lost error
	link := newLink(c, c, func(err error) { lost = err })
	link.onCut.Do(func() {}) // the connection is needed after a failure
	for _, step := range []struct {
		name string
		do   func()
		want int
		err  error
	}{
		{"bytes", func() { peer.Write([]byte("bytes")) }, 5, nil},
		{"a deadline that has passed", func() { c.SetReadDeadline(time.Unix(1, 0)) }, 0, os.ErrDeadlineExceeded},
		{"a deadline that passes", func() { c.SetReadDeadline(time.Now().Add(time.Millisecond)) }, 0, os.ErrDeadlineExceeded},
		{"the end", func() { c.SetReadDeadline(time.Time{}); peer.Close() }, 0, io.EOF},
		{"a closed connection", func() { c.Close() }, 0, net.ErrClosed},
	} {
		step.do()
		pool := &counted{}
		for range 2 {
			buf, n, err := link.ReadOnReady(16, pool)
			if n != step.want || !errors.Is(err, step.err) || (buf != nil) != (n > 0) {
				t.Fatalf("%s: got %d bytes, a buffer: %v, and %v; want %d and %v", step.name, n, buf != nil, err, step.want, step.err)
			}
			if held := map[bool]int{true: 1}[n > 0]; pool.out != held {
				t.Errorf("%s: %d buffers are not back, want %d", step.name, pool.out, held)
			}
			if err == nil {
				break
			}
			if !errors.Is(lost, step.err) {
				t.Errorf("%s: the Conn heard %v", step.name, lost)
			}
		}
	}
}

// counted is a mem.BufferPool that counts the buffers in use.
type counted struct{ out int }

func (c *counted) Get(n int) *[]byte {
	c.out++
	b := make([]byte, n)
	return &b
}

func (c *counted) Put(*[]byte) { c.out-- }

// A peekingListener is a listener that has read the first bytes of each connection.
type peekingListener struct {
	net.Listener
	t *testing.T
}

type peekedTestConn struct {
	net.Conn
	first []byte
}

func (l peekingListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	first := make([]byte, 30) // the preface, and a few bytes that follow
	if _, err := io.ReadFull(c, first); err != nil {
		l.t.Error(err)
	}
	return &peekedTestConn{c, first}, nil
}

func (l *peekedTestConn) Peeked() []byte    { return l.first }
func (l *peekedTestConn) NetConn() net.Conn { return l.Conn }

func TestBytesThatTheListenerReadAreNotLost(t *testing.T) {
	leak.Check(t)
	tr := New(Options{})
	defer tr.Close()
	accepted := make(chan transport.Conn, 1)
	addr, err := tr.Serve(peekingListener{listen(t), t}, func(c transport.Conn) { accepted <- c })
	if err != nil {
		t.Fatal(err)
	}
	near, err := tr.Dial(context.Background(), addr)
	if err != nil {
		t.Fatal(err)
	}
	far := <-accepted
	far.(transport.Pending).Admit()
	exchange(t, near, far, make([]byte, 100<<10))
}
