package p2p

import (
	"context"

	"github.com/tutti-go/tutti/reduce"
	"github.com/tutti-go/tutti/rendezvous"
)

// Vectors are vectors that need not lie side by side, as one: chunk i of them is
// chunk i of each, one after the other.
type Vectors struct {
	List   [][]byte // of whole elements
	Chunks int      // that each vector is cut into, the first ones longer by an element
	Elem   int      // bytes of an element
	chunk  int      // the one that is meant
}

// Of is chunk i.
func (v Vectors) Of(i int) Vectors {
	v.chunk = i
	return v
}

// bounds are where the chunk that is meant lies in a vector of so many bytes.
func (v *Vectors) bounds(size int) (lo, hi int) {
	count := size / v.Elem
	each, longer := count/v.Chunks, count%v.Chunks
	lo = v.chunk*each + min(v.chunk, longer)
	hi = lo + each
	if v.chunk < longer {
		hi++
	}
	return lo * v.Elem, hi * v.Elem
}

// Pieces yields what the chunk that is meant lies in.
func (v Vectors) Pieces(yield func([]byte) bool) {
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

// A load is what a message carries, or brings: flat bytes, or a chunk of vectors.
type load struct {
	flat []byte
	vec  *Vectors // nil: flat
	size int      // bytes
}

func flat(b []byte) load { return load{flat: b, size: len(b)} }

func (v *Vectors) load() load { return load{vec: v, size: v.size()} }

// A cursor reads a chunk of vectors from the front on.
type cursor struct {
	v    *Vectors
	next int // of its List
	left []byte
}

// take appends to into what the next n bytes lie in.
func (c *cursor) take(n int, into [][]byte) [][]byte {
	for n > 0 {
		if len(c.left) == 0 {
			b := c.v.List[c.next]
			lo, hi := c.v.bounds(len(b))
			c.left = b[lo:hi]
			c.next++
			continue
		}
		part := c.left[:min(n, len(c.left))]
		c.left = c.left[len(part):]
		n -= len(part)
		into = append(into, part)
	}
	return into
}

// Parts are lists of slices that an operation works with, for reuse: what one of
// them was left with is forgotten when the operation ends.
type Parts [window + 1][][]byte

// Parts are the round's.
func (r *Round) Parts() *Parts { return &r.parts }

// used reports whether there is something to forget.
func (p *Parts) used() bool {
	for _, list := range p {
		if len(list) > 0 {
			return true
		}
	}
	return false
}

// forget lets go of the program's memory.
func (p *Parts) forget() {
	for i, list := range p {
		if cap(list) > 0 {
			clear(list[:cap(list)])
			p[i] = list[:0]
		}
	}
}

// ExchangeVectors is Exchange of chunks of vectors, which must not overlap. What
// goes out is gathered where the link can do that, and else staged; what comes in
// goes where it belongs, unless a segment of it lies in several pieces: then it is
// copied from the stage while the next segments come.
func (r *Round) ExchangeVectors(ctx context.Context, to int, out Vectors, from int, in Vectors) error {
	r.vectors = [2]Vectors{out, in}
	return r.move(ctx, to, r.vectors[0].load(), from, r.vectors[1].load(), fold{})
}

// ExchangeFoldVectors is ExchangeFold of chunks of vectors.
func (r *Round) ExchangeFoldVectors(ctx context.Context, to int, out Vectors, from int, acc Vectors, k reduce.Kernel, side Side) error {
	r.vectors = [2]Vectors{out, acc}
	return r.move(ctx, to, r.vectors[0].load(), from, r.vectors[1].load(), fold{kernel: k, side: side})
}

// A sender starts the segments of one message.
type sender struct {
	r     *Round
	to    int // the job's rank
	what  load
	at    cursor
	count int    // of segments
	stage []byte // where parts are put side by side that the link does not gather
}

func (r *Round) sender(to int, what load) sender {
	s := sender{r: r, to: r.on.ranks[to], what: what, count: r.segments(what.size)}
	s.at.v = what.vec
	return s
}

// start starts segment i, the next one.
func (s *sender) start(i int) *rendezvous.Request {
	r := s.r
	mark := r.mark(i, s.count)
	if s.what.vec == nil {
		return r.g.coll.PostSend(s.to, r.tag, mark, r.cut(s.what.flat, i), rendezvous.Eager)
	}
	size := r.cutSize(s.what.size, i)
	list := &r.parts[i%window]
	*list = s.at.take(size, (*list)[:0])
	switch len(*list) {
	case 0:
		return r.g.coll.PostSend(s.to, r.tag, mark, nil, rendezvous.Eager)
	case 1:
		return r.g.coll.PostSend(s.to, r.tag, mark, (*list)[0], rendezvous.Eager)
	}
	if op := r.g.coll.PostSendParts(s.to, r.tag, mark, *list, size); op != nil {
		return op
	}
	if s.stage == nil {
		s.stage = r.staging(&r.outStage, min(s.count, window)*min(r.seg, s.what.size))
	}
	at := i % window * r.seg
	body := s.stage[at : at+size]
	n := 0
	for _, p := range *list {
		n += copy(body[n:], p)
	}
	return r.g.coll.PostSend(s.to, r.tag, mark, body, rendezvous.Eager)
}

// A receiver says where the segments of one message arrive, and what becomes of
// them.
type receiver struct {
	r        *Round
	from     int // the job's rank
	what     load
	f        fold
	count    int    // of segments
	stage    []byte // where those arrive that do not go straight to their place
	at       cursor // of what is posted next,
	has      cursor // and of what arrives next
	straight uint   // bit i%window: segment i is posted where it belongs
}

func (r *Round) receiver(from int, what load, f fold) receiver {
	v := receiver{r: r, from: r.on.ranks[from], what: what, f: f, count: r.segments(what.size)}
	v.at.v, v.has.v = what.vec, what.vec
	if !f.none() && f.own == nil || what.vec != nil {
		v.stage = r.staging(&r.stage, min(v.count, window)*min(r.seg, what.size))
	}
	return v
}

// post posts the receive of segment i, the next one.
func (v *receiver) post(i int) *rendezvous.Request {
	return v.r.g.coll.PostRecv(v.from, v.r.tag, v.r.mark(i, v.count), v.place(i))
}

func (v *receiver) place(i int) []byte {
	if v.what.vec == nil {
		return v.r.place(v.what.flat, v.stage, i)
	}
	size := v.r.cutSize(v.what.size, i)
	at := i % window * v.r.seg
	staged := v.stage[at : at+size]
	if !v.f.none() {
		return staged
	}
	spare := &v.r.parts[window]
	*spare = v.at.take(size, (*spare)[:0])
	bit := uint(1) << (i % window)
	if len(*spare) == 1 {
		v.straight |= bit
		return (*spare)[0]
	}
	v.straight &^= bit
	return staged
}

// arrived does with segment i, the next one, what is to be done.
func (v *receiver) arrived(i int) {
	if v.what.vec == nil {
		if v.f.none() {
			return
		}
		part := v.r.cut(v.what.flat, i)
		own := part
		if v.f.own != nil {
			own = v.r.cut(v.f.own, i)
		}
		v.f.into(part, own, v.r.place(v.what.flat, v.stage, i))
		return
	}
	size := v.r.cutSize(v.what.size, i)
	spare := &v.r.parts[window]
	*spare = v.has.take(size, (*spare)[:0])
	at := i % window * v.r.seg
	staged := v.stage[at : at+size]
	for _, p := range *spare {
		switch {
		case !v.f.none():
			v.f.into(p, p, staged[:len(p)])
		case v.straight&(1<<(i%window)) == 0:
			copy(p, staged)
		}
		staged = staged[len(p):]
	}
}
