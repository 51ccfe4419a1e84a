package transporttest

import (
	"bytes"
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"sync"
	"testing"
	"time"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/transport"
)

// An order is what a borrower has the lender do to a Node or a Conn of its; a report is
// what it hears. Both travel as gob, in order.
type order struct {
	Do         deed
	Call       uint64 // the report that answers has the same
	Node, Conn uint64
	Item       uint64 // a frame, an exposure or an Arm
	Head, Body []byte
	To         transport.Token
	At, Size   int
	ID         uint32
	Addr       string
	Ended      fault.Kind // of a Dial's context; 0: it has not
	Dropped    bool       // the Sink has no place for the body
}

type report struct {
	Do         deed
	Call       uint64
	Node, Conn uint64
	Item       uint64
	Header     transport.Header
	N          int    // bytes that are in
	Body       []byte // of these, the new ones
	Wrote      []patch
	State      int
	Asleep     bool // of Progress: not before ready could more move
	Addr       string
	To         transport.Token
	Guest      bool
	Exposer    bool
	Err        *fate
}

// A deed is what an order asks for, and a report is about.
type deed uint8

const (
	greet deed = iota + 1
	makeNode
	serve
	dial
	closeNode
	send
	progress
	arm
	closeConn
	admitConn
	expose
	release
	placed // the Sink's answer to place

	answer   // of a call
	accepted // a Conn
	done     // a frame
	ready    // an Arm
	place    // the Sink is asked, in a call
	arrived  // the Sink is told, in a call
)

// A patch is what has changed in exposed memory.
type patch struct {
	Item uint64
	Off  int
	Body []byte
}

// A fate is an error on its way.
type fate struct {
	Kind fault.Kind // 0: it is none of package fault's
	Op   string
	Text string
}

func fateOf(err error) *fate {
	if err == nil {
		return nil
	}
	var f *fault.Error
	if !errors.As(err, &f) {
		return &fate{Text: err.Error()}
	}
	return &fate{Kind: f.Kind, Op: f.Op, Text: err.Error()}
}

// Lend makes Nodes for a Borrower at the other end of wire, and does with them what it
// says, until wire ends. What a Node has to keep is checked at the Borrower; here it is
// checked that nothing writes to memory after its release. A borrower that ends without
// having closed what it has borrowed fails tb, and that is closed here. It may run on a
// goroutine that is not the test's.
func Lend(tb testing.TB, wire io.ReadWriter, mk Maker) {
	tb.Helper()
	l := &lender{tb: aside{tb}, mk: mk, out: newPost(wire), nodes: make(map[uint64]Node), ended: make(map[uint64]bool), conns: make(map[uint64]*lentConn)}
	in := gob.NewDecoder(wire)
	for {
		var o order
		if err := in.Decode(&o); err != nil {
			if !errors.Is(err, io.EOF) {
				tb.Errorf("the borrower is gone: %v", err)
			}
			break
		}
		l.obey(&o)
	}
	l.takeBack()
	l.work.Wait()
	l.out.stop()
}

type lender struct {
	tb   testing.TB
	mk   Maker
	out  *post
	work sync.WaitGroup // calls that may take long

	mu    sync.Mutex // guards the rest
	nodes map[uint64]Node
	ended map[uint64]bool // nodes that were closed
	conns map[uint64]*lentConn
	last  uint64 // number of a Conn
	over  bool   // the borrower is gone
}

// A lentConn is a Conn of a Node's that is lent.
type lentConn struct {
	transport.Conn
	number, node uint64
	replies      chan *order // placed, for the Progress under way

	// Of the role: the frame that is arriving.
	open bool
	body []byte // where it goes; nil: nowhere
	told int    // bytes of it that the borrower has

	mu      sync.Mutex // guards the rest
	exposed map[uint64]*exhibit
	armed   uint64 // the borrower's last Arm that has not fired; 0: none
}

// An exhibit is exposed memory and what its borrower knows of it.
type exhibit struct {
	id         uint32
	mem, known []byte
	hide       func()
	over       bool
}

func (l *lender) obey(o *order) {
	l.mu.Lock()
	node, c := l.nodes[o.Node], l.conns[o.Conn]
	l.mu.Unlock()
	re := &report{Do: answer, Call: o.Call, Conn: o.Conn}
	switch o.Do {
	case makeNode:
		node, ok := l.newNode()
		if !ok {
			re.Err = &fate{Text: "it could not make a Node"}
			break
		}
		l.mu.Lock()
		l.nodes[o.Node] = node
		l.mu.Unlock()
		re.Addr = node.Transport.Name()
	case serve:
		addr, err := node.Transport.Serve(node.Listener, func(c transport.Conn) { l.out.say(l.enter(o.Node, c, &report{Do: accepted, Node: o.Node})) })
		re.Addr, re.Err = addr, fateOf(err)
	case dial:
		l.work.Go(func() { l.dial(node, o, re) })
		return
	case closeNode:
		l.mu.Lock()
		l.ended[o.Node] = true
		l.mu.Unlock()
		l.work.Go(func() { l.closeNode(node, o, re) })
		return
	case send:
		c.Send(&transport.Frame{Head: o.Head, Body: o.Body, To: o.To, Offset: o.At, ID: o.ID,
			Done: func(err error) { l.out.say(&report{Do: done, Conn: o.Conn, Item: o.Item, Err: fateOf(err)}) }})
		return
	case progress:
		l.work.Go(func() {
			state, err := c.Progress(&lentSink{l: l, c: c, call: o.Call})
			re.State, re.Err = int(state), fateOf(err)
			re.Asleep = state == transport.Idle && err == nil
			l.out.say(re)
			if re.Asleep {
				l.arm(c, 0)
			}
		})
		return
	case placed:
		c.replies <- o
		return
	case arm:
		l.arm(c, o.Item)
		return
	case closeConn:
		c.Close()
		return
	case admitConn:
		admit(c.Conn)
	case expose:
		c.expose(o, re)
	case release:
		c.release(o.Item)
	}
	l.out.say(re)
}

