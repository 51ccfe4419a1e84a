package verbs

import "fmt"

// A flow is the protocol state of one end of a Conn. It decides what may be posted, records what
// the two ends have agreed about memory, and interprets each arrival. It moves no bytes and uses
// no time, locks or device. Method step takes it from one state to the next. doc.go lists the
// messages.
//
// Credits. Each message, and each write with an immediate value, consumes one of the receives
// that the peer has posted, and so one credit. Two rules keep the ends from deadlock:
//
//   - The last credit is kept for a message that grants credits. So two ends that
//     have run out of credits never wait for each other ([MS-SMBD] 3.1.5.1 has
//     the same rule).
//   - An ACK is sent only once it can grant half of all credits, and at least two. An ACK itself
//     costs one credit. So if two ends answered each credit with an ACK, they would do so forever.
//
// Order. The flow posts messages about memory first, then the current frame, then an ACK if one
// is due. So a frame that names exposed memory never arrives before the TENSOR_REQUEST.
//
// Memory. A slot of the table locals is memory of this end into which the peer may write. Its
// handle contains the generation of the slot, so that a stale handle is detected. A slot of the
// table remotes is memory of the peer into which this end may write.
type flow struct {
	depth   int // number of receives that this end keeps posted
	payload int // maximum bytes of head and body in a message
	segment int // maximum bytes of a write

	credits   int // number of posted receives at the peer that this end may still use
	ungranted int // number of reposted receives that have not been granted to the peer yet

	out          outgoing
	sendRing     eagerRing      // ring of the peer; this end writes to it
	remotes      []remoteMemory // the peer's memory, by slot
	controls     []packet       // messages about memory, oldest first
	controlsSent int            // number of controls that have been posted

	recvRing      eagerRing     // ring of this end; the peer writes to it
	freed         uint64        // free bytes of recvRing that are not reported to the peer yet
	ringUsed      uint64        // bytes of recvRing that the current arrival uses
	locals        []localMemory // this end's memory, by slot
	freeSlots     []int         // unused slots of locals
	arrivingSlot  int           // slot of the requested body that is arriving; -1: none
	requestedSize uint64        // size of the body that outNeedBuffer has asked about; 0: none
}

// A phase is the progress of the current outgoing frame.
//
//	idle -> queued -> idle                     it fits a message
//	        queued -> inRing -> idle           its body is written to the ring first
//	        queued -> requested -> writing -> idle    the peer is asked for a buffer
//	                  requested -> idle        the peer declines the body
//	        queued -> writing -> idle          into exposed memory
//	        queued -> renewing -> queued       into exposed memory that is written full
type phase uint8

const (
	idle      phase = iota // there is no frame
	queued                 // no part of the frame is posted
	inRing                 // the body is written to the peer's ring; the message is not posted
	requested              // BUFFER_REQUEST is posted; the answer has not arrived
	renewing               // BUFFER_REQUEST to renew exposed memory awaits its answer
	writing                // the destination is known; some writes are not posted yet
)

// An eagerRing is memory of one end to which the other end writes bodies that are too large for a
// message and small enough for the ring. The writer places each body after the previous body and
// wraps around at the end. It does not request space for a body. The reader copies each body out at
// once, which costs less than a request, a response and a registration. Both ends compute where the
// next body lies. Messages of the reader tell the writer, along with credits, how many bytes are
// free again.
type eagerRing struct {
	addr uint64
	size uint64 // 0: there is no ring
	rkey uint32
	head uint64 // total bytes used so far
	tail uint64 // total bytes freed so far; used by the writer only
}

// fits reports whether a body of n bytes may go to the ring. A body may take at most a quarter
// of the ring. The reader reports free bytes once they amount to half of the ring, so a writer
// that waits for a quarter of the ring never waits forever.
func (s *eagerRing) fits(n uint64) bool { return n > 0 && n <= s.size/4 }

