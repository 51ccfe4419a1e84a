package negotiate

import (
	"fmt"
	"slices"
	"strings"

	"github.com/tutti-go/tutti/fault"
)

// A groupConflict is a submission that cannot wait for the submissions of other ranks. Either the
// rank has submitted the tensor in another group than an earlier rank, or the tensor has failed for
// good.
type groupConflict struct {
	key   key
	other variant // the submission that differs
	// err is why the tensor has failed for good. If err is nil, the groups disagree, and
	// groupMismatch returns the error.
	err *fault.Error
}

// permanentFailures are the tensors and groups whose submissions all fail, with the errors. Two
// things make a failure permanent:
//
//	cause                              why no later submission can succeed
//	ranks disagree about the group     some ranks have submitted tensors that others may or may not
//	                                   submit; it is unknown which later submissions belong together
//	a rank has closed its coordinator  the rank submits nothing more
type permanentFailures struct {
	tensors map[key]*fault.Error
	groups  map[groupKey]*fault.Error
}

// maxFailures bounds the permanent failures. A failure that is recorded below the bound may add all
// pending tensors at once, and so exceed the bound. When the bound is reached, a conflict that
// needs a further record ends the coordinator. A tensor that fails because a rank has closed needs
// none then, because each later submission fails for the same reason.
const maxFailures = 4096

// of returns the error with which every submission of a tensor in the given group fails, or nil.
func (f *permanentFailures) of(k key, group uint64) *fault.Error {
	if len(f.tensors) == 0 {
		return nil
	}
	if err := f.tensors[k]; err != nil || group == 0 {
		return err
	}
	return f.groups[groupKey{k.set, group}]
}

// full reports whether no more failures should be recorded.
func (f *permanentFailures) full() bool { return len(f.tensors)+len(f.groups) >= maxFailures }

// covers reports whether all submissions of a tensor fail for good already, each with its group.
// The tensor then needs no further record.
func (f *permanentFailures) covers(p *pendingTensor) bool {
	return !slices.ContainsFunc(p.variants, func(v variant) bool {
		if v.spec.Group == 0 {
			return f.tensors[p.key] == nil
		}
		return f.groups[groupKey{p.key.set, v.spec.Group}] == nil
	})
}

// checkGroup reports whether a rank's submission of p may wait for the submissions of other ranks.
// If it may not, failConflicts fails p when the whole list of the rank has been read. The error can
// then name the other tensors of the rank's group.
func (c *Coordinator) checkGroup(p *pendingTensor, t *Spec, site string, rank int) bool {
	err := c.failures.of(p.key, t.Group)
	if err == nil && p.variants[0].spec.sameGroup(t) {
		return true
	}
	c.conflicts = append(c.conflicts, groupConflict{p.key, variant{t, site, rank}, err})
	return false
}

// failConflicts fails the tensors that checkGroup has found in a list.
func (c *Coordinator) failConflicts() {
	for i := range c.conflicts {
		g := &c.conflicts[i]
		p := c.find(g.key)
		if p == nil { // the tensor has failed already, with another tensor of its group
			continue
		}
		err := g.err
		if err == nil {
			err = c.groupMismatch(p, &g.other)
		}
		full := c.failures.full()
		if full && !c.failures.covers(p) {
			c.abort(err)
			break
		}
		c.failWithGroup(p, err, !full)
	}
	clear(c.conflicts)
	c.conflicts = c.conflicts[:0]
}

// failWithGroup fails a tensor on the ranks that have submitted it. It also fails every tensor that
// any of these ranks has submitted in one group with the failed tensor, and repeats this for the
// groups of each further tensor that fails. If the failure is permanent, all later submissions of
// these tensors and groups fail, too, and all ranks are told. Otherwise only the ranks that have
// submitted a tensor are told, because the next submission of another rank may already be under
// way.
func (c *Coordinator) failWithGroup(p *pendingTensor, err *fault.Error, permanent bool) {
	pending := c.sortedPending()
	for queue := []*pendingTensor{p}; len(queue) > 0; queue = queue[1:] {
		p := queue[0]
		var ranks []int
		if permanent {
			c.recordFailure(p.key, err)
		} else {
			ranks = p.ranks()
		}
		c.fail(err, ranks, p.key.tensorName())
		for i := range p.variants {
			gk := groupKey{p.key.set, p.variants[i].spec.Group}
			if gk.group == 0 {
				continue
			}
			delete(c.groups, gk)
			if permanent {
				c.failures.groups[gk] = err
			}
			pending = slices.DeleteFunc(pending, func(o *pendingTensor) bool {
				grouped := o.inGroup(gk)
				if grouped && o != p {
					queue = append(queue, o)
				}
				return grouped
			})
		}
		c.removePending(p)
	}
}

// add records that a tensor fails whenever it is submitted.
func (f *permanentFailures) add(k key, err *fault.Error) {
	if f.tensors == nil {
		f.tensors, f.groups = make(map[key]*fault.Error), make(map[groupKey]*fault.Error)
	}
	f.tensors[k] = err
}

// inGroup reports whether some rank has submitted the tensor in a group.
func (p *pendingTensor) inGroup(gk groupKey) bool {
	return p.key.set == gk.set && slices.ContainsFunc(p.variants, func(v variant) bool { return v.spec.Group == gk.group })
}

// groupMismatch returns the error for ranks that have submitted p in different groups. The error
// names the lowest rank of an earlier group, the rank that disagrees, and the groups of both ranks.
func (c *Coordinator) groupMismatch(p *pendingTensor, other *variant) *fault.Error {
	var first *variant
	for i := range p.variants {
		if v := &p.variants[i]; !v.spec.sameGroup(other.spec) && (first == nil || v.rank < first.rank) {
			first = v
		}
	}
	err := &fault.Error{
		Kind: fault.Mismatch, Op: fmt.Sprintf("%v %s", other.spec.Operation, p.key.name),
		Err: fmt.Errorf("the ranks disagree about the group; submit equal groups on all ranks. The tensors of these groups fail from now on"),
	}
	for _, v := range []*variant{first, other} {
		err.Peers = append(err.Peers, fault.Peer{Rank: v.rank, Call: v.spec.Call() + c.otherTensors(p, v.spec.Group), At: v.site})
	}
	slices.SortFunc(err.Peers, func(a, b fault.Peer) int { return a.Rank - b.Rank })
	return err
}

// maxListed bounds the number of tensors of a group that an error names.
const maxListed = 8

// otherTensors returns the text " with b, c" for the tensors that are pending in a group with p, or
// "" for no group.
func (c *Coordinator) otherTensors(p *pendingTensor, group uint64) string {
	if group == 0 {
		return ""
	}
	var names []string
	for _, o := range c.sortedPending() {
		if o != p && o.inGroup(groupKey{p.key.set, group}) {
			names = append(names, o.key.name)
		}
	}
	more := ""
	if n := len(names) - maxListed; n > 0 {
		names, more = names[:maxListed], fmt.Sprintf(" and %d more", n)
	}
	if names == nil {
		return ""
	}
	return " with " + strings.Join(names, ", ") + more
}
