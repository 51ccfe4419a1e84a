package rendezvous

import (
	"hash/crc32"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/mesh"
	"github.com/tutti-go/tutti/transport"
)

// A peer is the exchange with one other rank: what may still be sent to it, the requests and
// messages in flight both ways, and the frames that wait to be sent. It is the Sink of that rank's
// Link. The engine's lock guards it, except the header of in, which belongs to the link's progress
// role, and the atomic fields of fast.
//
// Credit is a count of bytes. The peer may send eager messages and offers as long as it has credit;
// we charge what arrives and return it when a receive has consumed the message:
//
//	ours, towards the peer      credit       what we may still send
//	the peer's, towards us      heldCredit   charged for messages that wait here
//	                            unreturned   consumed, and to be returned by the next header
//	                            the rest     at the peer, or on its way there
//
// heldCredit + unreturned + the rest is Config.Credit. A peer without credit may still send the
// envelopes that grantExtra grants.
//
// The two errors tell how the peer ended:
//
//	connErr  gone      meaning
//	nil      nil       the peer is there; there may be no Conn yet
//	set      nil       the Conn has failed; requests wait for the verdict
//	any      Closed    the peer has said goodbye: sends that the Conn has got succeed
//	any      others    the verdict: the peer is lost
type peer struct {
	e    *Engine
	rank int
	link *mesh.Link // see bind

	// out are the frames to send, in the order in which they were decided. One goroutine at a time
	// sends from it, with flushing set: see flush. inDirty: the peer is in Engine.dirtyPeers.
	out      transport.Queue
	flushing bool
	inDirty  bool

	// inConn counts the frames that were queued and that the Conn has not done yet.
	inConn int

	// Credit in bytes; see above.
	credit     int64
	unreturned int64
	heldCredit int64

	// postedRecvs counts the posted receives whose source is this peer, in all contexts. Without
	// any, grantExtra has nothing to do.
	postedRecvs int

	// Envelopes beyond the credit: those that we may send; those granted to the peer that have not
	// arrived yet; and those that have arrived, and no receive has matched.
	extraSends       int
	extraOutstanding int
	extraQueued      int

	// pending are the sends that wait for credit, in the order of their calls. sends are those that
	// are offered or flowing.
	pending requestList
	sends   requestList

	// sentOffers are our offers by id, until their request, drop or withdrawal. activeRecvs are the
	// receives whose bytes were requested, by the id in the request, until they are done.
	sentOffers  map[uint32]*Request
	activeRecvs map[uint32]*Request
	nextOfferID uint32
	nextRecvID  uint32

	// queuedOffers are the peer's offers that no receive has matched, by the peer's id.
	queuedOffers map[uint32]*message

	in      inboundFrame
	headers headerCache
	fast    fastRecv
	inline  inlineProbe

	// prepared are this rank's buffers that the peer may write to, or soon may, by tensor; those
	// that are closing have left it. preparedByID are those that the peer knows of, also while they
	// are closing.
	prepared       map[preparedKey]*PreparedRecv
	preparedByID   map[uint32]*PreparedRecv
	nextPreparedID uint32
	warnedExpose   bool // the log says that nothing can be exposed to this peer

	// remote are the peer's buffers by id, also while they are closing. remoteByKey are those that
	// sends may use. writing are the sends that are being written into one, not announced yet.
	remote      map[uint32]*remoteBuffer
	remoteByKey map[preparedKey]*remoteBuffer
	writing     []*Request

	// The numbers of tensors' names on this link, of those sent and those received.
	namesOut map[string]uint32
	namesIn  map[uint32]string

	// How the peer ended; see above.
	connErr error
	gone    error

	byeSent  bool // our bye is queued: Drain sends nothing after it
	byeAcked bool // the peer has handled all that we sent
}

