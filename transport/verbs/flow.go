package verbs

import "fmt"

// A flow is the protocol of one Conn as one end sees it: what may be posted, what
// has been agreed about memory, and what an arrival means. It moves no bytes and
// knows no time, no locks and no device; step takes it from one state to the next.
//
// Credits: whatever takes one of the peer's posted receives, which is each message
// and each write with an immediate value, costs one. The last one is kept for a
// message that gives credit back, so that two ends that have both run out can
// never wait for each other ([MS-SMBD] 3.1.5.1 has the same rule). Credit goes by
// itself, in an ACK, once it is half of all and at least two: an ACK takes one, and
// two ends that each answered one credit with one would do so for ever.
type flow struct {
	depth   int // receives that each end has posted
	payload int // bytes of head and body that a message takes
	segment int // bytes of the longest write

	credits   int // the peer's posted receives that we may use
	ungranted int // our receives posted again that the peer does not know of

	out          outgoing
	sendRing     eagerRing      // the peer's, which we write to
	remotes      []remoteMemory // the peer's places, by slot
	controls     []packet       // messages about memory that are to be posted, oldest first
	controlsSent int            // of notes, those already posted

	recvRing      eagerRing     // ours, which the peer writes to
	freed         uint64        // bytes of it that the peer does not know to be free
	ringUsed      uint64        // bytes of it that the arrival at hand has
	locals        []localMemory // our places, by slot
	freeSlots     []int         // slots of mine that are not in use
	arrivingSlot  int           // the slot that a placed body comes into; -1: none
	requestedSize uint64        // size of the frame whose place is being asked for; 0: none
}

// A phase is how far the frame that is being sent has come.
type phase uint8

const (
	idle      phase = iota // there is none
	queued                 // nothing of it is posted
	inRing                 // its body is in the peer's strip, its message is not posted
	requested              // BUFFER_REQUEST is posted, the answer is not here
	renewing               // the same; the place that it names has been written full
	writing                // its place is known, not all of it is posted
)

// A eagerRing is memory of one end's that the other writes bodies of middling size to,
// one behind the other and round again, without asking for each: they are copied out
// at once, which costs less than a question, an answer and a registration. The
// writer learns with the credit which bytes are free again.
type eagerRing struct {
	addr uint64
	size uint64 // 0: there is none
	rkey uint32
	head uint64 // bytes ever used
	tail uint64 // of those, bytes that are free again; only the writer knows
}

// fits reports whether a body may lie in the strip. Four must fit, so that two
// that wait for room are enough to have the reader tell of it.
func (s *eagerRing) fits(n uint64) bool { return n > 0 && n <= s.size/4 }

// next is where a body of n bytes lies, and what it uses up: it lies in one piece,
// and the rest of the strip behind it stays empty if need be.
func (s *eagerRing) next(n uint64) (off, used uint64) {
	off = s.head % s.size
	if rest := s.size - off; rest < n {
		return 0, rest + n
	}
	return off, n
}

type outgoing struct {
	phase phase
	frame frame
	to    remoteMemory // where it goes, when writing
	sent  uint64
	off   uint64 // where it lies, when landed
}

// A frame is what a flow knows of a transport.Frame.
type frame struct {
	head    int
	size    uint64
	id      uint32
	exposed bool   // it goes to place, from at on
	handle  uint32 // the peer's
	at      uint64
}

// A remoteMemory is memory of the peer's.
type remoteMemory struct {
	handle    uint32
	announced bool // it was ever told of
	closed    bool // it is idle: BUFFER_IDLE came
	addr      uint64
	size      uint64
	left      uint64 // bytes that may be written before it must be asked for again
	rkey      uint32
	noNotify  bool // its owner hears of no write, and bounds none
}

// A localMemory is memory that the peer may write to, or could once.
type localMemory struct {
	handle     uint32
	id         uint32 // what it arrives by
	size       uint64
	frameBytes uint64 // bytes of the frame that is arriving
	totalBytes uint64 // bytes that came since it was shown
	open       bool
	renewed    bool // it was shown again, when it had been written full
	holdsOne   bool // it was asked for by BUFFER_REQUEST and holds one body
	noNotify   bool // it is written in silence, as often as the peer wants
}

// drained reports that nothing of the peer's can be on its way to l any more: it has
// written as much as it may. Of memory that is kept nobody can know.
func (l *localMemory) drained() bool { return l.totalBytes == l.size && !l.renewed && !l.noNotify }

func newFlow(depth, peerDepth, payload, segment int) *flow {
	return &flow{depth: depth, payload: payload, segment: segment, credits: peerDepth, arrivingSlot: -1}
}

// The inputs of a flow.
type input struct {
	op       inputOp
	frame    frame  // offered
	packet   packet // came
	handle   uint32 // wrote: the immediate value; concealed: the place
	size     uint64 // wrote: bytes; placed, exposed: of the memory
	addr     uint64 // placed, exposed
	rkey     uint32 // placed, exposed
	id       uint32 // exposed
	noNotify bool   // exposed: its owner does not want to hear of writes
}

