package rendezvous

import (
	"cmp"
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/mesh"
	"github.com/tutti-go/tutti/transport"
)

// A Protocol says when the bytes of a message are sent: with the envelope, or when the receiver
// requests them.
type Protocol uint8

// The protocols. Auto is the default.
const (
	Auto       Protocol = iota // eager up to Config.Threshold bytes, rendezvous above
	Eager                      // the bytes go with the envelope, as far as credit allows it
	Rendezvous                 // the receiver requests the bytes once a receive has matched
)

// The defaults of Config.
const (
	DefaultCredit     = 4 << 20
	DefaultThreshold  = 64 << 10
	DefaultSendBuffer = 256 << 20
	DefaultStepBytes  = 1 << 30

	// minCredit is the number of bytes that a rank may send before a header has granted it more.
	// Both ranks assume minCredit, so the first message needs no round trip.
	minCredit = 512 << 10
	// envelopeCost is the credit that a message takes in addition to its bytes. It accounts for the
	// memory of a waiting message: its struct, its two list entries and a bucket.
	envelopeCost = 256
	// segment is the size of a data frame's body. Frames of other requests are sent between two
	// segments of a message.
	segment = 256 << 10
	// spillAfter is how long a large Send waits for its receive before it copies the body.
	spillAfter = time.Millisecond
)

// Config sets an Engine's bounds. The zero value of a field means its default.
type Config struct {
	Rank, Size int

	// Credit is the number of bytes of unmatched messages that each peer may have waiting on this
	// rank, at least 512 KiB. It bounds the memory of waiting messages per peer.
	Credit int

	// Threshold is the size in bytes of the largest message that Auto sends eagerly. Up to this
	// size a copy is cheaper than a round trip. All ranks must use the same Threshold.
	Threshold int

	// SendBuffer is the number of bytes that the copies of accepted sends may take, over all peers.
	SendBuffer int64

	// StepBytes is the number of bytes that the unfinished named sends of one step may take. It is
	// also the size of the largest tensor that a receive without a buffer allocates.
	StepBytes int64

	// Protocol decides how messages are sent: Eager or Rendezvous for every message, or Auto, which
	// decides by Threshold.
	Protocol Protocol

	// Static is the number of bytes of buffers that the engine may prepare for recurring tensors.
	// With 0 the engine prepares none.
	Static int64

	// Checksum adds a CRC-32C to bodies. With Checksum the engine exposes no memory and does not
	// use the fast path.
	Checksum bool

	// CallBack calls the callback of a named send or receive with its error, on any goroutine. It
	// must not block. If CallBack is nil, the callback runs at once.
	CallBack func(err error, done func(error))

	Log *slog.Logger // nil: slog.Default
}

// An Engine is the matching engine of one rank: the contexts with their tables, and the exchange
// with every peer. Its methods may be called by any number of goroutines.
//
// One lock, mu, guards all state of the engine, its contexts, peers, requests and messages. It is
// held for bookkeeping only. Work that takes time or calls other code is appended to deferred or
// queued as a frame, and unlock does this work after it has released mu. So no other code runs
// while a caller changes the state:
//
//	e.mu.Lock()
//	... change state, defer actions, enqueue frames ...
//	e.unlock()   // runs the actions, sends the frames, leaves mu unlocked
//
// Code that defers nothing may call mu.Unlock itself.
type Engine struct {
	cfg Config
	m   *mesh.Mesh // set by Bind, before the first call

	mu sync.Mutex // guards all below

	// contexts holds the contexts that are open on this rank and the unopened contexts that
	// messages have arrived for. closedIDs holds the ids of closed contexts; messages for closed
	// contexts are dropped.
	contexts  map[uint64]*MatchContext
	closedIDs map[uint64]struct{}

	// peers are indexed by rank. The entry of this rank is for sends to itself.
	peers []*peer

	// spilled counts the bytes of Config.SendBuffer that the copies of accepted sends take.
	spilled int64

	// undelivered is the error of the first accepted send that could not be delivered. Drain
	// returns it.
	undelivered error

	// draining says that Drain has begun: messages that no posted receive matches are dropped.
	draining bool

	// ended is the error that every call returns after End. End sets it.
	ended error

	// deferred holds the actions that unlock runs. dirtyPeers holds the peers whose queued frames
	// unlock sends.
	deferred   []deferredAction
	dirtyPeers []*peer

	// The free lists let a steady exchange allocate nothing. pool holds memory for eager messages
	// that wait for a receive.
	freeRequests *Request
	freeControl  *controlFrame
	freeMessages *message
	pool         bufferPool

	// postedAny counts the posted receives with source Any, in all contexts.
	postedAny int

	// steps is the state of the steps of named tensors.
	steps steps

	// drainWaiter is woken when Drain should check again; nil while nobody drains.
	drainWaiter *mesh.Waiter

	// plan prepares the receives of recurring tensors. It is nil if Config.Static is 0. It has its
	// own lock.
	plan *staticPlan
}

