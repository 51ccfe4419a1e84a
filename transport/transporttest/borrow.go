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

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/transport"
)

// A Borrower has Nodes at the far end of a wire, whose other end is in Lend: in another
// process, or on another machine. What they are asked to do, what their Sinks are asked
// and told, and each body, goes over the wire to the test and back.
type Borrower struct {
	out  *post
	last atomic.Uint64 // number of a call, a node, a frame, an exposure or an Arm

	mu     sync.Mutex // guards the rest
	calls  map[uint64]*call
	accept map[uint64]func(transport.Conn)
	frames map[uint64]func(error)
	arms   map[uint64]armedBy // by Conn
	conns  map[uint64]*farConn
	broken error
}

// An armedBy is the last Arm of a Conn.
type armedBy struct {
	item  uint64
	ready func()
}

// Borrow makes a Borrower, once there is a lender; it ends with wire.
func Borrow(wire io.ReadWriter) *Borrower {
	b := &Borrower{out: newPost(wire), calls: make(map[uint64]*call), accept: make(map[uint64]func(transport.Conn)),
		frames: make(map[uint64]func(error)), arms: make(map[uint64]armedBy), conns: make(map[uint64]*farConn)}
	go b.listen(gob.NewDecoder(wire))
	b.ask(&order{Do: greet}, nil) // all goroutines are there from now on
	return b
}

// Stop returns when all that was asked for is on its way.
func (b *Borrower) Stop() { b.out.stop() }

// Maker makes Nodes as mk does, but for those whose number is odd, which the lender makes.
func (b *Borrower) Maker(mk Maker) Maker {
	return func(tb testing.TB, n int) []Node {
		nodes := make([]Node, n)
		for i := range nodes {
			if i%2 == 0 {
				nodes[i] = mk(tb, 1)[0]
				continue
			}
			t := &farTransport{b: b, number: b.last.Add(1)}
			re := b.ask(&order{Do: makeNode, Node: t.number}, nil)
			if t.name = re.Addr; re.Err != nil {
				tb.Fatalf("the lender: %s", re.Err.Text)
			}
			nodes[i].Transport = t
		}
		return nodes
	}
}

// A call is an order that is waited for.
type call struct {
	mu    sync.Mutex // guards the rest
	more  sync.Cond
	queue []*report
}

func (c *call) hear(re *report) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.queue = append(c.queue, re)
	c.more.Signal()
}

func (c *call) next() *report {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.queue) == 0 {
		c.more.Wait()
	}
	re := c.queue[0]
	c.queue = c.queue[1:]
	return re
}

// ask gives an order and returns its answer; what comes before that is for each.
func (b *Borrower) ask(o *order, each func(*report)) *report {
	c := new(call)
	c.more.L = &c.mu
	o.Call = b.last.Add(1)
	b.mu.Lock()
	broken := b.broken
	b.calls[o.Call] = c
	b.mu.Unlock()
	if broken != nil {
		return &report{Do: answer, Err: fateOf(broken)}
	}
	b.out.say(o)
	for {
		re := c.next()
		if re.Do == answer {
			b.mu.Lock()
			delete(b.calls, o.Call)
			b.mu.Unlock()
			return re
		}
		each(re)
	}
}

// listen hears what the lender says. Done runs here, ready does not: it may ask.
func (b *Borrower) listen(in *gob.Decoder) {
	for {
		re := new(report)
		if err := in.Decode(re); err != nil {
			b.fail(fmt.Errorf("the lender is gone: %w", err))
			return
		}
		b.mu.Lock()
		c, accept, frame, arm, conn := b.calls[re.Call], b.accept[re.Node], b.frames[re.Item], b.arms[re.Conn], b.conns[re.Conn]
		b.mu.Unlock()
		switch re.Do {
		case answer, place, arrived:
			if re.Asleep {
				conn.asleep.Store(true) // here, so that a ready behind it is not forgotten
			}
			c.hear(re)
		case accepted:
			accept(b.conn(re))
		case done:
			b.mu.Lock()
			delete(b.frames, re.Item)
			b.mu.Unlock()
			frame(re.Err.err(nil))
		case ready:
			conn.asleep.Store(false)
			if re.Item != 0 && arm.item == re.Item { // else another one has replaced it meanwhile
				go arm.ready()
			}
		}
	}
}

// fail ends all calls, under way and to come.
func (b *Borrower) fail(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.broken = err
	for _, c := range b.calls {
		c.hear(&report{Do: answer, Err: fateOf(err)})
	}
}

// err is the error again; also what a context of the caller's said, if it ended.
func (f *fate) err(also error) error {
	switch {
	case f == nil:
		return nil
	case f.Kind == 0:
		return errors.New(f.Text)
	}
	return &fault.Error{Kind: f.Kind, Op: f.Op, Rank: -1, Err: errors.Join(errors.New(f.Text), also)}
}

// A farTransport is a Transport at the lender.
type farTransport struct {
	b      *Borrower
	number uint64
	name   string
}

func (t *farTransport) Name() string { return t.name }

// Serve serves on a listener of the lender's.
func (t *farTransport) Serve(_ net.Listener, accept func(transport.Conn)) (string, error) {
	t.b.mu.Lock()
	t.b.accept[t.number] = accept
	t.b.mu.Unlock()
	re := t.b.ask(&order{Do: serve, Node: t.number}, nil)
	return re.Addr, re.Err.err(nil)
}