// An inboundFrame is the frame whose body is arriving. Between Buffer and the last Arrived, active
// is true and at most one of req, msg and body is set: whom the body is for. The link's progress
// role guards header, raw and rawLen, which survive the frame; the engine's lock guards the rest.
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

// clear ends a frame. Its header stays: the next frame's is compared with it.
func (in *inboundFrame) clear() {
	in.active, in.req, in.msg, in.body, in.dst = false, nil, nil, nil, nil
}

// nextID increments n and returns it. It skips 0, which stands for none, and transport.NoNotify.
func nextID(n *uint32) uint32 {
	if *n++; *n == 0 || *n == transport.NoNotify {
		*n = 1
	}
	return *n
}

// newPeer returns the peer with this rank. Both sides begin with minCredit; the first header that
// goes out grants the rest of Config.Credit.
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

// A controlFrame is a frame of the exchange itself, with the memory of its header. It returns to a
// free list when the Conn is done with it.
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

// newControlFrame is separate from getControl for newRequest's reason.
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

// sendControlBody queues a frame with a small body, which it keeps until the Conn is done.
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

// flush sends the queued frames. It is entered and left with e.mu held, and releases it around each
// Send, because Send may run callbacks that take it. If another goroutine is in flush already, that
// one sends our frames, too. So frames leave in the order in which they were decided.
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

// returnCredit notes credit that the peer gets back. Headers of other frames carry it; a quarter of
// Config.Credit is worth a frame of its own.
func (p *peer) returnCredit(n int64) {
	p.heldCredit -= n
	p.unreturned += n
	if p.unreturned >= int64(p.e.cfg.Credit/4) && p.gone == nil && p.connErr == nil {
		p.sendControl(frameHeader{kind: kindCredit})
	}
}

// chargeCredit counts the credit that an arriving message takes. A peer that takes more than it was
// granted violates the protocol, and chargeCredit reports false.
func (p *peer) chargeCredit(n int64) bool {
	p.heldCredit += n
	if p.heldCredit > int64(p.e.cfg.Credit) {
		p.protocolError("credit: got messages of %d bytes, want at most %d", p.heldCredit, p.e.cfg.Credit)
		return false
	}
	return true
}

// Envelopes beyond the credit are granted extraBatch at a time, and at most maxExtra of them wait
// in the table.
const (
	extraBatch = 64
	maxExtra   = 1 << 16
)

// grantExtra grants envelopes to a peer that has used up its credit while a receive is posted here
// that one of its next messages may match. Without it, messages that nobody receives would block
// those behind them, and collectives too. Only envelopes are granted: the bytes stay in the peer's
// spill buffer, which bounds how many there can be. e.mu is held.
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

// addCredit adds credit that the peer has returned, and envelopes granted beyond it, and launches
// waiting sends as far as these allow.
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

// decodeHeader decodes a frame's header into p.in. A header that is equal to the last one, as in a
// steady exchange, is decoded already. It reports false for an invalid one, which ends the link.
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

// Arrived implements transport.Sink. Only the last call of a frame matters here. A body that went
// straight into exposed memory has no header: the id alone tells its receive.
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

// dropInbound is called when the Conn has failed. It ends the frame that was arriving, and the
// receives that were aborted and waited for their sender.
func (p *peer) dropInbound() {
	p.detachInbound()
	for _, req := range p.activeRecvs {
		if req.pendingErr != nil {
			p.e.abort(req, req.pendingErr)
		}
	}
}

// detachInbound ends a half-arrived frame. Its receive ends now if it was aborted, and otherwise
// stays matched until the verdict on the peer.
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

// protocolError fails the link after the current frame: the peer sent what no correct rank sends,
// so nothing on this link can be trusted. Nothing is read past it.
func (p *peer) protocolError(format string, args ...any) {
	p.link.DeferFailure(fault.New(fault.LinkLost, "receive", p.e.cfg.Rank, "protocol violation by rank %d: "+format, append([]any{p.rank}, args...)...))
}
