package rendezvous

import (
	"sync/atomic"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/mesh"
	"github.com/tutti-go/tutti/transport"
)

// A requestPhase says how far a Request has come. The engine's lock guards it.
//
// Sends:
//
//	idle ──► pending ──► flowing ──► done     eager
//	  │        │
//	  │        └──────► offered ──► flowing ──► done    rendezvous
//	  └─► (pending is skipped while there is credit)
//
// Receives:
//
//	idle ──► posted ──► matched ──► done
//	  └──► matched      (a message waited)
//	         └──► posted   (the sender took its offer back: Engine.repost)
//
// A cancel ends pending, offered and posted at once. Flowing and matched requests go on: the peer
// has promised the bytes, or is being sent them. Engine.abort ends those, too, when a peer or
// context fails, but only once no Conn touches their buffer.
type requestPhase uint8

const (
	phaseIdle    requestPhase = iota
	phasePending              // a send that waits for credit, or for sends before it
	phaseOffered              // a send whose offer is out
	phaseFlowing              // a send whose bytes belong to the Conn
	phasePosted               // a receive in the table
	phaseMatched              // a receive that has matched its message
	phaseDone
)

// A Request is one send or one receive in progress. The goroutine that started it waits for it and
// frees it; the engine owns everything else in it. done and waiter may be read without the lock;
// err and match are the caller's to read once done is true.
type Request struct {
	e *Engine

	// done is set last, when the result is final. waiter is woken then; nil: nobody sleeps.
	done   atomic.Bool
	waiter atomic.Pointer[mesh.Waiter]

	// frames carry the bytes of a send, two in turn. They stay over the request's uses, because
	// their Done closures are made once.
	frames [2]dataFrame

	requestState
}

// requestState is all that a Request holds while it serves one send or receive. To recycle a
// Request is to zero it.
//
// A receive that ends while its buffer is in use does so in two steps. pendingErr remembers the
// error; the buffer's user finishes the request later:
//
//	bufBusy    a frame's body is arriving in buf, or an action copies into it or exposes it
//	unexpose   buf is exposed to its sender; not nil
//	unexposing an action that calls unexpose is deferred
//	complete   all bytes are in buf; the request succeeds whatever fails meanwhile
//	withdrawn  the sender took the offer back while buf was being exposed or unexposed
type requestState struct {
	mc *MatchContext

	// key is a receive's pattern, with Any for wildcards, or a send's key as its receiver sees it:
	// source is this rank.
	key key

	// buf is the caller's memory, which is the engine's until the request is done. A detached
	// send's buf is the engine's own copy.
	buf []byte

	// parts are the pieces of a send that the link gathers, of size bytes in all, instead of buf.
	parts [][]byte
	size  int

	// fullBuf is a receive's buf before validate cut it to its message, for repost.
	fullBuf []byte

	// fingerprint is that of the operation. Sender's and receiver's must agree; 0 is not checked.
	fingerprint uint64

	phase requestPhase
	send  bool
	err   error // the result, once done

	// order is a receive's position in the order of posting. It stays when the receive is reposted.
	order uint64

	// prev and next link the request in a bucket, in table.wild, in matchedRecvs, or in one of
	// a peer's lists. The phase says in which.
	prev, next *Request
	posted     bool // it is in a table

	// peer is a send's receiver, or a matched receive's sender.
	peer *peer

	// id is the offer's id of a send, or the id of a matched receive, by which its sender addresses
	// it. 0: none yet.
	id uint32

	// Sends.

	// sent counts the bytes handed to frames, and inFlight the frames that the Conn has not done
	// yet. The buffer is free when inFlight is 0.
	sent     int
	inFlight int

	// onRequest: the bytes wait for a request, whatever the credit.
	onRequest bool

	// local is the message of a send to this rank itself, until a receive has matched it.
	local *message

	// token and recvID come with the request: the receiver's exposed memory, if it has exposed any,
	// and its receive. token may also be a prepared buffer's.
	token  transport.Token
	recvID uint32

	// remote is the prepared buffer that the send is being written into, until it is announced.
	remote *remoteBuffer

	// detached: no goroutine waits for the send, so the engine recycles it. spilled is what its copy
	// takes of Config.SendBuffer.
	detached bool
	spilled  int64

	// spillAt bounds the wait of a Send that will copy its body.
	spillAt spillDeadline

	// tensor is a named send's, or of a named receive, the one that arrived.
	tensor *Tensor

	// onFinish is called once, without the lock, instead of waking a waiter.
	onFinish func(*Request)

	// Receives.

	match envelope // of the message that it matched

	// arrived counts the bytes that are in buf.
	arrived int

	// offer is the id of the offer that it matched; a withdrawal finds the receive by it.
	offer uint32

	// claimed is the eager message that it matched while the message's bytes were arriving.
	claimed *message

	// The two-step end; see above.
	bufBusy    bool
	complete   bool
	pendingErr error
	unexpose   func()
	unexposing bool
	withdrawn  bool

	// canceled is why the caller gave up after the match. It counts if the match is taken back.
	canceled error

	// alloc: a named receive without a buffer gets one of the message's size, or a prepared one.
	alloc bool
}

// An envelope is what is known of a message without its bytes.
type envelope struct {
	source      int
	tag         int32
	size        int // bytes
	fingerprint uint64
	dead        bool // the rest is of a named tensor's
	dtype       uint8
	ndim        uint8
	dims        [maxDims]int64
	name        uint32 // the name's number on the link that it came by
}

