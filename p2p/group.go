// Package p2p sends messages between the members of a group, addressed by rank and tag. It also
// provides rounds, which collective algorithms use.
//
// A Group holds the ranks of a communicator. A Round is one collective operation on a Group. It
// sends, receives and reduces whole vectors. Vectors travel in segments, within a window, and are
// reduced as they arrive (Round.move). If the ranks share memory, the algorithm uses Fragments of
// that memory instead, with a ready and a done flag per rank (Shared).
//
// The package moves bytes. It does not know element types, operators, algorithms, or how a group
// was created. The ranks of a group count from 0; errors name ranks of the job.
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

// A MessageInfo describes a message that was received or probed.
type MessageInfo struct {
	Source int // rank in the group
	Tag    int
	Bytes  int
}

// A Group holds the ranks of one communicator, as one of its members sees them. It has two matching
// contexts, so point-to-point messages never match messages of collectives. All methods may be
// called concurrently, except those whose comment says when to call them. The caller may reuse a
// buffer when the call has returned.
//
// A mesh.WaitPolicy bounds a wait in addition to the context.Context. It may be nil.
type Group struct {
	e           *rendezvous.Engine
	ranks       []int       // the job's rank of each member
	index       map[int]int // maps ranks of the job to members
	rank        int
	messages    *rendezvous.MatchContext // of point-to-point messages and named tensors
	collectives *rendezvous.MatchContext // ordered: see rendezvous.MatchContext.SetOrdered
	segment     int                      // bytes of a segment
	pool        scratchPool
	all         subgroup // all members
	host        subgroup // the members on this rank's host

	tracer func(TraceEvent) // nil in programs; see SetTracer
}

// Options of a Group. All members must pass the same ID, Ranks and Segment.
type Options struct {
	ID      uint64 // the communicator's id; communicators that share two ranks have different ids
	Ranks   []int  // the job's rank of each member
	Rank    int    // this process's rank in the group
	Segment int    // bytes of a segment of a collective's message; 0: DefaultSegment
	// OnUnexpected is called with each message of a collective that arrives before its receive is
	// posted. The parameter world is the job rank of the sender, and seq is the sequence number of
	// the round. OnUnexpected must be short and must not call the group. It may be nil.
	OnUnexpected func(world int, seq uint32, fingerprint uint64)
}

// DefaultSegment is the default size of a segment in bytes. A segment of this size stays in cache
// while it is received and reduced, and is sent eagerly in one frame. It was the fastest of the
// sizes from 64 to 512 KiB over tcp, for messages of 256 KiB or more.
const DefaultSegment = 240 << 10

// NewGroup returns a group and opens its contexts on this rank. The members need not call it at the
// same time.
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

// WorldRank translates a rank of the group to the member's rank in the job.
func (g *Group) WorldRank(rank int) int { return g.ranks[rank] }

// RankOf translates a rank of the job to the rank in the group. It returns false if that process is
// not a member.
func (g *Group) RankOf(worldRank int) (int, bool) {
	r, ok := g.index[worldRank]
	return r, ok
}

// Revoke ends every current and later call in the group with err.
func (g *Group) Revoke(err error) {
	g.messages.Revoke(err)
	g.collectives.Revoke(err)
}

// Close releases the group's contexts. Later calls fail with err.
func (g *Group) Close(err error) {
	g.messages.Close(err)
	g.collectives.Close(err)
}

// Err returns the error with which the group was revoked or closed, or nil.
func (g *Group) Err() error { return g.messages.Err() }

// info converts a RecvInfo to a MessageInfo, whose source is a rank of the group.
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

// check returns an error if a rank or tag is out of range. The parameter wild says whether
// wildcards are allowed. The parameters op and what name the call and the argument in the error.
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

// Send sends b to a member (MPI's standard mode). It returns at once if the receiver's credit or
// this rank's spill buffer has room for b. Otherwise it returns when a receive has matched the
// message. The fingerprint must equal the fingerprint of the receive; 0 matches any fingerprint.
func (g *Group) Send(ctx context.Context, p mesh.WaitPolicy, to, tag int, fingerprint uint64, b []byte) error {
	if err := g.check("send", "destination rank", to, tag, false); err != nil {
		return err
	}
	return g.messages.Send(ctx, p, g.ranks[to], int32(tag), fingerprint, b, rendezvous.Auto)
}

// TrySend sends a small message if that is possible without waiting. It reports whether it has sent
// the message. If it has not, the caller uses Send.
func (g *Group) TrySend(to, tag int, fingerprint uint64, b []byte) bool {
	if uint(to) >= uint(len(g.ranks)) || to == g.rank || uint(tag) > MaxTag {
		return false
	}
	return g.messages.TrySend(g.ranks[to], int32(tag), fingerprint, b)
}

