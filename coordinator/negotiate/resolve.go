package negotiate

import (
	"fmt"
	"slices"

	"github.com/tutti-go/tutti/fault"
)

// absent lists the ranks that have joined without submitting p.
func (c *Coordinator) absent(p *pendingTensor) []int {
	if c.joined.Empty() {
		return nil
	}
	var list []int
	for at, r := range p.set.ranks {
		if c.joined.Has(r) && !p.submitted.Has(at) {
			list = append(list, r)
		}
	}
	return list
}

// checkReady checks which ranks have not submitted a tensor, and acts accordingly:
//
//	the ranks that have not submitted it       what happens
//	none                                       resolve
//	have all joined                            resolve, with these absent
//	some have shut down and have not joined    it fails with fault.Closed that names them
//	others                                     it goes on waiting
func (c *Coordinator) checkReady(p *pendingTensor) {
	if p.ready || c.ended {
		return
	}
	if p.submittedCount == len(p.set.ranks) {
		c.resolve(p, nil)
		return
	}
	if c.joined.Empty() && c.shutdown.Empty() {
		return
	}
	absent := c.absent(p)
	if p.submittedCount+len(absent) == len(p.set.ranks) {
		c.resolve(p, absent)
		return
	}
	var gone []fault.Peer
	for at, r := range p.set.ranks {
		if c.shutdown.Has(r) && !p.submitted.Has(at) && !c.joined.Has(r) {
			gone = append(gone, fault.Peer{Rank: r})
		}
	}
	if gone != nil {
		err := &fault.Error{Kind: fault.Closed, Op: p.call(), Peers: gone, Err: fmt.Errorf("these ranks have closed their coordinator without submitting the tensor; a rank that has no more data must call Join before Close")}
		c.failWithGroup(p, err, !c.failures.full())
	}
}

// call describes the operation of the first variant in words.
func (p *pendingTensor) call() string { return p.variants[0].spec.Call() }

// resolve handles a tensor for which every rank has submitted or is absent. A tensor of a group
// waits for the other tensors. If one of them has failed, all of them fail with its error.
func (c *Coordinator) resolve(p *pendingTensor, absent []int) {
	t := p.variants[0].spec
	p.failed = c.validate(p, absent)
	if t.GroupSize == 0 {
		c.enqueueOrFail(p, absent)
		return
	}
	p.ready = true
	gk := groupKey{t.Set, t.Group}
	g := c.groups[gk]
	if g == nil {
		g = new(group)
		c.groups[gk] = g
	}
	g.tensors = append(g.tensors, p)
	if len(g.tensors) < t.GroupSize {
		return
	}
	delete(c.groups, gk)
	for _, m := range g.tensors {
		if m.failed != nil {
			p.failed = m.failed
		}
	}
	for _, m := range g.tensors {
		m.failed = p.failed
		c.enqueueOrFail(m, c.absent(m))
	}
}

// validate returns the reason why a resolved tensor cannot run, or nil:
//
//	the ranks disagree about it                     fault.Mismatch
//	its root is absent                              fault.Misuse: no rank has the data
//	ranks are absent, and the operator has no       fault.Misuse: they cannot contribute
//	identity
//	ranks are absent from a change of process sets  fault.Misuse: all ranks must take part in it
//	ranks are absent from a PushPull                fault.Misuse: servers wait for all of them
func (c *Coordinator) validate(p *pendingTensor, absent []int) *fault.Error {
	if len(p.variants) > 1 {
		return p.mismatch()
	}
	t := p.variants[0].spec
	if len(absent) == 0 {
		return nil
	}
	for _, r := range absent {
		if t.Root >= 0 && t.Root < len(p.set.ranks) && p.set.ranks[t.Root] == r {
			return &fault.Error{Kind: fault.Misuse, Op: t.Call(), Peers: []fault.Peer{{Rank: r, Call: "join"}}, Err: fmt.Errorf("the root has joined, so it contributes nothing; choose a root that has data")}
		}
	}
	switch {
	case t.NoIdentity:
		return &fault.Error{Kind: fault.Misuse, Op: t.Call(), Peers: blame(absent, "join"), Err: fmt.Errorf("ranks have joined, and operator %s has no identity for them to contribute; use an operator of package comm", t.Op)}
	case t.Operation == PushPull:
		return &fault.Error{Kind: fault.Misuse, Op: t.Call(), Peers: blame(absent, "join"), Err: fmt.Errorf("ranks have joined, and the servers wait for their pushes; submit the tensor on all ranks")}
	case t.Set == SetRegistry:
		return &fault.Error{Kind: fault.Misuse, Op: t.Call(), Peers: blame(absent, "join"), Err: fmt.Errorf("process sets cannot change while a rank has joined; change them before Join or after it has returned")}
	}
	return nil
}

// blame returns ranks as the peers of an error, up to the number that an error can hold.
func blame(ranks []int, call string) []fault.Peer {
	var peers []fault.Peer
	for _, r := range ranks[:min(len(ranks), fault.MaxPeers)] {
		peers = append(peers, fault.Peer{Rank: r, Call: call})
	}
	return peers
}

// mismatch returns the error for ranks that disagree. The error names the lowest rank, and the
// lowest rank that disagrees with it. So all ranks get the same error.
func (p *pendingTensor) mismatch() *fault.Error {
	slices.SortFunc(p.variants, func(a, b variant) int { return a.rank - b.rank })
	a, b := p.variants[0], p.variants[1]
	return &fault.Error{
		Kind: fault.Mismatch, Op: fmt.Sprintf("%v %s", a.spec.Operation, p.key.name),
		Peers: []fault.Peer{{Rank: a.rank, Call: a.spec.Call(), At: a.site}, {Rank: b.rank, Call: b.spec.Call(), At: b.site}},
		Err:   fmt.Errorf("the ranks disagree about the %s", a.spec.Differs(b.spec)),
	}
}

// enqueueOrFail ends the negotiation of a resolved tensor. The tensor is launched or fails. A
// change of process sets is executed here.
func (c *Coordinator) enqueueOrFail(p *pendingTensor, absent []int) {
	if p.failed != nil {
		c.fail(p.failed, nil, p.key.tensorName())
		c.removePending(p)
		return
	}
	t := p.variants[0].spec
	switch t.Operation {
	case AddSet, RemoveSet:
		c.changeSets(p, t)
	default:
		c.enqueue(p, absent)
	}
	c.removePending(p)
}

// fail tells the Workers of the given ranks that a tensor has failed. If no ranks are given, it
// tells the Workers of all ranks. A Worker that has submitted the tensor ends the submission.
// Tensors that fail in succession with one error on the same ranks share a response.
func (c *Coordinator) fail(err *fault.Error, ranks []int, name TensorName) {
	if n := len(c.outgoing.Responses); n > 0 {
		if last := &c.outgoing.Responses[n-1]; last.Kind == ResponseFail && last.Err == err && slices.Equal(last.Ranks, ranks) {
			last.Failed = append(last.Failed, name)
			return
		}
	}
	c.outgoing.Responses = append(c.outgoing.Responses, Response{Kind: ResponseFail, Err: err, Ranks: ranks, Failed: []TensorName{name}})
}

// tensorName converts the key to the form in responses.
func (k key) tensorName() TensorName { return TensorName{k.set, k.name} }