type inputOp uint8

const (
	inFrame     inputOp = iota + 1 // a frame is to be sent; the flow must be resting
	inNext                         // what may be posted now?
	inMessage                      // a message
	inWrite                        // a write with an immediate value has come
	inAccept                       // the answer to an output ask: there is memory
	inDecline                      // the answer to an output ask: drop the body
	inRingReady                    // there is a strip, of size at addr
	inExpose                       // memory is shown to the peer
	inUnexpose                     // and is not any more
	inReposted                     // a receive is posted again
)

// An output is what one step wants done.
type output struct {
	op      outputOp
	packet  packet       // post, ask, small
	remote  remoteMemory // write
	off     uint64       // write: from where in the body; and, with at, where in the memory
	at      uint64
	size    uint64 // write: bytes; part: bytes in so far; whole, direct: of the frame
	id      uint32 // part, direct
	handle  uint32 // write: the immediate value; part, whole, direct, shown: the place
	last    bool   // post, write, fill: nothing of the frame is left to be posted
	drained bool   // hidden: nothing of the peer's can be on its way there
}

type outputOp uint8

const (
	outNone         outputOp = iota
	outSend                  // post a message; with last it carries the frame that was offered
	outWriteImm              // post a write
	outWrite                 // post a write which the peer does not hear of; with last it ends the frame
	outSkip                  // the frame is done: its receiver does not want it
	outNeedBuffer            // find memory for the body of packet, and answer placed or declined
	outFrame                 // a frame has come in a message, or in the strip from off on
	outBodyPart              // more of a placed body is in; all of it when size says so
	outExposedFrame          // a frame has come into exposed memory
	outExposed               // the answer to exposed: the place's name
	outUnexposed             // the answer to concealed
)

// step is the whole protocol. An error means that the peer, or who sends here, has
// broken it; the Conn is to fail.
func (f *flow) step(in input) (output, error) {
	switch in.op {
	case inFrame:
		f.out = outgoing{phase: queued, frame: in.frame}
	case inNext:
		return f.next()
	case inMessage:
		return f.handleMessage(in.packet)
	case inWrite:
		return f.handleWrite(in.handle, in.size)
	case inAccept:
		return f.acceptBody(in)
	case inDecline:
		f.requestedSize = 0
		f.queueControl(packet{kind: bufferResponse, flag: flagDeclined})
	case inRingReady:
		f.recvRing = eagerRing{size: in.size}
		f.queueControl(packet{kind: tensorRequest, flag: flagInRing, size: in.size, addr: in.addr, rkey: in.rkey})
	case inExpose:
		return f.expose(in)
	case inUnexpose:
		slot := slotOf(in.handle)
		f.closeSlot(slot)
		f.queueControl(packet{kind: bufferIdle, handle: in.handle})
		return output{op: outUnexposed, drained: f.locals[slot].drained()}, nil
	case inReposted:
		f.ungranted++
		f.freed += f.ringUsed
		f.ringUsed = 0
	}
	return output{}, nil
}

// next is the next thing that may be posted: messages about memory first, for
// others wait for them; then the frame; then credit that is worth a message.
func (f *flow) next() (output, error) {
	switch {
	case f.controlsSent < len(f.controls):
		if !f.maySend() {
			return output{}, nil
		}
		return f.send(f.nextControl(), false), nil
	case f.out.phase == queued || f.out.phase == inRing:
		if out, err := f.beginFrame(); out.op != outNone || err != nil {
			return out, err
		}
	case f.out.phase == renewing:
		if _, _, err := f.target(); err != nil { // it is idle: that is the answer
			return output{}, err
		}
	case f.out.phase == writing && (f.out.to.noNotify || f.credits > 1):
		return f.nextWrite(), nil
	}
	if f.grantDue() && f.maySend() {
		return f.send(packet{kind: ack}, false), nil
	}
	return output{}, nil
}

// maySend reports whether a message may go; it takes all credit owed along.
func (f *flow) maySend() bool { return f.credits > 1 || f.credits == 1 && f.ungranted > 0 }

// grantDue reports whether there is so much credit, or room on the strip, that it is worth
// a message.
func (f *flow) grantDue() bool {
	return f.ungranted >= max(f.depth/2, 2) || f.freed > 0 && f.freed >= f.recvRing.size/2
}

// isIdle reports whether nothing is to be posted, which is what a pull finds most often.
func (f *flow) isIdle() bool {
	return f.out.phase == idle && f.controlsSent == len(f.controls) && !f.grantDue()
}

func (f *flow) send(p packet, last bool) output {
	f.spendCredit(&p)
	return output{op: outSend, packet: p, last: last}
}

