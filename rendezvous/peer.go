package rendezvous

import (
	"hash/crc32"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/mesh"
	"github.com/tutti-go/tutti/transport"
)

// A peer is the state of the exchange with one other rank: the credit, the requests and messages in
// flight in both directions, and the frames that wait to be sent. It is the Sink of that rank's
// Link. The engine's lock guards it, except the header of in, which belongs to the link's progress
// role, and the atomic fields of fast.
//
// Credit is a count of bytes. The peer may send eager messages and offers as long as it has credit.
// This rank charges each message that arrives, and returns the credit when a receive has consumed
// the message:
//
//	ours, towards the peer      credit       what we may still send
//	the peer's, towards us      heldCredit   charged for messages that wait here
//	                            unreturned   consumed, and to be returned by the next header
//	                            the rest     at the peer, or on its way there
//
// heldCredit + unreturned + the rest is Config.Credit. A peer without credit may still send the
// envelopes that grantExtra grants.
//
// connErr and gone say how the peer ended:
//
//	connErr  gone      meaning
//	nil      nil       the peer is there; there may be no Conn yet
//	set      nil       the Conn has failed; requests wait for FailPeer
//	any      Closed    the peer has said goodbye: sends that were passed to the Conn succeed
//	any      others    the peer is lost
type peer struct {
	e    *Engine
	rank int
	link *mesh.Link // see bind

	// out holds the frames to send, in the order in which they were queued. One goroutine at a time
	// sends them, with flushing set: see flush. inDirty says that the peer is in Engine.dirtyPeers.
	out      transport.Queue
	flushing bool
	inDirty  bool

	// inConn counts the queued frames that the Conn is not done with.
	inConn int

	// Credit in bytes; see above.
	credit     int64
	unreturned int64
	heldCredit int64

	// postedRecvs counts the posted receives whose source is this peer, in all contexts. grantExtra
	// grants envelopes only if there are any.
	postedRecvs int

	// Envelopes beyond the credit. extraSends counts the envelopes that we may send.
	// extraOutstanding counts the envelopes that we have granted to the peer and that have not
	// arrived. extraQueued counts the envelopes that have arrived and that no receive has matched.
	extraSends       int
	extraOutstanding int
	extraQueued      int

	// pending holds the sends that wait for credit, in the order of their calls. sends holds the
	// sends that are offered or flowing.
	pending requestList
	sends   requestList

	// sentOffers maps ids to our offers. An offer stays in it until it is requested, dropped or
	// withdrawn. activeRecvs maps the ids in our requests to the receives that are not done.
	sentOffers  map[uint32]*Request
	activeRecvs map[uint32]*Request
	nextOfferID uint32
	nextRecvID  uint32

	// queuedOffers maps the peer's ids to its offers that no receive has matched.
	queuedOffers map[uint32]*message

	in      inboundFrame
	headers headerCache
	fast    fastRecv
	inline  inlineProbe

	// prepared maps tensors to this rank's buffers that the peer may write to, or may soon write
	// to. It holds no closing buffers. preparedByID holds all buffers that the peer knows,
	// including closing buffers.
	prepared       map[preparedKey]*PreparedRecv
	preparedByID   map[uint32]*PreparedRecv
	nextPreparedID uint32
	warnedExpose   map[string]bool // the remedies that the log has named for refused exposures
	refusedPlan    bool            // the Conn does not expose the static plan's memory

	// remote maps ids to the peer's prepared buffers, including closing buffers. remoteByKey holds
	// the buffers that sends may use. writing holds the sends that are being written into a remote
	// buffer and are not announced yet.
	remote      map[uint32]*remoteBuffer
	remoteByKey map[preparedKey]*remoteBuffer
	writing     []*Request

	// The numbers of tensor names on this link. namesOut maps the names that this rank has sent to
	// numbers. namesIn holds the names that the peer has sent. outNames holds the names of namesOut
	// by number, from 1. nextName is the index in outNames of the next new name.
	namesOut map[string]uint32
	namesIn  map[uint32]string
	outNames []string
	nextName int

	// How the peer ended; see above.
	connErr error
	gone    error

	reportedUnreceived bool // the peer knows that this rank has closed without receiving a message

	byeSent  bool // our bye is queued: Drain sends nothing after it
	byeAcked bool // the peer has handled all that we sent
}

