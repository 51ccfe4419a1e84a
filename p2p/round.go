package p2p

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/mesh"
	"github.com/tutti-go/tutti/reduce"
	"github.com/tutti-go/tutti/rendezvous"
)

// window is how many segments of a message are in flight each way. In an exchange a rank sends at
// most window segments more than it has received: large exchanges that run ahead of each other were
// measured to be up to twice as slow.
const window = 4

// A Side is the position of an arrived vector among the operands of a reduction.
type Side uint8

// The sides.
const (
	Earlier Side = iota + 1 // op(arrived, own)
	Later                   // op(own, arrived)
)

// A Round is one collective operation on a group, as one rank takes part in it. Its messages carry
// the operation's sequence number as their tag, and its fingerprint, so they match those of the
// same operation only. A message travels in segments whose number depends on its length alone, so
// both ends agree on it without a word; an empty message still travels, as one segment.
//
// One goroutine uses a Round, and one Round of an operation at a time: besides the one over all
// members there may be some over a few; see Host and Among. After an error the group's collectives
// are revoked on this rank, because half a collective cannot be taken back. Buffers are the
// caller's again when a method has returned.
type Round struct {
	*operation
	sub subgroup // the ranks that this Round counts
}

// An operation is what the Rounds of one collective operation have in common. It is pooled, with
// its memory for requests, lists and Rounds, so that an operation of the usual size allocates
// nothing.
type operation struct {
	g           *Group
	p           mesh.WaitPolicy
	tag         int32  // the sequence number
	fingerprint uint64 // of the operation; all members' must agree
	historyHash uint64 // of the group's operations so far; see SetHistoryHash
	segment     int    // bytes of a segment
	markEnds    bool   // see MarkEnds

	// What move is doing: the requests in flight, of which segment i has index i%window, the links
	// that they move on, and the oldest receive and send, of which it awaits the first.
	sends, recvs [window]*rendezvous.Request
	links        [2]*mesh.Link
	next         rendezvous.Either

	// flag is what a wait in shared memory sleeps on.
	flag flagEvent

	// scratch is returned to the group's pool when the operation ends.
	scratch []scratch

	// recvStage is where segments arrive that are reduced or belong into several vectors, and
	// sendStage where segments are copied together that the link does not gather. Both serve one
	// message after the other.
	recvStage []byte
	sendStage []byte

	// iovecs are lists for the segments in flight, and a last one for the segment at hand. vectors
	// are those of the outgoing message, and of the incoming one.
	iovecs  Iovecs
	vectors [2]Vectors

	noShared bool        // it runs concurrently with others, so not in shared memory
	arena    *roundArena // never nil
}

var operations = sync.Pool{New: func() any { return &operation{arena: new(roundArena)} }}

// NewRound begins a round. seq counts the group's collectives; all members must agree on it and on
// the fingerprint. p bounds the round's waits; it may be nil.
func (g *Group) NewRound(seq uint32, fingerprint uint64, p mesh.WaitPolicy) *Round {
	o := operations.Get().(*operation)
	o.g, o.p, o.tag, o.fingerprint, o.segment = g, p, int32(seq&MaxTag), fingerprint, g.segment
	return o.round(g.all)
}

// ReuseRound is NewRound in the memory of r, a round over all members of this group that Clear has
// ended. A nil r is allowed.
func (g *Group) ReuseRound(r *Round, seq uint32, fingerprint uint64, p mesh.WaitPolicy) *Round {
	if r == nil {
		return g.NewRound(seq, fingerprint, p)
	}
	r.p, r.tag, r.fingerprint, r.segment, r.markEnds = p, int32(seq&MaxTag), fingerprint, g.segment, false
	r.sub = g.all
	return r
}

// SetHistoryHash sets the hash of the group's operations up to this one, which is equal on members
// that agree about all of them. Messages show a disagreement by their own fingerprint; an operation
// in shared memory that moves nothing leaves no other trace.
func (r *Round) SetHistoryHash(hash uint64) { r.historyHash = hash }