func (t *farTransport) Dial(ctx context.Context, addr string) (transport.Conn, error) {
	o := &order{Do: dial, Node: t.number, Addr: addr}
	switch {
	case errors.Is(ctx.Err(), context.Canceled):
		o.Ended = fault.Canceled
	case ctx.Err() != nil:
		o.Ended = fault.Timeout
	}
	re := t.b.ask(o, nil)
	if re.Err != nil {
		return nil, re.Err.err(ctx.Err())
	}
	return t.b.conn(re), nil
}

func (t *farTransport) Close() error {
	re := t.b.ask(&order{Do: closeNode, Node: t.number}, nil)
	t.b.mu.Lock()
	defer t.b.mu.Unlock()
	for _, c := range t.b.conns {
		c.asleep.Store(false)
	}
	return re.Err.err(nil)
}

// A farConn is a Conn at the lender.
type farConn struct {
	b      *Borrower
	number uint64
	asleep atomic.Bool // nothing could move before the lender says so

	reading atomic.Bool // the role; it guards what follows
	err     error       // the first of Progress
	dst     []byte      // for the body of the frame that is arriving
	in      int         // bytes of it

	mu      sync.Mutex // guards the rest
	exposed map[uint64][]byte
}

// conn is a Conn with the abilities that the lender told of.
func (b *Borrower) conn(re *report) transport.Conn {
	c := &farConn{b: b, number: re.Conn, exposed: make(map[uint64][]byte)}
	b.mu.Lock()
	b.conns[c.number] = c
	b.mu.Unlock()
	switch {
	case re.Guest && re.Exposer:
		return struct {
			*farConn
			farAdmits
			farExposes
		}{c, farAdmits{c}, farExposes{c}}
	case re.Guest:
		return struct {
			*farConn
			farAdmits
		}{c, farAdmits{c}}
	case re.Exposer:
		return struct {
			*farConn
			farExposes
		}{c, farExposes{c}}
	}
	return c
}

func (c *farConn) Send(f *transport.Frame) {
	item := c.b.last.Add(1)
	c.b.mu.Lock()
	c.b.frames[item] = f.Done
	c.b.mu.Unlock()
	c.b.out.say(&order{Do: send, Conn: c.number, Item: item, Head: f.Head, Body: f.Body, To: f.To, At: f.Offset, ID: f.ID})
}

func (c *farConn) Progress(in transport.Sink) (transport.State, error) {
	if !c.reading.CompareAndSwap(false, true) {
		return transport.Busy, nil
	}
	defer c.reading.Store(false)
	if c.asleep.Load() {
		return transport.Idle, nil
	}
	re := c.b.ask(&order{Do: progress, Conn: c.number}, func(re *report) { c.relay(re, in) })
	err := re.Err.err(nil)
	if err != nil && (c.err == nil || c.err.Error() != err.Error()) {
		c.err = err
	} else if err != nil {
		err = c.err // it is to stay the same one
	}
	return transport.State(re.State), err
}

// relay asks the Sink, or tells it.
func (c *farConn) relay(re *report, in transport.Sink) {
	c.mu.Lock()
	for _, p := range re.Wrote {
		if mem := c.exposed[p.Item]; mem != nil {
			copy(mem[p.Off:], p.Body)
		}
	}
	c.mu.Unlock()
	if re.Do == place {
		c.dst, c.in = in.Buffer(re.Header), 0
		c.b.out.say(&order{Do: placed, Conn: c.number, Size: len(c.dst), Dropped: c.dst == nil})
		return
	}
	if c.in < len(c.dst) {
		c.in += copy(c.dst[c.in:], re.Body)
	}
	in.Arrived(re.Header, re.N)
}

func (c *farConn) Arm(ready func()) {
	item := c.b.last.Add(1)
	c.b.mu.Lock()
	c.b.arms[c.number] = armedBy{item, ready}
	c.b.mu.Unlock()
	c.b.out.say(&order{Do: arm, Conn: c.number, Item: item})
}

// Close does not wait: what is asked of the Conn from now on, it is asked afterwards.
func (c *farConn) Close() error {
	c.b.out.say(&order{Do: closeConn, Conn: c.number})
	c.asleep.Store(false)
	return nil
}

type farAdmits struct{ c *farConn }

func (a farAdmits) Admit() { a.c.b.ask(&order{Do: admitConn, Conn: a.c.number}, nil) }

type farExposes struct{ c *farConn }

// Expose has the lender expose memory of its own; what comes there is copied to buf when
// the Sink hears of it, or of what follows.
func (x farExposes) Expose(id uint32, buf []byte) (transport.Token, func(), error) {
	c, item := x.c, x.c.b.last.Add(1)
	c.mu.Lock()
	c.exposed[item] = buf
	c.mu.Unlock()
	hide := func() {
		c.mu.Lock()
		delete(c.exposed, item)
		c.mu.Unlock()
	}
	o := &order{Do: expose, Conn: c.number, Item: item, ID: id, Size: len(buf)}
	if slices.ContainsFunc(buf, func(b byte) bool { return b != 0 }) {
		o.Body = slices.Clone(buf)
	}
	re := c.b.ask(o, nil)
	if re.Err != nil {
		hide()
		return re.To, nil, re.Err.err(nil)
	}
	return re.To, func() {
		c.b.ask(&order{Do: release, Conn: c.number, Item: item}, nil)
		hide()
	}, nil
}
