package mesh

import (
	"context"
	"fmt"

	"github.com/tutti-go/tutti/transport"
)

// A handshakeConn sends and receives the frames of a handshake over a Conn, before the Conn has its
// final owner. It handles one whole frame at a time. Its methods block, and one goroutine owns it.
//
// It reads nothing beyond the frame that recv returns, because the later frames belong to the next
// owner. It holds one frame, and the caller of recv limits the size of the body. So an
// unauthenticated peer cannot make it allocate much memory.
type handshakeConn struct {
	conn transport.Conn
	wake wakeup // raised by the Conn

	received bool // head and body are a whole frame
	head     []byte
	body     []byte
	maxBody  int   // bytes of body that recv accepts; -1: every frame is dropped
	rejected error // why the arriving frame is not accepted
}

// newHandshakeConn returns a handshakeConn of c.
func newHandshakeConn(c transport.Conn) *handshakeConn {
	return &handshakeConn{conn: c, wake: newWakeup()}
}

// send queues a frame. It does not wait. Bytes that do not leave at once are sent by the next recv
// or finish, or by the Conn's next owner.
func (t *handshakeConn) send(head, body []byte) {
	t.conn.Send(&transport.Frame{Head: head, Body: body, Done: func(error) {}})
}

// finish sends a last frame, and waits until the peer has read it and closed the Conn. If this side
// closed first, the frame could be lost. finish returns when ctx ends at the latest. It drops the
// frames that arrive while it waits.
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

// recv waits for the next frame. The argument most is the maximum size of the body. If the body is
// larger, recv returns an error and allocates no memory for it, because the peer may have proven
// nothing. The caller owns the returned slices.
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

// wait returns at once if the Conn has just moved something. Otherwise it sleeps until the Conn may
// move something, or ctx ends.
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

// Buffer implements transport.Sink. It allocates memory only for a body that recv accepts.
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
