package negotiate

import (
	"slices"

	"github.com/tutti-go/tutti/fault"
)

// A Refusal says that a rank has refused a call of its program with fault.Misuse. The n-th calls
// that the ranks make for a tensor belong together, and a refused call counts as one of them. So
// when a rank refuses its n-th call, the n-th submissions of the other ranks fail.
type Refusal struct {
	Tensors []TensorName // the tensors of the call
	// Err is the error for the other ranks. It names the rank, the call and the call site.
	Err *fault.Error
}

// maxRefused bounds the refused calls that a Coordinator keeps, counted for each tensor. Beyond
// it, the oldest ones are dropped.
const maxRefused = 1 << 14

// A refusedCall is the n-th call of a tensor, for some n, which a rank has refused. It is kept
// until all ranks of the process set have made the call, but not longer than Config.StallEnd. If
// StallEnd is 0, only maxRefused limits how long it is kept, and it may fail a much later call.
type refusedCall struct {
	made  Bitset // the ranks that have made the call, by index in the set
	since Time
	err   *fault.Error
}

// refusedCalls holds the refused calls of one tensor in order. The field before says how many of
// them precede the tensor's pending call; the others follow it. If no call is pending, before
// counts all of them.
//
//	a rank's next call      if it is submitted     if it is refused
//	one before pending     it fails: failLate     the rank is added to made
//	the pending call        recordSubmission       the pending tensor fails
//	a call after it         a protocol error       the rank is added to made
//	a new call              beginPending           a refusedCall is added
type refusedCalls struct {
	calls  []refusedCall
	before int
}

// A lateSubmission is a submission of a call that another rank has refused.
type lateSubmission struct {
	spec *Spec
	err  *fault.Error
}

// receiveRefusal records a refused call, and fails the pending tensors that belong to it. It
// ignores tensors that fail for good, because no rank waits for them.
func (c *Coordinator) receiveRefusal(from int, r *Refusal) {
	if c.joined.Has(from) || c.shutdown.Has(from) {
		return
	}
	seen := make(map[key]bool)
	var failed []*pendingTensor
	for _, t := range r.Tensors {
		k := key{t.Set, t.Name}
		set := c.sets[k.set]
		if set == nil || set.indexOf(from) < 0 || seen[k] || c.failures.of(k, 0) != nil {
			continue
		}
		seen[k] = true
		if p := c.recordRefusal(k, set.indexOf(from), r.Err); p != nil {
			failed = append(failed, p)
		}
	}
	// The tensors fail after all of them have been recorded, because each one fails with its group.
	for _, p := range failed {
		if p.live {
			err := *r.Err
			err.Op = p.call()
			c.failWithGroup(p, &err, false)
		}
	}
}

// recordRefusal records that a rank, given by its index in the set, has refused its next call of a
// tensor. It returns the pending tensor that belongs to the call, or nil.
func (c *Coordinator) recordRefusal(k key, at int, err *fault.Error) *pendingTensor {
	p, q := c.find(k), c.refused[k]
	if q == nil {
		q = new(refusedCalls)
	}
	i := slices.IndexFunc(q.calls, func(f refusedCall) bool { return !f.made.Has(at) })
	belongs := p != nil && !p.submitted.Has(at) && (i < 0 || i >= q.before)
	if i >= 0 && !belongs {
		q.calls[i].made.Add(at)
		c.dropComplete(k, q, i)
		return nil
	}
	f := refusedCall{since: c.now, err: err}
	i = len(q.calls)
	switch {
	case belongs:
		f.made, i = slices.Clone(p.submitted), q.before
	case p == nil:
		q.before++
	}
	f.made.Add(at)
	if c.refused == nil {
		c.refused = make(map[key]*refusedCalls)
	}
	c.refused[k] = q
	q.calls = slices.Insert(q.calls, i, f)
	c.refusedCount++
	c.updateEligibleOf(k)
	c.exceededSince(c.now, c.cfg.StallEnd)
	c.dropComplete(k, q, i)
	if c.refusedCount > maxRefused {
		c.dropOldestRefused()
	}
	if belongs {
		return p
	}
	return nil
}

