package rendezvous

import (
	"sync/atomic"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/mesh"
	"github.com/tutti-go/tutti/transport"
)

// A requestPhase is where an Op stands. The engine's lock guards it.
type requestPhase uint8

const (
	phaseIdle    requestPhase = iota
	phasePending              // a send that waits for credit, or for nothing but its turn
	phaseOffered              // a send whose offer is out
	phaseFlowing              // a send whose bytes belong to the Conn
	phasePosted               // a receive in the table
	phaseMatched              // a receive that has met its message
	phaseDone
)

// An Request is one send or one receive under way. The goroutine that started it
// waits for it and frees it; everything else in it belongs to the engine.
type Request struct {
	e      *Engine
	done   atomic.Bool
	waiter atomic.Pointer[mesh.Waiter]
	frames [2]dataFrame
	requestState
}

// A requestState is all that an Op is while it serves one send or receive.
type requestState struct {
	mc          *MatchContext
	key         key      // a receive's pattern; a send's own key as its receiver sees it
	buf         []byte   // the caller's until the op is done
	parts       [][]byte // of a send in several pieces, instead of buf
	size        int      // bytes of these
	fullBuf     []byte   // a posted receive's buffer before it was cut to its message
	fingerprint uint64
	phase       requestPhase
	send        bool
	err         error

	// In the table, or in a peer's lists.
	order      uint64
	prev, next *Request
	posted     bool

	peer *peer  // a send's receiver; a matched receive's sender
	id   uint32 // the offer's, or the receive's

	// Sends.
	sent      int      // bytes handed to frames
	inFlight  int      // frames that belong to the Conn
	onRequest bool     // its bytes wait for a request
	local     *message // of a send to this rank itself, while no receive has met it
	token     transport.Token
	recvID    uint32        // the receive id at the peer
	remote    *remoteBuffer // the peer's buffer that it is being written to, until the peer is told
	detached  bool          // nobody waits: the engine frees it
	spilled   int64
	spillAt   spillDeadline // the moment after which it is spilled
	tensor    *Tensor       // a named send's, or what a named receive got
	onFinish  func(*Request)

	// Receives.
	match      envelope
	arrived    int
	offer      uint32   // the offer that it met, until its bytes begin to come
	claimed    *message // the message that it met while its bytes were arriving
	bufBusy    bool     // buf is being written into right now, or shown to the sender
	complete   bool     // all its bytes are here: it ends well, whoever goes meanwhile
	pendingErr error    // what it ends with once nothing touches buf
	unexpose   func()
	unexposing bool  // unexpose is about to run
	withdrawn  bool  // its offer was taken back while its buffer was being exposed
	canceled   error // its caller gave up after the match; counts if the match is taken back
	alloc      bool  // a named receive without a buffer gets one of the message's size
}

// An envelope is what is known of a message without its bytes.
type envelope struct {
	source      int
	tag         int32
	size        int
	fingerprint uint64
	dead        bool
	dtype       uint8
	ndim        uint8
	dims        [maxDims]int64
	name        uint32 // a named tensor's, on the link that it came by
}

// length is the bytes of a message.
func (req *Request) length() int {
	if req.parts != nil {
		return req.size
	}
	return len(req.buf)
}

// dataFrame is a frame with room for its head.
type dataFrame struct {
	transport.Frame
	headerBuf [transport.MaxHead]byte
	busy      bool
}

// Met reports whether the op is done; see mesh.Event.
func (req *Request) Met() bool { return req.done.Load() }

// Err is the op's error once it is done.
func (req *Request) Err() error { return req.err }

// Source is the job's rank that the received message came from.
func (req *Request) Source() int { return req.match.source }

// Tag is the received message's tag.
func (req *Request) Tag() int { return int(req.match.tag) }

// Bytes is the received message's size.
func (req *Request) Bytes() int { return req.match.size }

// getRequest gets an op from the free list; e.mu is held.
func (e *Engine) getRequest() *Request {
	req := e.freeRequests
	if req == nil {
		return newRequest(e)
	}
	e.freeRequests = req.next
	req.next = nil
	return req
}

