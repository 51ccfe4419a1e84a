package rendezvous

import (
	"context"
	"errors"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/transport"
)

// maxPrepared is the maximum number of prepared buffers per peer and direction. It bounds the
// memory that a peer's frames can make this rank allocate.
const maxPrepared = 1 << 12

// A PreparedRecv is a buffer of this rank for the tensors of one name from one peer. The peer may
// write these tensors into the buffer, step after step, without an offer and a request. The
// engine's lock guards it.
//
// The program declares the buffer once, with PrepareNamed, and then calls RecvNamed without a
// buffer. A tensor that the sender wrote directly stays in the prepared buffer until its Release,
// which allows the sender to write the next tensor. In three cases a tensor comes as an ordinary
// message, into separate memory: if it is small enough to be sent eagerly, if it is larger than the
// buffer, or if it is sent before the sender has received the release of the previous tensor.
//
//	state     the peer may write  leaves it when                            to
//	pending   no                  a receive of the name finds a Conn, and   exposing
//	                              skip is 0
//	exposing  no                  Expose has returned                       open, pending, refused,
//	                                                                        hiding
//	open      yes                 Close, or the context, engine, Conn or    closing, hiding
//	                              peer ends
//	refused   no                  Close                                     closed
//	closing   yes                 the peer has acknowledged, or is gone,    hiding
//	                              or the Conn has ended
//	hiding    no                  the exposure is withdrawn, and no         closed
//	                              receive copies from the buffer
//	closed    no                  never; the buffer is the program's
//
// A Close in state exposing sets closing. The goroutine that exposes the buffer then sets hiding.
// An Expose that fails because a bound is reached sets pending: see refuse.
type PreparedRecv struct {
	mc   *MatchContext
	peer *peer
	name string
	buf  []byte

	// id is the buffer's number on the link, from open on.
	id       uint32
	state    preparedState
	unexpose func() // nil before Expose has succeeded

	// tries counts the failed exposures. In state pending, the next skip receives do not try again.
	tries, skip int

	// filled says that the buffer holds a tensor that the program has not released. generation
	// counts the tensors written so far.
	filled     bool
	generation uint32

	// msg is the message of the tensor in buf, from its announcement until its receive is done.
	// While msg is set, the buffer cannot be closed.
	msg *message

	// done says that the exposure has ended.
	done bool
}

// A preparedState is a state of a PreparedRecv; see PreparedRecv for the meaning of the states.
// hide relies on their order: it does nothing in preparedHiding and preparedClosed.
type preparedState uint8

const (
	preparedPending preparedState = iota
	preparedExposing
	preparedOpen
	preparedRefused
	preparedClosing
	preparedHiding
	preparedClosed
)

// preparedKey identifies a prepared buffer among the buffers of one link.
type preparedKey struct {
	context uint64
	name    string
}

// A loan says that the data of a message or Tensor lies in a prepared buffer. generation
// distinguishes this tensor from later tensors in the buffer, so a stale Release does nothing. The
// zero loan means that the data is not in a prepared buffer.
type loan struct {
	from       *PreparedRecv
	generation uint32 // PreparedRecv.generation when the tensor was received
}

// PrepareNamed allows one rank, given by from, to write the tensors of a name into buf. If the
// buffer cannot be exposed, the tensors come as ordinary messages. A match context has at most one
// prepared buffer per sender and name. PrepareNamed refuses a second one until the first is closed.
// The program must not write to buf before Close has returned.
func (mc *MatchContext) PrepareNamed(from int, name string, buf []byte) (*PreparedRecv, error) {
	e := mc.e
	if err := e.checkName("prepare", name); err != nil {
		return nil, err
	}
	if len(buf) == 0 {
		return nil, e.misuse("prepare", "buffer for tensor %q: got 0 bytes, want as many as the tensor has", name)
	}
	e.mu.Lock()
	if err := mc.receivable(key{source: int32(from)}); err != nil {
		e.unlock()
		return nil, err
	}
	p, k := e.peers[from], preparedKey{mc.id, name}
	switch {
	case p.prepared[k] != nil:
		e.unlock()
		return nil, e.misuse("prepare", "tensor %q from rank %d: got a second buffer, want one; close the first", name, from)
	case max(len(p.prepared), len(p.preparedByID)) >= maxPrepared:
		e.unlock()
		return nil, fault.New(fault.Exhausted, "prepare", e.cfg.Rank, "prepared buffers for tensors from rank %d: got %d, want at most %d; close one first", from, maxPrepared+1, maxPrepared)
	}
	pr := &PreparedRecv{mc: mc, peer: p, name: name, buf: buf}
	p.prepared[k] = pr
	e.unlock()
	pr.expose()
	return pr, nil
}

