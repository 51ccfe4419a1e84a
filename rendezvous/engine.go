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

// A Protocol says who moves a message's bytes.
type Protocol uint8

// The drives; Auto is the default.
const (
	Auto       Protocol = iota
	Eager               // send-driven: the bytes go with the envelope
	Rendezvous          // recv-driven: the receiver asks for them
)

// Defaults of Config.
const (
	DefaultCredit     = 4 << 20
	DefaultThreshold  = 64 << 10
	DefaultSendBuffer = 256 << 20
	DefaultStepBytes  = 1 << 30

	// minCredit is what every peer may send before it has heard of a larger grant.
	minCredit = 512 << 10
	// envelopeCost is what a message costs in credit besides its bytes.
	envelopeCost = 256
	// segment is the size of a data frame's body.
	segment = 256 << 10
	// spillAfter is how long a large Send waits for its receive before it copies.
	spillAfter = time.Millisecond
)

// Config sets an Engine's bounds. The zero value of a field means its default.
type Config struct {
	Rank, Size int
	Credit     int      // bytes granted to each peer; at least 512 KiB
	Threshold  int      // largest message that Auto pushes; the same on all ranks
	SendBuffer int64    // bytes that accepted sends may hold
	StepBytes  int64    // bytes that one step's named sends may hold
	Protocol   Protocol // what Auto means
	Static     int64    // bytes of prepared buffers for the tensors that recur; 0: none
	Checksum   bool     // bodies carry a CRC-32C
	Log        *slog.Logger
}

// An Engine is one rank's meeting place: the table, and the exchange with every
// peer. Its methods may be called by any number of goroutines.
//
// One lock guards all its state. It is held for bookkeeping only: bytes are
// copied, frames sent and callbacks run outside, from release.
type Engine struct {
	cfg Config
	m   *mesh.Mesh

	mu           sync.Mutex
	contexts     map[uint64]*MatchContext
	closedIDs    map[uint64]struct{}
	peers        []*peer
	spilled      int64
	undelivered  error
	ended        error // after Close: what every call gets
	deferred     []deferredAction
	dirtyPeers   []*peer // peers with frames to send
	freeRequests *Request
	freeControl  *controlFrame
	freeMessages *message
	pool         bufferPool
	postedAny    int // receives in tables that name no peer
	steps        steps
	drainWaiter  *mesh.Waiter // Drain's
	plan         *staticPlan  // nil: without Config.Static
}

// New makes the engine of one rank. Bind must follow before the first call.
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

// Bind gives the engine its mesh.
func (e *Engine) Bind(m *mesh.Mesh) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.m = m
	for r, p := range e.peers {
		p.bind(m.Link(r))
	}
}

// Mesh is what Bind was given.
func (e *Engine) Mesh() *mesh.Mesh { return e.m }

// Sink implements mesh.Data.
func (e *Engine) Sink(l *mesh.Link) transport.Sink {
	p := e.peers[l.Rank]
	e.mu.Lock()
	defer e.mu.Unlock()
	p.bind(l)
	return p
}

// bind gives p its link, which Bind or the first Conn knows first. It is written
// once, before there is anyone to read it: frames are sent outside the lock.
func (p *peer) bind(l *mesh.Link) {
	if p.link != l {
		p.link = l
	}
}

// LinkDown implements mesh.Data. What was under way stays so until the verdict
// says who is to blame; only what a body was being written into is let go.
func (e *Engine) LinkDown(rank int, err error) {
	p := e.peers[rank]
	e.mu.Lock()
	p.connErr = err
	p.dropInbound()
	p.dropPrepared()
	e.unlock()
}

// A deferredAction is work to be done once the lock is released.
type deferredAction struct {
	kind    actionKind
	req     *Request
	sendReq *Request
	msg     *message
	run     func()
}

type actionKind uint8

const (
	actionComplete  actionKind = iota // run op's callback
	actionExpose                      // show op's buffer to its sender, and request the bytes
	actionUnexpose                    // hide op's buffer again, and end it with op.leaving
	actionCopyLocal                   // copy from a send of this rank's
	actionCopy                        // copy from a message that waited
	actionRun                         // call run
)

func (e *Engine) deferAction(c deferredAction) { e.deferred = append(e.deferred, c) }

// unlock unlocks the engine, and before that does what was put off: chores in
// the order they came, then frames, per peer in order and by one goroutine.
func (e *Engine) unlock() {
	for {
		switch {
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

func (e *Engine) runAction(c deferredAction) {
	switch c.kind {
	case actionRun:
		c.run()
	case actionComplete:
		c.req.onFinish(c.req)
	case actionExpose:
		e.exposeAndRequest(c.req)
	case actionUnexpose:
		c.req.unexpose()
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

// wait returns when op is done. When ctx or p ends it first, the op leaves
// without a trace if nothing has matched it, and is waited for otherwise: by
// then its peer has promised the bytes, or is found out by the control links.
func (e *Engine) wait(ctx context.Context, req *Request, p mesh.WaitPolicy) error {
	ls := req.Links()
	if e.m.Poll(ctx, req, p, ls) {
		return req.err
	}
	w := e.m.NewWaiter()
	req.waiter.Store(w)
	err := e.m.Sleep(ctx, w, req, p, ls)
	if err != nil {
		e.cancel(req, err)
		e.waitLinks(context.Background(), w, req, nil)
	}
	req.waiter.Store(nil)
	w.Free()
	return req.err
}

func (e *Engine) waitLinks(ctx context.Context, w *mesh.Waiter, req *Request, p mesh.WaitPolicy) error {
	return e.m.Wait(ctx, w, req, p, req.Links()...)
}

// Links are those that can make op happen.
func (req *Request) Links() []*mesh.Link {
	if req.send {
		return req.e.LinksOf(req.peer.rank)
	}
	return req.e.LinksOf(int(req.key.source))
}

// Watch has w woken when op is done; nil ends that.
func (req *Request) Watch(w *mesh.Waiter) { req.waiter.Store(w) }

// Cancel ends op with err unless it has met its other side; then it goes on.
func (req *Request) Cancel(err error) { req.e.cancel(req, err) }

// cancel ends an op that nothing has met yet with err.
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
	case phaseMatched:
		req.canceled = err
	}
	e.unlock()
}

// Wait blocks until op is done or ctx ends; see Space. The op is the caller's to Free.
func (e *Engine) Wait(ctx context.Context, req *Request, p mesh.WaitPolicy) error {
	return e.wait(ctx, req, p)
}

// misuse is an error about this rank's own call.
func (e *Engine) misuse(op, format string, args ...any) error {
	return fault.New(fault.Misuse, op, e.cfg.Rank, format, args...)
}