// spendCredit takes the credit that a message costs, and has it take all that is owed along.
func (f *flow) spendCredit(p *packet) {
	p.credit, f.ungranted = uint32(f.ungranted), 0
	p.freed, f.freed = uint32(f.freed), 0
	f.credits--
}

// trySend is the one message of a frame with ID 0, if nothing is to go before that and
// the peer has a receive for it: what offered and pull would come to. False has changed
// nothing.
func (f *flow) trySend(head, size int) (p packet, ok bool) {
	if f.out.phase != idle || f.controlsSent < len(f.controls) || head+size > f.payload || !f.maySend() {
		return p, false
	}
	p = packet{kind: tensorWrite, head: head, size: uint64(size)}
	f.spendCredit(&p)
	return p, true
}

func (f *flow) queueControl(p packet) { f.controls = append(f.controls, p) }

// nextControl takes the oldest note; what is before it is given back when that is
// most of the list.
func (f *flow) nextControl() packet {
	p := f.controls[f.controlsSent]
	if f.controlsSent++; 2*f.controlsSent >= len(f.controls) {
		f.controls = f.controls[:copy(f.controls, f.controls[f.controlsSent:])]
		f.controlsSent = 0
	}
	return p
}

// beginFrame posts the first thing about the frame that was offered, if it may.
func (f *flow) beginFrame() (output, error) {
	fr := &f.out.frame
	if fr.exposed {
		return f.beginExposed()
	}
	if !f.maySend() {
		return output{}, nil
	}
	p := packet{kind: tensorWrite, head: fr.head, id: fr.id, size: fr.size}
	switch {
	case f.out.phase == inRing:
		p.flag, p.addr = flagInRing, f.out.off
	case fr.size <= uint64(f.payload-fr.head):
	case f.sendRing.fits(fr.size):
		return f.writeToRing(), nil
	default:
		f.out.phase = requested
		p.kind = bufferRequest
		return f.send(p, false), nil
	}
	f.out.phase = idle
	return f.send(p, true), nil
}

// beginExposed begins a frame into memory that the peer has shown. It is written to
// its size and no further, so that its owner knows from the bytes that have come
// that no more are on their way; who wants to write there again asks.
func (f *flow) beginExposed() (output, error) {
	fr := &f.out.frame
	to, ok, err := f.target()
	switch {
	case !ok || err != nil:
		return output{}, err
	case to.noNotify:
		f.out.phase, f.out.to = writing, to
		return f.nextWrite(), nil
	case fr.size > to.left:
		if !f.maySend() {
			return output{}, nil
		}
		f.out.phase = renewing
		return f.send(packet{kind: bufferRequest, flag: flagRenew, handle: to.handle}, false), nil
	}
	f.remotes[slotOf(fr.handle)].left -= fr.size
	f.out.phase, f.out.to = writing, to
	if f.credits <= 1 {
		return output{}, nil
	}
	return f.nextWrite(), nil
}

// writeToRing writes the frame's body to the peer's strip, if there is room.
func (f *flow) writeToRing() output {
	s, n := &f.sendRing, f.out.frame.size
	off, used := s.next(n)
	if s.head-s.tail+used > s.size {
		return output{}
	}
	s.head += used
	f.out.phase, f.out.off = inRing, off
	return output{op: outWrite, remote: remoteMemory{addr: s.addr, rkey: s.rkey}, at: off, size: n}
}

// target is the memory that the frame names. What has not been told of yet is
// waited for; what is idle, or too small, is an error.
func (f *flow) target() (to remoteMemory, ok bool, err error) {
	fr := &f.out.frame
	slot := slotOf(fr.handle)
	if slot >= len(f.remotes) || !f.remotes[slot].announced || newer(fr.handle, f.remotes[slot].handle) {
		return remoteMemory{}, false, nil
	}
	to = f.remotes[slot]
	switch {
	case to.handle != fr.handle || to.closed:
		return to, false, fmt.Errorf("frame of %d bytes: its memory is no longer exposed", fr.size)
	case fr.at > to.size || fr.size > to.size-fr.at:
		return to, false, fmt.Errorf("frame of %d bytes at offset %d: the exposed memory has %d bytes", fr.size, int64(fr.at), to.size)
	}
	return to, true, nil
}

// nextWrite is the frame's next write. What goes to memory that is kept takes no receive,
// and so no credit.
func (f *flow) nextWrite() output {
	o := &f.out
	n := min(o.frame.size-o.sent, uint64(f.segment))
	out := output{op: outWriteImm, remote: o.to, off: o.sent, at: o.frame.at + o.sent, size: n, handle: o.to.handle}
	o.sent += n
	if out.last = o.sent == o.frame.size; out.last {
		o.phase = idle
	} else {
		out.handle |= more
	}
	if o.to.noNotify {
		out.op = outWrite
		return out
	}
	f.credits--
	return out
}
