package ps

import (
	"fmt"
	"sync/atomic"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/ps/internal/message"
	"github.com/tutti-go/tutti/ps/internal/part"
	"github.com/tutti-go/tutti/ps/internal/storage"
	"github.com/tutti-go/tutti/ps/optimizer"
	"github.com/tutti-go/tutti/reduce"
	"github.com/tutti-go/tutti/tensor"
)

// A shard is a part of a tensor on this server. The part.Machine decides, and the shard carries out.
// Its engine owns it.
type shard struct {
	s        *Server
	key      partKey
	spec     message.Spec
	count    int // elements of a dense part
	engine   *engine
	priority int
	kernel   reduce.Kernel

	// For Stats.
	keys, bytes   atomic.Int64
	pushes, pulls atomic.Uint64
	waiting       atomic.Int64
	lag           atomic.Uint64

	machine  *part.Machine
	restored part.State     // until the part is installed: what goes with the values from a snapshot
	servers  []int          // that have a copy, as ranks; the first one is the primary
	newborn  bool           // a replicated part that has had no request: see request
	dense    *storage.Dense // nil for a table
	table    *storage.Table

	// jobs holds the requests that the machine has, and those whose body is still in use. A request
	// has two names in the machine: that of its push, which is even, is the key, and that of its pull
	// is one more.
	jobs map[uint64]*job
	next uint64

	// folded lists the jobs whose bodies make the next version: for a dense tensor one job, whose
	// body is the accumulator.
	folded []*job
	// acknowledged lists the PushPulls whose pushes have been applied in this run.
	acknowledged []*job
	// sealed lists the names of requests that the machine has returned at the end of an epoch.
	sealed []uint64
	// failure is the error of the last Complete or Assign. In a synchronous tensor the first one stays
	// until a Restore, because a version is missing.
	failure error
	// replicaFailure is the error of an entry that a replica could not apply. The next push that is
	// acknowledged gets it.
	replicaFailure error
	// ownLoss is the error that ended this rank's own client. The part refuses its later requests.
	ownLoss error
}

// newShard makes a part. s.mu is held.
func (s *Server) newShard(spec *message.Spec, key partKey, mp message.PartSpec) (*shard, error) {
	p, err := s.newCopy(spec, key, mp)
	if err != nil {
		return nil, err
	}
	p.newborn = s.n.replicated()
	p.begin(s.membersLocked())
	return p, nil
}

// newCopy makes a part whose machine is sealed.
func (s *Server) newCopy(spec *message.Spec, key partKey, mp message.PartSpec) (*shard, error) {
	p := &shard{s: s, key: key, spec: *spec, count: mp.Count, servers: mp.Servers, priority: spec.Priority, jobs: make(map[uint64]*job)}
	p.engine = s.engines[int(key.tensor+key.part)%len(s.engines)]
	op := comm.Sum
	if spec.Mean {
		op = comm.Mean
	}
	st := storage.Spec{Name: spec.Name, DType: spec.DType, Budget: s.budget}
	var err error
	if p.kernel, err = op.Kernel(spec.DType); err != nil {
		return nil, err
	}
	if st.Initial, err = storage.ParseInitializer(spec.Initial); err != nil {
		return nil, err
	}
	if spec.Optimizer != "" {
		if st.Optimizer, err = optimizer.Parse(spec.Optimizer, s.n.opts.optimizers...); err != nil {
			return nil, err
		}
	}
	if spec.Table {
		p.table, err = storage.NewTable(st, spec.Size)
	} else {
		p.dense, err = storage.NewDense(st, int64(mp.First), mp.Count)
	}
	if err != nil {
		return nil, err
	}
	p.count64()
	p.machine = part.New(p.config(), part.State{})
	return p, nil
}

func (p *shard) config() part.Config {
	return part.Config{Mode: p.spec.Mode, Staleness: uint64(p.spec.Staleness), Policy: part.LossPolicy(p.s.n.opts.lost)}
}

// free gives the memory of a part back that is not used, or no longer.
func (p *shard) free() {
	if p.table != nil {
		p.table.Free()
	} else {
		p.dense.Free()
	}
}

// count64 updates keys and bytes, which Stats reads.
func (p *shard) count64() {
	if p.table != nil {
		p.bytes.Store(p.table.Bytes())
		p.keys.Store(p.table.Rows())
	} else {
		p.bytes.Store(p.dense.Bytes())
		p.keys.Store(int64(p.count))
	}
}

func (p *shard) name() string { return fmt.Sprintf("part %d of %s", p.key.part, p.spec.Name) }

