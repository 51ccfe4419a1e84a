package rendezvous

import (
	"errors"
	"sync/atomic"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/mesh"
	"github.com/tutti-go/tutti/transport"
)

// A requestPhase is the state of a Request. The engine's lock guards it.
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
// A cancel ends pending, offered and posted requests at once. Flowing and matched requests go on,
// because their bytes are promised or in flight. When a peer or context fails, Engine.abort also
// ends flowing and matched requests, as soon as the Conn has stopped using their buffers.
type requestPhase uint8

const (
	phaseIdle    requestPhase = iota
	phasePending              // a send that waits for credit, or for sends before it
	phaseOffered              // a send whose offer is out
	phaseFlowing              // a send whose bytes are being sent
	phasePosted               // a receive in the table
	phaseMatched              // a receive that has matched its message
	phaseDone
)

// A Request is one send or one receive in progress. The goroutine that started it waits for it and
// frees it. The engine's lock guards its fields, except done and waiter, which are atomic. The
// caller may read err and match once done is true.
type Request struct {
	e *Engine

	// done is set last, when the result is final. Then waiter is woken, if it is not nil.
	done   atomic.Bool
	waiter atomic.Pointer[mesh.Waiter]

	// frames are the two data frames of a send, used in turn. A recycled request keeps them, so
	// that their Done closures are allocated only once.
	frames [2]dataFrame

	requestState
}

// requestState holds the fields of a Request that belong to one send or receive. recycle zeroes it.
//
// A receive whose buffer is in use ends in two steps: pendingErr is set at once, and the request is
// finished when the buffer is not used any more. These fields control the two steps:
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

	// buf is the caller's memory. The engine may use it until the request is done. In a detached
	// send, buf is a copy that belongs to the engine.
	buf []byte

	// parts replaces buf in a send from PostSendParts. The link gathers these pieces, which have
	// size bytes in total.
	parts [][]byte
	size  int

	// fullBuf is a receive's buf before validate cut it to the message's size. repost needs it.
	fullBuf []byte

	// fingerprint is the fingerprint of the operation. Sender and receiver must use the same
	// fingerprint; 0 is not checked.
	fingerprint uint64

	phase requestPhase
	send  bool
	err   error // the result, once done

	// order is a receive's position in the order of posting. It stays when the receive is reposted.
	order uint64

	// prev and next link the request in a bucket, in table.wild, in matchedRecvs, or in one of a
	// peer's lists. The phase determines the list.
	prev, next *Request
	posted     bool // the request is in a table

	// peer is a send's receiver, or a matched receive's sender.
	peer *peer

	// id is a send's offer id, or the id by which the sender addresses a matched receive. 0 means
	// that no id is assigned yet.
	id uint32

	// Sends.

	// sent counts the bytes of the data frames queued so far. inFlight counts the queued frames
	// that the Conn is not done with. No Conn uses the buffer when inFlight is 0.
	sent     int
	inFlight int

	// onRequest says that the message is never sent eagerly, whatever the credit is.
	onRequest bool

	// local is the message of a send to this rank itself, until a receive has matched it.
	local *message

	// token and recvID come with the receiver's request. recvID is the id of the receive. token
	// identifies the receive's exposed buffer, if there is one. For a direct write, token is the
	// token of the prepared buffer.
	token  transport.Token
	recvID uint32

	// remote is the prepared buffer that the send is being written into, until it is announced.
	remote *remoteBuffer

	// detached says that no goroutine waits for the send, so the engine recycles it. spilled is the
	// number of bytes of Config.SendBuffer that the copy takes.
	detached bool
	spilled  int64

	// spillAt bounds the wait of a Send that will copy its body.
	spillAt spillDeadline

	// dropped says that the receiver has dropped the offer of a named send, because the step has
	// ended on the receiver. The send waits for the flood of EndStep, at most until its context is
	// closed or Drain begins.
	dropped bool

	// tensor is the tensor of a named send, or the tensor that a named receive has received.
	tensor *Tensor

	// onFinish is called once, without the lock, instead of waking a waiter.
	onFinish func(*Request)

	// Receives.

	match envelope // the envelope of the matched message

	// arrived counts the bytes that are in buf.
	arrived int

	// offer is the id of the matched offer. handleWithdraw finds the receive by this id.
	offer uint32

	// claimed is the matched eager message while its bytes are still arriving.
	claimed *message

	// The two-step end; see above.
	bufBusy    bool
	complete   bool
	pendingErr error
	unexpose   func()
	unexposing bool
	withdrawn  bool

	// canceled is the error of a Cancel after the match. The receive ends with it if the sender
	// withdraws the offer.
	canceled error

	// alloc says that a named receive has no buffer. The receive gets a new buffer of the message's
	// size, or a prepared buffer.
	alloc bool
}

