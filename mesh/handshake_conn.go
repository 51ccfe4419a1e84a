package mesh

import (
	"context"
	"fmt"

	"github.com/tutti-go/tutti/transport"
)

// A handshakeConn is a conversation over a Conn, a frame at a time, for the few frames
// before a Conn has its real owner. It blocks, and belongs to one goroutine.
//
// It reads no further than it was asked to: what comes after the last frame that
// recv returned is the next owner's.
type handshakeConn struct {
	conn transport.Conn
	wake wakeup // raised by the Conn

	received bool
	head     []byte
	body     []byte
	maxBody  int   // bytes of body that are taken
	rejected error // why what arrives is not taken
}

func newHandshakeConn(c transport.Conn) *handshakeConn {
	return &handshakeConn{conn: c, wake: newWakeup()}
}

// send queues a frame. It does not wait: the next recv or flush, or the Conn's
// next owner, moves what does not go at once.
func (t *handshakeConn) send(head, body []byte) {
	t.conn.Send(&transport.Frame{Head: head, Body: body, Done: func(error) {}})
}

// finish sends a last frame, and waits until it is out, and then until the peer
// has closed: closing first could take the frame back on its way. It ends with
// ctx at the latest. What arrives meanwhile is dropped.
func (t *handshakeConn) finish(ctx context.Context, head, body []byte) {
	t.send(head, body)
	t.maxBody = -1
	for {
		state, err := t.conn.Progress(t, 1)
		if err != nil || t.rejected != nil || t.wait(ctx, state) != nil {
			return
		}
	}
}

// recv waits for the next frame, with at most most bytes of body. The slices are
// the caller's.
func (t *handshakeConn) recv(ctx context.Context, most int) (head, body []byte, err error) {
	t.received, t.rejected, t.maxBody = false, nil, most
	for {
		state, err := t.conn.Progress(t, 1)
		switch {
		case t.rejected != nil:
			return nil, nil, t.rejected
		case t.received:
			return t.head, t.body, nil
		case err != nil:
			return nil, nil, err
		}
		if err := t.wait(ctx, state); err != nil {
			return nil, nil, err
		}
	}
}

// wait sleeps until the Conn could move something, unless it just did.
func (t *handshakeConn) wait(ctx context.Context, state transport.State) error {
	if state == transport.Moved {
		return ctx.Err()
	}
	t.conn.Arm(t.wake.raise)
	select {
	case <-t.wake:
		return ctx.Err()
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Buffer implements transport.Sink.
func (t *handshakeConn) Buffer(h transport.Header) []byte {
	if t.maxBody < 0 {
		return nil
	}
	if h.Size > t.maxBody {
		t.rejected = fmt.Errorf("frame body: got %d bytes, want at most %d", h.Size, t.maxBody)
		return nil
	}
	t.body = make([]byte, h.Size)
	return t.body
}

// Arrived implements transport.Sink.
func (t *handshakeConn) Arrived(h transport.Header, n int) {
	if n == h.Size && t.maxBody >= 0 {
		t.head = append([]byte(nil), h.Head...)
		t.received = true
	}
}