// An inboundFrame is the frame whose body is arriving. Between Buffer and the last Arrived, active
// is true. At most one of req, msg and body is set then, and it is the destination of the body. The
// link's progress role guards header, raw and rawLen, which keep their values after the frame. The
// engine's lock guards the other fields.
type inboundFrame struct {
	active bool
	header frameHeader
	raw    [transport.MaxHead]byte // header as it arrived, in rawLen bytes
	rawLen int                     // 0: header is not valid
	req    *Request                // eager or data, for a receive
	msg    *message                // eager, for the table
	body   []byte                  // of a control frame
	dst    []byte                  // where the body arrives; nil: it is dropped
}

// clear ends a frame. The header stays, because decodeHeader compares the next header with it.
func (in *inboundFrame) clear() {
	in.active, in.req, in.msg, in.body, in.dst = false, nil, nil, nil, nil
}

// nextID increments n and returns it. It skips 0, which means "no id", and transport.NoNotify.
func nextID(n *uint32) uint32 {
	if *n++; *n == 0 || *n == transport.NoNotify {
		*n = 1
	}
	return *n
}

// newPeer returns the peer with the given rank. Both ranks start with minCredit. The first header
// that this rank sends grants the rest of Config.Credit.
func newPeer(e *Engine, rank int) *peer {
	return &peer{
		e: e, rank: rank,
		credit:       minCredit,
		unreturned:   int64(e.cfg.Credit - minCredit),
		sentOffers:   make(map[uint32]*Request),
		activeRecvs:  make(map[uint32]*Request),
		queuedOffers: make(map[uint32]*message),
		namesOut:     make(map[string]uint32),
		namesIn:      make(map[uint32]string),
		prepared:     make(map[preparedKey]*PreparedRecv), preparedByID: make(map[uint32]*PreparedRecv),
		remote: make(map[uint32]*remoteBuffer), remoteByKey: make(map[preparedKey]*remoteBuffer),
	}
}

// A controlFrame is a frame that carries no message bytes, with memory for its header. It returns
// to a free list when the Conn is done with it.
type controlFrame struct {
	transport.Frame
	headerBuf [transport.MaxHead]byte
	next      *controlFrame
	peer      *peer
}

// getControl returns a control frame for p, from the free list if there is one.
func (e *Engine) getControl(p *peer) *controlFrame {
	c := e.freeControl
	if c == nil {
		c = newControlFrame(e)
	} else {
		e.freeControl = c.next
	}
	c.peer = p
	return c
}

// newControlFrame allocates a control frame. It is separate from getControl; newRequest has the
// reason.
func newControlFrame(e *Engine) *controlFrame {
	c := &controlFrame{}
	c.Done = func(error) {
		e.mu.Lock()
		c.peer.inConn--
		c.peer, c.Body = nil, nil
		c.next, e.freeControl = e.freeControl, c
		e.unlock()
	}
	return c
}

// sendControl queues a frame without a body.
func (p *peer) sendControl(h frameHeader) { p.sendControlBody(h, nil) }

// sendControlBody queues a frame with a small body. The caller must not change the body afterwards.
func (p *peer) sendControlBody(h frameHeader, body []byte) {
	c := p.e.getControl(p)
	h.credit = p.popUnreturned()
	if p.e.cfg.Checksum && body != nil {
		h.flags |= flagBodyCRC
		h.bodyCRC = crc32.Checksum(body, castagnoli)
	}
	c.Head = c.headerBuf[:h.encode(&c.headerBuf)]
	c.Body = body
	p.enqueue(&c.Frame)
}

// enqueue queues a frame for flush; e.mu is held.
func (p *peer) enqueue(f *transport.Frame) {
	p.out.Push(f)
	p.inConn++
	if !p.inDirty && !p.flushing {
		p.inDirty = true
		p.e.dirtyPeers = append(p.e.dirtyPeers, p)
	}
}

