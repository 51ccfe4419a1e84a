package negotiate

import (
	"fmt"
	"slices"

	"github.com/tutti-go/tutti/fault"
)

// join handles the join of a rank, which has no more data. Tensors that wait for no other rank
// become ready.
func (c *Coordinator) join(rank int) {
	if c.shutdown.Has(rank) || !c.joined.Add(rank) {
		c.protocolError(rank, "joined twice or after its shutdown")
		return
	}
	c.lastJoined = rank
	c.checkAllReady()
	c.checkJoined()
}

// checkJoined ends the join once all ranks have joined. By then every submitted tensor is ready,
// and it runs before the end of the join.
func (c *Coordinator) checkJoined() {
	if c.ended || c.joined.Count() < c.cfg.Size {
		return
	}
	c.fence()
	c.outgoing.Responses = append(c.outgoing.Responses, Response{Kind: ResponseJoined, Rank: c.lastJoined})
	c.joined.clear()
	// The numbers of calls begin again on all ranks, so the refused calls of earlier numbers are
	// dropped.
	c.dropRefusedIf(func(key, *refusedCall) bool { return true })
}

// fence launches all ready tensors, even beyond the credit, so that later responses cannot overtake
// them.
func (c *Coordinator) fence() {
	c.force = true
	c.launch()
}

// receiveShutdown handles a rank that submits nothing more. Tensors that still need it fail.
func (c *Coordinator) receiveShutdown(rank int) {
	if !c.shutdown.Add(rank) {
		c.protocolError(rank, "shut down twice")
		return
	}
	c.checkAllReady()
}

// checkAllReady checks every pending tensor, after the set of absent ranks has changed.
func (c *Coordinator) checkAllReady() {
	for _, p := range c.sortedPending() {
		if p.live { // p may have failed already, with another tensor of its group
			c.checkReady(p)
		}
	}
}

// changeSets adds or removes a process set after all ranks have requested it. When a set is
// removed, its incomplete tensors fail, and its ready tensors run before the removal.
func (c *Coordinator) changeSets(p *pendingTensor, t *Spec) {
	if t.Operation == AddSet {
		c.addSet(t)
		return
	}
	id := uint32(0)
	if len(t.Shape) == 1 && t.Shape[0] > 0 {
		id = uint32(t.Shape[0])
	}
	if id == World || id == SetRegistry || c.sets[id] == nil {
		c.fail(&fault.Error{Kind: fault.Misuse, Op: t.Call(), Err: fmt.Errorf("the process set does not exist, or was removed already")}, nil, p.key.tensorName())
		return
	}
	for _, o := range c.sortedPending() {
		if o.key.set == id && o.live {
			err := &fault.Error{Kind: fault.Misuse, Op: o.call(), Err: fmt.Errorf("process set %s was removed before all its ranks had submitted the tensor; wait for the tensors of a set before you remove it", t.Name)}
			// The failure is not permanent, because later requests for a removed set fail anyway.
			c.failWithGroup(o, err, false)
		}
	}
	c.fence()
	c.dropRefusedIf(func(k key, _ *refusedCall) bool { return k.set == id })
	delete(c.sets, id)
	for i := range c.cache {
		if s := &c.cache[i]; s.state == entryLive && s.spec.Set == id {
			c.evict(i)
		}
	}
	c.outgoing.Responses = append(c.outgoing.Responses, Response{Kind: ResponseRemoveSet, ID: id, Name: t.Name})
}

// addSet gives a new process set its number. Numbers are never reused.
func (c *Coordinator) addSet(t *Spec) {
	if !validRanks(t.Shape, c.cfg.Size) {
		c.fail(&fault.Error{Kind: fault.Misuse, Op: t.Call(), Err: fmt.Errorf("got ranks %v, want some of 0 to %d, each once", t.Shape, c.cfg.Size-1)}, nil, t.key().tensorName())
		return
	}
	id := c.nextSet
	c.nextSet++
	c.sets[id] = newSet(slices.Clone(t.Shape))
	c.fence()
	c.outgoing.Responses = append(c.outgoing.Responses, Response{Kind: ResponseAddSet, ID: id, Name: t.Name, Ranks: c.sets[id].ranks})
}