// New returns the engine of one rank. Bind must follow before the first call. Fields of cfg that
// are zero get their defaults.
func New(cfg Config) *Engine {
	if cfg.Credit < minCredit {
		cfg.Credit = max(minCredit, cmp.Or(cfg.Credit, DefaultCredit))
	}
	cfg.Threshold = cmp.Or(cfg.Threshold, DefaultThreshold)
	cfg.SendBuffer = cmp.Or(cfg.SendBuffer, DefaultSendBuffer)
	cfg.StepBytes = cmp.Or(cfg.StepBytes, DefaultStepBytes)
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	e := &Engine{cfg: cfg, contexts: make(map[uint64]*MatchContext), closedIDs: make(map[uint64]struct{})}
	e.pool = newBufferPool(cfg.Size-1, cfg.Credit)
	if cfg.Static > 0 {
		e.plan = newStaticPlan(cfg.Static)
	}
	e.peers = make([]*peer, cfg.Size)
	for r := range e.peers {
		e.peers[r] = newPeer(e, r)
	}
	return e
}

// Bind sets the mesh that carries the engine's frames. The mesh calls the engine's Sink and
// LinkDown, possibly before Bind.
func (e *Engine) Bind(m *mesh.Mesh) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.m = m
	for r, p := range e.peers {
		p.bind(m.Link(r))
	}
}

// Mesh returns the mesh that was passed to Bind.
func (e *Engine) Mesh() *mesh.Mesh { return e.m }

// Sink implements mesh.Data. It returns the peer of the link's rank, which handles the frames that
// arrive on the link.
func (e *Engine) Sink(l *mesh.Link) transport.Sink {
	p := e.peers[l.Rank]
	e.mu.Lock()
	defer e.mu.Unlock()
	p.bind(l)
	return p
}

// bind sets p.link. Bind and Sink both call it, and the first call sets the field. Later calls do
// not write the field again, because frames are sent without the lock and read it.
func (p *peer) bind(l *mesh.Link) {
	if p.link != l {
		p.link = l
	}
}

// LinkDown implements mesh.Data. It keeps the requests in flight: FailPeer ends them later, with an
// error that names the failed rank. LinkDown only detaches the buffers that the Conn was writing
// into, because the Conn has stopped.
func (e *Engine) LinkDown(rank int, err error) {
	p := e.peers[rank]
	e.mu.Lock()
	p.connErr = err
	p.dropInbound()
	p.dropPrepared()
	e.unlock()
}

// A deferredAction is work that Engine.unlock does after it has released the lock. It is a struct
// and not a closure, so that deferring an action allocates nothing.
type deferredAction struct {
	kind    actionKind
	req     *Request
	sendReq *Request
	msg     *message
	run     func()
}

type actionKind uint8

const (
	actionComplete  actionKind = iota // call req.onFinish
	actionExpose                      // expose req's buffer to its sender, and request the bytes
	actionUnexpose                    // withdraw the exposure of req's buffer, and finish req
	actionCopyLocal                   // copy from sendReq, a send to this rank itself, to req
	actionCopy                        // copy msg, which waited in the table, to req
	actionRun                         // call run
)

func (e *Engine) deferAction(c deferredAction) { e.deferred = append(e.deferred, c) }

// unlock ends a critical section. It runs the deferred actions in the order they were added, sends
// the queued frames, and returns with the lock released. An action may defer further actions.
// Frames to one peer keep their order, because flush allows only one goroutine at a time to send to
// a peer.
func (e *Engine) unlock() {
	for {
		switch {
		// Actions run before frames are sent, because an action may queue a frame.
		case len(e.deferred) > 0:
			c := e.deferred[0]
			e.deferred = e.deferred[:copy(e.deferred, e.deferred[1:])]
			e.mu.Unlock()
			e.runAction(c)
			e.mu.Lock()
		case len(e.dirtyPeers) > 0:
			p := e.dirtyPeers[len(e.dirtyPeers)-1]
			e.dirtyPeers = e.dirtyPeers[:len(e.dirtyPeers)-1]
			p.flush()
		default:
			e.mu.Unlock()
			return
		}
	}
}

