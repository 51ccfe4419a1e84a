// Package p2p is ranks and tags: messages between two members of a group, and
// the rounds that collective algorithms are written with.
//
// It moves bytes. It does not know element types, operators' meaning, which
// algorithm runs, or how a group came about. A group's ranks run from 0; errors
// name ranks of the job.
package p2p

import (
	"context"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/mesh"
	"github.com/tutti-go/tutti/rendezvous"
	"github.com/tutti-go/tutti/topology"
)

// Wildcards of a receive or probe.
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

// A Group is the ranks of one communicator, seen from one of them. It has two
// contexts, so that messages never meet collectives. All methods may be called
// concurrently; a buffer is the caller's again when the call has returned.
//
// A Patience bounds a wait besides its context; nil is none.
type Group struct {
	e           *rendezvous.Engine
	ranks       []int       // the job's rank of each member
	index       map[int]int // and back
	rank        int
	messages    *rendezvous.MatchContext // messages
	collectives *rendezvous.MatchContext // collectives
	segment     int
	pool        scratchPool
	all         subgroup // all members
	host        subgroup // those on this rank's host

	tracer func(TraceEvent) // nil: nobody looks
}

// Options of a Group; equal on all members.
type Options struct {
	ID      uint64 // the communicator's: unique among those alive that share two ranks
	Ranks   []int  // the job's rank of each member
	Rank    int    // this process's rank in the group
	Segment int    // bytes of a segment of a collective's message; 0: DefaultSegment
	// Stray hears of a collective's message that this rank does not await, or
	// not yet: from which of the job's ranks, of which round, and with which
	// fingerprint. It must be short and call nothing of the group's. May be nil.
	OnUnexpected func(world int, seq uint32, fingerprint uint64)
}

// DefaultSegment keeps a segment in cache while it is received and folded. Of the
// sizes tried over tcp (64 to 512 KiB) the largest that is still pushed, unasked,
// with its envelope, was the fastest from 256 KiB on.
const DefaultSegment = 240 << 10

// NewGroup opens the group's contexts.
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

// Rank is this process's rank in the group.
func (g *Group) Rank() int { return g.rank }

// Size is the number of members.
func (g *Group) Size() int { return len(g.ranks) }

// WorldRank is the job's rank of a member.
func (g *Group) WorldRank(rank int) int { return g.ranks[rank] }

// RankOf is the group's rank of one of the job's, and whether it is a member.
func (g *Group) RankOf(worldRank int) (int, bool) {
	r, ok := g.index[worldRank]
	return r, ok
}

// Revoke ends every call in the group with err, now and later.
func (g *Group) Revoke(err error) {
	g.messages.Revoke(err)
	g.collectives.Revoke(err)
}

// Close gives the group's contexts up: later calls fail with err.
func (g *Group) Close(err error) {
	g.messages.Close(err)
	g.collectives.Close(err)
}

// Err is why the group was revoked or closed, or nil.
func (g *Group) Err() error { return g.messages.Err() }

// Context is the group's context for messages, for named tensors.
func (g *Group) Context() *rendezvous.MatchContext { return g.messages }

func (g *Group) info(env rendezvous.RecvInfo, err error) (MessageInfo, error) {
	return MessageInfo{Source: g.index[env.Source], Tag: env.Tag, Bytes: env.Bytes}, err
}

func (g *Group) source(from int) int {
	if from == AnySource {
		return AnySource
	}
	return g.ranks[from]
}

// check refuses ranks and tags that cannot be.
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

// Send sends b to a member. It returns at once while the receiver's credit or
// this rank's spill buffer takes the bytes, else when a receive has met them
// (MPI's standard mode). print is compared with the receive's; 0 never differs.
func (g *Group) Send(ctx context.Context, p mesh.WaitPolicy, to, tag int, fingerprint uint64, b []byte) error {
	if err := g.check("send", "destination rank", to, tag, false); err != nil {
		return err
	}
	return g.messages.Send(ctx, p, g.ranks[to], int32(tag), fingerprint, b, rendezvous.Auto)
}

// TrySend is Send where that would return at once and has nothing to prepare, and
// reports whether it has sent; if not, Send is to follow.
func (g *Group) TrySend(to, tag int, fingerprint uint64, b []byte) bool {
	if uint(to) >= uint(len(g.ranks)) || to == g.rank || uint(tag) > MaxTag {
		return false
	}
	return g.messages.TrySend(g.ranks[to], int32(tag), fingerprint, b)
}

// TryRecv is Recv of a small message that comes within a moment, and reports
// whether it did; if not, Recv is to follow.
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

// Probe waits until a message is there that Recv with the same arguments would
// take; it stays.
func (g *Group) Probe(ctx context.Context, p mesh.WaitPolicy, from, tag int) (MessageInfo, error) {
	if err := g.check("probe", "source rank", from, tag, true); err != nil {
		return MessageInfo{}, err
	}
	return g.info(g.messages.Probe(ctx, p, g.source(from), int32(tag)))
}

// TryProbe is Probe without waiting; ok is false when no such message is there.
func (g *Group) TryProbe(from, tag int) (st MessageInfo, ok bool, err error) {
	if err := g.check("probe", "source rank", from, tag, true); err != nil {
		return MessageInfo{}, false, err
	}
	env, ok, err := g.messages.TryProbe(g.source(from), int32(tag))
	st, err = g.info(env, err)
	return st, ok, err
}

// Exchange sends out and receives into in at the same time, to and from members
// that may differ. It never deadlocks, at any size. The buffers must not overlap.
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

func (g *Group) requestInfo(req *rendezvous.Request) MessageInfo {
	return MessageInfo{Source: g.index[req.Source()], Tag: req.Tag(), Bytes: req.Bytes()}
}

// RevokeCollectives ends every collective in the group with err, now and later;
// messages between its members go on.
func (g *Group) RevokeCollectives(err error) { g.collectives.Revoke(err) }
