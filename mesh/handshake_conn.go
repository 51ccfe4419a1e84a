package mesh

import (
	"context"
	"fmt"

	"github.com/tutti-go/tutti/transport"
)

// A handshakeConn sends and receives whole frames over a Conn, one at a time, for the few frames
// before the Conn has its final owner. It blocks, and belongs to one goroutine.
//
// It reads no further than recv was asked to: what comes after the last frame that recv returned
// belongs to the next owner. It holds one frame, whose body is bounded by the caller, so an
// unauthenticated peer cannot make it allocate.
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

// send queues a frame. It does not wait: the next recv or finish, or the Conn's next owner, moves
// what does not leave at once.
func (t *handshakeConn) send(head, body []byte) {
	t.conn.Send(&transport.Frame{Head: head, Body: body, Done: func(error) {}})
}

// finish sends a last frame, and waits until the peer has read it and closed the Conn: closing
// first could discard the frame on its way. It ends with ctx at the latest. It drops what arrives
// meanwhile.
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

// recv waits for the next frame, with at most maxBody bytes of body; a larger one is an error
// before any memory is allocated for it, since the peer may have proven nothing. The slices are the
// caller's.
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

// wait sleeps until the Conn could move something, unless it has just moved something.
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

// Buffer implements transport.Sink. It allocates for an accepted body only.
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
