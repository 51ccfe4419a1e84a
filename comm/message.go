package comm

import (
	"context"
	"errors"
	"fmt"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/p2p"
	"github.com/tutti-go/tutti/tensor"
)

// Element constrains the element types of buffers: integers, floating-point numbers, complex
// numbers, bool, named types over these, and Float16, BFloat16 and Loc of package tensor. Ranks
// whose element types differ get fault.Mismatch, even if the types have the same size.
type Element = tensor.Element

// Wildcards of Recv, IRecv and Probe.
const (
	AnySource = p2p.AnySource
	AnyTag    = p2p.AnyTag
)

// MaxTag is the largest tag of a message (MPI_TAG_UB); the smallest is 0.
const MaxTag = p2p.MaxTag

// A Status describes the message of a receive or a probe (MPI_Status).
type Status struct {
	Source int // the sender's rank in the communicator
	Tag    int
	Bytes  int // the size in bytes; Count returns it in elements
}

// Count returns the message's size in elements of type T.
func Count[T Element](s Status) int { return s.Bytes / tensor.TypeOf[T]().Size() }

// typeFingerprint returns the fingerprint of a message with elements of type T.
func typeFingerprint[T Element]() uint64 { return fingerprintOf(tensor.TypeOf[T]()) }

// fingerprintOf returns the fingerprint of a message with the given element type. Bit 32 is always
// set, because a fingerprint of 0 means "not checked".
func fingerprintOf(d tensor.DType) uint64 { return 1<<32 | uint64(d) }

// beginMessage lists a message call, so that errors of other ranks can name it. endMessage removes
// it from the list. A call that does not wait uses calls.recordInline instead, which costs less.
func (c *Comm) beginMessage(ctx context.Context, sig signature) *call {
	cl := newCall(c)
	cl.signature = sig
	cl.site.Capture()
	_, cl.hasLimit = ctx.Deadline()
	c.rt.calls.beginMessage(cl)
	return cl
}

// endMessage ends a message call, and converts its error into the error that the caller gets.
func (c *Comm) endMessage(cl *call, err error) error {
	if err != nil {
		err = typeError(err, cl)
		// messageFailed runs before the call is removed from the list, because other ranks may be
		// about to ask for the call.
		err = c.messageFailed(cl, err)
	}
	c.rt.calls.endMessage(cl)
	cl.free()
	return err
}

// typeError adds the element types of a message and its receive to a fingerprint error, with the
// file and line of the receive. The lower layers know only fingerprints.
func typeError(err error, cl *call) error {
	var p *p2p.FingerprintError
	var f *fault.Error
	if !errors.As(err, &p) || !errors.As(err, &f) {
		return err
	}
	out := *f
	out.Err = fmt.Errorf("element type of the message from rank %d with tag %d: got %v, want that of the receive at %v, %v",
		p.Source, p.Tag, typeOfFingerprint(p.Sent), cl.site, typeOfFingerprint(p.Wanted))
	return &out
}

// typeOfFingerprint returns the name of a fingerprint's element type. A peer may send any
// fingerprint, so the type may be unknown.
func typeOfFingerprint(fingerprint uint64) string {
	if d := tensor.DType(fingerprint); fingerprint>>32 == 1 && uint64(d) == fingerprint&(1<<32-1) && d.Valid() {
		return d.String()
	}
	return "an unknown type"
}

// sourceRank returns the source of a receive in the form that a signature holds: the rank in the
// job, or anyPeer for AnySource. AnySource itself is not used, because a signature with peer -1 has
// no peer.
func (c *Comm) sourceRank(from int) int {
	if from == AnySource {
		return anyPeer
	}
	return c.jobRank(from)
}

// Send sends buf to another rank (MPI_Send, in MPI's standard mode). It returns when the caller may
// reuse buf. Send returns at once if the receiver's credit or this rank's send buffer has room for
// the bytes. Otherwise Send waits until a receive has matched the message. Messages between two
// ranks with the same tag arrive in the order sent.
//
// If ranks send to each other, or around a ring, before they receive, they deadlock as soon as the
// messages exceed these buffers. Use SendRecv or IRecv instead. The stall warning and the error of
// the Timeout name the cycle of ranks. If the other rank closes without receiving the message, Send
// gets fault.Closed. If Send has returned by then, Close gets that error.
func Send[T Element](ctx context.Context, c *Comm, to, tag int, buf []T) error {
	if ctx == nil {
		return checkContext("send", ctx)
	}
	sig := signature{callName: "send", dtype: tensor.TypeOf[T](), count: len(buf), root: -1, peer: c.jobRank(to), tag: tag}
	if c.group.TrySend(to, tag, fingerprintOf(sig.dtype), tensor.Bytes(buf)) {
		c.rt.calls.recordInline(c, &sig)
		return nil
	}
	cl := c.beginMessage(ctx, sig)
	return c.endMessage(cl, c.group.Send(ctx, cl, to, tag, fingerprintOf(sig.dtype), tensor.Bytes(buf)))
}

