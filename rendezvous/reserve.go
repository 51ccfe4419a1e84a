package rendezvous

import (
	"context"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/mesh"
)

// A matched probe (MPI_Mprobe) reserves the message that it finds. From then on only RecvReserved
// can receive the message, and no other receive or probe sees it. The message stays in the table,
// under a separate key. So it ends like any other message that waits there: when its sender is
// lost, when its sender withdraws it, or when its context ends. The message keeps its credit until
// it is received or ends.

// A Reservation stands for the message that a matched probe has found. It can be passed to
// RecvReserved once.
type Reservation struct{ key key }

// reservedTag is the tag of every reserved message. The step of the message's key is the number of
// the reservation.
const reservedTag = -4

// reserve hides a message that waits in the table from receives and probes. e.mu is held.
func (mc *MatchContext) reserve(m *message) Reservation {
	mc.reservations++
	mc.table.removeMessage(m)
	m.key = key{source: m.key.source, tag: reservedTag, step: mc.reservations}
	mc.table.addMessage(m)
	return Reservation{m.key}
}

// MatchedProbe is like Probe, and reserves the message.
func (mc *MatchContext) MatchedProbe(ctx context.Context, p mesh.WaitPolicy, from int, tag int32) (RecvInfo, Reservation, error) {
	pr := &probe{mc: mc, key: key{source: int32(from), tag: tag}, reserves: true}
	info, err := pr.wait(ctx, p)
	return info, pr.reservation, err
}

// TryMatchedProbe is like TryProbe, and reserves the message.
func (mc *MatchContext) TryMatchedProbe(from int, tag int32) (info RecvInfo, c Reservation, ok bool, err error) {
	pr := &probe{mc: mc, key: key{source: int32(from), tag: tag}, reserves: true}
	info, ok, err = pr.try()
	return info, pr.reservation, ok, err
}

// RecvReserved receives a reserved message into buf. It is like Recv, but fails if the message does
// not wait any more, because its sender has withdrawn it or it was received before.
func (mc *MatchContext) RecvReserved(ctx context.Context, p mesh.WaitPolicy, c Reservation, fingerprint uint64, buf []byte) error {
	e := mc.e
	e.mu.Lock()
	req := e.getRequest()
	req.mc, req.buf, req.fullBuf, req.fingerprint, req.key = mc, buf, buf, fingerprint, c.key
	e.post(req)
	e.unlock()
	err := e.wait(ctx, req, p)
	req.Free()
	return err
}

// reservedGone returns the error of a receive whose reserved message does not wait any more.
func (e *Engine) reservedGone(k key) error {
	return &fault.Error{Kind: fault.Canceled, Op: "recv", Rank: e.cfg.Rank, Peers: []fault.Peer{{Rank: int(k.source)}},
		Err: fault.New(fault.Canceled, "send", int(k.source), "the context of the send ended before the message was received, and the message was withdrawn")}
}
