package mesh

import (
	"context"
	"fmt"

	"github.com/tutti-go/tutti/transport"
)

// A talk is a conversation over a Conn, a frame at a time, for the few frames
// before a Conn has its real owner. It blocks, and belongs to one goroutine.
//
// It reads no further than it was asked to: what comes after the last frame that
// recv returned is the next owner's.
type talk struct {
	conn transport.Conn
	wake chan struct{} // one slot; rung by the Conn

	got  bool
	head []byte
	body []byte
	most int   // bytes of body that are taken
	bad  error // why what arrives is not taken
}

func newTalk(c transport.Conn) *talk {
	return &talk{conn: c, wake: make(chan struct{}, 1)}
}

func (t *talk) ring() {
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

// send queues a frame. It does not wait: the next recv or flush, or the Conn's
// next owner, moves what does not go at once.
func (t *talk) send(head, body []byte) {
	t.conn.Send(&transport.Frame{Head: head, Body: body, Done: func(error) {}})
}

// finish sends a last frame, and waits until it is out, and then until the peer
// has closed: closing first could take the frame back on its way. It ends with
// ctx at the latest. What arrives meanwhile is dropped.
func (t *talk) finish(ctx context.Context, head, body []byte) {
	t.send(head, body)
	t.most = -1
	for {
		state, err := t.conn.Progress(t)
		if err != nil || t.bad != nil || t.pause(ctx, state) != nil {
			return
		}
	}
}

// recv waits for the next frame, with at most most bytes of body. The slices are
// the caller's.
func (t *talk) recv(ctx context.Context, most int) (head, body []byte, err error) {
	t.got, t.bad, t.most = false, nil, most
	for {
		state, err := t.conn.Progress(t)
		switch {
		case t.bad != nil:
			return nil, nil, t.bad
		case t.got:
			return t.head, t.body, nil
		case err != nil:
			return nil, nil, err
		}
		if err := t.pause(ctx, state); err != nil {
			return nil, nil, err
		}
	}
}

// pause sleeps until the Conn could move something, unless it just did.
func (t *talk) pause(ctx context.Context, state transport.State) error {
	if state == transport.Moved {
		return ctx.Err()
	}
	t.conn.Arm(t.ring)
	select {
	case <-t.wake:
		return ctx.Err()
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Buffer implements transport.Sink.
func (t *talk) Buffer(h transport.Header) []byte {
	if t.most < 0 {
		return nil
	}
	if h.Size > t.most {
		t.bad = fmt.Errorf("a frame of %d bytes, where at most %d are due", h.Size, t.most)
		return nil
	}
	t.body = make([]byte, h.Size)
	return t.body
}

// Arrived implements transport.Sink.
func (t *talk) Arrived(h transport.Header, n int) {
	if n == h.Size && t.most >= 0 {
		t.head = append([]byte(nil), h.Head...)
		t.got = true
	}
}
