package transporttest

import (
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/transport"
)

// A Remote runs half of a suite's Nodes in another process, or on another machine, where RunAgent
// makes them. Each call of a remote Transport or Conn sends one request over the wire. The agent
// then calls its own Transport or Conn and answers. See agent.go for the protocol.
//
// A remote Conn differs from a local one in three ways, all of which the contract permits. Its Sink
// is called after the agent's Progress has returned. The agent never drops a body. The contents of
// the agent's exposed memory are copied into the memory that the test has exposed.
type Remote struct {
	out *sendQueue

	mu       sync.Mutex // guards the rest
	last     uint64     // number of the last request, and of the node or exposure that it makes
	handlers map[uint64]func(*response)
	err      error // the reason why the wire has ended
}

// Connect returns a Remote whose agent is at the other end of wire, and waits for that
// agent. The Remote ends with the wire.
func Connect(wire io.ReadWriter) *Remote {
	r := &Remote{out: newSendQueue(wire), handlers: make(map[uint64]func(*response))}
	go r.receive(gob.NewDecoder(wire))
	// From now on all goroutines of the Remote run, so that leak checks do not count them as new.
	r.call(&request{Op: opPing})
	return r
}

// Stop stops the sending of requests. It returns when every request has been written.
func (r *Remote) Stop() { r.out.stop() }

// Maker returns a Maker for which mk makes the Nodes with even numbers in this process, and the
// agent makes the Nodes with odd numbers.
func (r *Remote) Maker(mk Maker) Maker {
	return func(tb testing.TB, n int) []Node {
		tb.Helper()
		nodes := make([]Node, n)
		for i := range nodes {
			if i%2 == 0 {
				nodes[i] = mk(tb, 1)[0]
				continue
			}
			q := &request{Op: opMakeNode}
			re := r.call(q)
			if re.Err != nil {
				tb.Fatalf("the agent: %s", re.Err.Text)
			}
			nodes[i].Transport = &remoteTransport{r: r, number: q.ID, name: re.Addr}
		}
		return nodes
	}
}

// post sends a request. The function handle runs for each response, on the receiving goroutine. It
// may call the method post, but not the method call.
func (r *Remote) post(q *request, handle func(*response)) {
	r.mu.Lock()
	r.last++
	q.ID = r.last
	err := r.err
	if err == nil {
		r.handlers[q.ID] = handle
	}
	r.mu.Unlock()
	if err != nil {
		handle(&response{ID: q.ID, Last: true, Err: remoteErrorOf(err)})
		return
	}
	r.out.put(q)
}

// call sends a request and waits for its one response.
func (r *Remote) call(q *request) *response {
	answer := make(chan *response, 1)
	r.post(q, func(re *response) { answer <- re })
	return <-answer
}

// receive runs the handlers of responses until the wire ends. Then it runs all remaining handlers.
func (r *Remote) receive(in *gob.Decoder) {
	for {
		re := new(response)
		if err := in.Decode(re); err != nil {
			r.fail(fmt.Errorf("the agent is gone: %w", err))
			return
		}
		r.mu.Lock()
		handle := r.handlers[re.ID]
		if re.Last {
			delete(r.handlers, re.ID)
		}
		r.mu.Unlock()
		handle(re)
	}
}

// fail answers all pending and future requests with err.
func (r *Remote) fail(err error) {
	r.mu.Lock()
	r.err = err
	left := r.handlers
	r.handlers = nil
	r.mu.Unlock()
	for id, handle := range left {
		handle(&response{ID: id, Last: true, Err: remoteErrorOf(err)})
	}
}

// A remoteTransport represents a Transport of the agent.
type remoteTransport struct {
	r      *Remote
	number uint64
	name   string
}

func (t *remoteTransport) Name() string { return t.name }

// Serve serves on the agent's own listener.
func (t *remoteTransport) Serve(_ net.Listener, accept func(transport.Conn)) (string, error) {
	served := make(chan *response, 1)
	t.r.post(&request{Op: opServe, Node: t.number}, func(re *response) {
		switch {
		case re.Conn != 0:
			accept(t.r.conn(re))
		case re.Addr != "" || re.Err != nil:
			served <- re
		}
	})
	re := <-served
	return re.Addr, re.Err.err(nil)
}

func (t *remoteTransport) Dial(ctx context.Context, addr string) (transport.Conn, error) {
	q := &request{Op: opDial, Node: t.number, Addr: addr}
	switch {
	case errors.Is(ctx.Err(), context.Canceled):
		q.Ended = fault.Canceled
	case ctx.Err() != nil:
		q.Ended = fault.Timeout
	}
	re := t.r.call(q)
	if re.Err != nil {
		return nil, re.Err.err(ctx.Err())
	}
	return t.r.conn(re), nil
}

func (t *remoteTransport) Close() error {
	return t.r.call(&request{Op: opCloseNode, Node: t.number}).Err.err(nil)
}

// A remoteConn represents a Conn of the agent.
type remoteConn struct {
	r      *Remote
	number uint64
	arms   atomic.Uint64 // number of calls of Arm; only the callback of the last call may run

	reading atomic.Bool // held by Progress; guards err and dst
	err     error       // the first error of Progress
	dst     []byte      // the buffer for the body of the arriving frame

	mu      sync.Mutex // guards the rest
	exposed map[uint64][]byte
}

// conn returns a Conn with the same optional interfaces as the agent's Conn.
func (r *Remote) conn(re *response) transport.Conn {
	c := &remoteConn{r: r, number: re.Conn, exposed: make(map[uint64][]byte)}
	switch {
	case re.Pending && re.Exposer:
		return struct {
			*remoteConn
			remoteAdmit
			remoteExpose
		}{c, remoteAdmit{c}, remoteExpose{c}}
	case re.Pending:
		return struct {
			*remoteConn
			remoteAdmit
		}{c, remoteAdmit{c}}
	case re.Exposer:
		return struct {
			*remoteConn
			remoteExpose
		}{c, remoteExpose{c}}
	}
	return c
}

