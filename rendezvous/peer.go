package rendezvous

import (
	"hash/crc32"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/mesh"
	"github.com/tutti-go/tutti/transport"
)

// A peer is the exchange with one other rank: what may still be sent to it, what
// is on its way, both ways, and the frames that wait for their turn. It is the
// Sink of that rank's Link. The engine's lock guards it.
type peer struct {
	e    *Engine
	rank int
	link *mesh.Link

	out      transport.Queue // frames in the order they were decided
	flushing bool            // one goroutine is sending from out
	inDirty  bool            // in e.dirty
	inConn   int             // frames that the Conn has not done yet

	credit      int64 // what may be sent before the peer gives some back
	unreturned  int64 // what we have to give back
	heldCredit  int64 // what the peer has used of its credit, and we keep
	postedRecvs int   // receives in tables that name this peer

	extraSends       int // envelopes that may be sent without credit
	extraOutstanding int // envelopes granted that have not come yet
	extraQueued      int // those that have come, and no receive has met
	pending          requestList
	sends            requestList // offered or flowing

	sentOffers   map[uint32]*Request
	activeRecvs  map[uint32]*Request
	nextOfferID  uint32
	nextRecvID   uint32
	queuedOffers map[uint32]*message // offers of the peer's that no receive has met

	in      inboundFrame
	headers headerCache
	fast    fastRecv
	inline  inlineProbe

	prepared       map[preparedKey]*PreparedRecv // of this rank's, but for those that are closing
	preparedByID   map[uint32]*PreparedRecv      // those that the peer may write to, or has not stopped writing to
	nextPreparedID uint32
	warnedExpose   bool // the log says that nothing can be exposed to this peer

	remote      map[uint32]*remoteBuffer // of the peer's, also those that are closing
	remoteByKey map[preparedKey]*remoteBuffer
	writing     []*Request // sends that are being written into one of them

	namesOut map[string]uint32
	namesIn  map[uint32]string

	connErr  error // the Conn broke; a verdict follows
	gone     error // the verdict, or the goodbye: what calls that need it get
	byeSent  bool  // our bye is out
	byeAcked bool  // and was answered
}

// inboundFrame is the frame whose body is arriving.
type inboundFrame struct {
	active bool
	header frameHeader
	raw    [transport.MaxHead]byte // h as it came, in len bytes
	rawLen int                     // 0: h is none
	req    *Request
	msg    *message
	body   []byte
	dst    []byte
}

// clear makes room for the next frame. Its head is compared with this one's.
func (in *inboundFrame) clear() {
	in.active, in.req, in.msg, in.body, in.dst = false, nil, nil, nil, nil
}

// nextID counts on and gives the new number, which is never 0: that stands for none;
// nor transport.Unheard.
func nextID(n *uint32) uint32 {
	if *n++; *n == 0 || *n == transport.NoNotify {
		*n = 1
	}
	return *n
}

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

// A controlFrame is a frame of the exchange's own. It goes back to a free list.
type controlFrame struct {
	transport.Frame
	headerBuf [transport.MaxHead]byte
	next      *controlFrame
	peer      *peer
}

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

// newControlFrame is apart from takeCtl for newOp's reason.
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

// sendControlBody queues a frame with a small body.
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

// flush sends what is queued. It is entered and left with e.mu held, and lets go
// of it around each Send. Another goroutine that is at it already goes on with
// ours: that is what keeps frames in the order in which they were decided.
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

// popUnreturned is the credit that the next head takes along.
func (p *peer) popUnreturned() uint32 {
	n := min(p.unreturned, 1<<31)
	p.unreturned -= n
	return uint32(n)
}

// returnCredit remembers credit to give back, and sends it by itself when it is much.
func (p *peer) returnCredit(n int64) {
	p.heldCredit -= n
	p.unreturned += n
	if p.unreturned >= int64(p.e.cfg.Credit/4) && p.gone == nil && p.connErr == nil {
		p.sendControl(frameHeader{kind: kindCredit})
	}
}

// chargeCredit counts what a message of the peer's takes of its credit. A peer that
// takes more than it was given is not to be trusted.
func (p *peer) chargeCredit(n int64) bool {
	p.heldCredit += n
	if p.heldCredit > int64(p.e.cfg.Credit) {
		p.protocolError("credit: got messages of %d bytes, want at most %d", p.heldCredit, p.e.cfg.Credit)
		return false
	}
	return true
}

// Envelopes beyond the credit are granted extraStep at a time, and at most
// extraMost of them wait in the table.
const (
	extraBatch = 64
	maxExtra   = 1 << 16
)

// grantExtra grants envelopes to a peer that has used up its credit while a receive
// waits here that one of its next messages may be for: messages that nobody
// receives yet must not stand in the way of those, nor of collectives. The bytes
// stay in the peer's spill buffer, which bounds how many there can be. e.mu is held.
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

// addCredit takes credit that the peer gave back, and lets waiting sends go.
func (p *peer) addCredit(n, extra uint32) {
	p.credit += int64(n)
	p.extraSends += int(min(extra, maxExtra))
	for req := p.pending.first; req != nil && p.hasCredit() && !p.overtakes(req); req = p.pending.first {
		p.pending.remove(req)
		p.launch(req)
	}
}

// Buffer implements transport.Sink. It runs under the link's role.
func (p *peer) Buffer(f transport.Header) []byte {
	if !p.decodeHeader(f) {
		return nil
	}
	return p.startFrame(f)
}

// decodeHeader decodes a head into p.in, which the link's role guards. A head that says
// what the one before has said, as in a steady exchange, is decoded already.
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

// startFrame is Place of a frame whose head was read.
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

// Arrived implements transport.Sink.
func (p *peer) Arrived(f transport.Header, n int) {
	if n != f.Size {
		return
	}
	p.e.mu.Lock()
	in := &p.in
	if !in.active { // it went straight into memory that we exposed
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

// handleFrame acts on a frame that is in as a whole; e.mu is held.
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
		if req := p.sentOffers[h.id]; req != nil {
			delete(p.sentOffers, h.id)
			p.e.finish(req, nil)
		}
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
		if len(p.namesIn) >= maxNames {
			p.protocolError("names: got more than %d, want at most that many", maxNames)
			return
		}
		p.namesIn[h.id] = string(in.body)
	}
}

// dropInbound lets go of the frame that was arriving when the Conn broke, and of
// receives that were leaving and waited for their sender.
func (p *peer) dropInbound() {
	p.detachInbound()
	for _, req := range p.activeRecvs {
		if req.pendingErr != nil {
			p.e.abort(req, req.pendingErr)
		}
	}
}

// detachInbound ends what a half-arrived body was being written into: a receive stays
// matched until the verdict, or ends now if it was leaving.
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

// protocolError ends the link: what came on it cannot have been meant so.
func (p *peer) protocolError(format string, args ...any) {
	p.link.DeferFailure(fault.New(fault.LinkLost, "receive", p.e.cfg.Rank, "protocol violation by rank %d: "+format, append([]any{p.rank}, args...)...))
}
