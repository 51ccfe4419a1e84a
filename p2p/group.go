// Package p2p is ranks and tags: messages between two members of a group, and the rounds that
// collective algorithms are written with.
//
// A Group is a communicator's ranks. A Round is one collective operation on it: an algorithm's
// sends, receives and reductions of whole vectors, which travel in segments, windowed and reduced
// as they arrive (Round.move). Where the ranks share memory, the algorithm works on Fragments of
// it instead, with a ready and a done flag per rank (Shared).
//
// The package moves bytes. It does not know element types, the operators' meaning, which algorithm
// runs, or how a group came about. A group's ranks run from 0; errors name ranks of the job.
package p2p

import (
	"context"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/mesh"
	"github.com/tutti-go/tutti/rendezvous"
	"github.com/tutti-go/tutti/topology"
)

// The wildcards of a receive or probe.
const (
	AnySource = rendezvous.Any
	AnyTag    = rendezvous.Any
)

// A MessageInfo is what a receive or a probe learns of its message.
type MessageInfo struct {
	Source int // rank in the group
	Tag    int
	Bytes  int
}

// A Group is the ranks of one communicator, seen from one of them. It has two matching contexts, so
// that messages never match collectives. All methods may be called concurrently, but those that say
// when they come; a buffer is the caller's again when the call has returned.
//
// A mesh.WaitPolicy bounds a wait besides its context; nil is none.
type Group struct {
	e           *rendezvous.Engine
	ranks       []int       // the job's rank of each member
	index       map[int]int // the member with a rank of the job
	rank        int
	messages    *rendezvous.MatchContext // of point-to-point messages and named tensors
	collectives *rendezvous.MatchContext // ordered: see rendezvous.MatchContext.SetOrdered
	segment     int                      // bytes of a segment
	pool        scratchPool
	all         subgroup // all members
	host        subgroup // those on this rank's host

	tracer func(TraceEvent) // nil in programs; see SetTracer
}

// Options of a Group. ID, Ranks and Segment are equal on all members.
type Options struct {
	ID      uint64 // the communicator's: unique among those alive that share two ranks
	Ranks   []int  // the job's rank of each member
	Rank    int    // this process's rank in the group
	Segment int    // bytes of a segment of a collective's message; 0: DefaultSegment
	// OnUnexpected is called with a collective's message that this rank does not await, or not yet:
	// its sender as a rank of the job, its round and its fingerprint. It must be short and must not
	// call the group. It may be nil.
	OnUnexpected func(world int, seq uint32, fingerprint uint64)
}

// DefaultSegment keeps a segment in cache while it is received and reduced. It was the fastest of
// 64 to 512 KiB over tcp for messages from 256 KiB on: the largest segment that still goes eagerly,
// with its envelope in one data frame.
const DefaultSegment = 240 << 10

// NewGroup opens the group's contexts on this rank. The members need not do so at the same time.
func NewGroup(e *rendezvous.Engine, o Options) *Group {
	g := &Group{e: e, ranks: o.Ranks, rank: o.Rank, segment: o.Segment, index: make(map[int]int, len(o.Ranks))}
	if g.segment <= 0 {
		g.segment = DefaultSegment
	}
	for i, r := range o.Ranks {
		g.index[r] = i
	}
	g.all = subgroup{ranks: g.ranks, rank: g.rank}
	flat := topology.Flat(len(o.Ranks))
	g.SetLayout(&flat)
	g.messages = e.Open(o.ID<<1, o.Ranks)
	g.collectives = e.Open(o.ID<<1|1, o.Ranks)
	g.collectives.SetOrdered()
	if o.OnUnexpected != nil {
		g.collectives.SetUnexpected(func(source int, tag int32, fingerprint uint64) { o.OnUnexpected(source, uint32(tag), fingerprint) })
	}
	return g
}

// Rank returns this process's rank in the group.
func (g *Group) Rank() int { return g.rank }

// Size returns the number of members.
func (g *Group) Size() int { return len(g.ranks) }

// WorldRank returns the job's rank of a member.
func (g *Group) WorldRank(rank int) int { return g.ranks[rank] }

// RankOf returns the group's rank of one of the job's, and whether it is a member.
func (g *Group) RankOf(worldRank int) (int, bool) {
	r, ok := g.index[worldRank]
	return r, ok
}

// Revoke ends every call in the group with err, now and later.
func (g *Group) Revoke(err error) {
	g.messages.Revoke(err)
	g.collectives.Revoke(err)
}

// Close releases the group's contexts: later calls fail with err.
func (g *Group) Close(err error) {
	g.messages.Close(err)
	g.collectives.Close(err)
}

// Err returns why the group was revoked or closed, or nil.
func (g *Group) Err() error { return g.messages.Err() }

// Context returns the matching context of the group's messages, for named tensors.
func (g *Group) Context() *rendezvous.MatchContext { return g.messages }

// info translates what a receive learned to the group's ranks.
func (g *Group) info(env rendezvous.RecvInfo, err error) (MessageInfo, error) {
	return MessageInfo{Source: g.index[env.Source], Tag: env.Tag, Bytes: env.Bytes}, err
}