// check returns what is wrong with a request for the part, or "".
func (p *shard) check(q *message.Request, size int) string {
	if q.Kind == message.Save && size == 0 {
		return ""
	}
	if q.Kind == message.SetState || q.Kind == message.PullState {
		return p.checkState(q, size)
	}
	elements := p.spec.DType
	if p.spec.Wire != tensor.Invalid && q.Kind != message.Set {
		elements = p.spec.Wire
	}
	switch want := bodySize(&p.spec, q, p.count); {
	case p.spec.Table && q.Rows > maxRows(&p.spec):
		return fmt.Sprintf("got %d rows, want at most %d", q.Rows, maxRows(&p.spec))
	case q.DType != elements:
		return fmt.Sprintf("got elements of %v, want %v", q.DType, elements)
	case p.spec.Table && q.Kind != message.Push && q.Kind != message.Pull:
		return fmt.Sprintf("got kind %d, want a push or a pull of a table", q.Kind)
	case size != want:
		return fmt.Sprintf("got %d bytes, want %d", size, want)
	}
	return ""
}

// run carries out one job.
func (p *shard) run(j *job) {
	switch {
	case j.members && p.s.n.replicated():
		if !p.newborn {
			p.closeGone()
		}
	case j.members:
		p.changeMembers()
	case j.do != nil:
		j.do(p)
		j.done.Done()
	case j.q.Kind == message.Replicated && j.peer != nil:
		p.replicaDone(j)
	case j.install != nil:
		p.restore(j.install, j.loaded)
	case j.call != nil && p.ownLoss != nil:
		j.finish(nil, p.ownLoss)
	default:
		j.times.mark(dequeued)
		if j.call != nil {
			j.call.makeBody()
			j.body = j.call.body
		}
		p.next += 2
		j.name = p.next
		p.jobs[j.name] = j
		if j.peer != nil {
			p.replicate(j)
			return
		}
		if err := p.expand(j); err != nil {
			p.bodyUsed(j)
			p.finish(j, 0, nil, nil, err)
			return
		}
		p.request(j)
		if !j.replied {
			j.times.mark(worked)
		}
	}
	for _, j := range p.acknowledged {
		if !j.replied {
			j.acknowledge()
		}
	}
	clear(p.acknowledged)
	p.acknowledged = p.acknowledged[:0]
	p.waiting.Store(int64(p.machine.Waiting()))
	p.lag.Store(p.machine.Lag())
}

// request gives a request to the machine: a PushPull as a push and a pull.
//
// Clients push to a new replicated part when all of its copies exist. So only then the primary can let
// the log say which clients have closed before.
func (p *shard) request(j *job) {
	if p.newborn {
		p.newborn = false
		p.closeGone()
	}
	if err := p.failure; err != nil && p.spec.Mode == part.Synchronous {
		p.bodyUsed(j)
		p.finish(j, 0, nil, nil, err)
		return
	}
	switch j.q.Kind {
	case message.Push:
		p.pushes.Add(1)
		p.step(part.Push, j, j.name)
	case message.Set, message.SetState:
		p.step(part.Set, j, j.name)
	case message.PullState:
		p.step(part.Pull, j, j.name+1)
	case message.Pull:
		p.pulls.Add(1)
		p.step(part.Pull, j, j.name+1)
	case message.Save:
		p.step(part.Save, j, j.name+1)
	case message.PushPull:
		p.pushes.Add(1)
		p.pulls.Add(1)
		p.step(part.Push, j, j.name)
		if !j.replied {
			p.step(part.Pull, j, j.name+1)
		}
	}
}

func (p *shard) step(kind part.InputKind, j *job, name uint64) {
	in := part.Input{Kind: kind, Epoch: j.epoch, Client: j.client, Request: name}
	if kind != part.Pull && kind != part.Save {
		in.Seq = j.q.Seq
	}
	p.carryOut(p.machine.Step(in))
}

// changeMembers begins an epoch of the machine, because a client has closed or is lost. The requests
// that the machine has go into the new epoch.
func (p *shard) changeMembers() {
	p.carryOut(p.machine.Seal())
	if p.ownLoss == nil {
		p.ownLoss = p.s.ownLoss()
	}
	if p.ownLoss != nil {
		p.refuseOwn(p.ownLoss)
	}
	p.begin(p.s.beginMembers())
	p.resume()
}

// refuseOwn ends the requests of this rank's own client that the machine has returned. The wire
// reports the end of the server to remote clients, but not to this one.
func (p *shard) refuseOwn(err error) {
	for _, name := range p.sealed {
		j := p.jobs[name&^1]
		if j == nil || j.call == nil || j.replied {
			continue
		}
		if name&1 == 0 {
			p.bodyUsed(j)
		}
		p.finish(j, 0, nil, nil, err)
	}
}

