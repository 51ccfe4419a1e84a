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

	credits int // the peer's posted receives that we may use
	owed    int // our receives posted again that the peer does not know of

	out    outgoing
	strip  strip    // the peer's, which we write to
	theirs []remote // the peer's places, by slot
	notes  []packet // messages about memory that are to be posted, oldest first
	noted  int      // of notes, those already posted

	runway   strip   // ours, which the peer writes to
	freed    uint64  // bytes of it that the peer does not know to be free
	taking   uint64  // bytes of it that the arrival at hand has
	mine     []local // our places, by slot
	free     []int   // slots of mine that are not in use
	arriving int     // the slot that a placed body comes into; -1: none
	awaiting uint64  // size of the frame whose place is being asked for; 0: none
}

// A phase is how far the frame that is being sent has come.
type phase uint8

const (
	resting  phase = iota // there is none
	fresh                 // nothing of it is posted
	landed                // its body is in the peer's strip, its message is not posted
	asked                 // BUFFER_REQUEST is posted, the answer is not here
	renewing              // the same; the place that it names has been written full
	writing               // its place is known, not all of it is posted
)

// A strip is memory of one end's that the other writes bodies of middling size to,
// one behind the other and round again, without asking for each: they are copied out
// at once, which costs less than a question, an answer and a registration. The
// writer learns with the credit which bytes are free again.
type strip struct {
	addr uint64
	size uint64 // 0: there is none
	rkey uint32
	head uint64 // bytes ever used
	tail uint64 // of those, bytes that are free again; only the writer knows
}

// takes reports whether a body may lie in the strip. Four must fit, so that two
// that wait for room are enough to have the reader tell of it.
func (s *strip) takes(n uint64) bool { return n > 0 && n <= s.size/4 }

// next is where a body of n bytes lies, and what it uses up: it lies in one piece,
// and the rest of the strip behind it stays empty if need be.
func (s *strip) next(n uint64) (off, used uint64) {
	off = s.head % s.size
	if rest := s.size - off; rest < n {
		return 0, rest + n
	}
	return off, n
}

type outgoing struct {
	phase phase
	frame frame
	to    remote // where it goes, when writing
	sent  uint64
	off   uint64 // where it lies, when landed
}

// A frame is what a flow knows of a transport.Frame.
type frame struct {
	head   int
	size   uint64
	id     uint32
	direct bool   // it goes to place, from at on
	place  uint32 // the peer's
	at     uint64
}

// A remote is memory of the peer's.
type remote struct {
	place  uint32
	known  bool // it was ever told of
	closed bool // it is idle: BUFFER_IDLE came
	addr   uint64
	size   uint64
	left   uint64 // bytes that may be written before it must be asked for again
	rkey   uint32
	kept   bool // its owner hears of no write, and bounds none
}

// A local is memory that the peer may write to, or could once.
type local struct {
	place  uint32
	id     uint32 // what it arrives by
	size   uint64
	got    uint64 // bytes of the frame that is arriving
	total  uint64 // bytes that came since it was shown
	open   bool
	again  bool // it was shown again, when it had been written full
	placed bool // it was asked for by BUFFER_REQUEST and holds one body
	kept   bool // it is written in silence, as often as the peer wants
}

// quiet reports that nothing of the peer's can be on its way to l any more: it has
// written as much as it may. Of memory that is kept nobody can know.
func (l *local) quiet() bool { return l.total == l.size && !l.again && !l.kept }

func newFlow(depth, theirDepth, payload, segment int) *flow {
	return &flow{depth: depth, payload: payload, segment: segment, credits: theirDepth, arriving: -1}
}

// The inputs of a flow.
type input struct {
	do     verb
	frame  frame  // offered
	packet packet // came
	place  uint32 // wrote: the immediate value; concealed: the place
	size   uint64 // wrote: bytes; placed, exposed: of the memory
	addr   uint64 // placed, exposed
	rkey   uint32 // placed, exposed
	id     uint32 // exposed
	kept   bool   // exposed: its owner does not want to hear of writes
}

type verb uint8

const (
	offered   verb = iota + 1 // a frame is to be sent; the flow must be resting
	pull                      // what may be posted now?
	came                      // a message
	wrote                     // a write with an immediate value has come
	placed                    // the answer to an output ask: there is memory
	declined                  // the answer to an output ask: drop the body
	laid                      // there is a strip, of size at addr
	exposed                   // memory is shown to the peer
	concealed                 // and is not any more
	reposted                  // a receive is posted again
)

