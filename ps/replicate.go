package ps

import (
	"errors"
	"fmt"
	"math"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/ps/internal/message"
	"github.com/tutti-go/tutti/ps/internal/part"
)

// A peer is the link to another server in one epoch. Primaries send Replicates on it, and replicas
// send Replicateds. The last message is a Close.
//
// Primaries forward only what clients have sent without an acknowledgement. So the clients' credit
// bounds the queue of a peer, and what a replica holds, too.
type peer struct {
	s      *Server
	rank   int
	epoch  uint64
	out    *outlet
	closed bool // the other server has no client; guarded by s.mu
}

// start starts the goroutines.
func (x *peer) start(e *epoch) {
	lost := func(err error) {
		if err != nil {
			x.s.breaks(e, x.rank, err)
		}
	}
	x.s.sending.Add(1)
	e.send(x.out, func(err error) {
		x.s.sending.Done()
		lost(err)
	})
	e.tasks.Go(func() {
		in := inlet[*job]{comm: e.wires, from: e.ranks[x.rank], headTag: tagPeer, bodyTag: tagPeerBody, head: x.head, done: x.done}
		lost(in.run(e.ctx))
	})
}

// send queues a message. sent is called when the body may be used again.
func (x *peer) send(q *message.Request, body []byte, priority int, sent func(error)) {
	q.Size = len(body)
	m := &outgoing{priority: priority, body: body, sent: sent}
	m.headSize = len(q.Append(m.head[:0]))
	x.s.sent.Add(uint64(len(body)))
	x.out.add(m)
}

// head handles the head of a message.
func (x *peer) head(msg []byte) (*job, []byte, error) {
	q, inline, ok := message.ParseRequest(msg)
	if !ok {
		return nil, nil, x.s.protocolError(x.rank, errors.New("message: got one that cannot be read; run the same version of the program on all ranks"))
	}
	j := &job{peer: x, rank: int(q.Origin), epoch: x.epoch, q: q, replied: true}
	if q.Kind == message.Close {
		return j, nil, nil
	}
	x.s.mu.Lock()
	j.part = x.s.parts[partKey{q.Tensor, q.Part}]
	x.s.mu.Unlock()
	if wrong := x.wrong(j); wrong != "" {
		return nil, nil, x.s.protocolError(x.rank, fmt.Errorf("message about part %d of tensor %d: %s", q.Part, q.Tensor, wrong))
	}
	j.client = x.s.n.members[j.rank].id
	j.priority = j.part.priority
	x.s.received.Add(uint64(q.Size))
	if q.Size > 0 {
		j.buffer = x.s.n.pool.get(q.Size)
		j.body = j.buffer.Bytes()
	}
	if q.Size > message.Inline {
		return j, j.body, nil
	}
	copy(j.body, inline)
	return j, nil, nil
}

// wrong returns what is wrong with a message, or "".
func (x *peer) wrong(j *job) string {
	q := &j.q
	switch {
	case j.part == nil:
		return "this server has no such part"
	case j.rank >= len(x.s.n.members):
		return fmt.Sprintf("got an entry of rank %d of %d", j.rank, len(x.s.n.members))
	case q.Kind == message.Replicated && q.Size <= message.Inline:
		return ""
	case q.Kind != message.Replicate:
		return fmt.Sprintf("got kind %d with %d bytes, want an entry of the log", q.Kind, q.Size)
	}
	if want := j.part.entrySize(q); q.Size != want {
		return fmt.Sprintf("got an entry of %d bytes, want %d", q.Size, want)
	}
	return ""
}

// entrySize returns the size of the body of a Replicate.
func (p *shard) entrySize(q *message.Request) int {
	switch {
	case entryKind(q) == part.Close:
		return 0
	case p.table == nil && q.Entry&message.WholeState != 0:
		return p.dense.StateSize()
	case p.table == nil:
		return p.count * p.spec.DType.Size()
	case q.Rows > maxRows(&p.spec):
		return 0
	}
	return q.Rows * (indexSize + p.spec.Size*p.spec.DType.Size())
}