func (c *remoteConn) Send(f *transport.Frame) {
	c.r.post(&request{Op: opSend, Conn: c.number, Head: f.Head, Body: f.Body, Parts: f.Parts, To: f.To, Offset: f.Offset, FrameID: f.ID},
		func(re *response) { f.Done(re.Err.err(nil)) })
}

// TrySend always returns false, because the result of the agent's TrySend would come one round trip
// later.
func (c *remoteConn) TrySend(head, body []byte) bool { return false }

// Unsent asks the agent. The agent's clock may differ, so the response holds the age of the stall.
func (c *remoteConn) Unsent() (bytes int, since time.Time) {
	re := c.r.call(&request{Op: opUnsent, Conn: c.number})
	if re.Bytes == 0 {
		return 0, time.Time{}
	}
	return re.Bytes, time.Now().Add(-re.Age)
}

func (c *remoteConn) Progress(in transport.Sink, _ int) (transport.State, error) {
	if !c.reading.CompareAndSwap(false, true) {
		return transport.Busy, nil
	}
	defer c.reading.Store(false)
	re := c.r.call(&request{Op: opProgress, Conn: c.number})
	sink, copies := in.(transport.CopySink)
	for i := 0; i < len(re.Events); i++ {
		e := &re.Events[i]
		if copies && e.Buffer && i+1 < len(re.Events) && re.Events[i+1].N == e.Header.Size {
			i++ // the whole body came at once
			c.copyMemory(&re.Events[i])
			sink.Copy(e.Header, re.Events[i].Body)
			continue
		}
		c.replay(e, in)
	}
	err := re.Err.err(nil)
	if err != nil && (c.err == nil || c.err.Error() != err.Error()) {
		c.err = err
	} else if err != nil {
		err = c.err // every call must return the same error value
	}
	return transport.State(re.State), err
}

// copyMemory copies the contents that the agent's exposed memory had at an event.
func (c *remoteConn) copyMemory(e *event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, m := range e.Memory {
		copy(c.exposed[m.Exposure], m.Bytes)
	}
}

// replay repeats a call of the agent's Sink on the local Sink.
func (c *remoteConn) replay(e *event, in transport.Sink) {
	c.copyMemory(e)
	if e.Buffer {
		c.dst = in.Buffer(e.Header)
		return
	}
	if first := e.N - len(e.Body); first < len(c.dst) {
		copy(c.dst[first:], e.Body)
	}
	in.Arrived(e.Header, e.N)
}

// Arm posts a request that is answered when the agent's Conn wakes up. If a second Arm replaces the
// first Arm at the agent, the request of the first Arm is never answered. If the first Arm is
// replaced here while its answer is in flight, the answer is ignored.
func (c *remoteConn) Arm(ready func()) {
	number := c.arms.Add(1)
	c.r.post(&request{Op: opArm, Conn: c.number}, func(*response) {
		if c.arms.Load() == number {
			go ready() // ready may call r.call
		}
	})
}

func (c *remoteConn) Close() error {
	c.r.post(&request{Op: opCloseConn, Conn: c.number}, func(*response) {})
	return nil
}

type remoteAdmit struct{ c *remoteConn }

func (a remoteAdmit) Admit() { a.c.r.call(&request{Op: opAdmit, Conn: a.c.number}) }

// RemoteAddr returns nil, because only the agent knows the address.
func (remoteAdmit) RemoteAddr() net.Addr { return nil }

var _ transport.Pending = remoteAdmit{}

type remoteExpose struct{ c *remoteConn }

// Expose makes the agent expose memory of its own. Bytes that arrive in that memory are copied to
// buf before the Sink is called.
func (x remoteExpose) Expose(id uint32, buf []byte) (transport.Token, func(), error) {
	c := x.c
	q := &request{Op: opExpose, Conn: c.number, FrameID: id, Body: slices.Clone(buf)}
	re := c.r.call(q)
	if re.Err != nil {
		return re.To, nil, re.Err.err(nil)
	}
	c.mu.Lock()
	c.exposed[q.ID] = buf
	c.mu.Unlock()
	return re.To, func() {
		c.r.call(&request{Op: opRelease, Conn: c.number, Exposure: q.ID})
		c.mu.Lock()
		delete(c.exposed, q.ID)
		c.mu.Unlock()
	}, nil
}

// A sendQueue writes values to a wire in order. The method put never waits for the wire.
type sendQueue struct {
	writer sync.WaitGroup

	mu     sync.Mutex // guards the rest
	more   sync.Cond
	values []any
	closed bool
}

func newSendQueue(to io.Writer) *sendQueue {
	s := new(sendQueue)
	s.more.L = &s.mu
	s.writer.Go(func() { s.run(gob.NewEncoder(to)) })
	return s
}

func (s *sendQueue) put(value any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.values = append(s.values, value)
	s.more.Signal()
}

// run writes values until stop or an error. The reader of the wire reports the error.
func (s *sendQueue) run(out *gob.Encoder) {
	for {
		s.mu.Lock()
		for len(s.values) == 0 && !s.closed {
			s.more.Wait()
		}
		batch := s.values
		s.values = nil
		s.mu.Unlock()
		if len(batch) == 0 {
			return
		}
		for _, value := range batch {
			if out.Encode(value) != nil {
				return
			}
		}
	}
}

// stop returns when all values have been written.
func (s *sendQueue) stop() {
	s.mu.Lock()
	s.closed = true
	s.more.Signal()
	s.mu.Unlock()
	s.writer.Wait()
}
