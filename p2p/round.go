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

// window is the maximum number of segments of a message that are in flight in each direction. In an
// exchange, a rank also sends at most window segments more than it has received. Without this
// limit, large exchanges were measured to be up to twice as slow.
const window = 4

// A Side is the position of an arrived vector among the operands of a reduction.
type Side uint8

// The sides.
const (
	Earlier Side = iota + 1 // op(arrived, own)
	Later                   // op(own, arrived)
)

// A Round is one rank's part in a collective operation on a group. Its messages carry the
// operation's sequence number as their tag, and the operation's fingerprint, so they only match
// messages of the same operation. A message travels in segments. The number of segments depends
// only on the message's length, so both ends know it without communication. An empty message
// travels as one empty segment.
//
// An operation has a Round over all members, and may have others over subsets of them; see Host and
// Among. Only one goroutine may use the Rounds of an operation, one Round at a time. After an error
// the group's collectives are revoked on this rank, because a partial collective cannot be undone.
// The caller may reuse a buffer when a method has returned.
type Round struct {
	*operation
	sub subgroup // the ranks of this Round
}

// An operation is the common state of the Rounds of one collective operation. Operations are
// pooled, with their memory for requests, lists and Rounds, so that an operation of usual size
// allocates nothing.
type operation struct {
	g           *Group
	p           mesh.WaitPolicy
	tag         int32  // the operation's sequence number
	fingerprint uint64 // of the operation; must be equal on all members
	historyHash uint64 // hash of the group's operations so far; see SetHistoryHash
	segment     int    // bytes of a segment
	markEnds    bool   // see MarkEnds

	// The state of the method move. sends and recvs hold the requests in flight, with segment i at
	// index i%window. links holds the links that the requests use. next holds the oldest receive
	// and the oldest send, because move waits until one of them is done.
	sends, recvs [window]*rendezvous.Request
	links        [2]*mesh.Link
	next         rendezvous.Either

	// flag is the condition that a wait in shared memory sleeps on.
	flag flagEvent

	// scratch is returned to the group's pool when the operation ends.
	scratch []scratch

	// recvStage receives segments that are then reduced, or copied to several vectors. In
	// sendStage, segments that are longer than one frame are assembled. Each stage is used for one
	// message at a time.
	recvStage []byte
	sendStage []byte

	// iovecs has one list per segment in flight, and a last list for the segment that is being
	// processed. vectors holds the Vectors of the outgoing and of the incoming message.
	iovecs  Iovecs
	vectors [2]Vectors

	noShared bool        // set by DisableShared
	arena    *roundArena // never nil
}

var operations = sync.Pool{New: func() any { return &operation{arena: new(roundArena)} }}

// NewRound begins a round. seq is the number of the operation among the group's collectives. seq
// and fingerprint must be the same on all members. The wait policy p bounds the round's waits. It
// may be nil.
func (g *Group) NewRound(seq uint32, fingerprint uint64, p mesh.WaitPolicy) *Round {
	o := operations.Get().(*operation)
	o.g, o.p, o.tag, o.fingerprint, o.segment = g, p, int32(seq&MaxTag), fingerprint, g.segment
	return o.round(g.all)
}

// ReuseRound is like NewRound but uses the memory of r. r must be nil, or a Round over all members
// of this group. Clear must have ended that Round.
func (g *Group) ReuseRound(r *Round, seq uint32, fingerprint uint64, p mesh.WaitPolicy) *Round {
	if r == nil {
		return g.NewRound(seq, fingerprint, p)
	}
	r.p, r.tag, r.fingerprint, r.segment, r.markEnds = p, int32(seq&MaxTag), fingerprint, g.segment, false
	r.sub = g.all
	return r
}

// SetHistoryHash sets the hash of the group's operations up to the operation of this round. Members
// that have called the same operations have the same hash. The hash is needed for shared memory: an
// operation that moves no data has no fragment there, so only the hash shows that a member has
// called it.
func (r *Round) SetHistoryHash(hash uint64) { r.historyHash = hash }

