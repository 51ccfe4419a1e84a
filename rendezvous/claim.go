package rendezvous

import (
	"context"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/mesh"
)

// A matched probe (MPI_Mprobe) claims the message that it finds: from then on only RecvClaimed of
// that claim receives the message, and no other receive or probe sees it. The message stays in the
// table, under a key of its own, so it ends as any other message that waits there: when its sender
// is lost, when its sender withdraws it, or when its context ends. It keeps its credit until then.

// A Claim is a message that a matched probe has found. It is for one RecvClaimed.
type Claim struct{ key key }

// claimedTag is the tag of every claimed message. The step of its key is the number of the claim.
const claimedTag = -4

// claim takes a message that waits in the table away from receives and probes. e.mu is held.
func (mc *MatchContext) claim(m *message) Claim {
	mc.claims++
	mc.table.removeMessage(m)
	m.key = key{source: m.key.source, tag: claimedTag, step: mc.claims}
	mc.table.addMessage(m)
	return Claim{m.key}
}

// MatchedProbe is like Probe, and claims the message.
func (mc *MatchContext) MatchedProbe(ctx context.Context, p mesh.WaitPolicy, from int, tag int32) (RecvInfo, Claim, error) {
	pr := &probe{mc: mc, key: key{source: int32(from), tag: tag}, claims: true}
	info, err := pr.wait(ctx, p)
	return info, pr.claim, err
}

// TryMatchedProbe is like TryProbe, and claims the message.
func (mc *MatchContext) TryMatchedProbe(from int, tag int32) (info RecvInfo, c Claim, ok bool, err error) {
	pr := &probe{mc: mc, key: key{source: int32(from), tag: tag}, claims: true}
	info, ok, err = pr.try()
	return info, pr.claim, ok, err
}

// RecvClaimed receives a claimed message into buf. It is like Recv, but fails if the message does
// not wait any more: because its sender has withdrawn it, or because it was received before.
func (mc *MatchContext) RecvClaimed(ctx context.Context, p mesh.WaitPolicy, c Claim, fingerprint uint64, buf []byte) error {
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

// claimedGone is the error of a receive whose claimed message does not wait any more.
func (e *Engine) claimedGone(k key) error {
	return &fault.Error{Kind: fault.Canceled, Op: "recv", Rank: e.cfg.Rank, Peers: []fault.Peer{{Rank: int(k.source)}},
		Err: fault.New(fault.Canceled, "send", int(k.source), "the context of the send ended before the message was received, and the message was withdrawn")}
}
