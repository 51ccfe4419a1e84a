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

// window is how many segments of a message are under way each way. In an
// exchange a rank sends at most so many more than it has received: large
// exchanges that run ahead of each other are up to twice as slow.
const window = 4

// A Side says where an arrived share stands in a fold.
type Side uint8

// The sides.
const (
	Earlier Side = iota + 1 // op(arrived, own)
	Later                   // op(own, arrived)
)

// A Round is one collective operation on a group: what an algorithm exchanges
// in. Its messages carry the operation's sequence number and fingerprint, so
// they meet those of the same operation only. A message travels in segments
// whose number depends on its length alone; an empty one still travels.
//
// One goroutine uses a Round, and one Round of an operation at a time: besides the
// one of all members there may be some of a few; see Host and Among. After an
// error the group's collectives are revoked on this rank, because half a collective
// cannot be unsent; buffers are the caller's again when a method has returned.
type Round struct {
	*operation
	sub subgroup // whose ranks this Round counts
}

// An operation is what the Rounds of one collective operation have in common.
type operation struct {
	g           *Group
	p           mesh.WaitPolicy
	tag         int32
	fingerprint uint64
	historyHash uint64
	segment     int  // bytes of a segment
	markEnds    bool // see MarkEnds

	sends, recvs [window]*rendezvous.Request
	links        [2]*mesh.Link
	next         rendezvous.Either // the oldest receive and send under way
	flag         flagEvent         // what a wait in shared memory sleeps on
	scratch      []scratch
	recvStage    []byte     // where segments that are to be folded arrive; one message's after the other's
	sendStage    []byte     // where those that go out are put together that the link does not gather; likewise
	iovecs       Iovecs     // of those under way; the last for what is at hand
	vectors      [2]Vectors // of the message that goes out, and of that which comes in

	noShared bool        // it runs beside others, so not in shared memory
	arena    *roundArena // never nil
}

var operations = sync.Pool{New: func() any { return &operation{arena: new(roundArena)} }}

// NewRound begins a round. seq counts the group's collectives; print is the
// fingerprint that all members must agree on.
func (g *Group) NewRound(seq uint32, fingerprint uint64, p mesh.WaitPolicy) *Round {
	o := operations.Get().(*operation)
	o.g, o.p, o.tag, o.fingerprint, o.segment = g, p, int32(seq&MaxTag), fingerprint, g.segment
	return o.round(g.all)
}

// ReuseRound is NewRound in the memory of r, a round of this group's of all members
// that Clear has ended, or nil.
func (g *Group) ReuseRound(r *Round, seq uint32, fingerprint uint64, p mesh.WaitPolicy) *Round {
	if r == nil {
		return g.NewRound(seq, fingerprint, p)
	}
	r.p, r.tag, r.fingerprint, r.segment, r.markEnds = p, int32(seq&MaxTag), fingerprint, g.segment, false
	r.sub = g.all
	return r
}

// SetHistoryHash says what the group's operations up to this one were, in one number that
// is equal on members that agree about all of them. Messages of an operation tell
// by themselves; one in shared memory that moves nothing leaves no trace else.
func (r *Round) SetHistoryHash(hash uint64) { r.historyHash = hash }

// Unreceived is one of the job's ranks that sent something in this round which this
// rank did not receive: the two have not carried out the same operation.
func (r *Round) Unreceived() (worldRank int, ok bool) { return r.g.collectives.Unreceived(r.tag) }

// End gives the round and its scratch memory back.
func (r *Round) End() {
	o := r.operation
	o.release()
	o.arena.clear(0)
	*o = operation{scratch: o.scratch, arena: o.arena, iovecs: o.iovecs}
	operations.Put(o)
}

// Clear gives the round's scratch memory back, and the rounds of some of its
// ranks. It is for Again, or left to the collector.
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

// release gives scratch memory back.
func (o *operation) release() {
	o.iovecs.reset()
	o.vectors = [2]Vectors{}
	for i, s := range o.scratch {
		o.g.pool.put(s)
		o.scratch[i] = nil
	}
	o.scratch, o.recvStage, o.sendStage = o.scratch[:0], nil, nil
}

// Rank is this process's rank in the round.
func (r *Round) Rank() int { return r.sub.rank }

// Size is the number of ranks in the round.
func (r *Round) Size() int { return len(r.sub.ranks) }

// Segment is the size of a segment in bytes.
func (r *Round) Segment() int { return r.segment }

// SetSegment has this round's messages travel in segments of that many bytes,
// equally many on all members and whole elements; 0 leaves the group's. It comes
// before the round's first message.
func (r *Round) SetSegment(bytes int) {
	if bytes > 0 {
		r.segment = bytes
	}
}

// Send sends b to a rank of the round, which receives it in this round.
func (r *Round) Send(ctx context.Context, to int, b []byte) error {
	return r.move(ctx, to, flat(b), none, payload{}, fold{})
}

// Recv receives exactly len(b) bytes.
func (r *Round) Recv(ctx context.Context, from int, b []byte) error {
	return r.move(ctx, none, payload{}, from, flat(b), fold{})
}