// Unreceived looks for a message of this round that has arrived and that this rank has not
// received. It returns the sender's rank in the job. If there is such a message, the two ranks have
// not executed the same operation.
func (r *Round) Unreceived() (worldRank int, ok bool) { return r.g.collectives.Unreceived(r.tag) }

// End ends the round and returns its memory.
func (r *Round) End() {
	o := r.operation
	o.release()
	o.arena.clear(0)
	*o = operation{scratch: o.scratch, arena: o.arena, iovecs: o.iovecs}
	operations.Put(o)
}

// Clear ends the round but keeps its memory for ReuseRound. It frees the scratch memory and the
// operation's other Rounds. It also prefetches the cache lines that the group's next operation
// touches first.
func (r *Round) Clear() {
	o := r.operation
	if len(o.scratch) > 0 || o.iovecs.used() {
		o.release()
	}
	if o.arena.roundsUsed > 1 {
		o.arena.clear(1) // keeps r
	}
	if s := r.sub.shared; s != nil && !o.noShared {
		s.prefetchNext()
	}
	o.p, o.noShared = nil, false
}

// release returns the scratch memory to the pool and drops all references to the program's vectors.
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

// SetSegment sets the size of this round's segments in bytes. The size must be a multiple of the
// element size and the same on all members. 0 keeps the group's size. SetSegment must be called
// before the round's first message.
func (r *Round) SetSegment(bytes int) {
	if bytes > 0 {
		r.segment = bytes
	}
}

// Send sends b to a rank of the round. The receiver must receive it in the same round.
func (r *Round) Send(ctx context.Context, to int, b []byte) error {
	return r.move(ctx, to, flat(b), none, payload{}, fold{})
}

// Recv receives exactly len(b) bytes. A message of another length is a fault.Mismatch.
func (r *Round) Recv(ctx context.Context, from int, b []byte) error {
	return r.move(ctx, none, payload{}, from, flat(b), fold{})
}

// Exchange sends the vector out and receives a vector into the buffer in, at the same time. It
// never deadlocks. The buffers must not overlap.
func (r *Round) Exchange(ctx context.Context, to int, out []byte, from int, in []byte) error {
	return r.move(ctx, to, flat(out), from, flat(in), fold{})
}

// RecvFold receives a vector and reduces it into acc, segment by segment as the segments arrive.
// The result is op(arrived, acc) for Earlier and op(acc, arrived) for Later.
func (r *Round) RecvFold(ctx context.Context, from int, acc []byte, k reduce.Kernel, side Side) error {
	return r.move(ctx, none, payload{}, from, flat(acc), fold{kernel: k, side: side})
}

// ExchangeFold sends the vector out. At the same time it receives a vector and reduces it into acc,
// like RecvFold. The two slices must not overlap.
func (r *Round) ExchangeFold(ctx context.Context, to int, out []byte, from int, acc []byte, k reduce.Kernel, side Side) error {
	return r.move(ctx, to, flat(out), from, flat(acc), fold{kernel: k, side: side})
}

// ExchangeFoldTo sends the vector out. At the same time it receives a vector into dst, and combines
// it with the vector own. The result in dst is op(arrived, own) for Earlier and op(own, arrived)
// for Later. dst must not overlap out or own.
func (r *Round) ExchangeFoldTo(ctx context.Context, to int, out []byte, from int, dst, own []byte, k reduce.Kernel, side Side) error {
	return r.move(ctx, to, flat(out), from, flat(dst), fold{k, side, own})
}

// none stands for "no peer" in move.
const none = -1

// A fold says how arrived segments are reduced. With the zero fold they are not reduced.
type fold struct {
	kernel reduce.Kernel
	side   Side
	own    []byte // the other operand; nil: the destination is the other operand
}

// none reports whether f is the zero fold, which reduces nothing.
func (f *fold) none() bool { return f.side == 0 }

