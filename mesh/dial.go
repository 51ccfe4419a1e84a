package mesh

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/mesh/membership"
	"github.com/tutti-go/tutti/transport"
)

// A lane is what a Conn is for. It is agreed in the handshake.
type lane uint8

const (
	laneControl lane = iota + 1 // heartbeats, floods, verdicts
	laneData                    // messages
	laneJoin                    // the address exchange through rank 0
)

func (l lane) String() string {
	return map[lane]string{laneControl: "control", laneData: "data", laneJoin: "join"}[l]
}

// farewellTime is how long a last word may take to be heard.
const farewellTime = time.Second

// dialLane opens a Conn to rank and proves who we are. It tries once, for at most
// strangerTime after the wire is up. A peer that turns us down gets fault.Refused,
// or errDuplicate when it has such a Conn already, or is about to.
func (m *Mesh) dialLane(ctx context.Context, rank int, l lane) (transport.Conn, error) {
	addr, err := m.address(rank)
	if err != nil {
		return nil, err
	}
	c, err := m.cfg.Transport.Dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	err = m.introduce(ctx, newTalk(c), rank, l)
	if err == nil {
		return c, nil
	}
	c.Close()
	var no *refusal
	if !errors.As(err, &no) {
		return nil, err
	}
	switch no.reason {
	case reasonDuplicate:
		return nil, errDuplicate
	case reasonLost:
		m.control.post(func(c *control) {
			c.step(membership.DialFailed{Rank: rank, Evicted: true, Cause: no.text})
		})
	}
	e := &fault.Error{Kind: fault.Refused, Op: "dial", Rank: m.cfg.Rank, Err: no}
	e.Peers = []fault.Peer{{Rank: rank, Host: m.Host(rank)}}
	return nil, e
}

// address is where a rank can be dialled, while it lives.
func (m *Mesh) address(rank int) (string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch p := &m.peers[rank]; {
	case p.lost != nil:
		return "", p.lost
	case p.gone || m.ended:
		e := fault.New(fault.Closed, "dial", m.cfg.Rank, "")
		e.Peers = []fault.Peer{{Rank: rank, Host: p.host}}
		return "", e
	case p.addr == "":
		return "", fault.New(fault.LinkLost, "dial", m.cfg.Rank, "the address of rank %d is not known", rank)
	default:
		return p.addr, nil
	}
}

// introduce is the dialling side's handshake, within strangerTime. The Mesh's end
// ends it, too.
func (m *Mesh) introduce(ctx context.Context, t *talk, rank int, l lane) error {
	ctx, cancel := context.WithTimeout(ctx, strangerTime)
	defer cancel()
	defer context.AfterFunc(m.ctx, cancel)()
	instance, err := m.id.offer(ctx, t, rank, l)
	if err != nil || l == laneJoin {
		return err
	}
	if no := m.recognise(rank, instance); no != nil {
		return no
	}
	return nil
}

// recognise holds a process that has proven to be rank against the one that did so
// before: the first process is that rank from then on.
func (m *Mesh) recognise(rank int, instance uint64) *refusal {
	m.mu.Lock()
	defer m.mu.Unlock()
	p := &m.peers[rank]
	if p.instance == 0 {
		p.instance = instance
	}
	if p.instance != instance {
		return &refusal{reason: reasonTaken, text: fmt.Sprintf("rank: another process has joined as rank %d, or this one by an Init before", rank)}
	}
	return nil
}

// accept takes every Conn that a peer opens. It does not block.
func (m *Mesh) accept(c transport.Conn) {
	if !m.spawn(func() { m.receive(c) }) {
		c.Close()
	}
}

// receive is the accepting side's handshake, and what follows from it.
func (m *Mesh) receive(c transport.Conn) {
	ctx := m.ctx
	if _, guest := c.(transport.Pending); !guest || m.front == nil {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, strangerTime)
		defer cancel()
	} // else the front ends it, which knows when the connection came
	t := newTalk(c)
	h, err := m.id.accept(ctx, t)
	if err == nil {
		if no := m.vet(h); no != nil {
			turnDown(ctx, t, no)
			err = no
		}
	}
	if err != nil {
		m.logRefused(c, err)
		c.Close()
		return
	}
	if g, ok := c.(transport.Pending); ok {
		g.Admit()
	}
	t.send(appendWelcome(nil, m.id.instance), nil)
	switch h.lane {
	case laneData:
		m.acceptData(int(h.rank), c)
	case laneControl:
		m.control.linkUp(int(h.rank), c)
	case laneJoin:
		if err := m.gathering.serve(m.ctx, c, h); err != nil {
			m.logRefused(c, err)
		}
	}
}

// vet decides about a peer that has proven that it belongs to the job.
func (m *Mesh) vet(h hello) *refusal {
	rank := int(h.rank)
	if no := m.standing(rank); no != nil {
		return no
	}
	if h.lane != laneJoin { // there a rank may be started again as long as some are missing
		if no := m.recognise(rank, h.instance); no != nil {
			return no
		}
	}
	switch h.lane {
	case laneJoin:
		if m.gathering == nil {
			return &refusal{reason: reasonAddressee, text: fmt.Sprintf("join: rank %d does not gather addresses", m.cfg.Rank)}
		}
	case laneControl:
		if m.cfg.Rank < rank && m.control.dialling(rank) {
			return &refusal{reason: reasonDuplicate, text: "control: both dial at once, and the lower rank has precedence"}
		}
	case laneData:
		if m.cfg.Data == nil {
			return &refusal{reason: reasonGone, text: "data: nobody takes it here"}
		} else if err := m.mayAcceptData(rank); errors.Is(err, errDuplicate) {
			return &refusal{reason: reasonDuplicate, text: "data: " + err.Error()}
		} else if err != nil {
			return &refusal{reason: reasonGone, text: "data: " + err.Error()}
		}
	}
	return nil
}

// standing refuses ranks that are gone, and all when this one is about to be.
func (m *Mesh) standing(rank int) *refusal {
	m.mu.Lock()
	defer m.mu.Unlock()
	p := &m.peers[rank]
	switch {
	case m.ended || m.peers[m.cfg.Rank].gone:
		return &refusal{reason: reasonGone, text: fmt.Sprintf("closed: rank %d closes", m.cfg.Rank)}
	case p.lost != nil:
		return &refusal{reason: reasonLost, text: fmt.Sprintf("lost: rank %d was given up: %v", rank, p.lost)}
	case p.gone:
		return &refusal{reason: reasonGone, text: fmt.Sprintf("closed: rank %d has said goodbye", rank)}
	}
	return nil
}

// logRefused writes the one line about a connection that was not taken, unless it
// says nothing to anybody, or the front has written it.
func (m *Mesh) logRefused(c transport.Conn, err error) {
	var no *refusal
	_, guest := c.(transport.Pending)
	ended := errors.Is(err, fault.Closed) || errors.Is(err, net.ErrClosed)
	from := any("a stranger")
	if r, ok := c.(interface{ RemoteAddr() net.Addr }); ok {
		from = r.RemoteAddr()
	}
	switch {
	case m.ctx.Err() != nil || guest && ended && no == nil:
		return // we close, or the front has closed it and said so
	case errors.Is(err, io.EOF):
		m.log.Debug("a connection left before it was admitted", "from", from)
		return
	case errors.As(err, &no) && (no.reason == reasonDuplicate || no.reason == reasonGone):
		m.log.Debug("a connection refused", "from", from, "because", no.text)
		return
	case errors.Is(err, context.DeadlineExceeded):
		err = errUnproven
	}
	m.log.Warn("a connection refused", "from", from, "because", err)
}
