package transporttest

import (
	"bytes"
	"context"
	"encoding/gob"
	"errors"
	"io"
	"sync"
	"testing"
	"time"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/transport"
)

// A request asks the agent for one call. Requests and responses are gob values on one stream. The
// agent runs requests in the order of arrival. dial and closeNode may block, so they run on
// goroutines of their own.
//
// A response carries the ID of its request. Most requests get one response, with Last set. A serve
// that succeeds gets one response without Last, and then one for each accepted Conn. An arm that a
// later arm replaces gets none.
//
//	op          answered                   response
//	ping        at once
//	makeNode    at once                    Addr: the Transport's name
//	serve       when Serve returns         Addr, or Err
//	            for each accepted Conn     Conn, Pending, Exposer
//	dial        when Dial returns          Conn, Exposer, or Err
//	closeNode   when Close returns         Err: of Close, or exposed memory changed after release
//	send        when Done runs             Err
//	progress    at once                    State, Err, and the calls of the Sink: Events
//	arm         when ready runs
//	closeConn   at once
//	admit       at once
//	unsent      at once                    Bytes, Age
//	expose      at once                    To, or Err
//	release     at once
type request struct {
	ID, Node, Conn, Exposure uint64
	Op                       op
	Head, Body               []byte
	Parts                    [][]byte
	To                       transport.Token
	Offset                   int
	FrameID                  uint32
	Addr                     string
	Ended                    fault.Kind // the kind of error that ended a dial's context; 0: none
}

type response struct {
	ID, Conn         uint64
	Last             bool
	Addr             string
	Pending, Exposer bool
	State            int
	Bytes            int           // unsent
	Age              time.Duration // how long these bytes have stalled
	Events           []event
	To               transport.Token
	Err              *remoteError
}

type op uint8

const (
	opPing op = iota + 1
	opMakeNode
	opServe
	opDial
	opCloseNode
	opSend
	opProgress
	opArm
	opCloseConn
	opAdmit
	opUnsent
	opExpose
	opRelease
)

// An event is one call of the agent's Sink: Buffer, or Arrived with the number of bytes that have
// arrived. The field Body holds the new bytes.
type event struct {
	Buffer bool
	Header transport.Header
	N      int
	Body   []byte
	Memory []memoryCopy // contents of exposed memory during the call
}

type memoryCopy struct {
	Exposure uint64
	Bytes    []byte
}

// A remoteError is the form in which an error is sent.
type remoteError struct {
	Kind fault.Kind // 0: the error is not a fault.Error
	Op   string
	Text string
}

func remoteErrorOf(err error) *remoteError {
	if err == nil {
		return nil
	}
	var f *fault.Error
	if !errors.As(err, &f) {
		return &remoteError{Text: err.Error()}
	}
	return &remoteError{Kind: f.Kind, Op: f.Op, Text: err.Error()}
}

// err returns the error that e describes, or nil if e is nil. The argument ctxErr is the error of
// the caller's context, or nil. A fault.Error wraps it.
func (e *remoteError) err(ctxErr error) error {
	switch {
	case e == nil:
		return nil
	case e.Kind == 0:
		return errors.New(e.Text)
	}
	return &fault.Error{Kind: e.Kind, Op: e.Op, Rank: -1, Err: errors.Join(errors.New(e.Text), ctxErr)}
}

// RunAgent makes Nodes with mk for a Remote at the other end of the wire, and calls the Nodes as
// the Remote asks. When the wire ends, RunAgent closes it and returns. The test at the Remote
// checks the results. RunAgent checks only that nothing writes into exposed memory after its
// release, and that the Remote has closed each Node. It closes the Nodes that the Remote has left
// open.
func RunAgent(tb testing.TB, wire io.ReadWriteCloser, mk Maker) {
	tb.Helper()
	a := &agent{tb: tb, mk: mk, enc: gob.NewEncoder(wire),
		nodes: make(map[uint64]Node), closed: make(map[uint64]bool), conns: make(map[uint64]*agentConn)}
	defer wire.Close() // also if mk ends this goroutine, so that the Remote notices the end
	defer a.close()
	for in := gob.NewDecoder(wire); ; {
		q := new(request)
		if err := in.Decode(q); err != nil {
			if !errors.Is(err, io.EOF) {
				tb.Errorf("the remote is gone: %v", err)
			}
			return
		}
		a.handle(q)
	}
}

type agent struct {
	tb   testing.TB
	mk   Maker
	work sync.WaitGroup // waits for calls that may block

	encMu sync.Mutex // guards enc
	enc   *gob.Encoder

	mu     sync.Mutex // guards the rest
	nodes  map[uint64]Node
	closed map[uint64]bool // nodes that the Remote has closed
	conns  map[uint64]*agentConn
	last   uint64 // number of the last Conn
	ended  bool   // the connection to the Remote has ended
}

func (a *agent) send(re *response) {
	a.encMu.Lock()
	defer a.encMu.Unlock()
	a.enc.Encode(re) // an error means that the wire has ended, which the decoder reports
}

// close closes the Nodes that the Remote has left open.
func (a *agent) close() {
	a.work.Wait()
	a.mu.Lock()
	a.ended = true
	a.mu.Unlock()
	left := 0
	for number, node := range a.nodes { // a.nodes is complete, because no request comes any more
		if !a.closed[number] {
			node.Transport.Close()
			left++
		}
	}
	if left > 0 {
		a.tb.Errorf("the remote has ended without closing %d of its Nodes", left)
	}
}