// runAction runs one action without the lock. An action that ends a request locks mu again and
// releases it with unlock, because finish may defer the request's callback.
func (e *Engine) runAction(c deferredAction) {
	switch c.kind {
	case actionRun:
		c.run()
	case actionComplete:
		c.req.onFinish(c.req)
	case actionExpose:
		e.exposeAndRequest(c.req)
	case actionUnexpose:
		c.req.unexpose() // unexpose may block until a write in flight has ended
		e.mu.Lock()
		c.req.unexpose, c.req.bufBusy = nil, false
		if c.req.withdrawn {
			e.repost(c.req)
		} else {
			e.finish(c.req, c.req.pendingErr)
		}
		e.unlock()
	case actionCopyLocal:
		n := copy(c.req.buf, c.sendReq.buf)
		e.mu.Lock()
		c.req.arrived, c.req.bufBusy = n, false
		e.finish(c.req, c.req.pendingErr)
		e.finish(c.sendReq, nil)
		e.unlock()
	case actionCopy:
		copy(c.req.buf, c.msg.data)
		e.mu.Lock()
		e.discard(c.msg)
		c.req.bufBusy = false
		e.finish(c.req, c.req.pendingErr)
		e.unlock()
	}
}

// wait blocks until req is done and returns req.err. If ctx or p ends the wait first, wait cancels
// req. A matched request is not canceled: wait waits for it, because its peer has promised the
// bytes. If the peer does not deliver them, the failure detector ends the request.
func (e *Engine) wait(ctx context.Context, req *Request, p mesh.WaitPolicy) error {
	ls := req.Links()
	if e.m.Poll(ctx, req, p, ls) {
		return req.err
	}
	w := e.m.NewWaiter()
	req.waiter.Store(w)
	err := e.m.Sleep(ctx, w, req, p, ls)
	if err != nil { // ctx or p has ended the wait; err is not the request's error
		e.cancel(req, err)
		e.waitLinks(context.Background(), w, req, nil)
	}
	req.waiter.Store(nil)
	w.Free()
	return req.err
}

// waitLinks waits for req and makes progress on the links that req's frames can arrive on.
func (e *Engine) waitLinks(ctx context.Context, w *mesh.Waiter, req *Request, p mesh.WaitPolicy) error {
	return e.m.Wait(ctx, w, req, p, req.Links()...)
}

// Links returns the links on which frames that complete req can arrive: the link of its peer, or
// all links for a receive from any source.
func (req *Request) Links() []*mesh.Link {
	if req.send {
		return req.e.LinksOf(req.peer.rank)
	}
	return req.e.LinksOf(int(req.key.source))
}

// Watch makes req wake w when it is done. A nil w removes the waiter. A request has at most one
// waiter.
func (req *Request) Watch(w *mesh.Waiter) { req.waiter.Store(w) }

// Cancel ends req with err, unless req is matched. A matched request goes on; it ends with err only
// if the sender withdraws the message.
func (req *Request) Cancel(err error) { req.e.cancel(req, err) }

// cancel implements Cancel. See Request for the phases.
func (e *Engine) cancel(req *Request, err error) {
	e.mu.Lock()
	switch req.phase {
	case phasePosted:
		req.mc.table.unpost(req)
		e.finish(req, err)
	case phasePending:
		e.finish(req, err)
	case phaseOffered:
		e.withdraw(req)
		e.finish(req, err)
	case phaseMatched: // it goes on; repost looks at canceled
		req.canceled = err
	}
	e.unlock()
}

// Wait blocks until req is done and returns req's error. If ctx or p ends the wait first, Wait
// cancels req. The caller frees req afterwards.
func (e *Engine) Wait(ctx context.Context, req *Request, p mesh.WaitPolicy) error {
	return e.wait(ctx, req, p)
}

// misuse returns a fault.Misuse error: the caller on this rank has made an invalid call.
func (e *Engine) misuse(op, format string, args ...any) error {
	return fault.New(fault.Misuse, op, e.cfg.Rank, format, args...)
}