// next returns the offset of a body of n bytes and the number of bytes that the body uses. A
// body is contiguous. If the rest of the ring is too short, the body goes to the beginning, and
// the unused rest counts as used.
func (s *eagerRing) next(n uint64) (off, used uint64) {
	off = s.head % s.size
	if rest := s.size - off; rest < n {
		return 0, rest + n
	}
	return off, n
}

// outgoing is the frame that is being sent. The zero value has phase idle and means that there
// is no frame.
type outgoing struct {
	phase phase
	frame frame
	to    remoteMemory // writing: the destination
	sent  uint64
	off   uint64 // in phase inRing: offset of the body
}

// A frame is the part of a transport.Frame that the flow needs.
type frame struct {
	head    int
	size    uint64
	id      uint32
	exposed bool   // the body goes to the memory that handle names, at offset at
	handle  uint32 // names an entry of remotes
	at      uint64
}

// A remoteMemory is exposed memory of the peer, or the buffer of a BUFFER_RESPONSE. An entry of
// remotes has one of three states:
//
//	announced  closed   meaning
//	false      false    empty: nothing was announced for the slot
//	true       false    exposed: frames may be written
//	true       true     closed by BUFFER_IDLE; a TENSOR_REQUEST may use the slot again
type remoteMemory struct {
	handle    uint32
	announced bool // its TENSOR_REQUEST has arrived; if false, the slot is empty
	closed    bool // its BUFFER_IDLE has arrived
	addr      uint64
	size      uint64
	left      uint64 // bytes that may be written before it must be renewed
	rkey      uint32
	noNotify  bool // writes to it are not reported, and not bounded
}

// A localMemory is memory of this end into which the peer may write, or into which it could write
// earlier. Its kind stays the same until the slot is used again:
//
//	holdsOne  noNotify   kind
//	true      false      the buffer of one requested body
//	false     false      exposed; renewed after the peer has asked for that
//	false     true       exposed without notification; never renewed
//
// The field open is false once this end has closed the memory. A write to closed memory is an
// error.
type localMemory struct {
	handle     uint32
	id         uint32 // Header.ID of frames that are written to this memory
	size       uint64
	frameBytes uint64 // bytes of the arriving frame that have arrived
	totalBytes uint64 // bytes that have arrived since the memory was exposed or renewed
	open       bool
	renewed    bool // it has been renewed at least once
	holdsOne   bool // it is the buffer of one requested body
	noNotify   bool // writes to it are not reported, and not bounded
}

// drained reports whether it is certain that no write of the peer to l is in flight. This is so
// when the peer has written as many bytes as it may. For memory without notification it is never
// certain.
func (l *localMemory) drained() bool { return l.totalBytes == l.size && !l.renewed && !l.noNotify }

// newFlow returns the flow of one end. The arguments are the number of receives that this end keeps
// posted, the number that the peer keeps posted, the maximum size of a message's head and body
// together, and the maximum size of an RDMA write.
func newFlow(depth, peerDepth, payload, segment int) *flow {
	return &flow{depth: depth, payload: payload, segment: segment, credits: peerDepth, arrivingSlot: -1}
}

// An input is an event for a flow. The comment of each field names the operations that use the
// field.
type input struct {
	op       inputOp
	frame    frame  // inFrame
	packet   packet // inMessage
	handle   uint32 // inWrite: the immediate value; inUnexpose
	size     uint64 // inWrite: bytes written; inAccept, inRingReady, inExpose: of the memory
	addr     uint64 // inAccept, inRingReady, inExpose
	rkey     uint32 // inAccept, inRingReady, inExpose
	id       uint32 // inExpose
	noNotify bool   // inExpose: writes are not reported
}

// An inputOp says what has happened.
type inputOp uint8

