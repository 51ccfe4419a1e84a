package comm

import (
	"context"
	"time"

	"github.com/tutti-go/tutti/collective"
	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/bridge"
	"github.com/tutti-go/tutti/p2p"
	"github.com/tutti-go/tutti/tensor"
)

// Bridge gives the other packages of this module access to c. Its result type is internal to the
// module.
func (c *Comm) Bridge() bridge.Communicator { return (*bridged)(c) }

// bridged is a Comm with the methods of bridge.Communicator. The conversion from *Comm to *bridged
// allocates nothing.
type bridged Comm

// AllReduceList implements bridge.Communicator.
func (b *bridged) AllReduceList(ctx context.Context, algorithm string, d tensor.DType, vectors [][]byte, op Op) error {
	c := (*Comm)(b)
	pl := plan{verb: collective.VerbAllReduce, dtype: d, vectors: vectors, root: -1, op: op, forced: algorithm}
	if err := pl.bindVectors(c); err != nil {
		return err
	}
	return c.execute(ctx, &pl, nil)
}

// Algorithm implements bridge.Communicator. A blocking call may use the communicator's shared memory,
// if the communicator has any.
func (b *bridged) Algorithm(name string, bytes int, op Op) string {
	verb, err := collective.ParseVerb(name)
	if err != nil {
		return ""
	}
	return b.chooser.Choose(verb, bytes, op.Commutative(), b.group.HasShared()).Algorithm.Name()
}

// Wire implements bridge.Communicator.
func (b *bridged) Wire() string { return b.wire }

// Transport implements bridge.Communicator.
func (b *bridged) Transport(rank int) string {
	c := (*Comm)(b)
	switch {
	case rank < 0 || rank >= c.Size():
		return ""
	case rank == c.Rank():
		return "self"
	}
	return c.rt.wire.nameTo(c.rt.mesh.Addr(c.WorldRank(rank)))
}

// ReportLoss implements bridge.Communicator.
func (b *bridged) ReportLoss(err error) { b.rt.reportLoss(err) }

// NewPoller implements bridge.Communicator.
func (b *bridged) NewPoller(from ...int) bridge.Poller { return poller{b.group.NewPoller(from...)} }

// Timeout implements bridge.Communicator.
func (b *bridged) Timeout() time.Duration { return b.rt.opt.timeout }

// Send implements bridge.Communicator.
func (b *bridged) Send(ctx context.Context, to, tag int, buf []byte) error {
	if b.group.TrySend(to, tag, bytesFingerprint, buf) {
		return nil
	}
	_, err := b.ISend(to, tag, buf).Wait(ctx)
	return err
}

// ISend implements bridge.Communicator.
func (b *bridged) ISend(to, tag int, buf []byte) bridge.InFlight {
	return inFlight{(*Comm)(b), "send", b.group.Isend(to, tag, bytesFingerprint, buf)}
}

// Recv implements bridge.Communicator.
func (b *bridged) Recv(ctx context.Context, from, tag int, buf []byte) (int, error) {
	st, err := b.group.Recv(ctx, nil, from, tag, bytesFingerprint, buf)
	if err != nil {
		return 0, (*Comm)(b).messageError("recv", err)
	}
	return st.Bytes, nil
}

// IRecv implements bridge.Communicator.
func (b *bridged) IRecv(from, tag int, buf []byte) bridge.InFlight {
	return inFlight{(*Comm)(b), "recv", b.group.Irecv(from, tag, bytesFingerprint, buf)}
}

// bytesFingerprint is the fingerprint of messages whose elements are bytes.
var bytesFingerprint = typeFingerprint[uint8]()

// An inFlight is a p2p.MessageRequest that implements bridge.InFlight.
type inFlight struct {
	c        *Comm
	callName string
	request  *p2p.MessageRequest
}

// Wait implements bridge.InFlight.
func (t inFlight) Wait(ctx context.Context) (int, error) {
	st, err := t.request.Wait(ctx, nil)
	if err != nil {
		return 0, t.c.messageError(t.callName, err)
	}
	return st.Bytes, nil
}

// A poller is a p2p.LinkPoller that implements bridge.Poller. The wrapper is needed because each of
// the two packages has its own interface type for the condition of Poll.
type poller struct{ *p2p.LinkPoller }

// Poll implements bridge.Poller.
func (p poller) Poll(ctx context.Context, cond bridge.PollCondition) bool {
	return p.LinkPoller.Poll(ctx, cond)
}

// bindVectors refuses an invalid element type, vectors that are misaligned or hold a fraction of an
// element, and algorithms that cannot reduce a list of vectors.
func (pl *plan) bindVectors(c *Comm) error {
	name := pl.verb.String()
	if !pl.dtype.Valid() {
		return c.misuse(name, "element type: got %v, want a valid one", pl.dtype)
	}
	es := pl.dtype.Size()
	for i, v := range pl.vectors {
		if len(v)%es != 0 || !tensor.AlignedFor(pl.dtype, v) {
			return c.misuse(name, "vector %d: got %d bytes at %p, want whole elements of %v, aligned for it", i, len(v), v, pl.dtype)
		}
	}
	a, err := collective.Find(pl.verb, pl.forced)
	if err == nil && !a.SupportsLists() {
		err = fault.New(fault.Misuse, name, c.rt.rank, "algorithm for a list of vectors: got %s, want ring or shared", pl.forced)
	}
	if err != nil {
		return c.withOp(name, err)
	}
	if pl.vectors == nil {
		pl.vectors = [][]byte{}
	}
	return nil
}