// Exposed reports whether the buffer is exposed, so that the sender may write into it. The prepare
// frame may still be on its way to the sender.
func (pr *PreparedRecv) Exposed() bool {
	pr.peer.e.mu.Lock()
	defer pr.peer.e.mu.Unlock()
	return pr.state == preparedOpen
}

// Size is the buffer's length in bytes.
func (pr *PreparedRecv) Size() int { return len(pr.buf) }

// Close ends the use of the prepared buffer. It returns when the sender cannot write into the
// buffer any more: the sender has acknowledged the end, or is gone. If the buffer holds a tensor
// that has not been received, the tensor is copied to other memory first. If ctx or the engine ends
// before Close is done, the buffer still belongs to the engine, and Close may be called again.
func (pr *PreparedRecv) Close(ctx context.Context) error {
	e := pr.peer.e
	e.mu.Lock()
	pr.stop()
	e.unlock()
	w := e.m.NewWaiter()
	defer w.Free()
	pr.mc.addWaiter(w)
	defer pr.mc.removeWaiter(w)
	if err := e.m.Wait(ctx, w, closeIsDecided{pr}, nil, e.LinksOf(pr.peer.rank)...); err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if pr.state != preparedClosed {
		return e.ended
	}
	return nil
}

// closeIsDecided is the condition that a PreparedRecv is closed, or that the engine has ended
// before the peer has acknowledged the unprepare frame. After the end of the engine, the peer may
// keep its Conn for any time, because it may itself wait for this rank.
type closeIsDecided struct{ pr *PreparedRecv }

// Met implements mesh.Condition.
func (ev closeIsDecided) Met() bool {
	e := ev.pr.peer.e
	e.mu.Lock()
	defer e.mu.Unlock()
	return ev.pr.state == preparedClosed || ev.pr.state == preparedClosing && e.ended != nil
}

// Release allows the sender to overwrite Data, if Data lies in a prepared buffer. The sender may
// then write the tensor of a later step into the buffer. For any other tensor, and when it is
// called again, Release does nothing. Until Release, Data belongs to the program, and the tensors
// of later steps come as ordinary messages.
func (t Tensor) Release() {
	pr := t.loan.from
	if pr == nil {
		return
	}
	e := pr.peer.e
	e.mu.Lock()
	defer e.unlock()
	if pr.filled && pr.generation == t.loan.generation && pr.msg == nil {
		pr.release()
	}
}

// release tells the sender that it may write into the buffer again. e.mu is held.
func (pr *PreparedRecv) release() {
	pr.filled, pr.msg = false, nil
	if pr.state == preparedOpen && pr.peer.isDown() == nil {
		pr.peer.sendControl(frameHeader{kind: kindRelease, id: pr.id})
	}
	pr.checkClosed()
}

// expose exposes the buffer, if there is a Conn, and sends the peer a prepare frame. It runs on the
// program's goroutine and calls Expose without the lock: pinning memory takes some 200 µs per MiB
// on a device, and the links must make progress during this time.
func (pr *PreparedRecv) expose() {
	p, e := pr.peer, pr.peer.e
	e.mu.Lock()
	defer e.unlock()
	if pr.state != preparedPending {
		return
	}
	if pr.skip > 0 {
		pr.skip--
		return
	}
	x, err := p.exposerForPrepared()
	if err != nil {
		pr.refuse(err)
		return
	}
	if x == nil {
		return // the receive of a later step tries again
	}
	pr.state = preparedExposing
	e.mu.Unlock()
	token, unexpose, err := x.Expose(transport.NoNotify, pr.buf)
	e.mu.Lock()
	pr.unexpose = unexpose
	switch {
	case pr.state != preparedExposing || p.isDown() != nil: // the peer does not know the exposure
		pr.stop()
		pr.hide()
	case err != nil:
		pr.refuse(err)
	default:
		pr.state, pr.id = preparedOpen, nextID(&p.nextPreparedID)
		p.preparedByID[pr.id] = pr
		h := frameHeader{kind: kindPrepare, flags: flagToken, id: pr.id, context: pr.mc.id, size: uint64(len(pr.buf)), token: token}
		p.sendControlBody(h, []byte(pr.name))
	}
}

// The reasons not to expose a prepared buffer that this package finds itself.
var (
	errNoExposer   = errors.New("the transport cannot expose memory")
	errSelf        = errors.New("a rank does not write into its own memory")
	errChecksummed = errors.New("bytes that are written directly carry no checksum")
)