// Unreceived returns a rank of the job that sent something in this round which this rank did not
// receive: the two have not carried out the same operation.
func (r *Round) Unreceived() (worldRank int, ok bool) { return r.g.collectives.Unreceived(r.tag) }

// End ends the round and returns its memory.
func (r *Round) End() {
	o := r.operation
	o.release()
	o.arena.clear(0)
	*o = operation{scratch: o.scratch, arena: o.arena, iovecs: o.iovecs}
	operations.Put(o)
}

// Clear ends the round but keeps it for ReuseRound, or for the garbage collector. It returns the
// scratch memory and the Rounds over some of its ranks, and prefetches what the group's next
// operation touches first.
func (r *Round) Clear() {
	o := r.operation
	if len(o.scratch) > 0 || o.iovecs.used() {
		o.release()
	}
	if o.arena.roundsUsed > 1 {
		o.arena.clear(1) // but for r
	}
	if s := r.sub.shared; s != nil && !o.noShared {
		s.prefetchNext()
	}
	o.p, o.noShared = nil, false
}

// release returns the scratch memory and lets go of the program's vectors.
func (o *operation) release() {
	o.iovecs.reset()
	o.vectors = [2]Vectors{}
	for i, s := range o.scratch {
		o.g.pool.put(s)
		o.scratch[i] = nil
	}
	o.scratch, o.recvStage, o.sendStage = o.scratch[:0], nil, nil
}

// Rank returns this process's rank in the round.
func (r *Round) Rank() int { return r.sub.rank }

// Size returns the number of ranks in the round.
func (r *Round) Size() int { return len(r.sub.ranks) }

// Segment returns the size of a segment in bytes.
func (r *Round) Segment() int { return r.segment }

// SetSegment sets the size of this round's segments in bytes: whole elements, and the same on all
// members. 0 leaves the group's. It comes before the round's first message.
func (r *Round) SetSegment(bytes int) {
	if bytes > 0 {
		r.segment = bytes
	}
}

// Send sends b to a rank of the round, which receives it in this round.
func (r *Round) Send(ctx context.Context, to int, b []byte) error {
	return r.move(ctx, to, flat(b), none, payload{}, fold{})
}

// Recv receives exactly len(b) bytes. A message of another length is a fault.Mismatch.
func (r *Round) Recv(ctx context.Context, from int, b []byte) error {
	return r.move(ctx, none, payload{}, from, flat(b), fold{})
}

// Exchange sends out and receives into in at the same time; it never deadlocks.
// The buffers must not overlap.
func (r *Round) Exchange(ctx context.Context, to int, out []byte, from int, in []byte) error {
	return r.move(ctx, to, flat(out), from, flat(in), fold{})
}

// RecvFold receives a vector and reduces it into acc, segment by segment as it arrives: acc =
// op(arrived, acc) for Earlier, op(acc, arrived) for Later.
func (r *Round) RecvFold(ctx context.Context, from int, acc []byte, k reduce.Kernel, side Side) error {
	return r.move(ctx, none, payload{}, from, flat(acc), fold{kernel: k, side: side})
}

// ExchangeFold is RecvFold while out is being sent. out and acc must not overlap.
func (r *Round) ExchangeFold(ctx context.Context, to int, out []byte, from int, acc []byte, k reduce.Kernel, side Side) error {
	return r.move(ctx, to, flat(out), from, flat(acc), fold{kernel: k, side: side})
}

// ExchangeFoldTo is ExchangeFold of own and what arrives into dst, which is also where it arrives:
// dst = op(arrived, own) for Earlier, op(own, arrived) for Later. dst overlaps neither out nor own.
func (r *Round) ExchangeFoldTo(ctx context.Context, to int, out []byte, from int, dst, own []byte, k reduce.Kernel, side Side) error {
	return r.move(ctx, to, flat(out), from, flat(dst), fold{k, side, own})
}