const (
	inFrame     inputOp = iota + 1 // a frame is to be sent; the phase must be idle
	inNext                         // asks what may be posted next
	inMessage                      // a message has arrived
	inWrite                        // a write with an immediate value has arrived
	inAccept                       // answers outNeedBuffer: the body goes to this memory
	inDecline                      // answers outNeedBuffer: the body is declined
	inRingReady                    // this end has allocated its ring, of size bytes at addr
	inExpose                       // memory is exposed to the peer
	inUnexpose                     // memory is no longer exposed
	inReposted                     // the receive of the last arrival has been posted again
)

// An output is the action that the caller of step must perform. The comment of each field names
// the operations that set the field.
type output struct {
	op     outputOp
	packet packet       // outSend, outNeedBuffer, outFrame
	remote remoteMemory // outWriteImm, outWrite
	off    uint64       // outWriteImm, outWrite: offset in the body; outFrame: in the ring
	at     uint64       // outWriteImm, outWrite: offset in the memory
	size   uint64       // outWriteImm, outWrite: bytes; outBodyPart: so far; outExposedFrame: all
	id     uint32       // outExposedFrame
	// handle is the immediate value of outWriteImm, and the memory of outBodyPart, outExposedFrame
	// and outExposed.
	handle  uint32
	last    bool // this is the last work request of the frame
	drained bool // outUnexpose: no write can be in flight
}

// An outputOp says what the caller must do.
type outputOp uint8

const (
	outNone       outputOp = iota
	outSend                // post a message; if last is set, the message contains the frame
	outWriteImm            // post a write with an immediate value
	outWrite               // post a plain write, into the ring or without notification
	outSkip                // the frame is done: the peer declines it
	outNeedBuffer          // find memory for the body of packet, then pass inAccept or inDecline
	outFrame               // a frame has arrived in a message, or in the ring at off
	// size bytes of a requested body have arrived. The body is complete if size is its full size.
	outBodyPart
	outExposedFrame // a frame has arrived in exposed memory
	outExposed      // answers inExpose and inAccept with the handle
	outUnexposed    // answers inUnexpose
)

// step applies one input and returns the action to perform. It implements the whole protocol. An
// error means that the peer or the caller has violated the protocol. The Conn must then fail.
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
		// The slot may be used again at once. Its next handle differs, and this BUFFER_IDLE is
		// sent before the TENSOR_REQUEST for that next use.
		f.closeSlot(slot)
		f.queueControl(packet{kind: bufferIdle, handle: in.handle})
		return output{op: outUnexposed, drained: f.locals[slot].drained()}, nil
	case inReposted:
		// By now the body has been copied out of the ring, and the receive has been posted again.
		f.ungranted++
		f.freed += f.ringUsed
		f.ringUsed = 0
	}
	return output{}, nil
}

// next returns what may be posted next. Messages about memory come first, because frames and
// buffers wait for them. The current frame follows. An ACK comes last, if enough credits or ring
// bytes are waiting to be granted.
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
		// The memory was closed, because BUFFER_IDLE arrived instead of a BUFFER_RESPONSE.
		if _, _, err := f.target(); err != nil {
			return output{}, err
		}
	case f.out.phase == writing && (f.out.to.noNotify || f.credits > 1):
		return f.nextWrite(), nil
	}
	// The message of a frame also grants credits. So an ACK is needed only if no frame can be
	// posted.
	if f.grantDue() && f.maySend() {
		return f.send(packet{kind: ack}, false), nil
	}
	return output{}, nil
}

// maySend reports whether a message may be posted. A message grants all ungranted credits. So a
// message may use the last credit if there are ungranted credits.
func (f *flow) maySend() bool { return f.credits > 1 || f.credits == 1 && f.ungranted > 0 }

// grantDue reports whether enough ungranted credits, or enough free bytes of the ring, have
// accumulated to justify an ACK.
func (f *flow) grantDue() bool {
	return f.ungranted >= max(f.depth/2, 2) || f.freed > 0 && f.freed >= f.recvRing.size/2
}