// apply reduces arrived and own into acc.
func (f *fold) apply(acc, own, arrived []byte) {
	if f.side == Earlier {
		f.kernel.Fold(acc, arrived, own)
	} else {
		f.kernel.Fold(acc, own, arrived)
	}
}

// move sends the payload out and receives the payload in, both in segments. All sends, receives and
// exchanges of a Round call move.
//
//	posted   receives posted, at most window ahead of those reaped (got)
//	started  sends started, at most window ahead of those reaped (sent), and, while
//	         receives are left, at most window ahead of got
//
// The loop starts the requests that the windows allow, and reaps finished requests. If no request
// is finished, it waits for the oldest receive or send. Receives are posted before sends are
// started, so that arriving segments find a posted receive. When one direction ends, the other goes
// on, so no exchange deadlocks.
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
		// Post receives first, because a segment that finds a posted receive is not copied.
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
			continue // the window has room for another send, for which the peer may be waiting
		}
		// Reap one segment at a time, because sends may finish while a segment is reduced.
		if got < posted && r.recvs[got%window].Met() {
			if err := r.reapRecv(&got, &v); err != nil {
				return r.fail(err)
			}
			continue
		}
		// No request is finished. Wait for the oldest request of each direction. A finished send
		// makes room for the next send, for which the peer may be waiting.
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

// stagingBuffer returns n bytes of one of the operation's two stages. All messages of the operation
// share a stage, one after the other. If each message had its own scratch memory, a ring of many
// ranks would hold a window per message. No stage is used after the message's move has returned.
func (r *Round) stagingBuffer(stage *[]byte, n int) []byte {
	if cap(*stage) < n {
		*stage = r.Scratch(n)
	}
	return (*stage)[:n]
}

// MarkEnds marks the last segment of each message of this round. It is for operations in which a
// message may be shorter than its receiver expects. Without the mark, the receiver could take a
// shorter message for the beginning of the expected message, and wait for the rest. All members
// must call MarkEnds and use the same segment size. It must be called before the round's first
// message.
func (r *Round) MarkEnds() { r.markEnds = true }

// segmentFingerprint returns the fingerprint of segment i of a message of n segments.
func (r *Round) segmentFingerprint(i, n int) uint64 {
	if r.markEnds && i == n-1 {
		return r.fingerprint &^ lastSegmentBit
	}
	return r.fingerprint
}

// lastSegmentBit is set in every fingerprint, except in the fingerprints of marked last segments.
const lastSegmentBit = 1

// SameFingerprint reports whether a message belongs to the operation with the given fingerprint. It
// ignores lastSegmentBit.
func SameFingerprint(message, fingerprint uint64) bool {
	return message|lastSegmentBit == fingerprint|lastSegmentBit
}

// segments returns the number of segments of a message of n bytes.
func (r *Round) segments(n int) int { return max(1, (n+r.segment-1)/r.segment) }

// segmentSize returns the number of bytes in segment i of a message of size bytes.
func (r *Round) segmentSize(size, i int) int { return min((i+1)*r.segment, size) - i*r.segment }

// segmentOf returns segment i of b.
func (r *Round) segmentOf(b []byte, i int) []byte {
	return b[i*r.segment : min((i+1)*r.segment, len(b))]
}

// recvBuffer returns the memory that segment i is received into: its part of in, or of stage if
// stage is not nil.
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

// reapRecv frees the oldest receive, checks the size of its segment, and reduces or copies the
// segment.
func (r *Round) reapRecv(n *int, v *receiver) error {
	i := *n
	req := r.recvs[i%window]
	err, size, source := req.Err(), req.Bytes(), req.Source()
	req.Free()
	r.recvs[i%window] = nil
	*n++
	want := r.segmentSize(v.payload.size, i)
	// In Group.Recv, a message that does not fit is a misuse by this rank. In a round, the sender's
	// arguments may also be wrong, so a message of an unexpected size is a mismatch.
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

// fail revokes the group's collectives and ends the requests of this round. When it returns, no
// request uses a buffer any more. If the peer has closed, it may have executed a different
// operation instead of this one. In this case the error is a mismatch.
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