// none stands for "no peer" in move.
const none = -1

// A fold says how arrived segments are reduced. The zero fold does not: they have arrived in their
// buffer.
type fold struct {
	kernel reduce.Kernel
	side   Side
	own    []byte // the other operand; nil: what is in the destination
}

// none reports whether nothing is reduced.
func (f *fold) none() bool { return f.side == 0 }

// apply reduces arrived and own into acc.
func (f *fold) apply(acc, own, arrived []byte) {
	if f.side == Earlier {
		f.kernel.Fold(acc, arrived, own)
	} else {
		f.kernel.Fold(acc, own, arrived)
	}
}

// move sends out and receives in, both in segments. Every exchange of the package is a call of it.
//
//	posted   receives posted, at most window ahead of those reaped (got)
//	started  sends started, at most window ahead of those reaped (sent), and, while
//	         receives are left, at most window ahead of got
//
// The loop starts what the windows allow, reaps what is done, and waits for the oldest receive or
// send when nothing is. Receives are posted first, so that segments find their buffer. Whichever of
// the two directions ends first, the other goes on: that is why no exchange deadlocks.
func (r *Round) move(ctx context.Context, to int, out payload, from int, in payload, f fold) error {
	if r.g.tracer != nil && to != none {
		r.g.tracer(TraceEvent{Kind: TraceSend, Peer: r.sub.ranks[to]})
	}
	var s sender
	var v receiver
	links := r.links[:0]
	if to != none {
		s = r.sender(to, out)
		links = append(links, r.g.e.LinksOf(s.to)...)
	}
	if from != none {
		v = r.receiver(from, in, f)
		if from != to {
			links = append(links, r.g.e.LinksOf(v.from)...)
		}
	}
	ns, nr := s.count, v.count
	var sent, started, got, posted int
	for sent < ns || got < nr {
		// Receives first: a segment that finds its receive posted is not copied.
		for ; posted < nr && posted < got+window; posted++ {
			r.recvs[posted%window] = v.post(posted)
		}
		for ; started < ns && started < sent+window && (got == nr || started < got+window); started++ {
			r.sends[started%window] = s.start(started)
		}
		reaped := sent
		for sent < started && r.sends[sent%window].Met() {
			if err := r.reapSend(&sent); err != nil {
				return r.fail(err)
			}
		}
		if sent > reaped {
			continue // the window has room for more, which the peer may be waiting for
		}
		// One segment at a time: reducing it takes a while, in which sends may have ended.
		if got < posted && r.recvs[got%window].Met() {
			if err := r.reapRecv(&got, &v); err != nil {
				return r.fail(err)
			}
			continue
		}
		// Nothing is done. It waits for the oldest of both directions, because a finished send makes
		// room for the next one, which the peer may be waiting for.
		if r.next = (rendezvous.Either{}); got < posted {
			r.next.A = r.recvs[got%window]
		}
		if sent < started {
			r.next.B = r.sends[sent%window]
		}
		if r.next != (rendezvous.Either{}) {
			if err := r.g.e.WaitEither(ctx, r.p, &r.next, links); err != nil {
				return r.fail(err)
			}
		}
	}
	if r.g.tracer != nil && from != none {
		r.g.tracer(TraceEvent{Kind: TraceRecv, Peer: r.sub.ranks[from]})
	}
	return nil
}

// stagingBuffer returns n bytes of one of the operation's two stages. A stage serves one message
// after the other: if each message had scratch memory of its own, a ring of many ranks would hold
// as many windows. No message's stage is read after its move has returned.
func (r *Round) stagingBuffer(stage *[]byte, n int) []byte {
	if cap(*stage) < n {
		*stage = r.Scratch(n)
	}
	return (*stage)[:n]
}