// An envelope describes a message without its bytes.
type envelope struct {
	source      int
	tag         int32
	size        int // bytes
	fingerprint uint64
	dead        bool // this field and the following are set for named tensors
	dtype       uint8
	ndim        uint8
	dims        [maxDims]int64
	name        uint32 // the name's number on the link that it came by
}

// length returns the size in bytes of the message that req sends.
func (req *Request) length() int {
	if req.parts != nil {
		return req.size
	}
	return len(req.buf)
}

// A dataFrame is a frame with memory for its header. busy is true until the Conn is done with the
// frame.
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

// Bytes returns the received message's size. If the message is larger than the buffer, the receive
// has failed, and Bytes still returns the full size.
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

// newRequest allocates a Request. It is separate from getRequest, because its closures would move
// getRequest's variable req to the heap at each call.
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

// finish ends a request with err. It does nothing if the request has ended before. finish removes
// the request from its lists. Then it wakes the waiter, defers the callback, or recycles a detached
// request. The caller ensures that the request's buffer is not used any more: see abort. e.mu is
// held.
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
	// A request ends with a callback, detached without a waiter, or with a wake-up of its waiter.
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

// unmatch undoes setMatch, acceptOffer and a claim. Afterwards no frame refers to the receive.
func (e *Engine) unmatch(req *Request) {
	if req.send { // to this rank itself
		return
	}
	req.mc.matchedRecvs.remove(req)
	if req.id != 0 {
		delete(req.peer.activeRecvs, req.id)
	}
	if m := req.claimed; m != nil { // its bytes are still arriving: completeMessage discards it
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
// delivered. It ignores messages from this rank to itself: by closing, the rank discards them.
func (e *Engine) reportUndelivered(req *Request, err error) {
	if err != nil && req.peer.rank != e.cfg.Rank {
		e.setUndelivered(req.peer, err, "a message of %d bytes to rank %d that Send had accepted was not delivered: %w", len(req.buf), req.peer.rank, err)
	}
}

// setUndelivered stores the error that Drain returns, unless there is one already. The error has
// the kind and the peers of cause. If cause names no peer, it names p.
func (e *Engine) setUndelivered(p *peer, cause error, format string, args ...any) {
	if e.undelivered != nil {
		return
	}
	out := fault.New(fault.PeerLost, "close", e.cfg.Rank, format, args...)
	if f := (*fault.Error)(nil); errors.As(cause, &f) {
		out.Kind, out.Peers = f.Kind, f.Peers
	}
	if len(out.Peers) == 0 {
		out.Peers = []fault.Peer{{Rank: p.rank}}
	}
	e.undelivered = out
}

// unexposeAndFinish defers an action that ends the exposure of a receive's buffer and then finishes
// the receive with err. The sender does not write any more, because it has sent all bytes, has
// stopped, or is gone. e.mu is held.
func (e *Engine) unexposeAndFinish(req *Request, err error) {
	req.pendingErr = err
	if req.unexposing {
		return
	}
	req.unexposing, req.bufBusy = true, true
	e.deferAction(deferredAction{kind: actionUnexpose, req: req})
}

// abort ends a request because its context, step or peer has ended. It finishes the request at once
// if no Conn uses the buffer. Otherwise the request ends later:
//
//   - A receive whose message is complete succeeds.
//   - A buffer that is exposed to a live sender waits for the sender, which sends the rest or
//     abandons it. To withdraw the exposure earlier would fail the Conn, for other requests, too.
//   - A buffer that a frame is arriving in, or is sent from, waits for that frame.
//
// e.mu is held.
func (e *Engine) abort(req *Request, err error) {
	switch {
	case req.phase == phaseDone, req.complete: // it has ended or will succeed
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