// done hands a complete message on.
func (x *peer) done(j *job, err error) bool {
	switch {
	case err != nil:
		j.release()
		return false
	case j.q.Kind == message.Close:
		x.s.mu.Lock()
		defer x.s.mu.Unlock()
		x.closed = true
		x.s.checkIdle()
		return false
	}
	j.part.engine.add(j)
	return true
}

// forward sends an entry of the log to a replica. The body is that of the client's request.
func (p *shard) forward(j *job, o *part.Output) {
	x := p.s.peer(o.Server)
	if x == nil {
		return // the epoch has ended
	}
	sent := func(error) {}
	if b := j.buffer; b != nil {
		b.Retain()
		sent = func(error) { b.Release() }
	}
	q := message.Request{Kind: message.Replicate, DType: p.spec.DType, Entry: uint8(o.Entry), Origin: uint32(j.rank), ID: o.Index,
		Tensor: p.key.tensor, Part: p.key.part, Seq: o.Seq, Rows: j.q.Rows}
	if j.q.Kind == message.SetState {
		q.Entry |= message.WholeState
	}
	x.send(&q, j.body, p.priority, sent)
}

// entryKind returns the kind of the entry in a Replicate.
func entryKind(q *message.Request) part.InputKind {
	return part.InputKind(q.Entry &^ message.WholeState)
}

// peer returns the link to another server in the present epoch, or nil.
func (s *Server) peer(rank int) *peer {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.peers[rank]
}

// replicate applies an entry of the primary's log.
func (p *shard) replicate(j *job) {
	p.carryOut(p.machine.Step(part.Input{Kind: part.Replicate, Entry: entryKind(&j.q), Epoch: j.epoch, Index: j.q.ID,
		Client: j.client, Seq: j.q.Seq, Request: j.name}))
	if entryKind(&j.q) == part.Close {
		p.bodyUsed(j)
	}
}

// replicated tells the primary that the log is applied up to an index, and whether that has failed: for
// example because the memory of this server is used up.
func (p *shard) replicated(o *part.Output) {
	x := p.s.peer(p.servers[0])
	if x == nil {
		return
	}
	q := message.Request{Kind: message.Replicated, Tensor: p.key.tensor, Part: p.key.part, ID: o.Index}
	var body []byte
	if p.failure != nil {
		body = wireError(p.failure)
		body = body[:min(len(body), message.Inline)]
		if p.spec.Mode != part.Synchronous {
			p.failure = nil
		}
	}
	x.send(&q, body, highest, func(error) {})
}

// replicaDone notes what a replica has applied.
func (p *shard) replicaDone(j *job) {
	if len(j.body) > 0 {
		var err error
		e, bad := fault.ParseWire(j.body)
		if err = e; bad != nil {
			err = p.s.errorf(fault.Exhausted, "a replica of %s cannot apply an entry", p.name())
		}
		p.replicaFailure = err
	}
	j.release()
	p.carryOut(p.machine.Step(part.Input{Kind: part.ReplicaDone, Epoch: j.epoch, Server: j.peer.rank, Index: j.q.ID}))
}

// closeGone tells the machine of a primary that clients have closed. It may do so repeatedly.
func (p *shard) closeGone() {
	if p.servers[0] != p.s.n.c.Rank() {
		return
	}
	for rank, id := range p.s.closedClients() {
		p.next += 2
		j := &job{part: p, client: id, rank: rank, epoch: p.s.n.present().number, name: p.next, replied: true}
		j.q = message.Request{Kind: message.Close, Seq: math.MaxUint64}
		p.jobs[j.name] = j
		p.step(part.Close, j, j.name)
	}
}

// closedClients returns the clients that have closed in any epoch: their ids by rank.
func (s *Server) closedClients() map[int]uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	closed := make(map[int]uint64)
	for r, c := range s.clients {
		if c.gone && c.lost == nil {
			closed[r] = c.id
		}
	}
	return closed
}