// MarkEnds lets the last segment of each message say that it is the last, in this round on all
// members. It is for operations in which a message may be shorter than its receiver expects: one of
// whole segments would pass for the beginning of the expected message, and the rest be awaited.
// Both sides must then cut messages alike. It comes before the round's first message.
func (r *Round) MarkEnds() { r.markEnds = true }

// segmentFingerprint returns the fingerprint that segment i of n carries.
func (r *Round) segmentFingerprint(i, n int) uint64 {
	if r.markEnds && i == n-1 {
		return r.fingerprint &^ lastSegmentBit
	}
	return r.fingerprint
}

// lastSegmentBit is set in every fingerprint, except in those of last segments that are marked.
const lastSegmentBit = 1

// SameFingerprint reports whether a message's fingerprint is that of an operation with this one.
func SameFingerprint(message, fingerprint uint64) bool {
	return message|lastSegmentBit == fingerprint|lastSegmentBit
}

// segments returns the number of segments of a message of n bytes.
func (r *Round) segments(n int) int { return max(1, (n+r.segment-1)/r.segment) }

// segmentSize returns the bytes of segment i of a message of size bytes.
func (r *Round) segmentSize(size, i int) int { return min((i+1)*r.segment, size) - i*r.segment }

// segmentOf returns segment i of b.
func (r *Round) segmentOf(b []byte, i int) []byte {
	return b[i*r.segment : min((i+1)*r.segment, len(b))]
}

// recvBuffer returns where segment i is received: in its destination, or in the stage if it is
// reduced.
func (r *Round) recvBuffer(in, stage []byte, i int) []byte {
	part := r.segmentOf(in, i)
	if stage == nil {
		return part
	}
	at := i % window * r.segment
	return stage[at : at+len(part)]
}

// reapSend frees the oldest send and returns its error.
func (r *Round) reapSend(n *int) error {
	req := r.sends[*n%window]
	err := req.Err()
	req.Free()
	r.sends[*n%window] = nil
	*n++
	return err
}

// reapRecv frees the oldest receive, checks its size, and reduces what it brought.
func (r *Round) reapRecv(n *int, v *receiver) error {
	i := *n
	req := r.recvs[i%window]
	err, size, source := req.Err(), req.Bytes(), req.Source()
	req.Free()
	r.recvs[i%window] = nil
	*n++
	want := r.segmentSize(v.payload.size, i)
	// To Recv a message that does not fit is this rank's misuse. In a round the sender's counts are
	// as likely wrong as this rank's, so a message of any other size is a mismatch.
	differs := err == nil && size != want || size > want && errors.Is(err, fault.Misuse)
	switch {
	case differs:
		return &fault.Error{Kind: fault.Mismatch, Op: "collective", Rank: r.g.ranks[r.g.rank], Peers: []fault.Peer{{Rank: source}},
			Err: fmt.Errorf("message from rank %d: got %d bytes, want %d", source, size, want)}
	case err != nil:
		return err
	}
	v.arrived(i)
	return nil
}

// fail revokes the group's collectives, so that nothing in flight touches a buffer any more, and
// ends the requests of this round. A rank that has said goodbye may have done so after another
// operation in this one's place: then the error is a mismatch.
func (r *Round) fail(err error) error {
	if errors.Is(err, fault.Closed) {
		if worldRank, ok := r.g.collectives.UnreceivedMismatch(r.tag, func(fingerprint uint64) bool { return !SameFingerprint(fingerprint, r.fingerprint) }); ok {
			err = &fault.Error{Kind: fault.Mismatch, Op: "collective", Rank: r.g.ranks[r.g.rank], Peers: []fault.Peer{{Rank: worldRank}}}
		}
	}
	r.g.collectives.Revoke(err)
	for _, reqs := range []*[window]*rendezvous.Request{&r.sends, &r.recvs} {
		for i, req := range reqs {
			if req != nil {
				r.g.e.CancelAndWait(err, req)
				req.Free()
				reqs[i] = nil
			}
		}
	}
	return err
}