// source translates a receive's source to a rank of the job.
func (g *Group) source(from int) int {
	if from == AnySource {
		return AnySource
	}
	return g.ranks[from]
}

// check refuses ranks and tags that are out of range; wild allows wildcards. op is the call, and
// what the argument, that the error names.
func (g *Group) check(op, what string, rank, tag int, wild bool) error {
	switch {
	case wild && rank == AnySource:
	case rank < 0 || rank >= len(g.ranks):
		return fault.New(fault.Misuse, op, g.ranks[g.rank], "%s %d is out of range; the communicator has ranks 0 to %d", what, rank, len(g.ranks)-1)
	}
	if wild && tag == AnyTag {
		return nil
	}
	if tag < 0 || tag > MaxTag {
		return fault.New(fault.Misuse, op, g.ranks[g.rank], "tag %d is out of range; 0 to %d are allowed", tag, MaxTag)
	}
	return nil
}

// MaxTag is the largest tag.
const MaxTag = 1<<31 - 1

// Send sends b to a member (MPI's standard mode). It returns at once while the receiver's credit or
// this rank's spill buffer takes the bytes, else when a receive has matched them. The fingerprint
// is compared with the receive's; 0 matches any.
func (g *Group) Send(ctx context.Context, p mesh.WaitPolicy, to, tag int, fingerprint uint64, b []byte) error {
	if err := g.check("send", "destination rank", to, tag, false); err != nil {
		return err
	}
	return g.messages.Send(ctx, p, g.ranks[to], int32(tag), fingerprint, b, rendezvous.Auto)
}

// TrySend is Send where that would return at once without preparation. It reports whether it has
// sent; if not, Send follows.
func (g *Group) TrySend(to, tag int, fingerprint uint64, b []byte) bool {
	if uint(to) >= uint(len(g.ranks)) || to == g.rank || uint(tag) > MaxTag {
		return false
	}
	return g.messages.TrySend(g.ranks[to], int32(tag), fingerprint, b)
}

// TryRecv is Recv of a small message that arrives while this rank spins. It reports whether one
// did; if not, Recv follows.
func (g *Group) TryRecv(from, tag int, fingerprint uint64, b []byte) (MessageInfo, bool) {
	if uint(from) >= uint(len(g.ranks)) || from == g.rank || uint(tag) > MaxTag {
		return MessageInfo{}, false
	}
	n, ok := g.messages.TryRecv(g.ranks[from], int32(tag), fingerprint, b)
	return MessageInfo{Source: from, Tag: tag, Bytes: n}, ok
}

// Recv receives a message into b, which must be large enough for it.
func (g *Group) Recv(ctx context.Context, p mesh.WaitPolicy, from, tag int, fingerprint uint64, b []byte) (MessageInfo, error) {
	if err := g.check("recv", "source rank", from, tag, true); err != nil {
		return MessageInfo{}, err
	}
	return g.info(g.messages.Recv(ctx, p, g.source(from), int32(tag), fingerprint, b))
}

// Probe waits for a message that Recv with the same arguments would receive. The message stays.
func (g *Group) Probe(ctx context.Context, p mesh.WaitPolicy, from, tag int) (MessageInfo, error) {
	if err := g.check("probe", "source rank", from, tag, true); err != nil {
		return MessageInfo{}, err
	}
	return g.info(g.messages.Probe(ctx, p, g.source(from), int32(tag)))
}

// TryProbe is Probe without waiting. ok is false when no such message is there.
func (g *Group) TryProbe(from, tag int) (st MessageInfo, ok bool, err error) {
	if err := g.check("probe", "source rank", from, tag, true); err != nil {
		return MessageInfo{}, false, err
	}
	env, ok, err := g.messages.TryProbe(g.source(from), int32(tag))
	st, err = g.info(env, err)
	return st, ok, err
}

// Exchange sends out and receives into in at the same time, to and from members that may differ. It
// never deadlocks, whatever the sizes. The buffers must not overlap.
func (g *Group) Exchange(ctx context.Context, p mesh.WaitPolicy, to, tag int, out []byte, from, rtag int, in []byte, fingerprint uint64) (MessageInfo, error) {
	if err := g.check("exchange", "destination rank", to, tag, false); err != nil {
		return MessageInfo{}, err
	}
	if err := g.check("exchange", "source rank", from, rtag, true); err != nil {
		return MessageInfo{}, err
	}
	reqs := [2]*rendezvous.Request{
		g.messages.PostRecv(g.source(from), int32(rtag), fingerprint, in),
		g.messages.PostSend(g.ranks[to], int32(tag), fingerprint, out, rendezvous.Auto),
	}
	err := g.e.WaitAll(ctx, p, reqs[:])
	st := g.requestInfo(reqs[0])
	reqs[0].Free()
	reqs[1].Free()
	return st, err
}

// requestInfo returns what a receive that is done learned of its message.
func (g *Group) requestInfo(req *rendezvous.Request) MessageInfo {
	return MessageInfo{Source: g.index[req.Source()], Tag: req.Tag(), Bytes: req.Bytes()}
}

// RevokeCollectives ends every collective in the group with err, now and later. Messages between
// its members go on.
func (g *Group) RevokeCollectives(err error) { g.collectives.Revoke(err) }
