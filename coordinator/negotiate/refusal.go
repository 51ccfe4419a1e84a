package negotiate

import (
	"slices"

	"github.com/tutti-go/tutti/fault"
)

// A Refusal says that a rank has refused a call of its program with fault.Misuse. Other ranks may
// make the same call and wait for this rank.
type Refusal struct {
	// Tensors are the tensors of the call, at most maxRefusedTensors. If one of them fails on
	// another rank, all tensors of its group fail there.
	Tensors []TensorName
	// Err is the error for the other ranks. It names the rank, the call and the call site.
	Err *fault.Error
}

const (
	maxRefusedTensors = 64   // tensors that a Refusal names
	maxRefusals       = 1024 // refusals that a Coordinator keeps; it ignores further ones
	// repeatTime is how long the Coordinator waits for a rank to repeat a call that it has refused,
	// after all other ranks have made the call.
	repeatTime = 1 * Second
)

// A refusal is a refused call of a rank that the Coordinator has not paired with a call of the other
// ranks. The n-th calls of a name on all ranks belong together, and a refused call counts.
type refusal struct {
	rank int
	keys []key
	err  *fault.Error
}

// A nextRefusal is a refusal in the list of one tensor.
type nextRefusal struct {
	*refusal
	// later is set if the rank had submitted the tensor before it refused the call. The refusal then
	// does not belong to the tensor that is pending, but to the next one of that name.
	later bool
}

// receiveRefusal records a refused call. It ignores tensors for which no rank waits for this one.
func (c *Coordinator) receiveRefusal(from int, r *Refusal) {
	if c.joined.Has(from) || c.shutdown.Has(from) || c.refusalCount >= maxRefusals {
		return
	}
	f := &refusal{rank: from, err: r.Err}
	for _, t := range r.Tensors {
		k := key{t.Set, t.Name}
		set := c.sets[k.set]
		if set == nil || set.indexOf(from) < 0 || slices.Contains(f.keys, k) {
			continue
		}
		f.keys = append(f.keys, k)
		p := c.find(k)
		if c.refusals == nil {
			c.refusals = make(map[key][]nextRefusal)
		}
		c.refusals[k] = append(c.refusals[k], nextRefusal{f, p != nil && p.submitted.Has(set.indexOf(from))})
	}
	if f.keys == nil {
		return
	}
	c.refusalCount++
	for _, k := range slices.Clone(f.keys) {
		c.pairAll(k)
		if p := c.find(k); p != nil {
			c.checkReady(p)
		}
	}
}

// pairAll removes one refusal of each rank from the list of a tensor if all ranks of the set have
// refused a call of this name. No rank waits for such a call.
func (c *Coordinator) pairAll(k key) {
	var first []*refusal
	for _, r := range c.sets[k.set].ranks {
		f := c.refusalOf(k, r)
		if f == nil {
			return
		}
		first = append(first, f)
	}
	for _, f := range first {
		c.removeRefusal(f, k)
	}
}

// refusalOf returns the first refusal of a rank for a tensor, or nil.
func (c *Coordinator) refusalOf(k key, rank int) *refusal {
	for _, f := range c.refusals[k] {
		if f.rank == rank && !f.later {
			return f.refusal
		}
	}
	return nil
}

// removeRefusal removes a refusal from the lists of these tensors of it.
func (c *Coordinator) removeRefusal(f *refusal, keys ...key) {
	for _, k := range keys {
		rest := slices.DeleteFunc(c.refusals[k], func(o nextRefusal) bool { return o.refusal == f })
		if c.refusals[k] = rest; len(rest) == 0 {
			delete(c.refusals, k)
		}
	}
	if f.keys = slices.DeleteFunc(f.keys, func(k key) bool { return slices.Contains(keys, k) }); len(f.keys) == 0 {
		c.refusalCount--
	}
}

// waitsForRefused returns the refusal of the first rank that p waits for. It returns nil if p waits
// for no rank, or also for one that has not refused the call.
func (c *Coordinator) waitsForRefused(p *pendingTensor) (first *refusal) {
	if p.ready || len(c.refusals[p.key]) == 0 {
		return nil
	}
	for _, r := range c.missing(p) {
		f := c.refusalOf(p.key, r)
		if f == nil {
			return nil
		}
		if first == nil {
			first = f
		}
	}
	return first
}

// awaitRepeat limits the wait for p to repeatTime if p waits only for ranks that have refused the
// call.
func (c *Coordinator) awaitRepeat(p *pendingTensor) {
	if p.repeatUntil == 0 && c.waitsForRefused(p) != nil {
		p.repeatUntil = c.now + Time(repeatTime)
		c.refused = append(c.refused, p.key)
	}
}

// failRefused fails the tensors of the list refused that have waited for repeatTime. It takes those
// off the list that do not wait for such a rank any more.
func (c *Coordinator) failRefused() {
	for _, k := range slices.Clone(c.refused) {
		p := c.find(k)
		if p != nil && p.repeatUntil != 0 {
			f := c.waitsForRefused(p)
			if f != nil && !c.due(p.repeatUntil) {
				continue
			}
			p.repeatUntil = 0
			if f != nil {
				err := *f.err
				err.Op = p.call()
				c.failWithGroup(p, &err, false)
			}
		}
		c.refused = slices.DeleteFunc(c.refused, func(o key) bool { return o == k })
	}
}

// pairRefusals removes the refusals that belong to p, which is not pending any more. A rank that has
// submitted p has repeated its refused calls.
func (c *Coordinator) pairRefusals(p *pendingTensor) {
	if len(c.refusals) == 0 {
		return
	}
	for at, r := range p.set.ranks {
		for _, f := range slices.Clone(c.refusals[p.key]) {
			if f.rank != r || f.later {
				continue
			}
			c.removeRefusal(f.refusal, slices.Clone(f.keys)...)
			if !p.submitted.Has(at) {
				break
			}
		}
	}
	for i := range c.refusals[p.key] {
		c.refusals[p.key][i].later = false
	}
}
