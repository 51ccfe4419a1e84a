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

// A Protocol says when a message's bytes travel: with its envelope, or on request.
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

	// minCredit is what every peer may send before it knows of a larger grant. Both ranks
	// assume it, so that the first message needs no round trip.
	minCredit = 512 << 10
	// envelopeCost is what a message costs in credit besides its bytes. It stands for the memory
	// that a waiting message takes: its struct, its place in two lists and a bucket.
	envelopeCost = 256
	// segment is the size of a data frame's body. Frames of other requests get their turn in
	// between.
	segment = 256 << 10
	// spillAfter is how long a large Send waits for its receive before it copies the body.
	spillAfter = time.Millisecond
)

// Config sets an Engine's bounds. The zero value of a field means its default.
type Config struct {
	Rank, Size int

	// Credit is the bytes of messages that each peer may have waiting here; at least 512 KiB. The
	// memory that waiting messages take is at most Credit for each peer.
	Credit int

	// Threshold is the largest message in bytes that Auto sends eagerly: up to it a copy is cheaper
	// than a round trip. It must be the same on all ranks.
	Threshold int

	// SendBuffer is the bytes that the copies of accepted sends may hold, for all peers together.
	SendBuffer int64

	// StepBytes is the bytes that one step's named sends may hold, and the largest tensor that a
	// receive without a buffer allocates.
	StepBytes int64

	// Protocol is what Auto means: Eager or Rendezvous for every message, or by Threshold.
	Protocol Protocol

	// Static is the bytes of buffers that the engine may prepare for the tensors that recur; 0: none.
	Static int64

	// Checksum adds a CRC-32C to bodies. It rules out exposed memory and the fast path.
	Checksum bool

	Log *slog.Logger // nil: slog.Default
}

// An Engine is the matching engine of one rank: the contexts with their tables, and the exchange
// with every peer. Its methods may be called by any number of goroutines.
//
// One lock, mu, guards all state of the engine, its contexts, peers, requests and messages. It is
// held for bookkeeping only. Whatever takes time or calls other code is put into deferred, or
// queued as a frame, and done by unlock after the lock is released. So a caller may hold mu, change
// state, and trust that nothing runs in between:
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

	// contexts are the contexts that are open here, or that messages have arrived for. closedIDs
	// are those that were closed; messages for them are dropped.
	contexts  map[uint64]*MatchContext
	closedIDs map[uint64]struct{}

	// peers are indexed by rank. The own one is for sends to this rank itself.
	peers []*peer

	// spilled counts the bytes of copies that accepted sends hold, of Config.SendBuffer.
	spilled int64

	// undelivered is the error of the first accepted send that was lost; Drain returns it.
	undelivered error

	// ended is set by End: the error of every call from then on.
	ended error

	// deferred are the actions, and dirtyPeers the peers with frames, that unlock takes care of.
	deferred   []deferredAction
	dirtyPeers []*peer

	// Free lists, so that a steady exchange allocates nothing. pool has the memory of eager
	// messages that wait.
	freeRequests *Request
	freeControl  *controlFrame
	freeMessages *message
	pool         bufferPool

	// postedAny counts the posted receives with source Any, in all contexts.
	postedAny int

	// steps are those of named tensors.
	steps steps

	// drainWaiter is woken when Drain should check again; nil while nobody drains.
	drainWaiter *mesh.Waiter

	// plan prepares receives; nil without Config.Static. It has a lock of its own.
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

// Bind gives the engine the mesh that its frames travel over. The two need each other: the mesh
// calls Sink and LinkDown, which may happen before Bind.
func (e *Engine) Bind(m *mesh.Mesh) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.m = m
	for r, p := range e.peers {
		p.bind(m.Link(r))
	}
}

// Mesh returns what Bind was given.
func (e *Engine) Mesh() *mesh.Mesh { return e.m }