// exposerForPrepared returns the Conn to p as the Exposer of prepared buffers, or the reason why
// there is none. Both are nil before there is a Conn.
func (p *peer) exposerForPrepared() (transport.Exposer, error) {
	switch {
	case p.rank == p.e.cfg.Rank:
		return nil, errSelf
	case p.e.cfg.Checksum:
		return nil, errChecksummed
	}
	c := p.link.Conn()
	if c == nil {
		return nil, nil
	}
	if x, ok := c.(transport.Exposer); ok {
		return x, nil
	}
	return nil, errNoExposer
}

// The bounds of repeated exposures. After the n-th failure 2^n receives pass, at most
// maxSkippedRecvs, because a failed Expose may cost a device as much as a successful one. A bound
// of the transport may be reached for a moment only, so it is logged only after warnAfter failures.
const (
	maxSkippedRecvs = 1 << 10
	warnAfter       = 4
)

// refuse is called when pr's buffer could not be exposed. Its tensors then come as ordinary
// messages. If a bound is reached (fault.Exhausted), pr becomes pending again, because the bound
// may have room later. If the Conn has failed, pr also becomes pending, and LinkDown closes it. Any
// other reason is final. e.mu is held.
func (pr *PreparedRecv) refuse(err error) {
	remedy, final := exposeRemedy(err)
	if final {
		pr.state = preparedRefused
		pr.peer.warnRefused(err, remedy, len(pr.buf))
		return
	}
	pr.state = preparedPending
	pr.tries++
	pr.skip = min(1<<min(pr.tries, 30), maxSkippedRecvs)
	if pr.tries == warnAfter {
		pr.peer.warnRefused(err, remedy, len(pr.buf))
	}
}

// exposeRemedy returns what the log advises when a buffer could not be exposed because of err, and
// whether err is final. The advice is empty if there is nothing that the user can do.
func exposeRemedy(err error) (remedy string, final bool) {
	switch {
	case errors.Is(err, errSelf):
		return "", true
	case errors.Is(err, errNoExposer):
		return "choose a transport that exposes memory (memory, shm, verbs), or do not prepare receives", true
	case errors.Is(err, errChecksummed):
		return "unset Checksums, or do not prepare receives", true
	case errors.Is(err, fault.Refused):
		return "prepare memory that the transport accepts (shm: from comm.Alloc), or do not prepare receives", true
	case errors.Is(err, fault.Exhausted):
		return "prepare fewer receives, or raise the bound; later receives try again", false
	}
	return "", false
}

// warnRefused logs that a buffer could not be exposed to p. It logs each remedy once per peer. e.mu
// is held.
func (p *peer) warnRefused(err error, remedy string, bytes int) {
	if remedy == "" || p.warnedExpose[remedy] {
		return
	}
	if p.warnedExpose == nil {
		p.warnedExpose = make(map[string]bool)
	}
	p.warnedExpose[remedy] = true
	e := p.e
	e.deferAction(deferredAction{kind: actionRun, run: func() {
		e.cfg.Log.Warn("prepared receives get ordinary messages, because their buffer cannot be exposed",
			"rank", e.cfg.Rank, "from", p.rank, "bytes", bytes, "because", err, "remedy", remedy)
	}})
}

// isDown returns the reason why nothing can be sent to p any more, or nil.
func (p *peer) isDown() error { return firstError(p.e.ended, p.gone, p.connErr) }

// writesEnded reports whether p writes into no buffer of this rank any more: p is gone, or the Conn
// has ended. If only this engine has ended, p may still write.
func (p *peer) writesEnded() bool { return p.gone != nil || p.connErr != nil }

// stop begins to close pr; a second call does nothing. While p may still write, the exposure stays,
// because a write into memory that is not exposed fails the Conn for all messages. p has stopped
// writing when it acknowledges the unprepare frame. After End no frame is sent, and LinkDown ends
// the exposure. e.mu is held.
func (pr *PreparedRecv) stop() {
	p := pr.peer
	if k := (preparedKey{pr.mc.id, pr.name}); p.prepared[k] == pr {
		delete(p.prepared, k)
	}
	switch pr.state {
	case preparedPending, preparedRefused:
		pr.done, pr.state = true, preparedHiding
		pr.checkClosed()
	case preparedExposing:
		pr.state = preparedClosing // expose will hide pr
	case preparedOpen:
		pr.state = preparedClosing
		switch {
		case p.writesEnded():
			pr.hide()
		case p.e.ended == nil:
			p.sendControl(frameHeader{kind: kindUnprepare, id: pr.id})
		}
	}
}

// handleUnprepareAck ends the exposure of a buffer that the peer has stopped writing to.
// All tensors that it wrote there have been announced before.
func (p *peer) handleUnprepareAck(id uint32) {
	pr := p.preparedByID[id]
	if pr == nil || pr.state != preparedClosing {
		p.protocolError("unprepare ack: got buffer %d, want one that was taken back", id)
		return
	}
	pr.hide()
}

