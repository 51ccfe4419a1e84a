package negotiate

import (
	"fmt"

	"github.com/tutti-go/tutti/fault"
)

func (in Submit) applyMember(m *Member) {
	if len(in.Requests) == 1 && m.again(&in.Requests[0], in.Tickets[0]) {
		return
	}
	if err := m.refusal(in.Requests); err != nil {
		m.outs = append(m.outs, Fail{in.Tickets, err})
		return
	}
	for i := range in.Requests {
		m.submit(&in.Requests[i], in.Tickets[i])
	}
	if q := &in.Requests[0]; q.GroupSize > 0 || q.Kind >= Barrier {
		m.urgent = true
	}
}

// again notes a request that the cache knows: the same as before, in order then
// and now. It is false where there is more to be looked at.
func (m *Member) again(q *Request, t Ticket) bool {
	n := q.memo
	if n == nil || n.gone {
		n = m.names[q.key()]
		q.memo = n
	}
	if n == nil || n.ticket != 0 || n.id < 0 || !n.agreed || m.leaving || m.joining || len(m.closing) > 0 || q.GroupSize > 0 || !n.request.same(q) {
		return false
	}
	n.request.Site = q.Site
	n.ticket, n.unsent = t, true
	m.begin()
	m.up.Cached.Add(n.id)
	m.countStep(n)
	m.urgent = m.urgent || q.Kind >= Barrier
	return true
}

// Missing is how many submissions complete the step, if it has as many as the last
// one: until then they may as well be told to the Member later.
func (m *Member) Missing() int {
	if m.count < m.expect {
		return m.expect - m.count
	}
	return max(1, m.count)
}

// refusal is why none of some requests can be submitted, or nil.
func (m *Member) refusal(rs []Request) *fault.Error {
	var seen map[key]bool
	if len(rs) > 1 {
		seen = make(map[key]bool, len(rs))
	}
	for i := range rs {
		q := &rs[i]
		bad := func(format string, args ...any) *fault.Error {
			return &fault.Error{Kind: fault.Misuse, Op: q.Call(), Rank: m.me, Err: fmt.Errorf(format, args...)}
		}
		if n := m.names[q.key()]; n != nil && n.ticket != 0 || seen[q.key()] {
			first := q
			if n != nil && n.ticket != 0 {
				first = &n.request
			}
			err := bad("the name is under way: this one is at %s, the first, %s, at %s", q.Site, first.Call(), first.Site)
			err.Peers = []fault.Peer{{Rank: m.me, Call: first.Call(), At: first.Site}}
			return err
		}
		set := m.sets[q.Set]
		switch {
		case !q.valid():
			return bad("not a request that can be sent")
		case m.leaving:
			return bad("after Close")
		case m.joining:
			return bad("while this rank has joined")
		case set == nil || m.closing[q.Set]:
			return bad("process set %d has been removed", q.Set)
		case set.at(m.me) < 0:
			return bad("this rank is not in process set %d, of ranks %v", q.Set, set.ranks)
		case q.Root >= len(set.ranks):
			return bad("root %d is out of range; the process set has ranks 0 to %d", q.Root, len(set.ranks)-1)
		}
		if len(rs) > 1 {
			seen[q.key()] = true
		}
	}
	return nil
}

// submit notes a request that is in order.
func (m *Member) submit(q *Request, t Ticket) {
	k := q.key()
	n := m.names[k]
	if n == nil {
		n = &name{key: k, id: -1}
		m.names[k] = n
	}
	n.ticket, n.unsent = t, true
	m.begin()
	if n.id >= 0 && n.agreed && n.request.same(q) {
		n.request.Site = q.Site
		m.up.Cached.Add(n.id)
	} else {
		n.request, n.agreed = *q, false
		m.up.Requests = append(m.up.Requests, *q)
	}
	if q.Kind == RemoveSet && len(q.Shape) == 1 {
		m.closing[uint32(q.Shape[0])] = true
	}
	m.countStep(n)
}

// countStep notices the last submission of a step that has as many as the last.
func (m *Member) countStep(n *name) {
	if m.generation == 0 || n.generation == m.generation {
		m.generation++
		m.expect, m.count = m.count, 0
	}
	n.generation = m.generation
	m.count++
	if m.count == m.expect {
		m.urgent = true
	}
}

// begin notes that there is something to send.
func (m *Member) begin() {
	if !m.has {
		m.has, m.since = true, m.now
	}
}

// send gives out what was collected, in messages of a bounded number of requests.
func (m *Member) send() {
	up := m.up
	m.up = Up{}
	m.has, m.urgent = false, false
	up.Ack = m.ack
	for id := range up.Cached.All {
		if n := m.entries[id].name; n != nil {
			n.unsent = false
		}
	}
	for i := range up.Requests {
		if n := m.names[up.Requests[i].key()]; n != nil {
			n.unsent = false
		}
	}
	for len(up.Requests) > maxRequests {
		part := Up{Ack: up.Ack, Cached: up.Cached, Requests: up.Requests[:maxRequests]}
		up.Cached, up.Requests = nil, up.Requests[maxRequests:]
		m.outs = append(m.outs, Send{&part})
	}
	m.outs = append(m.outs, Send{&up})
}

// maxRequests in one message.
const maxRequests = 512