func (a *agent) handle(q *request) {
	a.mu.Lock()
	node, c := a.nodes[q.Node], a.conns[q.Conn]
	a.mu.Unlock()
	re := &response{ID: q.ID, Last: true}
	switch q.Op {
	case opMakeNode:
		node = a.mk(a.tb, 1)[0]
		a.mu.Lock()
		a.nodes[q.ID] = node
		a.mu.Unlock()
		re.Addr = node.Transport.Name()
	case opServe:
		addr, err := node.Transport.Serve(node.Listener, func(c transport.Conn) { a.send(a.register(q, c, &response{ID: q.ID})) })
		re.Addr, re.Err, re.Last = addr, remoteErrorOf(err), err != nil
	case opDial:
		a.work.Go(func() { a.send(a.dial(node, q, re)) })
		return
	case opCloseNode:
		a.work.Go(func() { a.send(a.closeNode(node, q, re)) })
		return
	case opSend:
		c.Send(&transport.Frame{Head: q.Head, Body: q.Body, Parts: q.Parts, To: q.To, Offset: q.Offset, ID: q.FrameID,
			Done: func(err error) { a.send(&response{ID: q.ID, Last: true, Err: remoteErrorOf(err)}) }})
		return
	case opProgress:
		state, err := c.Progress(c, 1)
		re.State, re.Err, re.Events, c.events = int(state), remoteErrorOf(err), c.events, nil
	case opArm:
		c.Arm(func() { a.send(re) })
		return
	case opCloseConn:
		c.Close()
	case opAdmit:
		admit(c.Conn)
	case opUnsent:
		bytes, since := c.Unsent()
		re.Bytes, re.Age = bytes, time.Since(since)
	case opExpose:
		c.expose(q, re)
	case opRelease:
		c.release(q.Exposure)
	}
	a.send(re)
}

// register gives a Conn a number, by which later requests name the Conn. It stores the number and
// the abilities of the Conn in re.
func (a *agent) register(q *request, c transport.Conn, re *response) *response {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.last++
	a.conns[a.last] = &agentConn{Conn: c, node: q.Node, exposed: make(map[uint64]*agentMemory)}
	if a.ended { // no request for this Conn will come
		c.Close()
	}
	re.Conn = a.last
	_, re.Pending = c.(transport.Pending)
	_, re.Exposer = c.(transport.Exposer)
	return re
}

func (a *agent) dial(node Node, q *request, re *response) *response {
	ctx, cancel := context.WithTimeout(context.Background(), waitLimit())
	defer cancel()
	switch q.Ended {
	case fault.Canceled:
		cancel()
	case fault.Timeout:
		ctx, cancel = context.WithDeadline(context.Background(), time.Unix(1, 0))
		defer cancel()
	}
	c, err := node.Transport.Dial(ctx, q.Addr)
	if re.Err = remoteErrorOf(err); err == nil {
		a.register(q, c, re)
	}
	return re
}

// closeNode closes a Node. It reports an error if memory that a Conn of the Node had exposed was
// written after its release.
func (a *agent) closeNode(node Node, q *request, re *response) *response {
	err := node.Transport.Close()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closed[q.Node] = true
	for _, c := range a.conns {
		if c.node == q.Node {
			err = errors.Join(err, c.inspect())
		}
	}
	re.Err = remoteErrorOf(err)
	return re
}

// An agentConn is a Conn of the agent, and the Sink that records the frames that its Progress
// delivers. The goroutine that handles requests owns it, except for exposed.
type agentConn struct {
	transport.Conn
	node uint64

	events []event
	open   bool   // a frame is arriving into body
	body   []byte // the buffer for the frame's body
	n      int    // bytes of the body that the Remote has

	mu      sync.Mutex // guards exposed, which closeNode reads
	exposed map[uint64]*agentMemory
}

// An agentMemory is exposed memory, with a copy of its contents at its release.
type agentMemory struct {
	id       uint32
	mem      []byte
	released []byte // contents at the release; nil while the memory is exposed
	release  func()
}

func (c *agentConn) expose(q *request, re *response) {
	m := &agentMemory{id: q.FrameID, mem: append([]byte{}, q.Body...)}
	var err error
	re.To, m.release, err = c.Conn.(transport.Exposer).Expose(q.FrameID, m.mem)
	if re.Err = remoteErrorOf(err); err != nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.exposed[q.ID] = m
}

func (c *agentConn) release(exposure uint64) {
	m := c.exposed[exposure]
	m.release()
	c.mu.Lock()
	defer c.mu.Unlock()
	m.released = append([]byte{}, m.mem...)
}

// inspect returns an error if memory has changed since its release.
func (c *agentConn) inspect() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, m := range c.exposed {
		if m.released != nil && !bytes.Equal(m.mem, m.released) {
			return errors.New("exposed memory was written after its release")
		}
	}
	return nil
}

// memory returns copies of all memory that is exposed now with one of the ids.
func (c *agentConn) memory(ids ...uint32) (all []memoryCopy) {
	for exposure, m := range c.exposed {
		for _, id := range ids {
			if m.id == id && m.released == nil {
				all = append(all, memoryCopy{exposure, bytes.Clone(m.mem)})
				break
			}
		}
	}
	return all
}

// Buffer implements transport.Sink.
func (c *agentConn) Buffer(h transport.Header) []byte {
	c.open, c.body, c.n = true, make([]byte, h.Size), 0
	c.events = append(c.events, event{Buffer: true, Header: cloneHeader(h)})
	return c.body
}

// Arrived implements transport.Sink.
func (c *agentConn) Arrived(h transport.Header, n int) {
	e := event{Header: cloneHeader(h), N: n}
	if c.open {
		e.Memory = c.memory(transport.NoNotify)
		e.Body = c.body[c.n:n]
		c.n, c.open = n, n < h.Size
	} else {
		e.Memory = c.memory(transport.NoNotify, h.ID)
	}
	c.events = append(c.events, e)
}

func cloneHeader(h transport.Header) transport.Header {
	h.Head = bytes.Clone(h.Head)
	return h
}
