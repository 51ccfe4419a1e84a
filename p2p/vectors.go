package p2p

import (
	"context"

	"github.com/tutti-go/tutti/reduce"
	"github.com/tutti-go/tutti/rendezvous"
	"github.com/tutti-go/tutti/tensor"
)

// Vectors treats several vectors as one vector. They need not be contiguous in memory. Chunk i of
// Vectors is the concatenation of chunk i of each vector.
type Vectors struct {
	List   [][]byte // vectors of whole elements
	Chunks int      // number of chunks of each vector; the first chunks may be one element longer
	Elem   int      // bytes of an element
	chunk  int      // the selected chunk; see Chunk
}

// Chunk returns v with chunk i selected.
func (v Vectors) Chunk(i int) Vectors {
	v.chunk = i
	return v
}

// bounds returns the bounds of v's chunk in a vector of the given size in bytes.
func (v *Vectors) bounds(size int) (lo, hi int) {
	lo, hi = tensor.Chunk(size/v.Elem, v.Chunks, v.chunk)
	return lo * v.Elem, hi * v.Elem
}

// Ranges yields the parts of the vectors that belong to v's chunk.
func (v Vectors) Ranges(yield func([]byte) bool) {
	for _, b := range v.List {
		if lo, hi := v.bounds(len(b)); lo < hi && !yield(b[lo:hi]) {
			return
		}
	}
}

func (v *Vectors) size() int {
	n := 0
	for _, b := range v.List {
		lo, hi := v.bounds(len(b))
		n += hi - lo
	}
	return n
}

// A payload is the content of a message: contiguous bytes, or a chunk of Vectors.
type payload struct {
	flat []byte
	vec  *Vectors // nil: the payload is flat
	size int      // bytes
}

// flat returns a payload of contiguous bytes.
func flat(b []byte) payload { return payload{flat: b, size: len(b)} }

// payload returns v's chunk as a payload.
func (v *Vectors) payload() payload { return payload{vec: v, size: v.size()} }

// A vectorCursor reads a chunk of vectors from front to back.
type vectorCursor struct {
	v         *Vectors
	nextIndex int // index of the next vector in List
	rest      []byte
}

// next returns the list into, extended by the slices that hold the next n bytes.
func (c *vectorCursor) next(n int, into [][]byte) [][]byte {
	for n > 0 {
		if len(c.rest) == 0 {
			b := c.v.List[c.nextIndex]
			lo, hi := c.v.bounds(len(b))
			c.rest = b[lo:hi]
			c.nextIndex++
			continue
		}
		part := c.rest[:min(n, len(c.rest))]
		c.rest = c.rest[len(part):]
		n -= len(part)
		into = append(into, part)
	}
	return into
}

// Iovecs holds an operation's lists of slices. The lists are kept for reuse; their contents are
// cleared when the operation ends.
type Iovecs [window + 1][][]byte

// Iovecs returns the operation's lists.
func (r *Round) Iovecs() *Iovecs { return &r.iovecs }

// used reports whether a list holds slices.
func (p *Iovecs) used() bool {
	for _, list := range p {
		if len(list) > 0 {
			return true
		}
	}
	return false
}

// reset empties the lists, which drops their references to the program's memory.
func (p *Iovecs) reset() {
	for i, list := range p {
		if cap(list) > 0 {
			clear(list[:cap(list)])
			p[i] = list[:0]
		}
	}
}

// ExchangeVectors is like Exchange for chunks of vectors, which must not overlap. If an outgoing
// segment fits into one frame, the link gathers its parts. A longer segment is assembled in a
// stage. An incoming segment that lies in one vector is received straight into it. A segment that
// spans several vectors is received into a stage, and copied while the next segments arrive.
func (r *Round) ExchangeVectors(ctx context.Context, to int, out Vectors, from int, in Vectors) error {
	r.vectors = [2]Vectors{out, in}
	return r.move(ctx, to, r.vectors[0].payload(), from, r.vectors[1].payload(), fold{})
}

// ExchangeFoldVectors is like ExchangeFold for chunks of vectors.
func (r *Round) ExchangeFoldVectors(ctx context.Context, to int, out Vectors, from int, acc Vectors, k reduce.Kernel, side Side) error {
	r.vectors = [2]Vectors{out, acc}
	return r.move(ctx, to, r.vectors[0].payload(), from, r.vectors[1].payload(), fold{kernel: k, side: side})
}

// A sender starts the segments of one message.
type sender struct {
	r       *Round
	to      int // the job's rank
	payload payload
	cursor  vectorCursor
	count   int    // of segments
	stage   []byte // memory to assemble segments that PostSendParts cannot send
}

// sender returns the sender of a message to a rank of the round.
func (r *Round) sender(to int, what payload) sender {
	s := sender{r: r, to: r.sub.ranks[to], payload: what, count: r.segments(what.size)}
	s.cursor.v = what.vec
	return s
}