// isIdle reports whether there is nothing to post, which is the most common case.
func (f *flow) isIdle() bool {
	return f.out.phase == idle && f.controlsSent == len(f.controls) && !f.grantDue()
}

// send returns the output that posts a message.
func (f *flow) send(p packet, last bool) output {
	f.spendCredit(&p)
	return output{op: outSend, packet: p, last: last}
}

// spendCredit subtracts the credit that message p costs, and puts all ungranted credits and all
// free bytes of the ring into p.
func (f *flow) spendCredit(p *packet) {
	p.credit, f.ungranted = uint32(f.ungranted), 0
	p.freed, f.freed = uint32(f.freed), 0
	f.credits--
}

// trySend returns the message for a frame with ID 0. It returns false, and changes nothing, if
// the frame does not fit a message, if something is queued before the frame, or if no credit is
// left. On success the flow is in the same state as after inFrame and inNext.
func (f *flow) trySend(head, size int) (p packet, ok bool) {
	if f.out.phase != idle || f.controlsSent < len(f.controls) || head+size > f.payload || !f.maySend() {
		return p, false
	}
	p = packet{kind: tensorWrite, head: head, size: uint64(size)}
	f.spendCredit(&p)
	return p, true
}

// queueControl queues a message about memory.
func (f *flow) queueControl(p packet) { f.controls = append(f.controls, p) }

// nextControl removes and returns the oldest queued message. It moves the remaining messages to
// the front of the slice once at least half of the slice is used up. So the slice does not grow
// forever.
func (f *flow) nextControl() packet {
	p := f.controls[f.controlsSent]
	if f.controlsSent++; 2*f.controlsSent >= len(f.controls) {
		f.controls = f.controls[:copy(f.controls, f.controls[f.controlsSent:])]
		f.controlsSent = 0
	}
	return p
}

// beginFrame returns the first part of the queued frame to post, if credits permit.
func (f *flow) beginFrame() (output, error) {
	fr := &f.out.frame
	if fr.exposed {
		return f.beginExposed()
	}
	if !f.maySend() {
		return output{}, nil
	}
	// The body is in the message, unless a case below says otherwise.
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

// beginExposed begins a frame whose body goes to exposed memory. The sender writes at most as many
// bytes as the memory has. So the end that exposed the memory can tell from the number of bytes
// that have arrived that no write is in flight. To write more bytes, the sender first renews the
// memory.
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
	// All bytes of the frame are subtracted at once, because nothing is posted between its writes.
	f.remotes[slotOf(fr.handle)].left -= fr.size
	f.out.phase, f.out.to = writing, to
	if f.credits <= 1 {
		return output{}, nil
	}
	return f.nextWrite(), nil
}

// writeToRing returns the write of the frame's body to the peer's ring, if the ring has room.
func (f *flow) writeToRing() output {
	s, n := &f.sendRing, f.out.frame.size
	off, used := s.next(n)
	// Without room the frame waits until the reader has freed enough bytes.
	if s.head-s.tail+used > s.size {
		return output{}
	}
	s.head += used
	f.out.phase, f.out.off = inRing, off
	return output{op: outWrite, remote: remoteMemory{addr: s.addr, rkey: s.rkey}, at: off, size: n}
}

// target returns the memory that the frame names. It returns false if that memory is not
// announced yet; the frame then waits. It returns an error if the memory is closed or too small.
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

// nextWrite returns the next write of the frame, of at most segment bytes. A write without
// notification consumes no receive, and therefore no credit.
func (f *flow) nextWrite() output {
	o := &f.out
	n := min(o.frame.size-o.sent, uint64(f.segment))
	out := output{op: outWriteImm, remote: o.to, off: o.sent, at: o.frame.at + o.sent, size: n, handle: o.to.handle}
	o.sent += n
	// The top bit of the immediate value tells the receiver whether more writes of the frame
	// follow.
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