// isRefused reports whether a rank's submission belongs to a call that another rank has refused.
// failLate fails such a submission when the whole list of the rank has been read.
func (c *Coordinator) isRefused(t *Spec, from int) bool {
	q := c.refused[t.key()]
	if q == nil || c.joined.Has(from) || c.shutdown.Has(from) || c.failures.of(t.key(), t.Group) != nil {
		return false
	}
	at := c.sets[t.Set].indexOf(from)
	i := slices.IndexFunc(q.calls[:q.before], func(f refusedCall) bool { return at >= 0 && !f.made.Has(at) })
	if i < 0 {
		return false
	}
	q.calls[i].made.Add(at)
	c.late = append(c.late, lateSubmission{t, q.calls[i].err})
	c.dropComplete(t.key(), q, i)
	return true
}

// failLate fails the submissions that isRefused has found in a rank's list, with their groups.
func (c *Coordinator) failLate(from int) {
	var group groupKey
	var err *fault.Error
	var pending []*pendingTensor // listed for the first group; no tensor becomes pending meanwhile
	for _, l := range c.late {
		k, gk := l.spec.key(), groupKey{l.spec.Set, l.spec.Group}
		always := c.failures.of(k, gk.group)
		if always != nil {
			// Another tensor of the group, which came in the same list, fails for good.
			err = always
		} else if gk.group == 0 || gk != group {
			own := *l.err
			own.Op = l.spec.Call()
			err = &own
		}
		c.fail(err, []int{from}, k.tensorName())
		if always != nil {
			c.failForGood(k, err)
		}
		if gk.group == 0 || gk == group {
			continue
		}
		group = gk
		if pending == nil {
			pending = c.sortedPending()
		}
		for _, o := range pending {
			if o.live && o.inGroup(gk) && o.submitted.Has(o.set.indexOf(from)) {
				c.failWithGroup(o, err, false)
			}
		}
	}
	clear(c.late)
	c.late = c.late[:0]
}

// failForGood makes every submission of a tensor fail, unless the record of such failures is full.
// If a later call of the tensor is pending, failForGood fails it, too.
func (c *Coordinator) failForGood(k key, err *fault.Error) {
	if c.failures.full() {
		return
	}
	if p := c.find(k); p != nil {
		c.failWithGroup(p, err, true)
		return
	}
	c.recordFailure(k, err)
}

// recordFailure records that every submission of a tensor fails. The tensor leaves the cached path,
// which would only count its submissions.
func (c *Coordinator) recordFailure(k key, err *fault.Error) {
	c.failures.add(k, err)
	for q := c.refused[k]; q != nil && len(q.calls) > 0; {
		c.dropRefused(k, q, len(q.calls)-1)
	}
	c.updateEligibleOf(k)
}

// dropComplete drops a refused call that all ranks of the set have made.
func (c *Coordinator) dropComplete(k key, q *refusedCalls, i int) {
	if q.calls[i].made.Count() == len(c.sets[k.set].ranks) {
		c.dropRefused(k, q, i)
	}
}

// dropRefused drops a refused call.
func (c *Coordinator) dropRefused(k key, q *refusedCalls, i int) {
	q.calls = slices.Delete(q.calls, i, i+1)
	c.refusedCount--
	if i < q.before {
		q.before--
	}
	if len(q.calls) == 0 {
		delete(c.refused, k)
		c.updateEligibleOf(k)
	}
}

// dropRefusedIf drops the refused calls for which drop returns true.
func (c *Coordinator) dropRefusedIf(drop func(key, *refusedCall) bool) {
	for k, q := range c.refused {
		for i := len(q.calls) - 1; i >= 0; i-- {
			if drop(k, &q.calls[i]) {
				c.dropRefused(k, q, i)
			}
		}
	}
}

// dropOldestRefused drops the refused calls that came first.
func (c *Coordinator) dropOldestRefused() {
	oldest := never
	c.dropRefusedIf(func(_ key, f *refusedCall) bool { oldest = min(oldest, f.since); return false })
	c.dropRefusedIf(func(_ key, f *refusedCall) bool { return f.since == oldest })
}

// updateEligibleOf calls updateEligible for the entry of a name, if there is one.
func (c *Coordinator) updateEligibleOf(k key) {
	if id, ok := c.cacheIDs[k]; ok {
		c.updateEligible(int(id))
	}
}