// start begins to send segment i, which must be the next one. Segments are sent eagerly, because
// their receives are posted in advance.
func (s *sender) start(i int) *rendezvous.Request {
	r := s.r
	mark := r.segmentFingerprint(i, s.count)
	if s.payload.vec == nil {
		return r.g.collectives.PostSend(s.to, r.tag, mark, r.segmentOf(s.payload.flat, i), rendezvous.Eager)
	}
	size := r.segmentSize(s.payload.size, i)
	list := &r.iovecs[i%window]
	*list = s.cursor.next(size, (*list)[:0])
	switch len(*list) {
	case 0: // an empty message is sent, too, because its receiver waits for it
		return r.g.collectives.PostSend(s.to, r.tag, mark, nil, rendezvous.Eager)
	case 1:
		return r.g.collectives.PostSend(s.to, r.tag, mark, (*list)[0], rendezvous.Eager)
	}
	if req := r.g.collectives.PostSendParts(s.to, r.tag, mark, *list, size); req != nil {
		return req
	}
	if s.stage == nil {
		s.stage = r.stagingBuffer(&r.sendStage, min(s.count, window)*min(r.segment, s.payload.size))
	}
	at := i % window * r.segment
	body := s.stage[at : at+size]
	n := 0
	for _, p := range *list {
		n += copy(body[n:], p)
	}
	return r.g.collectives.PostSend(s.to, r.tag, mark, body, rendezvous.Eager)
}

// A received segment is handled in one of three ways:
//
//	reduced             into the stage, then reduced into the vectors when it has arrived; with an
//	                    own operand elsewhere (fold.own) straight into its destination
//	in one vector       straight into it
//	in several vectors  into the stage, then copied to them
//
// The stage has room for a window of segments, so a segment is reduced or copied while the next
// segments arrive.

// A receiver posts the receives of one message's segments, and reduces or copies the segments that
// arrive.
type receiver struct {
	r          *Round
	from       int // the job's rank
	payload    payload
	f          fold
	count      int          // of segments
	stage      []byte       // receives the segments that are reduced or span several vectors
	postCursor vectorCursor // at the next segment to be posted
	reapCursor vectorCursor // at the next segment to be reaped
	direct     uint         // bit i%window: segment i arrives in its vector, not in the stage
}

// receiver returns the receiver of a message from a rank of the round.
func (r *Round) receiver(from int, what payload, f fold) receiver {
	v := receiver{r: r, from: r.sub.ranks[from], payload: what, f: f, count: r.segments(what.size)}
	v.postCursor.v, v.reapCursor.v = what.vec, what.vec
	if !f.none() && f.own == nil || what.vec != nil {
		v.stage = r.stagingBuffer(&r.recvStage, min(v.count, window)*min(r.segment, what.size))
	}
	return v
}

// post posts the receive of segment i, which must be the next one.
func (v *receiver) post(i int) *rendezvous.Request {
	return v.r.g.collectives.PostRecv(v.from, v.r.tag, v.r.segmentFingerprint(i, v.count), v.recvBuffer(i))
}

// recvBuffer returns the memory into which segment i is received. Segment i must be the next
// segment to be posted.
func (v *receiver) recvBuffer(i int) []byte {
	if v.payload.vec == nil {
		return v.r.recvBuffer(v.payload.flat, v.stage, i)
	}
	size := v.r.segmentSize(v.payload.size, i)
	at := i % window * v.r.segment
	staged := v.stage[at : at+size]
	if !v.f.none() {
		return staged
	}
	spare := &v.r.iovecs[window]
	*spare = v.postCursor.next(size, (*spare)[:0])
	bit := uint(1) << (i % window)
	if len(*spare) == 1 {
		v.direct |= bit
		return (*spare)[0]
	}
	v.direct &^= bit
	return staged
}

// arrived reduces segment i or copies it to its vectors, unless it was received in place. Segment i
// must be the next segment to be reaped.
func (v *receiver) arrived(i int) {
	if v.payload.vec == nil {
		if v.f.none() {
			return
		}
		part := v.r.segmentOf(v.payload.flat, i)
		own := part
		if v.f.own != nil {
			own = v.r.segmentOf(v.f.own, i)
		}
		v.f.apply(part, own, v.r.recvBuffer(v.payload.flat, v.stage, i))
		return
	}
	size := v.r.segmentSize(v.payload.size, i)
	spare := &v.r.iovecs[window]
	*spare = v.reapCursor.next(size, (*spare)[:0])
	at := i % window * v.r.segment
	staged := v.stage[at : at+size]
	for _, p := range *spare {
		switch {
		case !v.f.none():
			v.f.apply(p, p, staged[:len(p)])
		case v.direct&(1<<(i%window)) == 0:
			copy(p, staged)
		}
		staged = staged[len(p):]
	}
}
