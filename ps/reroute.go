package ps

import (
	"cmp"
	"errors"
	"slices"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/ps/internal/message"
)

// pause keeps all requests, now and later, until resume. When it returns, no goroutine submits one.
func (cl *Client) pause(why error) {
	cl.routes.Lock()
	cl.paused = true
	cl.routes.Unlock()
	for _, l := range cl.links {
		if l.out != nil {
			l.out.fail(why)
		}
	}
}

// resume begins an epoch. The links to servers that are lost fail with err, parts get the links to
// their new primaries, and all requests that have no reply are sent again in their order.
func (cl *Client) resume(e *epoch, o *outcome, err error) {
	cl.routes.Lock()
	var calls []*call
	for _, l := range cl.links {
		calls = append(calls, l.popCalls()...)
	}
	cl.reroute(o)
	cl.lead = nil
	var lost []*link
	for _, r := range cl.n.servers() {
		cl.lead = cmp.Or(cl.lead, cl.links[r])
	}
	for _, l := range cl.links {
		if e.has(l.rank) {
			l.connect(e)
			l.start(e)
		} else {
			lost = append(lost, l)
		}
	}
	cl.loseLinks(lost, err)
	cl.paused = false
	slices.SortFunc(calls, func(a, b *call) int { return cmp.Compare(a.q.ID, b.q.ID) })
	failed := cl.resend(e, calls)
	cl.routes.Unlock()
	for _, c := range failed {
		if c.q.Kind == message.Close {
			c.replied(nil) // a server that is lost needs none
		} else {
			c.replied(err)
		}
	}
}

// popCalls removes and returns the calls that have no reply. Nobody uses their bodies.
func (l *link) popCalls() []*call {
	l.mu.Lock()
	defer l.mu.Unlock()
	var calls []*call
	for id, c := range l.calls {
		c.unsent()
		calls = append(calls, c)
		delete(l.calls, id)
	}
	return calls
}

// reroute sets the links of all parts that are not lost. cl.routes is locked.
func (cl *Client) reroute(o *outcome) {
	cl.mu.Lock()
	defer cl.mu.Unlock()
	for _, d := range cl.tensors {
		for i := range d.parts {
			if servers := o.servers[partKey{d.id, uint32(i)}]; len(servers) > 0 {
				d.parts[i].link = cl.links[servers[0]]
			}
		}
	}
}

// loseLinks ends the links to servers that are lost.
func (cl *Client) loseLinks(lost []*link, err error) {
	cl.mu.Lock()
	err = cl.withLostParts(err)
	cl.mu.Unlock()
	for _, l := range lost {
		l.fail(err)
		l.mu.Lock()
		l.lost = true
		l.mu.Unlock()
	}
}

// resend sends calls again, and returns those that cannot be sent. cl.routes is locked.
func (cl *Client) resend(e *epoch, calls []*call) (failed []*call) {
	for _, c := range calls {
		l := c.link
		switch c.q.Kind {
		case message.Push, message.Pull, message.PushPull, message.Set, message.SetState, message.PullState, message.Save:
			l = c.part.link
		case message.Close:
		case message.Declare, message.Create, message.OpenSnapshot, message.CloseSnapshot, message.Load, message.Install, message.Drop:
			failed = append(failed, c) // the caller begins again, or gives up
			continue
		}
		l.mu.Lock()
		lost := l.err
		l.mu.Unlock()
		if lost != nil {
			if c.q.Kind != message.Close {
				c.mu.Lock()
				c.err = cmp.Or(c.err, lost)
				c.mu.Unlock()
			}
			failed = append(failed, c)
			continue
		}
		l.send(c)
	}
	return failed
}

// lossOf returns the error of calls that need one of the ranks that an epoch has lost.
func (n *node) lossOf(ranks []int, cause error) error {
	e := &fault.Error{Kind: fault.PeerLost, Op: "ps", Rank: n.worldRank(n.c.Rank()), Err: cause}
	var known *fault.Error
	if errors.As(cause, &known) {
		e.Err = known.Err
	}
	for _, r := range ranks {
		p := fault.Peer{Rank: n.worldRank(r)}
		if known != nil {
			if i := slices.IndexFunc(known.Peers, func(k fault.Peer) bool { return k.Rank == p.Rank }); i >= 0 {
				p = known.Peers[i]
			}
		}
		e.Peers = append(e.Peers, p)
	}
	return e
}