// Recv receives a message into buf (MPI_Recv). The parameters from and tag select the message, and
// may be AnySource and AnyTag. buf may be larger than the message. A message that does not fit, or
// has another element type, is consumed and is an error. With wildcards, messages match in the
// order in which they arrive. If ctx ends before Recv has matched a message, Recv has no effect.
// After a match, Recv completes despite the cancellation.
func Recv[T Element](ctx context.Context, c *Comm, from, tag int, buf []T) (Status, error) {
	if ctx == nil {
		return Status{}, checkContext("recv", ctx)
	}
	sig := signature{callName: "recv", dtype: tensor.TypeOf[T](), count: len(buf), root: -1, peer: c.sourceRank(from), tag: tag}
	c.rt.calls.recordInline(c, &sig)
	if st, ok := c.group.TryRecv(from, tag, fingerprintOf(sig.dtype), tensor.Bytes(buf)); ok {
		return Status(st), nil
	}
	cl := c.beginMessage(ctx, sig)
	st, err := c.group.Recv(ctx, cl, from, tag, fingerprintOf(sig.dtype), tensor.Bytes(buf))
	return Status(st), c.endMessage(cl, err)
}

// Probe waits until a message arrives that Recv with the same arguments would receive, and returns
// its status (MPI_Probe). The message stays in the queue, and another goroutine may receive it.
func (c *Comm) Probe(ctx context.Context, from, tag int) (Status, error) {
	if err := checkContext("probe", ctx); err != nil {
		return Status{}, err
	}
	cl := c.beginMessage(ctx, signature{callName: "probe", count: -1, root: -1, peer: c.sourceRank(from), tag: tag})
	st, err := c.group.Probe(ctx, cl, from, tag)
	return Status(st), c.endMessage(cl, err)
}

// IProbe is the non-blocking Probe (MPI_Iprobe). If no such message has arrived, ok is false.
func (c *Comm) IProbe(from, tag int) (st Status, ok bool, err error) {
	s, ok, err := c.group.TryProbe(from, tag)
	if err != nil {
		err = c.messageError("probe", err)
	}
	return Status(s), ok, err
}

// MProbe waits until a message arrives that Recv with the same arguments would receive, and
// reserves it (MPI_Mprobe). No other receive or probe sees the message any more, so several
// goroutines may probe and receive concurrently. The returned function recv receives the message,
// once, into a buffer that is large enough (MPI_Mrecv). Until then the message occupies its part of
// the sender's credit.
//
//	st, recv, err := comm.MProbe[float32](ctx, c, comm.AnySource, tag)
//	...
//	buf := make([]float32, comm.Count[float32](st))
//	err = recv(ctx, buf)
//
// If the message does not fit, or has another element type, recv fails as Recv does, and the
// message is consumed. If the sender's context ended before the bytes were sent, recv gives
// fault.Canceled. A second call of recv is fault.Misuse. Only one goroutine may call recv.
func MProbe[T Element](ctx context.Context, c *Comm, from, tag int) (st Status, recv func(ctx context.Context, buf []T) error, err error) {
	if err := checkContext("mprobe", ctx); err != nil {
		return Status{}, nil, err
	}
	cl := c.beginMessage(ctx, signature{callName: "mprobe", count: -1, root: -1, peer: c.sourceRank(from), tag: tag})
	found, reservation, err := c.group.MatchedProbe(ctx, cl, from, tag)
	if err = c.endMessage(cl, err); err != nil {
		return Status{}, nil, err
	}
	return Status(found), recvReserved[T](c, Status(found), reservation), nil
}

// IMProbe is the non-blocking MProbe (MPI_Improbe). If no such message has arrived, recv is nil.
func IMProbe[T Element](c *Comm, from, tag int) (st Status, recv func(ctx context.Context, buf []T) error, err error) {
	found, reservation, ok, err := c.group.TryMatchedProbe(from, tag)
	switch {
	case err != nil:
		return Status{}, nil, c.messageError("mprobe", err)
	case !ok:
		return Status{}, nil, nil
	}
	return Status(found), recvReserved[T](c, Status(found), reservation), nil
}

// recvReserved returns the function that receives a reserved message.
func recvReserved[T Element](c *Comm, st Status, reservation p2p.Reservation) func(ctx context.Context, buf []T) error {
	received := false
	return func(ctx context.Context, buf []T) error {
		if err := checkContext("mrecv", ctx); err != nil {
			return err
		}
		if received {
			return c.misuse("mrecv", "reserved message: got a second receive, want one; probe for the next message")
		}
		received = true
		cl := c.beginMessage(ctx, signature{callName: "mrecv", dtype: tensor.TypeOf[T](), count: len(buf), root: -1, peer: c.sourceRank(st.Source), tag: st.Tag})
		return c.endMessage(cl, c.group.RecvReserved(ctx, cl, reservation, typeFingerprint[T](), tensor.Bytes(buf)))
	}
}

// SendRecv sends one buffer to a rank and, at the same time, receives another buffer from a rank
// (MPI_Sendrecv). It never deadlocks, whatever the sizes, even if all ranks call it in a ring.
// Buffers that overlap are fault.Misuse.
func SendRecv[T Element](ctx context.Context, c *Comm, to, tag int, send []T, from, fromTag int, recv []T) (Status, error) {
	if err := checkContext("sendrecv", ctx); err != nil {
		return Status{}, err
	}
	if out, in := tensor.Bytes(send), tensor.Bytes(recv); tensor.Overlap(out, in) {
		return Status{}, c.overlap("sendrecv", tensor.TypeOf[T](), "send", out, "recv", in, "receive into memory of its own")
	}
	cl := c.beginMessage(ctx, signature{callName: "exchange", dtype: tensor.TypeOf[T](), count: len(send), root: -1, peer: c.sourceRank(from), tag: fromTag})
	st, err := c.group.Exchange(ctx, cl, to, tag, tensor.Bytes(send), from, fromTag, tensor.Bytes(recv), typeFingerprint[T]())
	return Status(st), c.endMessage(cl, err)
}