// Exchange sends out and receives into in at the same time; it never deadlocks.
// The buffers must not overlap.
func (r *Round) Exchange(ctx context.Context, to int, out []byte, from int, in []byte) error {
	return r.move(ctx, to, flat(out), from, flat(in), fold{})
}

// RecvFold receives a share and folds it into acc, segment by segment as it
// arrives: acc = op(arrived, acc) for Earlier, op(acc, arrived) for Later.
func (r *Round) RecvFold(ctx context.Context, from int, acc []byte, k reduce.Kernel, side Side) error {
	return r.move(ctx, none, payload{}, from, flat(acc), fold{kernel: k, side: side})
}

// ExchangeFold is RecvFold while out is being sent. out and acc must not overlap.
func (r *Round) ExchangeFold(ctx context.Context, to int, out []byte, from int, acc []byte, k reduce.Kernel, side Side) error {
	return r.move(ctx, to, flat(out), from, flat(acc), fold{kernel: k, side: side})
}

// ExchangeFoldTo is ExchangeFold of own and what arrives into dst, which is where
// it arrives: dst = op(arrived, own) for Earlier, op(own, arrived) for Later. dst
// overlaps neither out nor own.
func (r *Round) ExchangeFoldTo(ctx context.Context, to int, out []byte, from int, dst, own []byte, k reduce.Kernel, side Side) error {
	return r.move(ctx, to, flat(out), from, flat(dst), fold{k, side, own})
}

// none stands for "no peer" in move.
const none = -1

// fold says what becomes of arrived segments. The zero fold: nothing, they are in
// place.
type fold struct {
	kernel reduce.Kernel
	side   Side
	own    []byte // what they are folded with; nil: what lies where they belong
}

func (f *fold) none() bool { return f.side == 0 }

func (f *fold) apply(acc, own, arrived []byte) {
	if f.side == Earlier {
		f.kernel.Fold(acc, arrived, own)
	} else {
		f.kernel.Fold(acc, own, arrived)
	}
}

// move sends out and receives in, both in segments, windowed and paced.
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
			continue // there is room to start more, which the peer may wait for
		}
		if got < posted && r.recvs[got%window].Met() {
			if err := r.reapRecv(&got, &v); err != nil {
				return r.fail(err)
			}
			continue
		}
		// Both: a finished send may be what the peer waits for next.
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

// stagingBuffer is n bytes of one of the round's two stages. Rounds have many messages: were
// each given Scratch of its own, a ring of many ranks would hold as many windows. Nobody
// looks at a message's stage any more when move has returned.
func (r *Round) stagingBuffer(stage *[]byte, n int) []byte {
	if cap(*stage) < n {
		*stage = r.Scratch(n)
	}
	return (*stage)[:n]
}

// MarkEnds has the last segment of each message say so, in this round on all
// members. It is for operations in which a message may be shorter than its receiver
// expects: one of whole segments would pass for the beginning of what is expected,
// and the rest be waited for. Both sides must then cut messages alike. It comes
// before the round's first message.
func (r *Round) MarkEnds() { r.markEnds = true }

// segmentFingerprint is the fingerprint that segment i of n carries.
func (r *Round) segmentFingerprint(i, n int) uint64 {
	if r.markEnds && i == n-1 {
		return r.fingerprint &^ lastSegmentBit
	}
	return r.fingerprint
}

// lastSegmentBit is set in every fingerprint but those of last segments that are marked.
const lastSegmentBit = 1

// SameFingerprint reports whether the fingerprint of a message is that of an operation with
// this one.
func SameFingerprint(message, fingerprint uint64) bool {
	return message|lastSegmentBit == fingerprint|lastSegmentBit
}

// segments is how many segments a message of n bytes has.
func (r *Round) segments(n int) int { return max(1, (n+r.segment-1)/r.segment) }

// segmentSize is the bytes of segment i of a message of so many.
func (r *Round) segmentSize(size, i int) int { return min((i+1)*r.segment, size) - i*r.segment }

// segmentOf is segment i of b.
func (r *Round) segmentOf(b []byte, i int) []byte {
	return b[i*r.segment : min((i+1)*r.segment, len(b))]
}

// recvBuffer is where segment i is received: in place, or in the stage for a fold.
func (r *Round) recvBuffer(in, stage []byte, i int) []byte {
	part := r.segmentOf(in, i)
	if stage == nil {
		return part
	}
	at := i % window * r.segment
	return stage[at : at+len(part)]
}

// reapSend reaps the oldest send.
func (r *Round) reapSend(n *int) error {
	req := r.sends[*n%window]
	err := req.Err()
	req.Free()
	r.sends[*n%window] = nil
	*n++
	return err
}

// reapRecv reaps the oldest receive, and folds what it brought.
func (r *Round) reapRecv(n *int, v *receiver) error {
	i := *n
	req := r.recvs[i%window]
	err, size, source := req.Err(), req.Bytes(), req.Source()
	req.Free()
	r.recvs[i%window] = nil
	*n++
	want := r.segmentSize(v.payload.size, i)
	// A message that does not fit is misuse of a Recv; in a round the sender's counts
	// are as likely wrong as this rank's, be they larger or smaller.
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

// fail revokes the group's collectives, so that nothing under way touches a
// buffer any more, and ends what this round has outstanding. A rank that has said
// goodbye may have done so after another operation in this one's place.
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
