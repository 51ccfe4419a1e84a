package rendezvous

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/mesh"
	"github.com/tutti-go/tutti/transport"
)

// A Drive says who moves a message's bytes.
type Drive uint8

// The drives; Auto is the default.
const (
	Auto Drive = iota
	Push       // send-driven: the bytes go with the envelope
	Pull       // recv-driven: the receiver asks for them
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
	Credit     int   // bytes granted to each peer; at least 512 KiB
	Threshold  int   // largest message that Auto pushes; the same on all ranks
	SendBuffer int64 // bytes that accepted sends may hold
	StepBytes  int64 // bytes that one step's named sends may hold
	Drive      Drive // what Auto means
	Region     int64 // bytes laid out for the recurring tensors of each peer; 0: none
	Checksum   bool  // bodies carry a CRC-32C
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

	mu          sync.Mutex
	spaces      map[uint64]*Space
	closedIDs   map[uint64]struct{}
	peers       []*peer
	spilled     int64
	undelivered error
	ended       error // after Close: what every call gets
	chores      []chore
	dirty       []*peer // peers with frames to send
	freeOps     *Op
	freeCtl     *ctlFrame
	freeMsg     *message
	storage     storage
	wantedAny   int // receives in tables that name no peer
	steps       steps
	closer      *mesh.Waiter   // Drain's
	laying      sync.WaitGroup // regions being made; none begins once ended is set
}

// New makes the engine of one rank. Bind must follow before the first call.
func New(cfg Config) *Engine {
	if cfg.Credit < minCredit {
		cfg.Credit = max(minCredit, or(cfg.Credit, DefaultCredit))
	}
	cfg.Threshold = or(cfg.Threshold, DefaultThreshold)
	if cfg.SendBuffer == 0 {
		cfg.SendBuffer = DefaultSendBuffer
	}
	if cfg.StepBytes == 0 {
		cfg.StepBytes = DefaultStepBytes
	}
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	e := &Engine{cfg: cfg, spaces: make(map[uint64]*Space), closedIDs: make(map[uint64]struct{})}
	e.storage = storageFor(cfg.Size-1, cfg.Credit)
	e.peers = make([]*peer, cfg.Size)
	for r := range e.peers {
		e.peers[r] = newPeer(e, r)
	}
	return e
}

func or(v, fallback int) int {
	if v == 0 {
		return fallback
	}
	return v
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
	p.broken = err
	p.dropInbound()
	p.clearShelf()
	e.release()
}

// A chore is work to be done once the lock is released.
type chore struct {
	do   choreKind
	op   *Op
	from *Op
	msg  *message
	run  func()
}

type choreKind uint8

const (
	choreCall   choreKind = iota // run op's callback
	choreExpose                  // show op's buffer to its sender, and request the bytes
	choreHide                    // hide op's buffer again, and end it with op.leaving
	choreLocal                   // copy from a send of this rank's
	choreCopy                    // copy from a message that waited
	choreRun                     // call run
)

func (e *Engine) later(c chore) { e.chores = append(e.chores, c) }

// release unlocks the engine, and before that does what was put off: chores in
// the order they came, then frames, per peer in order and by one goroutine.
func (e *Engine) release() {
	for {
		switch {
		case len(e.chores) > 0:
			c := e.chores[0]
			e.chores = e.chores[:copy(e.chores, e.chores[1:])]
			e.mu.Unlock()
			e.perform(c)
			e.mu.Lock()
		case len(e.dirty) > 0:
			p := e.dirty[len(e.dirty)-1]
			e.dirty = e.dirty[:len(e.dirty)-1]
			p.flush()
		default:
			e.mu.Unlock()
			return
		}
	}
}

func (e *Engine) perform(c chore) {
	switch c.do {
	case choreRun:
		c.run()
	case choreCall:
		c.op.finished(c.op)
	case choreExpose:
		e.exposeAndRequest(c.op)
	case choreHide:
		c.op.unexpose()
		e.mu.Lock()
		c.op.unexpose, c.op.touching = nil, false
		if c.op.withdrew {
			e.repost(c.op)
		} else {
			e.finish(c.op, c.op.leaving)
		}
		e.release()
	case choreLocal:
		n := copy(c.op.buf, c.from.buf)
		e.mu.Lock()
		c.op.arrived, c.op.touching = n, false
		e.finish(c.op, c.op.leaving)
		e.finish(c.from, nil)
		e.release()
	case choreCopy:
		copy(c.op.buf, c.msg.data)
		e.mu.Lock()
		e.discard(c.msg)
		c.op.touching = false
		e.finish(c.op, c.op.leaving)
		e.release()
	}
}

// wait returns when op is done. When ctx or p ends it first, the op leaves
// without a trace if nothing has matched it, and is waited for otherwise: by
// then its peer has promised the bytes, or is found out by the control links.
func (e *Engine) wait(ctx context.Context, op *Op, p mesh.Patience) error {
	ls := op.Links()
	if e.m.Poll(ctx, op, p, ls) {
		return op.err
	}
	w := e.m.NewWaiter()
	op.waiter.Store(w)
	err := e.m.Sleep(ctx, w, op, p, ls)
	if err != nil {
		e.cancel(op, err)
		e.waitLinks(context.Background(), w, op, nil)
	}
	op.waiter.Store(nil)
	w.Free()
	return op.err
}

func (e *Engine) waitLinks(ctx context.Context, w *mesh.Waiter, op *Op, p mesh.Patience) error {
	return e.m.Wait(ctx, w, op, p, op.Links()...)
}

// Links are those that can make op happen.
func (op *Op) Links() []*mesh.Link {
	if op.send {
		return op.e.LinksOf(op.peer.rank)
	}
	return op.e.LinksOf(int(op.key.source))
}

// Watch has w woken when op is done; nil ends that.
func (op *Op) Watch(w *mesh.Waiter) { op.waiter.Store(w) }

// Cancel ends op with err unless it has met its other side; then it goes on.
func (op *Op) Cancel(err error) { op.e.cancel(op, err) }

// cancel ends an op that nothing has met yet with err.
func (e *Engine) cancel(op *Op, err error) {
	e.mu.Lock()
	switch op.phase {
	case phasePosted:
		op.space.table.unpost(op)
		e.finish(op, err)
	case phasePending:
		e.finish(op, err)
	case phaseOffered:
		e.withdraw(op)
		e.finish(op, err)
	case phaseMatched:
		op.canceled = err
	}
	e.release()
}

// Wait blocks until op is done or ctx ends; see Space. The op is the caller's to Free.
func (e *Engine) Wait(ctx context.Context, op *Op, p mesh.Patience) error {
	return e.wait(ctx, op, p)
}

// misuse is an error about this rank's own call.
func (e *Engine) misuse(op, format string, args ...any) error {
	return fault.New(fault.Misuse, op, e.cfg.Rank, format, args...)
}