// An output is what one step wants done.
type output struct {
	do     deed
	packet packet // post, ask, small
	remote remote // write
	off    uint64 // write: from where in the body; and, with at, where in the memory
	at     uint64
	size   uint64 // write: bytes; part: bytes in so far; whole, direct: of the frame
	id     uint32 // part, direct
	place  uint32 // write: the immediate value; part, whole, direct, shown: the place
	last   bool   // post, write, fill: nothing of the frame is left to be posted
	quiet  bool   // hidden: nothing of the peer's can be on its way there
}

type deed uint8

const (
	nothing deed = iota
	post         // post a message; with last it carries the frame that was offered
	write        // post a write
	fill         // post a write which the peer does not hear of; with last it ends the frame
	skip         // the frame is done: its receiver does not want it
	ask          // find memory for the body of packet, and answer placed or declined
	small        // a frame has come in a message, or in the strip from off on
	part         // more of a placed body is in; all of it when size says so
	direct       // a frame has come into exposed memory
	shown        // the answer to exposed: the place's name
	hidden       // the answer to concealed
)

// step is the whole protocol. An error means that the peer, or who sends here, has
// broken it; the Conn is to fail.
func (f *flow) step(in input) (output, error) {
	switch in.do {
	case offered:
		f.out = outgoing{phase: fresh, frame: in.frame}
	case pull:
		return f.pull()
	case came:
		return f.came(in.packet)
	case wrote:
		return f.wrote(in.place, in.size)
	case placed:
		return f.placed(in)
	case declined:
		f.awaiting = 0
		f.note(packet{kind: bufferResponse, flag: flagNone})
	case laid:
		f.runway = strip{size: in.size}
		f.note(packet{kind: tensorRequest, flag: flagLanded, size: in.size, addr: in.addr, rkey: in.rkey})
	case exposed:
		return f.exposed(in)
	case concealed:
		slot := slotOf(in.place)
		f.close(slot)
		f.note(packet{kind: bufferIdle, place: in.place})
		return output{do: hidden, quiet: f.mine[slot].quiet()}, nil
	case reposted:
		f.owed++
		f.freed += f.taking
		f.taking = 0
	}
	return output{}, nil
}

// pull is the next thing that may be posted: messages about memory first, for
// others wait for them; then the frame; then credit that is worth a message.
func (f *flow) pull() (output, error) {
	switch {
	case f.noted < len(f.notes):
		if !f.mayTell() {
			return output{}, nil
		}
		return f.tell(f.nextNote(), false), nil
	case f.out.phase == fresh || f.out.phase == landed:
		if out, err := f.begin(); out.do != nothing || err != nil {
			return out, err
		}
	case f.out.phase == renewing:
		if _, _, err := f.target(); err != nil { // it is idle: that is the answer
			return output{}, err
		}
	case f.out.phase == writing && (f.out.to.kept || f.credits > 1):
		return f.write(), nil
	}
	if f.owes() && f.mayTell() {
		return f.tell(packet{kind: ack}, false), nil
	}
	return output{}, nil
}

// mayTell reports whether a message may go; it takes all credit owed along.
func (f *flow) mayTell() bool { return f.credits > 1 || f.credits == 1 && f.owed > 0 }

// owes reports whether there is so much credit, or room on the strip, that it is worth
// a message.
func (f *flow) owes() bool {
	return f.owed >= max(f.depth/2, 2) || f.freed > 0 && f.freed >= f.runway.size/2
}

// rests reports whether nothing is to be posted, which is what a pull finds most often.
func (f *flow) rests() bool { return f.out.phase == resting && f.noted == len(f.notes) && !f.owes() }

func (f *flow) tell(p packet, last bool) output {
	f.spend(&p)
	return output{do: post, packet: p, last: last}
}

// spend takes the credit that a message costs, and has it take all that is owed along.
func (f *flow) spend(p *packet) {
	p.credit, f.owed = uint32(f.owed), 0
	p.freed, f.freed = uint32(f.freed), 0
	f.credits--
}