// arm has the borrower hear once c could move: so that its test asks a Conn only that has
// something, and, with an Arm of the test's own, to have that fire.
func (l *lender) arm(c *lentConn, item uint64) {
	if item != 0 {
		c.mu.Lock()
		c.armed = item
		c.mu.Unlock()
	}
	c.Arm(func() {
		c.mu.Lock()
		item := c.armed
		c.armed = 0
		c.mu.Unlock()
		l.out.say(&report{Do: ready, Conn: c.number, Item: item})
	})
}

// enter gives a Conn a number, and says in re what it is.
func (l *lender) enter(node uint64, c transport.Conn, re *report) *report {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last++
	l.conns[l.last] = &lentConn{Conn: c, number: l.last, node: node, replies: make(chan *order, 1), exposed: make(map[uint64]*exhibit)}
	if l.over { // nobody will order anything of it
		c.Close()
	}
	re.Conn = l.last
	_, re.Guest = c.(transport.Pending)
	_, re.Exposer = c.(transport.Exposer)
	return re
}

func (l *lender) dial(node Node, o *order, re *report) {
	ctx, cancel := context.WithTimeout(context.Background(), waitLimit())
	defer cancel()
	switch o.Ended {
	case fault.Canceled:
		cancel()
	case fault.Timeout:
		ctx, cancel = context.WithDeadline(context.Background(), time.Unix(1, 0))
		defer cancel()
	}
	c, err := node.Transport.Dial(ctx, o.Addr)
	if re.Err = fateOf(err); err == nil {
		l.enter(o.Node, c, re)
	}
	l.out.say(re)
}

// closeNode closes a Node, and looks at all memory that its Conns had released.
func (l *lender) closeNode(node Node, o *order, re *report) {
	err := node.Transport.Close()
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.conns {
		if c.node == o.Node {
			err = errors.Join(err, c.inspect())
		}
	}
	re.Err = fateOf(err)
	l.out.say(re)
}

func (c *lentConn) expose(o *order, re *report) {
	x := &exhibit{id: o.ID, mem: make([]byte, o.Size), known: make([]byte, o.Size)}
	copy(x.mem, o.Body)
	copy(x.known, o.Body)
	to, hide, err := c.Conn.(transport.Exposer).Expose(o.ID, x.mem)
	re.To, re.Err = to, fateOf(err)
	if err != nil {
		return
	}
	x.hide = hide
	c.mu.Lock()
	defer c.mu.Unlock()
	c.exposed[o.Item] = x
}

// release ends an exposure, and notes what its memory holds from then on.
func (c *lentConn) release(item uint64) {
	c.mu.Lock()
	x := c.exposed[item]
	c.mu.Unlock()
	x.hide()
	c.mu.Lock()
	defer c.mu.Unlock()
	x.over = true
	copy(x.known, x.mem)
}

func (c *lentConn) inspect() (err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, x := range c.exposed {
		if x.over && !bytes.Equal(x.mem, x.known) {
			err = fmt.Errorf("exposed memory of %d bytes was written after its release", len(x.mem))
		}
		x.mem, x.known = nil, nil
	}
	return err
}

// news is what has changed in the memory exposed with an id.
func (c *lentConn) news(id uint32) (all []patch) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for item, x := range c.exposed {
		if x.id != id || x.over {
			continue
		}
		if from, to := changed(x.known, x.mem); from < to {
			copy(x.known[from:to], x.mem[from:to])
			all = append(all, patch{item, from, bytes.Clone(x.known[from:to])})
		}
	}
	return all
}

// changed is the part of b outside of which it is like a.
func changed(a, b []byte) (from, to int) {
	const step = 4096
	for to = len(b); from < to && bytes.Equal(a[from:min(from+step, to)], b[from:min(from+step, to)]); from = min(from+step, to) {
	}
	for from < to && bytes.Equal(a[max(to-step, from):to], b[max(to-step, from):to]) {
		to = max(to-step, from)
	}
	for from < to && a[from] == b[from] {
		from++
	}
	for from < to && a[to-1] == b[to-1] {
		to--
	}
	return from, to
}

// A lentSink has the borrower's Sink asked and told, for one Progress.
type lentSink struct {
	l    *lender
	c    *lentConn
	call uint64
}

// Buffer implements transport.Sink.
func (s *lentSink) Buffer(h transport.Header) []byte {
	s.l.out.say(&report{Do: place, Call: s.call, Header: clone(h)})
	o, ok := <-s.c.replies
	s.c.open, s.c.body, s.c.told = true, nil, 0
	if ok && !o.Dropped {
		s.c.body = make([]byte, o.Size)
	}
	return s.c.body
}

// Arrived implements transport.Sink.
func (s *lentSink) Arrived(h transport.Header, n int) {
	c := s.c
	re := &report{Do: arrived, Call: s.call, Header: clone(h), N: n, Wrote: c.news(transport.NoNotify)}
	switch {
	case c.open:
		if c.body != nil {
			re.Body = bytes.Clone(c.body[c.told:n])
		}
		c.told, c.open = n, n < h.Size
	case h.ID != transport.NoNotify:
		re.Wrote = append(re.Wrote, c.news(h.ID)...)
	}
	s.l.out.say(re)
}

func clone(h transport.Header) transport.Header {
	h.Head = bytes.Clone(h.Head)
	return h
}