// Sink implements mesh.Data: the peer at the other end of a link is the sink of its frames.
func (e *Engine) Sink(l *mesh.Link) transport.Sink {
	p := e.peers[l.Rank]
	e.mu.Lock()
	defer e.mu.Unlock()
	p.bind(l)
	return p
}

// bind gives p its link. Bind and the first Conn both do so, whichever comes first. The field is
// written once, before anyone reads it: frames are sent without the lock.
func (p *peer) bind(l *mesh.Link) {
	if p.link != l {
		p.link = l
	}
}

// LinkDown implements mesh.Data. Requests in flight are kept until FailPeer brings the verdict,
// which names the rank to blame. Only buffers that the Conn was writing into are detached: the Conn
// has stopped.
func (e *Engine) LinkDown(rank int, err error) {
	p := e.peers[rank]
	e.mu.Lock()
	p.connErr = err
	p.dropInbound()
	p.dropPrepared()
	e.unlock()
}

// A deferredAction is work that was decided under the lock and is done after its release, by
// Engine.unlock. It is a struct and not a closure, so that deferring allocates nothing.
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
// the queued frames, and returns with the lock released. Actions may defer more. Frames to one peer
// keep their order, because flush lets one goroutine at a time send to a peer.
func (e *Engine) unlock() {
	for {
		switch {
		case len(e.deferred) > 0: // before the frames: an action may have one to add, such as a request
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

// runAction runs one action without the lock. Actions that end a request take the lock again and
// leave it by unlock, because to finish a request may defer its callback.
func (e *Engine) runAction(c deferredAction) {
	switch c.kind {
	case actionRun:
		c.run()
	case actionComplete:
		c.req.onFinish(c.req)
	case actionExpose:
		e.exposeAndRequest(c.req)
	case actionUnexpose:
		c.req.unexpose() // the Conn may wait for a write that is in flight
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

// wait returns req.err when req is done. When ctx or p ends the wait first, a request that nothing
// has matched is canceled. A matched one is waited for: its peer has promised the bytes, and if the
// peer does not deliver, the failure detector ends the request.
func (e *Engine) wait(ctx context.Context, req *Request, p mesh.WaitPolicy) error {
	ls := req.Links()
	if e.m.Poll(ctx, req, p, ls) {
		return req.err
	}
	w := e.m.NewWaiter()
	req.waiter.Store(w)
	err := e.m.Sleep(ctx, w, req, p, ls)
	if err != nil { // not the request's error but the wait's: ctx or p has ended it
		e.cancel(req, err)
		e.waitLinks(context.Background(), w, req, nil)
	}
	req.waiter.Store(nil)
	w.Free()
	return req.err
}

// waitLinks waits for req and moves the links that its frames can come on.
func (e *Engine) waitLinks(ctx context.Context, w *mesh.Waiter, req *Request, p mesh.WaitPolicy) error {
	return e.m.Wait(ctx, w, req, p, req.Links()...)
}

// Links returns the links on which frames can arrive that make req done: its peer's, or all links
// for a receive from any source.
func (req *Request) Links() []*mesh.Link {
	if req.send {
		return req.e.LinksOf(req.peer.rank)
	}
	return req.e.LinksOf(int(req.key.source))
}

// Watch wakes w when req is done. A nil w ends that. A request has one waiter at a time.
func (req *Request) Watch(w *mesh.Waiter) { req.waiter.Store(w) }

// Cancel ends req with err, unless it is matched: then it goes on, and err counts only if the
// sender takes the message back.
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

// Wait blocks until req is done, or ctx or p has ended the wait and req is canceled. It returns
// req's error. The caller frees req afterwards.
func (e *Engine) Wait(ctx context.Context, req *Request, p mesh.WaitPolicy) error {
	return e.wait(ctx, req, p)
}

// misuse returns an error about this rank's own call.
func (e *Engine) misuse(op, format string, args ...any) error {
	return fault.New(fault.Misuse, op, e.cfg.Rank, format, args...)
}