// prompt is the one message of a frame with ID 0, if nothing is to go before that and
// the peer has a receive for it: what offered and pull would come to. False has changed
// nothing.
func (f *flow) prompt(head, size int) (p packet, ok bool) {
	if f.out.phase != resting || f.noted < len(f.notes) || head+size > f.payload || !f.mayTell() {
		return p, false
	}
	p = packet{kind: tensorWrite, head: head, size: uint64(size)}
	f.spend(&p)
	return p, true
}

func (f *flow) note(p packet) { f.notes = append(f.notes, p) }

// nextNote takes the oldest note; what is before it is given back when that is
// most of the list.
func (f *flow) nextNote() packet {
	p := f.notes[f.noted]
	if f.noted++; 2*f.noted >= len(f.notes) {
		f.notes = f.notes[:copy(f.notes, f.notes[f.noted:])]
		f.noted = 0
	}
	return p
}

// begin posts the first thing about the frame that was offered, if it may.
func (f *flow) begin() (output, error) {
	fr := &f.out.frame
	if fr.direct {
		return f.beginDirect()
	}
	if !f.mayTell() {
		return output{}, nil
	}
	p := packet{kind: tensorWrite, head: fr.head, id: fr.id, size: fr.size}
	switch {
	case f.out.phase == landed:
		p.flag, p.addr = flagLanded, f.out.off
	case fr.size <= uint64(f.payload-fr.head):
	case f.strip.takes(fr.size):
		return f.land(), nil
	default:
		f.out.phase = asked
		p.kind = bufferRequest
		return f.tell(p, false), nil
	}
	f.out.phase = resting
	return f.tell(p, true), nil
}

// beginDirect begins a frame into memory that the peer has shown. It is written to
// its size and no further, so that its owner knows from the bytes that have come
// that no more are on their way; who wants to write there again asks.
func (f *flow) beginDirect() (output, error) {
	fr := &f.out.frame
	to, ok, err := f.target()
	switch {
	case !ok || err != nil:
		return output{}, err
	case to.kept:
		f.out.phase, f.out.to = writing, to
		return f.write(), nil
	case fr.size > to.left:
		if !f.mayTell() {
			return output{}, nil
		}
		f.out.phase = renewing
		return f.tell(packet{kind: bufferRequest, flag: flagAgain, place: to.place}, false), nil
	}
	f.theirs[slotOf(fr.place)].left -= fr.size
	f.out.phase, f.out.to = writing, to
	if f.credits <= 1 {
		return output{}, nil
	}
	return f.write(), nil
}

// land writes the frame's body to the peer's strip, if there is room.
func (f *flow) land() output {
	s, n := &f.strip, f.out.frame.size
	off, used := s.next(n)
	if s.head-s.tail+used > s.size {
		return output{}
	}
	s.head += used
	f.out.phase, f.out.off = landed, off
	return output{do: fill, remote: remote{addr: s.addr, rkey: s.rkey}, at: off, size: n}
}

// target is the memory that the frame names. What has not been told of yet is
// waited for; what is idle, or too small, is an error.
func (f *flow) target() (to remote, ok bool, err error) {
	fr := &f.out.frame
	slot := slotOf(fr.place)
	if slot >= len(f.theirs) || !f.theirs[slot].known || newer(fr.place, f.theirs[slot].place) {
		return remote{}, false, nil
	}
	to = f.theirs[slot]
	switch {
	case to.place != fr.place || to.closed:
		return to, false, fmt.Errorf("a frame of %d bytes into memory that is not exposed any more", fr.size)
	case fr.at > to.size || fr.size > to.size-fr.at:
		return to, false, fmt.Errorf("a frame of %d bytes at %d into exposed memory of %d bytes", fr.size, int64(fr.at), to.size)
	}
	return to, true, nil
}

// write is the frame's next write. What goes to memory that is kept takes no receive,
// and so no credit.
func (f *flow) write() output {
	o := &f.out
	n := min(o.frame.size-o.sent, uint64(f.segment))
	out := output{do: write, remote: o.to, off: o.sent, at: o.frame.at + o.sent, size: n, place: o.to.place}
	o.sent += n
	if out.last = o.sent == o.frame.size; out.last {
		o.phase = resting
	} else {
		out.place |= more
	}
	if o.to.kept {
		out.do = fill
		return out
	}
	f.credits--
	return out
}