// flush sends the queued frames. e.mu is held on entry and on return. flush releases e.mu around
// each Send, because Send may run callbacks that lock it. If another goroutine is already in flush,
// that goroutine sends the new frames too. So frames leave in the order in which they were queued.
func (p *peer) flush() {
	p.inDirty = false
	if p.flushing {
		return
	}
	p.flushing = true
	for f := p.out.Pop(); f != nil; f = p.out.Pop() {
		p.e.mu.Unlock()
		p.link.Send(f)
		p.e.mu.Lock()
	}
	p.flushing = false
}

// popUnreturned returns the credit that the next header carries back to the peer.
func (p *peer) popUnreturned() uint32 {
	n := min(p.unreturned, 1<<31)
	p.unreturned -= n
	return uint32(n)
}

// returnCredit records credit that is to be returned to the peer. The next header carries the
// credit. When a quarter of Config.Credit has accumulated, returnCredit sends a credit frame.
func (p *peer) returnCredit(n int64) {
	p.heldCredit -= n
	p.unreturned += n
	if p.unreturned >= int64(p.e.cfg.Credit/4) && p.gone == nil && p.connErr == nil {
		p.sendControl(frameHeader{kind: kindCredit})
	}
}

// chargeCredit counts the credit that an arriving message takes. If the peer has exceeded its
// credit, chargeCredit reports a protocol error and returns false.
func (p *peer) chargeCredit(n int64) bool {
	p.heldCredit += n
	if p.heldCredit > int64(p.e.cfg.Credit) {
		p.protocolError("credit: got messages of %d bytes, want at most %d", p.heldCredit, p.e.cfg.Credit)
		return false
	}
	return true
}

// Envelopes beyond the credit are granted in batches of extraBatch. A peer gets no further batch
// while maxExtra of these envelopes wait for receives, so at most maxExtra+extraBatch-1 of them
// wait.
const (
	extraBatch = 64
	maxExtra   = 1 << 16
)

// grantExtra grants envelopes to a peer that has used up its credit, if a posted receive may match
// one of the peer's next messages. Without this grant, messages that nobody receives would block
// later messages, including those of collectives. Only envelopes are granted. The bytes stay in the
// peer's spill buffer, whose size bounds the number of such messages. e.mu is held.
func (p *peer) grantExtra() {
	if p.postedRecvs == 0 && p.e.postedAny == 0 || p.gone != nil || p.connErr != nil {
		return
	}
	if int64(p.e.cfg.Credit)-p.heldCredit-p.unreturned >= envelopeCost || p.extraOutstanding > 0 {
		return
	}
	switch {
	case p.unreturned >= envelopeCost:
		p.sendControl(frameHeader{kind: kindCredit})
	case p.extraQueued < maxExtra:
		p.extraOutstanding += extraBatch
		p.sendControl(frameHeader{kind: kindCredit, id: extraBatch})
	}
}

// addCredit adds what the peer has granted: n bytes of credit, and envelopes beyond the credit,
// whose number is the parameter extra. It then launches pending sends as long as the credit allows
// it.
func (p *peer) addCredit(n, extra uint32) {
	p.credit += int64(n)
	p.extraSends += int(min(extra, maxExtra))
	for req := p.pending.first; req != nil && p.hasCredit() && !p.overtakes(req); req = p.pending.first {
		p.pending.remove(req)
		p.launch(req)
	}
}

// Buffer implements transport.Sink. It runs under the link's progress role, which one goroutine has
// at a time.
func (p *peer) Buffer(f transport.Header) []byte {
	if !p.decodeHeader(f) {
		return nil
	}
	return p.startFrame(f)
}

// decodeHeader decodes a frame's header into p.in. In a steady exchange the header equals the
// previous header, which is in p.in already. Such a header is not decoded again. If the header is
// invalid, decodeHeader reports a protocol error and returns false.
func (p *peer) decodeHeader(f transport.Header) bool {
	in := &p.in
	if in.rawLen > 0 && string(f.Head) == string(in.raw[:in.rawLen]) && in.header.check(f.Size) == nil {
		return true
	}
	in.rawLen = 0
	if err := in.header.decode(f.Head, f.Size); err != nil {
		p.protocolError("%w", err)
		return false
	}
	in.rawLen = copy(in.raw[:], f.Head)
	return true
}