// hide defers an action that ends the exposure. If a tensor in the buffer is still in the table,
// the action also moves it to other memory, without the lock. Until then the message is treated
// like a message whose bytes are arriving. The tensor is at most as large as the buffer that the
// program has prepared. e.mu is held.
func (pr *PreparedRecv) hide() {
	if pr.state >= preparedHiding {
		return
	}
	pr.state = preparedHiding
	e := pr.peer.e
	delete(pr.peer.preparedByID, pr.id)
	moved := pr.msg
	if moved != nil && moved.inTable {
		moved.complete, moved.moving, moved.loan = false, true, loan{}
	} else {
		moved = nil // there is no tensor, or its receive is copying it
	}
	e.deferAction(deferredAction{kind: actionRun, run: func() {
		if pr.unexpose != nil {
			pr.unexpose()
		}
		var data []byte
		if moved != nil {
			data = append(data, moved.data...)
		}
		e.mu.Lock()
		pr.done = true
		if moved != nil {
			moved.data, moved.moving, pr.msg = data, false, nil
			e.completeMessage(moved)
		}
		pr.checkClosed()
		e.unlock()
	}})
}

// checkClosed changes the state from hiding to closed if the exposure has ended and no receive is
// copying from the buffer. e.mu is held.
func (pr *PreparedRecv) checkClosed() {
	if pr.state == preparedHiding && pr.done && pr.msg == nil {
		pr.state = preparedClosed
		pr.mc.notify(nil)
	}
}

// stopPrepared closes the prepared buffers of a context that has ended. e.mu is held.
func (mc *MatchContext) stopPrepared() {
	for _, p := range mc.e.peers {
		for k, pr := range p.prepared {
			if k.context == mc.id {
				pr.stop()
			}
		}
	}
}

// dropPrepared ends all prepared buffers of a link, because nothing can be sent to the peer any
// more. It stops the buffers that this rank has prepared, and forgets the buffers that the peer has
// prepared. e.mu is held.
func (p *peer) dropPrepared() {
	for _, pr := range p.prepared {
		pr.stop()
	}
	for _, pr := range p.preparedByID {
		pr.hide()
	}
	clear(p.remote)
	clear(p.remoteByKey)
}

// handleWritten delivers a message that the peer wrote into a prepared buffer.
func (p *peer) handleWritten(h *frameHeader) {
	e, pr := p.e, p.preparedByID[h.id]
	if pr == nil || pr.mc.id != h.context || pr.name != p.namesIn[h.name] || pr.filled || h.size > uint64(len(pr.buf)) {
		p.protocolError("written: got %d bytes in buffer %d, want a free buffer for that tensor, of at least that size", h.size, h.id)
		return
	}
	pr.filled = true
	pr.generation++
	if !p.chargeCredit(envelopeCost) {
		return
	}
	mc := e.contextFor(h.context)
	k, ok := p.keyOf(h)
	if mc == nil || mc.err != nil || !ok {
		p.returnCredit(envelopeCost)
		pr.release()
		return
	}
	m := e.getMessage(mc, k)
	m.peer, m.env, m.cost, m.complete = p, p.envelopeOf(h), envelopeCost, true
	m.data = pr.buf[:h.size:h.size]
	m.loan, pr.msg = loan{pr, pr.generation}, m
	e.deliver(m)
}

// loanBuffer completes a receive that was posted without a buffer. It sets the received tensor's
// Data to the prepared buffer that holds the message. e.mu is held.
func (e *Engine) loanBuffer(req *Request, m *message) {
	pr := m.loan.from
	req.buf, req.tensor.loan = m.data, m.loan
	m.data, m.loan, pr.msg = nil, loan{}, nil
	e.discard(m)
	e.finish(req, nil)
	pr.checkClosed()
}

// prepareFor is called before a named receive without a buffer. It asks the static plan, if there
// is one, to prepare a buffer. It also exposes a prepared buffer that could not be exposed before,
// because there was no Conn.
func (mc *MatchContext) prepareFor(from int, name string) {
	e := mc.e
	if e.plan != nil {
		mc.prepareRecurring(from, name)
	}
	e.mu.Lock()
	pr := e.peers[from].prepared[preparedKey{mc.id, name}]
	e.mu.Unlock()
	if pr != nil {
		pr.expose()
	}
}

// observe records a received tensor in the static plan.
func (mc *MatchContext) observe(step uint64, from int, name string, t *Tensor) {
	if sp := mc.e.plan; sp != nil {
		sp.observe(planKey{mc.id, from, name}, step, len(t.Data))
	}
}