// newRequest is apart from take, whose op a closure would move to the heap each time.
func newRequest(e *Engine) *Request {
	req := &Request{e: e}
	for i := range req.frames {
		f := &req.frames[i]
		f.Done = func(err error) { req.frameDone(f, err) }
	}
	return req
}

// Free gives a finished op back. The caller must not touch it afterwards.
func (req *Request) Free() {
	req.e.mu.Lock()
	req.e.recycle(req)
	req.e.mu.Unlock()
}

func (e *Engine) recycle(req *Request) {
	req.requestState = requestState{next: e.freeRequests}
	if req.waiter.Load() != nil {
		req.waiter.Store(nil)
	}
	req.done.Store(false)
	e.freeRequests = req
}

// finish ends an op; e.mu is held. Whoever waits is woken, a callback is run
// after the lock is released, and a detached op goes back to the free list.
func (e *Engine) finish(req *Request, err error) {
	if req.phase == phaseDone {
		return
	}
	switch req.phase {
	case phasePending:
		req.peer.pending.remove(req)
		e.wakeDrain()
	case phaseOffered, phaseFlowing:
		req.peer.sends.remove(req)
		req.peer.cancelWrite(req)
		e.wakeDrain()
	case phasePosted:
		e.untrackPosted(req)
	case phaseMatched:
		e.unmatch(req)
	}
	req.phase = phaseDone
	req.err = err
	e.spilled -= req.spilled
	req.spilled = 0
	if req.onFinish != nil {
		e.deferAction(deferredAction{kind: actionComplete, req: req})
		return
	}
	if req.detached {
		e.reportUndelivered(req, err)
		e.recycle(req)
		return
	}
	e.signal(req)
}

// unmatch forgets what joined a receive with its message.
func (e *Engine) unmatch(req *Request) {
	if req.send { // to this rank itself
		return
	}
	req.mc.matchedRecvs.remove(req)
	if req.id != 0 {
		delete(req.peer.activeRecvs, req.id)
	}
	if m := req.claimed; m != nil {
		req.claimed, m.claimedBy, m.dropped = nil, nil, true
	}
}

// signal tells the goroutine that waits for op.
func (e *Engine) signal(req *Request) {
	req.done.Store(true)
	if w := req.waiter.Load(); w != nil {
		w.Wake()
	}
}

// reportUndelivered notes that a send which had been accepted, and whose caller has gone on,
// could not be delivered: Close reports it. What a rank has sent to itself and not
// received it gives up by closing, whatever else happens then.
func (e *Engine) reportUndelivered(req *Request, err error) {
	if err != nil && e.undelivered == nil && req.peer.rank != e.cfg.Rank {
		e.undelivered = fault.New(fault.PeerLost, "close", e.cfg.Rank,
			"a message of %d bytes to rank %d that Send had accepted was not delivered: %w", len(req.buf), req.peer.rank, err)
	}
}

// unexposeAndFinish ends an exposed op: its sender writes no more. e.mu is held.
func (e *Engine) unexposeAndFinish(req *Request, err error) {
	req.pendingErr = err
	if req.unexposing {
		return
	}
	req.unexposing, req.bufBusy = true, true
	e.deferAction(deferredAction{kind: actionUnexpose, req: req})
}

// abort ends an op from outside the exchange: at once, or, while a Conn writes
// into its buffer or from it, as soon as that has ended. A receive whose message
// is here as a whole ends as it was about to. A buffer that is shown to a sender
// is waited for as long as the Conn lives, because hiding it would fail the Conn
// for others, too: the sender sends the rest, or abandons it. e.mu is held.
func (e *Engine) abort(req *Request, err error) {
	switch {
	case req.phase == phaseDone, req.complete:
	case req.unexpose != nil && req.peer.gone == nil && req.peer.connErr == nil:
		req.pendingErr = err
	case req.unexpose != nil:
		e.unexposeAndFinish(req, err)
	case req.bufBusy || req.inFlight > 0:
		req.pendingErr = err
	default:
		e.finish(req, err)
	}
}