// startFrame handles a decoded header: it adds the credit that the header returns, and finds the
// memory for the body.
func (p *peer) startFrame(f transport.Header) []byte {
	in := &p.in
	h := &in.header
	p.e.mu.Lock()
	switch {
	case h.kind == kindCredit:
		p.addCredit(h.credit, h.id)
	case h.credit > 0:
		p.addCredit(h.credit, 0)
	}
	in.active = true
	switch h.kind {
	case kindEager:
		p.startEager(h)
	case kindData:
		p.startData(h)
	case kindName, kindPrepare:
		in.body = make([]byte, f.Size)
		in.dst = in.body
	}
	into := in.dst
	p.e.unlock()
	return into
}

// Arrived implements transport.Sink. It acts only on the last call for a frame, when the whole body
// has arrived. A body that was written into exposed memory has no header; its receive is found by
// the frame's id.
func (p *peer) Arrived(f transport.Header, n int) {
	if n != f.Size {
		return
	}
	p.e.mu.Lock()
	in := &p.in
	if !in.active { // the body was written into memory that this rank exposed
		if f.ID != 0 && f.ID != transport.NoNotify {
			p.handleData(p.activeRecvs[f.ID], f.Size)
		}
		p.e.unlock()
		return
	}
	if in.header.flags&flagBodyCRC != 0 && in.dst != nil {
		if got := crc32.Checksum(in.dst[:f.Size], castagnoli); got != in.header.bodyCRC {
			p.detachInbound()
			p.e.unlock()
			p.protocolError("body checksum: got %08x, want %08x", got, in.header.bodyCRC)
			return
		}
	}
	p.handleFrame(in)
	in.clear()
	p.e.unlock()
}

// handleFrame acts on a frame that has arrived completely. e.mu is held.
func (p *peer) handleFrame(in *inboundFrame) {
	h := &in.header
	switch h.kind {
	case kindEager:
		p.finishEager(in)
	case kindData:
		if in.req != nil {
			in.req.bufBusy = false
			p.handleData(in.req, int(h.size))
		}
	case kindOffer:
		p.handleOffer(h)
	case kindRequest:
		p.handleRequest(h)
	case kindWithdraw:
		p.handleWithdraw(h.id)
	case kindDrop:
		p.handleDrop(h)
	case kindAbandon:
		p.handleAbandon(h.id)
	case kindWake:
		p.e.wakeAll()
	case kindBye:
		p.sendControl(frameHeader{kind: kindByeAck})
	case kindPrepare:
		p.handlePrepare(h, in.body)
	case kindUnprepare:
		p.handleUnprepare(h.id)
	case kindUnprepareAck:
		p.handleUnprepareAck(h.id)
	case kindWritten:
		p.handleWritten(h)
	case kindRelease:
		p.handleRelease(h.id)
	case kindByeAck:
		p.byeAcked = true
		p.e.wakeDrain()
	case kindName:
		if h.id == 0 || h.id > maxNames {
			p.protocolError("name: got number %d, want 1 to %d", h.id, maxNames)
			return
		}
		p.namesIn[h.id] = string(in.body)
	}
}

// dropInbound is called when the Conn has failed. It drops the frame that was arriving. It also
// ends the aborted receives that were waiting for their sender to stop writing.
func (p *peer) dropInbound() {
	p.detachInbound()
	for _, req := range p.activeRecvs {
		if req.pendingErr != nil {
			p.e.abort(req, req.pendingErr)
		}
	}
}

// detachInbound drops a frame that has arrived only in part. If the frame belongs to an aborted
// receive, the receive ends now. Any other receive stays matched until FailPeer ends it.
func (p *peer) detachInbound() {
	in := &p.in
	defer in.clear()
	if in.req != nil {
		in.req.bufBusy = false
		if in.req.pendingErr != nil {
			p.e.abort(in.req, in.req.pendingErr)
		}
	}
	if in.msg != nil {
		p.e.abandonMessage(in.msg)
	}
}

// protocolError fails the link, because the peer has sent a frame that no correct rank sends. The
// link fails after the current frame, and delivers no further frames.
func (p *peer) protocolError(format string, args ...any) {
	p.link.DeferFailure(fault.New(fault.LinkLost, "receive", p.e.cfg.Rank, "protocol violation by rank %d: "+format, append([]any{p.rank}, args...)...))
}
