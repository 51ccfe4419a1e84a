package ps

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/tutti-go/tutti/internal/bridge"
	"github.com/tutti-go/tutti/ps/internal/message"
)

// An inlet receives the messages of one peer in their order. One goroutine receives heads, and
// starts to receive the bodies; another one waits for the bodies.
type inlet[T any] struct {
	comm             bridge.Communicator
	from             int
	headTag, bodyTag int

	// head handles a message: a head, which may have an inline body. It returns the buffer for a
	// body that follows in a message of its own, or nil. The message is valid until head returns.
	head func(msg []byte) (what T, body []byte, err error)
	// done runs when the message is complete, in the order of the messages. With an error the body
	// is incomplete. It returns false after the peer's last message.
	done func(what T, err error) bool
}

// run receives messages until the last one, an error, or the end of ctx. It returns the error.
func (in *inlet[T]) run(ctx context.Context) error {
	bodies := make(chan flight[T], flights)
	var waiting atomic.Int32 // of the messages in bodies
	var waiter sync.WaitGroup
	var bodyError error
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	last := false // written by the waiter only while waiting is not 0
	waiter.Go(func() {
		for f := range bodies {
			var err error
			if f.transfer != nil {
				_, err = f.transfer.Wait(ctx)
			}
			if !in.done(f.what, err) {
				last = true
				cancel(nil)
			}
			if err != nil && bodyError == nil {
				bodyError = err
				cancel(err)
			}
			waiting.Add(-1)
		}
	})
	err := in.heads(ctx, bodies, &waiting)
	close(bodies)
	waiter.Wait()
	if bodyError != nil {
		return bodyError
	}
	if last {
		return nil
	}
	return err
}

// heads receives heads, until one is the last.
func (in *inlet[T]) heads(ctx context.Context, bodies chan<- flight[T], waiting *atomic.Int32) error {
	buf := make([]byte, message.MaxMessage)
	for {
		n, err := in.comm.Recv(ctx, in.from, in.headTag, buf)
		if err != nil {
			return err
		}
		what, body, err := in.head(buf[:n])
		if err != nil {
			return err
		}
		if body == nil && waiting.Load() == 0 {
			if !in.done(what, nil) {
				return nil
			}
			continue
		}
		f := flight[T]{what: what}
		if body != nil {
			f.transfer = in.comm.IRecv(in.from, in.bodyTag, body)
		}
		waiting.Add(1)
		bodies <- f
	}
}
