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

// A Status is what a receive or a probe learns of its message.
type Status struct {
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
	e     *rendezvous.Engine
	ranks []int       // the job's rank of each member
	index map[int]int // and back
	rank  int
	talk  *rendezvous.MatchContext // messages
	coll  *rendezvous.MatchContext // collectives
	seg   int
	pool  scratchPool
	all   party // all members
	host  party // those on this rank's host

	see func(Sight) // nil: nobody looks
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
	Stray func(world int, seq uint32, print uint64)
}

// DefaultSegment keeps a segment in cache while it is received and folded. Of the
// sizes tried over tcp (64 to 512 KiB) the largest that is still pushed, unasked,
// with its envelope, was the fastest from 256 KiB on.
const DefaultSegment = 240 << 10

// NewGroup opens the group's contexts.
func NewGroup(e *rendezvous.Engine, o Options) *Group {
	g := &Group{e: e, ranks: o.Ranks, rank: o.Rank, seg: o.Segment, index: make(map[int]int, len(o.Ranks))}
	if g.seg <= 0 {
		g.seg = DefaultSegment
	}
	for i, r := range o.Ranks {
		g.index[r] = i
	}
	g.all = party{ranks: g.ranks, rank: g.rank}
	flat := topology.Flat(len(o.Ranks))
	g.SetLayout(&flat)
	g.talk = e.Open(o.ID<<1, o.Ranks)
	g.coll = e.Open(o.ID<<1|1, o.Ranks)
	g.coll.SetOrdered()
	if o.Stray != nil {
		g.coll.SetUnexpected(func(source int, tag int32, print uint64) { o.Stray(source, uint32(tag), print) })
	}
	return g
}

// Rank is this process's rank in the group.
func (g *Group) Rank() int { return g.rank }

// Size is the number of members.
func (g *Group) Size() int { return len(g.ranks) }

// World is the job's rank of a member.
func (g *Group) World(rank int) int { return g.ranks[rank] }

// Member is the group's rank of one of the job's, and whether it is a member.
func (g *Group) Member(world int) (int, bool) {
	r, ok := g.index[world]
	return r, ok
}

// Revoke ends every call in the group with err, now and later.
func (g *Group) Revoke(err error) {
	g.talk.Revoke(err)
	g.coll.Revoke(err)
}

// Close gives the group's contexts up: later calls fail with err.
func (g *Group) Close(err error) {
	g.talk.Close(err)
	g.coll.Close(err)
}

// Err is why the group was revoked or closed, or nil.
func (g *Group) Err() error { return g.talk.Err() }

// Space is the group's context for messages, for named tensors.
func (g *Group) Space() *rendezvous.MatchContext { return g.talk }

func (g *Group) status(env rendezvous.RecvInfo, err error) (Status, error) {
	return Status{Source: g.index[env.Source], Tag: env.Tag, Bytes: env.Bytes}, err
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
func (g *Group) Send(ctx context.Context, p mesh.WaitPolicy, to, tag int, print uint64, b []byte) error {
	if err := g.check("send", "destination rank", to, tag, false); err != nil {
		return err
	}
	return g.talk.Send(ctx, p, g.ranks[to], int32(tag), print, b, rendezvous.Auto)
}

// SendNow is Send where that would return at once and has nothing to prepare, and
// reports whether it has sent; if not, Send is to follow.
func (g *Group) SendNow(to, tag int, print uint64, b []byte) bool {
	if uint(to) >= uint(len(g.ranks)) || to == g.rank || uint(tag) > MaxTag {
		return false
	}
	return g.talk.TrySend(g.ranks[to], int32(tag), print, b)
}

// RecvSoon is Recv of a small message that comes within a moment, and reports
// whether it did; if not, Recv is to follow.
func (g *Group) RecvSoon(from, tag int, print uint64, b []byte) (Status, bool) {
	if uint(from) >= uint(len(g.ranks)) || from == g.rank || uint(tag) > MaxTag {
		return Status{}, false
	}
	n, ok := g.talk.TryRecv(g.ranks[from], int32(tag), print, b)
	return Status{Source: from, Tag: tag, Bytes: n}, ok
}

// Recv receives a message into b, which must be large enough for it.
func (g *Group) Recv(ctx context.Context, p mesh.WaitPolicy, from, tag int, print uint64, b []byte) (Status, error) {
	if err := g.check("recv", "source rank", from, tag, true); err != nil {
		return Status{}, err
	}
	return g.status(g.talk.Recv(ctx, p, g.source(from), int32(tag), print, b))
}

// Probe waits until a message is there that Recv with the same arguments would
// take; it stays.
func (g *Group) Probe(ctx context.Context, p mesh.WaitPolicy, from, tag int) (Status, error) {
	if err := g.check("probe", "source rank", from, tag, true); err != nil {
		return Status{}, err
	}
	return g.status(g.talk.Probe(ctx, p, g.source(from), int32(tag)))
}

// TryProbe is Probe without waiting; ok is false when no such message is there.
func (g *Group) TryProbe(from, tag int) (st Status, ok bool, err error) {
	if err := g.check("probe", "source rank", from, tag, true); err != nil {
		return Status{}, false, err
	}
	env, ok, err := g.talk.TryProbe(g.source(from), int32(tag))
	st, err = g.status(env, err)
	return st, ok, err
}

// Exchange sends out and receives into in at the same time, to and from members
// that may differ. It never deadlocks, at any size. The buffers must not overlap.
func (g *Group) Exchange(ctx context.Context, p mesh.WaitPolicy, to, tag int, out []byte, from, rtag int, in []byte, print uint64) (Status, error) {
	if err := g.check("exchange", "destination rank", to, tag, false); err != nil {
		return Status{}, err
	}
	if err := g.check("exchange", "source rank", from, rtag, true); err != nil {
		return Status{}, err
	}
	ops := [2]*rendezvous.Request{
		g.talk.PostRecv(g.source(from), int32(rtag), print, in),
		g.talk.PostSend(g.ranks[to], int32(tag), print, out, rendezvous.Auto),
	}
	err := g.e.WaitAll(ctx, p, ops[:])
	st := g.opStatus(ops[0])
	ops[0].Free()
	ops[1].Free()
	return st, err
}

func (g *Group) opStatus(op *rendezvous.Request) Status {
	return Status{Source: g.index[op.Source()], Tag: op.Tag(), Bytes: op.Bytes()}
}

// RevokeCollectives ends every collective in the group with err, now and later;
// messages between its members go on.
func (g *Group) RevokeCollectives(err error) { g.coll.Revoke(err) }