// length returns the bytes of a send.
func (req *Request) length() int {
	if req.parts != nil {
		return req.size
	}
	return len(req.buf)
}

// A dataFrame is a frame with the memory of its header. busy: the Conn has not done it yet.
type dataFrame struct {
	transport.Frame
	headerBuf [transport.MaxHead]byte
	busy      bool
}

// Met reports whether req is done. It implements mesh.Condition, and takes no lock.
func (req *Request) Met() bool { return req.done.Load() }

// Err returns req's error. It is valid once req is done.
func (req *Request) Err() error { return req.err }

// Source returns the job's rank that the received message came from.
func (req *Request) Source() int { return req.match.source }

// Tag returns the received message's tag.
func (req *Request) Tag() int { return int(req.match.tag) }

// Bytes returns the received message's size. It may exceed the buffer's, with an error.
func (req *Request) Bytes() int { return req.match.size }

// getRequest returns a zero Request, from the free list if there is one. e.mu is held.
func (e *Engine) getRequest() *Request {
	req := e.freeRequests
	if req == nil {
		return newRequest(e)
	}
	e.freeRequests = req.next
	req.next = nil
	return req
}

// newRequest is separate from getRequest, because its closures would move getRequest's req to the
// heap at each call.
func newRequest(e *Engine) *Request {
	req := &Request{e: e}
	for i := range req.frames {
		f := &req.frames[i]
		f.Done = func(err error) { req.frameDone(f, err) }
	}
	return req
}

// Free returns a request that is done to the engine. The caller must not touch it afterwards.
func (req *Request) Free() {
	req.e.mu.Lock()
	req.e.recycle(req)
	req.e.mu.Unlock()
}

// recycle zeroes a request and puts it on the free list. e.mu is held.
func (e *Engine) recycle(req *Request) {
	req.requestState = requestState{next: e.freeRequests}
	if req.waiter.Load() != nil {
		req.waiter.Store(nil)
	}
	req.done.Store(false)
	e.freeRequests = req
}

// finish ends a request with err; a second time does nothing. It leaves every list and table, and
// then wakes the waiter, defers the callback, or, if detached, recycles the request. Nothing may
// touch the request's buffer any more: see abort. e.mu is held.
func (e *Engine) finish(req *Request, err error) {
	if req.phase == phaseDone {
		return
	}
	switch req.phase {
	case phasePending: // Drain waits for both lists of sends
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
	// Three kinds of requests end in three ways: with a callback, unnoticed, or awaited.
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

// unmatch undoes setMatch, acceptOffer and claims: afterwards no frame finds the receive.
func (e *Engine) unmatch(req *Request) {
	if req.send { // to this rank itself
		return
	}
	req.mc.matchedRecvs.remove(req)
	if req.id != 0 {
		delete(req.peer.activeRecvs, req.id)
	}
	if m := req.claimed; m != nil { // its bytes are still arriving: finishEager discards it
		req.claimed, m.claimedBy, m.dropped = nil, nil, true
	}
}

// signal marks req done and wakes its waiter.
func (e *Engine) signal(req *Request) {
	req.done.Store(true)
	if w := req.waiter.Load(); w != nil {
		w.Wake()
	}
}

// reportUndelivered remembers that an accepted send, whose caller has gone on, could not be
// delivered. Drain returns the first such error. A message that a rank has sent to itself and not
// received does not count: the rank gives it up by closing.
func (e *Engine) reportUndelivered(req *Request, err error) {
	if err != nil && e.undelivered == nil && req.peer.rank != e.cfg.Rank {
		e.undelivered = fault.New(fault.PeerLost, "close", e.cfg.Rank,
			"a message of %d bytes to rank %d that Send had accepted was not delivered: %w", len(req.buf), req.peer.rank, err)
	}
}

// unexposeAndFinish ends the exposure of a receive's buffer, and then the receive, with err. The
// sender writes no more, because it has sent all, has withdrawn, or is gone. e.mu is held.
func (e *Engine) unexposeAndFinish(req *Request, err error) {
	req.pendingErr = err
	if req.unexposing {
		return
	}
	req.unexposing, req.bufBusy = true, true
	e.deferAction(deferredAction{kind: actionUnexpose, req: req})
}

// abort ends a request from outside the exchange, because its context, step or peer has ended. It
// finishes the request at once if no Conn touches its buffer, and else as soon as that is so:
//
//   - A receive whose message is complete succeeds.
//   - A buffer that is exposed to a live sender waits for the sender, which sends the rest or
//     abandons it. To withdraw the exposure earlier would fail the Conn, for other requests, too.
//   - A buffer that a frame is arriving in, or is sent from, waits for that frame.
//
// e.mu is held.
func (e *Engine) abort(req *Request, err error) {
	switch {
	case req.phase == phaseDone, req.complete: // it ends by itself
	case req.unexpose != nil && req.peer.gone == nil && req.peer.connErr == nil:
		req.pendingErr = err // handleData or handleAbandon finishes it
	case req.unexpose != nil: // the sender is gone, and its Conn writes no more
		e.unexposeAndFinish(req, err)
	case req.bufBusy || req.inFlight > 0:
		req.pendingErr = err
	default:
		e.finish(req, err)
	}
}