// resume gives the requests that the machine has returned to it again.
func (p *shard) resume() {
	sealed := p.sealed
	p.sealed = nil
	for _, name := range sealed {
		j := p.jobs[name&^1]
		switch {
		case j == nil || j.replied:
		case j.q.Kind == message.Save:
			p.step(part.Save, j, name)
		case name&1 != 0:
			p.step(part.Pull, j, name)
		case j.q.Kind == message.Set || j.q.Kind == message.SetState:
			p.step(part.Set, j, name)
		default:
			p.step(part.Push, j, name)
		}
	}
}

// begin begins an epoch of the machine.
func (p *shard) begin(m part.Members) {
	m.Epoch, m.Primary, m.Replicas = p.s.n.present().number, p.servers[0] == p.s.n.c.Rank(), p.servers[1:]
	p.carryOut(p.machine.Begin(m))
}

// seal ends the epoch of the machine. The clients send what has not been answered again, so only the
// pushes of a version that is not complete stay.
func (p *shard) seal() {
	p.carryOut(p.machine.Seal())
	p.sealed, p.acknowledged = nil, nil
	kept := make(map[*job]bool)
	for _, j := range p.folded {
		kept[j] = true
	}
	for _, c := range p.machine.State().Clients {
		if c.Share == part.Held {
			kept[p.jobs[c.Request]] = true
		}
	}
	for name, j := range p.jobs {
		j.replied = true
		if kept[j] {
			j.own()
		} else {
			j.release()
			delete(p.jobs, name)
		}
	}
}

// carryOut carries out the outputs of the machine.
func (p *shard) carryOut(outputs []part.Output) {
	for _, o := range outputs {
		j := p.jobs[o.Request&^1]
		switch o.Kind {
		case part.Fold:
			p.fold(j, o.First)
		case part.Complete:
			p.complete(o.Contributions)
		case part.Assign:
			p.failed(p.assign(j))
			p.bodyUsed(j)
		case part.Forward:
			p.forward(j, &o)
		case part.ReplicaAcknowledge:
			p.replicated(&o)
		case part.Acknowledge:
			if o.Repeated || j.q.Kind == message.Close {
				p.bodyUsed(j)
			}
			p.applied(j)
		case part.Answer:
			p.answer(j, &o)
		case part.Refuse:
			p.refuse(j, &o)
		}
	}
}

// fold adds the body of a push to those of its version.
func (p *shard) fold(j *job, first bool) {
	if first {
		p.folded = p.folded[:0]
	}
	if first || p.table != nil {
		p.folded = append(p.folded, j)
		return
	}
	// The accumulator is a body that the server owns: that of the earlier pushes, or that of this one.
	earlier := p.folded[0]
	if earlier.buffer == nil && j.buffer == nil {
		earlier.own()
	}
	if earlier.buffer != nil {
		p.kernel.Fold(earlier.body, earlier.body, j.body)
		p.bodyUsed(j)
		return
	}
	p.kernel.Fold(j.body, earlier.body, j.body)
	p.folded[0] = j
	p.bodyUsed(earlier)
}

// complete makes a version of the bodies that were folded.
func (p *shard) complete(contributions int) {
	if p.table != nil {
		p.failed(p.completeTable(contributions))
	} else {
		p.failed(p.completeDense(contributions))
	}
	for _, j := range p.folded {
		p.bodyUsed(j)
	}
	clear(p.folded)
	p.folded = p.folded[:0]
	p.count64()
}

// failed notes the result of a change of the values, which is nil without an error. A synchronous part
// keeps its first error, because later versions lack the one that is lost.
func (p *shard) failed(err error) {
	if p.failure == nil || p.spec.Mode != part.Synchronous {
		p.failure = err
	}
}

func (p *shard) completeDense(contributions int) error {
	sum := p.folded[0]
	if p.spec.Mean && contributions > 1 {
		sum.own()
		p.kernel.Finish(sum.body, contributions)
	}
	switch {
	case p.spec.Optimizer != "":
		return p.dense.Update(sum.body)
	case p.spec.Mode != part.Synchronous:
		return p.dense.Add(sum.body)
	}
	sum.own()
	if err := p.dense.Replace(sum.buffer); err != nil {
		return err
	}
	sum.buffer, sum.body = nil, nil
	return nil
}

