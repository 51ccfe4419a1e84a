package rendezvous

import (
	"sync/atomic"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/mesh"
	"github.com/tutti-go/tutti/transport"
)

// A phase is where an Op stands. The engine's lock guards it.
type phase uint8

const (
	phaseIdle    phase = iota
	phasePending       // a send that waits for credit, or for nothing but its turn
	phaseOffered       // a send whose offer is out
	phaseFlowing       // a send whose bytes belong to the Conn
	phasePosted        // a receive in the table
	phaseMatched       // a receive that has met its message
	phaseDone
)

// An Op is one send or one receive under way. The goroutine that started it
// waits for it and frees it; everything else in it belongs to the engine.
type Op struct {
	e      *Engine
	done   atomic.Bool
	waiter atomic.Pointer[mesh.Waiter]
	frames [2]dataFrame
	use
}

// A use is all that an Op is while it serves one send or receive.
type use struct {
	space *Space
	key   key      // a receive's pattern; a send's own key as its receiver sees it
	buf   []byte   // the caller's until the op is done
	parts [][]byte // of a send in several pieces, instead of buf
	size  int      // bytes of these
	whole []byte   // a posted receive's buffer before it was cut to its message
	print uint64
	phase phase
	send  bool
	err   error

	// In the table, or in a peer's lists.
	order      uint64
	prev, next *Op
	posted     bool

	peer *peer  // a send's receiver; a matched receive's sender
	id   uint32 // the offer's, or the receive's

	// Sends.
	sent     int      // bytes handed to frames
	flying   int      // frames that belong to the Conn
	pull     bool     // its bytes wait for a request
	local    *message // of a send to this rank itself, while no receive has met it
	token    transport.Token
	request  uint32 // the receive id at the peer
	base     int    // where the peer's memory begins that token shows
	inBerth  uint32 // of the peer's region, that it is written to
	untold   bool   // it is being written there, and the peer has not been told
	detached bool   // nobody waits: the engine frees it
	spilled  int64
	soon     soon    // the moment after which it is spilled
	tensor   *Tensor // a named send's, or what a named receive got
	finished func(*Op)

	// Receives.
	match    envelope
	arrived  int
	offer    uint32   // the offer that it met, until its bytes begin to come
	claimed  *message // the message that it met while its bytes were arriving
	touching bool     // buf is being written into right now, or shown to the sender
	whollyIn bool     // all its bytes are here: it ends well, whoever goes meanwhile
	leaving  error    // what it ends with once nothing touches buf
	unexpose func()
	hiding   bool  // unexpose is about to run
	withdrew bool  // its offer was taken back while its buffer was being exposed
	canceled error // its caller gave up after the match; counts if the match is taken back
	alloc    bool  // a named receive without a buffer gets one of the message's size
}

// An envelope is what is known of a message without its bytes.
type envelope struct {
	source int
	tag    int32
	size   int
	print  uint64
	dead   bool
	dtype  uint8
	ndim   uint8
	dims   [maxDims]int64
	name   uint32 // a named tensor's, on the link that it came by
}

// length is the bytes of a message.
func (op *Op) length() int {
	if op.parts != nil {
		return op.size
	}
	return len(op.buf)
}

// dataFrame is a frame with room for its head.
type dataFrame struct {
	transport.Frame
	room [transport.MaxHead]byte
	busy bool
}

// Happened reports whether the op is done; see mesh.Event.
func (op *Op) Happened() bool { return op.done.Load() }

// Err is the op's error once it is done.
func (op *Op) Err() error { return op.err }

// Source is the job's rank that the received message came from.
func (op *Op) Source() int { return op.match.source }

// Tag is the received message's tag.
func (op *Op) Tag() int { return int(op.match.tag) }

// Bytes is the received message's size.
func (op *Op) Bytes() int { return op.match.size }