// TryRecv receives a small message if it arrives while this rank spins. It reports whether it has
// received the message. If it has not, the caller uses Recv.
func (g *Group) TryRecv(from, tag int, fingerprint uint64, b []byte) (MessageInfo, bool) {
	if uint(from) >= uint(len(g.ranks)) || from == g.rank || uint(tag) > MaxTag {
		return MessageInfo{}, false
	}
	n, ok := g.messages.TryRecv(g.ranks[from], int32(tag), fingerprint, b)
	return MessageInfo{Source: from, Tag: tag, Bytes: n}, ok
}

// Recv receives a message into b. b must be large enough for the message.
func (g *Group) Recv(ctx context.Context, p mesh.WaitPolicy, from, tag int, fingerprint uint64, b []byte) (MessageInfo, error) {
	if err := g.check("recv", "source rank", from, tag, true); err != nil {
		return MessageInfo{}, err
	}
	return g.info(g.messages.Recv(ctx, p, g.source(from), int32(tag), fingerprint, b))
}

// Probe waits for a message that Recv with the same arguments would receive. It does not receive
// the message.
func (g *Group) Probe(ctx context.Context, p mesh.WaitPolicy, from, tag int) (MessageInfo, error) {
	if err := g.check("probe", "source rank", from, tag, true); err != nil {
		return MessageInfo{}, err
	}
	return g.info(g.messages.Probe(ctx, p, g.source(from), int32(tag)))
}

// TryProbe is like Probe but does not wait. ok is false if no such message has arrived.
func (g *Group) TryProbe(from, tag int) (st MessageInfo, ok bool, err error) {
	if err := g.check("probe", "source rank", from, tag, true); err != nil {
		return MessageInfo{}, false, err
	}
	env, ok, err := g.messages.TryProbe(g.source(from), int32(tag))
	st, err = g.info(env, err)
	return st, ok, err
}

// A Reservation stands for the message that a matched probe has found. It can be passed to
// RecvReserved once.
type Reservation = rendezvous.Reservation

// MatchedProbe is like Probe, but also reserves the message. After that only RecvReserved can
// receive it.
func (g *Group) MatchedProbe(ctx context.Context, p mesh.WaitPolicy, from, tag int) (MessageInfo, Reservation, error) {
	if err := g.check("probe", "source rank", from, tag, true); err != nil {
		return MessageInfo{}, Reservation{}, err
	}
	env, c, err := g.messages.MatchedProbe(ctx, p, g.source(from), int32(tag))
	st, err := g.info(env, err)
	return st, c, err
}

// TryMatchedProbe is like TryProbe, but also reserves the message.
func (g *Group) TryMatchedProbe(from, tag int) (st MessageInfo, c Reservation, ok bool, err error) {
	if err := g.check("probe", "source rank", from, tag, true); err != nil {
		return MessageInfo{}, Reservation{}, false, err
	}
	env, c, ok, err := g.messages.TryMatchedProbe(g.source(from), int32(tag))
	st, err = g.info(env, err)
	return st, c, ok, err
}

// RecvReserved receives a reserved message into b.
func (g *Group) RecvReserved(ctx context.Context, p mesh.WaitPolicy, c Reservation, fingerprint uint64, b []byte) error {
	return g.messages.RecvReserved(ctx, p, c, fingerprint, b)
}

// Exchange sends one message and receives another message at the same time. The two peers may be
// different members. The parameter out is the message to send, and the parameter in is the buffer
// for the received message. Exchange never deadlocks, whatever the sizes are. The buffers must not
// overlap.
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

// requestInfo returns the MessageInfo of a receive that is done.
func (g *Group) requestInfo(req *rendezvous.Request) MessageInfo {
	return MessageInfo{Source: g.index[req.Source()], Tag: req.Tag(), Bytes: req.Bytes()}
}

// RevokeCollectives ends every current and later collective in the group with err. Point-to-point
// messages are not affected.
func (g *Group) RevokeCollectives(err error) { g.collectives.Revoke(err) }

// Revoked reports whether the group's collectives have been revoked or closed.
func (g *Group) Revoked() bool { return g.collectives.Dead() }

// AwaitRevoke returns when the group's collectives have been revoked or closed, or when ctx ends.
func (g *Group) AwaitRevoke(ctx context.Context) {
	g.collectives.Await(ctx, nil, revoked{g.collectives})
}

// revoked is the condition that a context has been revoked or closed.
type revoked struct{ mc *rendezvous.MatchContext }

// Met implements mesh.Condition.
func (r revoked) Met() bool { return r.mc.Dead() }