func (p *shard) completeTable(contributions int) error {
	batches := make([]storage.Batch, len(p.folded))
	for i, j := range p.folded {
		n := indexSize * j.q.Rows
		batches[i] = storage.Batch{Indices: tensor.Elements[int64](j.body[:n]), Values: j.body[n:]}
	}
	divide := 1
	if p.spec.Mean {
		divide = contributions
	}
	if p.spec.Optimizer != "" {
		return p.table.Update(batches, divide)
	}
	return p.table.Add(batches, divide)
}

// applied tells the client that a push or a Set has been applied.
func (p *shard) applied(j *job) {
	if err := p.replicaFailure; err != nil && j.q.Kind != message.Close {
		p.replicaFailure = nil
		p.failed(err)
	}
	switch {
	case p.failure != nil:
		err := p.failure
		if p.spec.Mode != part.Synchronous {
			p.failure = nil
		}
		p.finish(j, 0, nil, nil, err)
	case j.q.Kind == message.PushPull:
		p.acknowledged = append(p.acknowledged, j)
	default:
		p.finish(j, 0, nil, nil, nil)
	}
}

// answer sends the values to the client.
func (p *shard) answer(j *job, o *part.Output) {
	version := o.Version
	if j.replied {
		return
	}
	if err := p.failure; err != nil {
		p.finish(j, version, nil, nil, err)
		return
	}
	if j.q.Kind == message.Save {
		p.save(j, o)
		return
	}
	narrow := p.spec.Wire != tensor.Invalid
	if j.q.Kind == message.PullState {
		p.answerState(j, version)
		return
	}
	if p.table == nil {
		value := p.dense.Value()
		if narrow {
			value = p.narrow(value)
		}
		p.finish(j, version, value.Bytes(), value, nil)
		return
	}
	indices := tensor.Elements[int64](j.body)
	if j.call != nil && !narrow {
		err := p.table.Pull(indices, j.call.dst)
		p.bodyUsed(j)
		p.finish(j, version, nil, nil, err)
		return
	}
	rows := p.s.n.pool.get(j.q.Rows * p.spec.Size * p.spec.DType.Size())
	err := p.table.Pull(indices, rows.Bytes())
	if narrow {
		rows = p.narrow(rows)
	}
	p.bodyUsed(j)
	p.finish(j, version, rows.Bytes(), rows, err)
}

// refuse ends a request that the machine refuses, or keeps it for the next epoch.
func (p *shard) refuse(j *job, o *part.Output) {
	if j == nil {
		return
	}
	if o.Refusal == part.OtherEpoch && p.s.n.replicated() {
		j.replied = true // its client sends it again
	}
	if j.replied {
		if o.Request&1 == 0 && o.Refusal != part.Sealed {
			p.bodyUsed(j)
		}
		if j.peer != nil && o.Refusal != part.OtherEpoch {
			p.s.n.present().end(p.s.errorf(fault.Mismatch, "entry %d of %s from rank %d: %v", j.q.ID, p.name(), p.s.n.worldRank(j.peer.rank), o.Refusal))
		}
		return
	}
	if o.Refusal == part.Sealed {
		p.sealed = append(p.sealed, o.Request)
		return
	}
	if o.Request&1 == 0 {
		p.bodyUsed(j)
	}
	p.finish(j, 0, nil, nil, p.refusal(o.Refusal))
}

func (p *shard) refusal(r part.Refusal) error {
	if r == part.WorkersLost {
		if _, _, err := p.s.present(); err != nil {
			return err
		}
	}
	return p.s.errorf(fault.Mismatch, "request for %s: %v", p.name(), r)
}

// finish replies to a request. If the body of the push is still in use, it is copied first where it
// is the client's own memory.
func (p *shard) finish(j *job, version uint64, body []byte, value *storage.Buffer, err error) {
	if j.replied {
		return
	}
	j.replied = true
	if j.q.Kind == message.Pull || j.q.Kind == message.Save || j.q.Kind == message.PullState {
		p.bodyUsed(j)
	}
	if j.used {
		delete(p.jobs, j.name)
	} else if j.call != nil {
		j.own()
	}
	j.reply(version, body, value, err)
}

// bodyUsed notes that the body of a request is no longer needed.
func (p *shard) bodyUsed(j *job) {
	j.release()
	j.used = true
	if j.replied {
		delete(p.jobs, j.name)
	}
}

// own copies the body into a buffer of the server, unless it is in one.
func (j *job) own() {
	if j.buffer != nil || j.body == nil {
		return
	}
	j.buffer = j.part.s.n.pool.get(len(j.body))
	copy(j.buffer.Bytes(), j.body)
	j.body = j.buffer.Bytes()
}