// take gets an op from the free list; e.mu is held.
func (e *Engine) take() *Op {
	op := e.freeOps
	if op == nil {
		return newOp(e)
	}
	e.freeOps = op.next
	op.next = nil
	return op
}

// newOp is apart from take, whose op a closure would move to the heap each time.
func newOp(e *Engine) *Op {
	op := &Op{e: e}
	for i := range op.frames {
		f := &op.frames[i]
		f.Done = func(err error) { op.frameDone(f, err) }
	}
	return op
}

// Free gives a finished op back. The caller must not touch it afterwards.
func (op *Op) Free() {
	op.e.mu.Lock()
	op.e.recycle(op)
	op.e.mu.Unlock()
}

func (e *Engine) recycle(op *Op) {
	op.use = use{next: e.freeOps}
	if op.waiter.Load() != nil {
		op.waiter.Store(nil)
	}
	op.done.Store(false)
	e.freeOps = op
}

// finish ends an op; e.mu is held. Whoever waits is woken, a callback is run
// after the lock is released, and a detached op goes back to the free list.
func (e *Engine) finish(op *Op, err error) {
	if op.phase == phaseDone {
		return
	}
	switch op.phase {
	case phasePending:
		op.peer.pending.remove(op)
		e.wakeClosers()
	case phaseOffered, phaseFlowing:
		op.peer.sends.remove(op)
		op.peer.unplace(op)
		e.wakeClosers()
	case phasePosted:
		e.unwant(op)
	case phaseMatched:
		e.unmatch(op)
	}
	op.phase = phaseDone
	op.err = err
	e.spilled -= op.spilled
	op.spilled = 0
	if op.finished != nil {
		e.later(chore{do: choreCall, op: op})
		return
	}
	if op.detached {
		e.lost(op, err)
		e.recycle(op)
		return
	}
	e.signal(op)
}

// unmatch forgets what joined a receive with its message.
func (e *Engine) unmatch(op *Op) {
	if op.send { // to this rank itself
		return
	}
	op.space.matched.remove(op)
	if op.id != 0 {
		delete(op.peer.receives, op.id)
	}
	if m := op.claimed; m != nil {
		op.claimed, m.claim, m.gone = nil, nil, true
	}
}

// signal tells the goroutine that waits for op.
func (e *Engine) signal(op *Op) {
	op.done.Store(true)
	if w := op.waiter.Load(); w != nil {
		w.Wake()
	}
}

// lost notes that a send which had been accepted, and whose caller has gone on,
// could not be delivered: Close reports it. What a rank has sent to itself and not
// received it gives up by closing, whatever else happens then.
func (e *Engine) lost(op *Op, err error) {
	if err != nil && e.undelivered == nil && op.peer.rank != e.cfg.Rank {
		e.undelivered = fault.New(fault.PeerLost, "close", e.cfg.Rank,
			"a message of %d bytes to rank %d that Send had accepted was not delivered: %w", len(op.buf), op.peer.rank, err)
	}
}

// hide ends an exposed op: its sender writes no more. e.mu is held.
func (e *Engine) hide(op *Op, err error) {
	op.leaving = err
	if op.hiding {
		return
	}
	op.hiding, op.touching = true, true
	e.later(chore{do: choreHide, op: op})
}

// retire ends an op from outside the exchange: at once, or, while a Conn writes
// into its buffer or from it, as soon as that has ended. A receive whose message
// is here as a whole ends as it was about to. A buffer that is shown to a sender
// is waited for as long as the Conn lives, because hiding it would fail the Conn
// for others, too: the sender sends the rest, or abandons it. e.mu is held.
func (e *Engine) retire(op *Op, err error) {
	switch {
	case op.phase == phaseDone, op.whollyIn:
	case op.unexpose != nil && op.peer.gone == nil && op.peer.broken == nil:
		op.leaving = err
	case op.unexpose != nil:
		e.hide(op, err)
	case op.touching || op.flying > 0:
		op.leaving = err
	default:
		e.finish(op, err)
	}
}
