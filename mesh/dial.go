package mesh

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/tlsopt"
	"github.com/tutti-go/tutti/mesh/membership"
	"github.com/tutti-go/tutti/transport"
)

// A channel is the purpose of a Conn. The hello names it, and after the welcome the Conn belongs to
// the channel's owner.
//
//	channel         dialled by           owner afterwards
//	channelControl  the lower rank       the control goroutine, as a controlLink
//	channelData     either rank          the peer's Link
//	channelJoin     every rank but 0     rank 0: joinServer.serve; the other rank: joinOnce
//
// Two ranks have at most one Conn of each channel.
type channel uint8

const (
	channelControl channel = iota + 1 // heartbeats, floods, failures
	channelData                       // the layer above's messages
	channelJoin                       // the address exchange through rank 0
)

// String returns the channel's name for logs.
func (l channel) String() string {
	return map[channel]string{channelControl: "control", channelData: "data", channelJoin: "join"}[l]
}

// errUnanswered is the error of a dial whose connection came up but whose handshake did not end.
// The peer closed the connection or was silent. A peer closes connections in this way when its
// slots for pending connections are all taken, so a later dial may succeed.
var errUnanswered = errors.New("the peer did not answer the handshake")

// refusalTimeout is how long a peer may take to read why it is refused.
const refusalTimeout = time.Second

// dialChannel opens a Conn to the given rank and does the handshake. It makes one attempt, and the
// handshake may take at most handshakeTimeout. The caller decides whether to retry.
//
// If the peer refuses this rank, or this rank refuses the peer, the error is a fault.Refused that
// names the peer's rank. There is one exception: if the peer already has such a Conn, or is opening
// one, the error is errDuplicate. If the peer refuses because it has marked this rank dead,
// dialChannel also tells the membership machine. So this rank learns that it was evicted, even if
// no failure report has reached it.
//
// On a data Conn, dialChannel also returns the peer's position.
func (m *Mesh) dialChannel(ctx context.Context, rank int, l channel) (transport.Conn, position, error) {
	addr, err := m.address(rank)
	if err != nil {
		return nil, position{}, err
	}
	c, err := m.cfg.Transport.Dial(ctx, addr)
	if err != nil {
		return nil, position{}, err
	}
	peer, err := m.handshake(ctx, newHandshakeConn(c), rank, l, nil)
	if err == nil {
		return c, peer, nil
	}
	c.Close()
	var no *refusal
	if !errors.As(err, &no) {
		return nil, position{}, fmt.Errorf("%w: %w", errUnanswered, err)
	}
	switch no.reason {
	case reasonDuplicate:
		return nil, position{}, errDuplicate
	case reasonLost: // the peer has marked this rank dead
		m.control.post(func(c *control) {
			c.step(membership.DialFailed{Rank: rank, Evicted: true, Cause: no.text})
		})
	}
	e := &fault.Error{Kind: fault.Refused, Op: "dial", Rank: m.cfg.Rank, Err: no}
	e.Peers = []fault.Peer{{Rank: rank, Host: m.Host(rank)}}
	return nil, position{}, e
}

// address returns the address at which a rank is dialled. For a dead rank, it returns the failure
// that marked the rank dead. If the rank has closed, or this Mesh has ended, it returns
// fault.Closed. Without these checks, the dial would only time out, and its error would not name
// the reason.
func (m *Mesh) address(rank int) (string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch p := &m.peers[rank]; {
	case p.lost != nil:
		return "", p.lost
	case p.departed || m.ended:
		e := fault.New(fault.Closed, "dial", m.cfg.Rank, "")
		e.Peers = []fault.Peer{{Rank: rank, Host: p.host}}
		return "", e
	case p.addr == "":
		return "", fault.New(fault.LinkLost, "dial", m.cfg.Rank, "the address of rank %d is unknown", rank)
	default:
		return p.addr, nil
	}
}

// handshake does the dialling side of the handshake. It fails after handshakeTimeout, or when the
// Mesh shuts down. On a data Conn, it returns the peer's position.
func (m *Mesh) handshake(ctx context.Context, t *handshakeConn, rank int, l channel, proven func()) (position, error) {
	ctx, cancel := context.WithTimeout(ctx, handshakeTimeout)
	defer cancel()
	defer context.AfterFunc(m.ctx, cancel)()
	// The name is checked before the hello is sent, so that a peer with a wrong name learns nothing
	// about this rank.
	if no := m.checkName(t.conn, rank); no != nil {
		return position{}, no
	}
	var own position
	if l == channelData {
		var dialling bool
		if own, dialling = m.Link(rank).proposal(t.conn); !dialling {
			return position{}, &refusal{reason: reasonDuplicate, text: "data: " + errDuplicate.Error()}
		}
	}
	if l == channelControl && !m.control.dialAnswered(rank) {
		return position{}, &refusal{reason: reasonDuplicate, text: "control: the higher rank's connection is kept"}
	}
	peer, err := m.id.dial(ctx, t, rank, l, own, proven)
	if err != nil || l == channelJoin {
		return position{}, err
	}
	if no := m.claimRank(rank, peer.instance); no != nil {
		return position{}, no
	}
	peer.position.after = own.after
	return peer.position, nil
}

// checkName returns a refusal if the peer's certificate names another rank. It accepts a Conn on
// which the transport proves no names, because that Conn is within one host or the job has no TLS
// of its own.
func (m *Mesh) checkName(c transport.Conn, rank int) *refusal {
	n, ok := c.(tlsopt.Named)
	if !ok || m.cfg.NameOf == nil || n.PeerName() == "" {
		return nil
	}
	if got, want := n.PeerName(), m.cfg.NameOf(rank); got != want {
		return &refusal{reason: reasonName, text: fmt.Sprintf("certificate: got %s, want %s of rank %d", got, want, rank)}
	}
	return nil
}

// claimRank assigns a rank to the first process that proves to be that rank, and refuses any other
// process. Without this check, two processes that were started with the same rank by mistake, or a
// restarted process, could take turns in one job. Both sides check: the accepting side when it has
// the hello, the dialling side when it has the welcome.
func (m *Mesh) claimRank(rank int, instance uint64) *refusal {
	m.mu.Lock()
	defer m.mu.Unlock()
	p := &m.peers[rank]
	if p.instance == 0 {
		p.instance = instance
	}
	if p.instance != instance {
		return &refusal{reason: reasonRankInUse, text: fmt.Sprintf("rank: another process has joined as rank %d, or an earlier Init of this process; give each process its own rank", rank)}
	}
	return nil
}

// accept is called by the transport for every Conn that a peer opens. It does not block.
func (m *Mesh) accept(c transport.Conn) {
	if !m.spawn(func() { m.serveConn(c) }) {
		c.Close()
	}
}

// serveConn does the accepting side of the handshake, and passes the Conn to the owner of its
// channel. It calls Admit before it sends the welcome, so a peer that has received the welcome no
// longer holds a slot. It sends the welcome before the channel's owner sends its first frame.
func (m *Mesh) serveConn(c transport.Conn) {
	ctx := m.ctx
	if _, pending := c.(transport.Pending); !pending || m.mux == nil {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, handshakeTimeout)
		defer cancel()
	} // else the mux closes the Conn after handshakeTimeout, counted from when the connection was accepted
	t := newHandshakeConn(c)
	g, err := m.id.accept(ctx, t, func() { m.extendSlot(c) })
	if err == nil {
		no := m.checkName(c, int(g.rank))
		if no == nil {
			no = m.authorize(g.hello)
		}
		if no != nil {
			refuse(ctx, t, no)
			err = no
		}
	}
	if err != nil {
		m.logRefused(c, err)
		c.Close()
		return
	}
	if g.channel != channelJoin { // on the join channel, the welcome follows the record
		w := welcome{instance: m.id.instance}
		if g.channel == channelData {
			w.position = m.Link(int(g.rank)).answer(c, g.position.epoch)
		}
		g.position.epoch, g.position.after = w.position.epoch, w.position.after
		admit(c)
		t.send(m.id.welcome(g, w), nil)
	}
	switch g.channel {
	case channelData:
		m.acceptData(int(g.rank), c, g.position)
	case channelControl:
		m.control.linkUp(int(g.rank), c) // removes the record that authorize has made with beginOpening
	case channelJoin:
		err := m.joinServer.serve(m.ctx, t, g.hello, m.id.welcome(g, welcome{}))
		var left *earlyExit
		if errors.As(err, &left) {
			m.log.Warn("tutti: " + left.Error())
		} else if err != nil {
			m.logRefused(c, err)
		}
	}
}

// admit lifts the limits on a Conn whose peer has proven that it belongs to the job.
func admit(c transport.Conn) {
	if g, ok := c.(transport.Pending); ok {
		g.Admit()
	}
}

// extendSlot keeps the slot of a connection whose hello has named the job. The peer sends its proof
// when its process runs next. On a busy host, this may take a while.
func (m *Mesh) extendSlot(c transport.Conn) {
	if p, ok := c.(transport.Pending); ok && m.mux != nil && p.RemoteAddr() != nil {
		m.mux.extend(p.RemoteAddr())
	}
}

// authorize decides whether to accept a peer that has proven that it belongs to the job. It returns
// nil to accept the peer. For a control link that it accepts, it calls beginOpening.
//
//	channel  refused when
//	any      the rank is dead or has closed, or this rank is closing (but see checkLive)
//	any      another process is that rank (not for join: a rank may restart while ranks are missing)
//	join     this rank does not serve addresses
//	control  this rank is lower and keeps its own dial: of two concurrent dials the lower rank's wins
//	data     there is no layer above, or mayAcceptData refuses: for example, this rank's dial wins
func (m *Mesh) authorize(h hello) *refusal {
	rank := int(h.rank)
	if no := m.checkLive(rank, h.channel); no != nil {
		return no
	}
	if h.channel != channelJoin { // a rank may restart while ranks are missing
		if no := m.claimRank(rank, h.instance); no != nil {
			return no
		}
	}
	switch h.channel {
	case channelJoin:
		if m.joinServer == nil {
			return &refusal{reason: reasonAddressee, text: fmt.Sprintf("join: rank %d does not serve addresses: dial rank 0", m.cfg.Rank)}
		}
	case channelControl:
		if m.cfg.Rank < rank && m.control.keepsDial(rank) {
			return &refusal{reason: reasonDuplicate, text: "control: both ranks dialled at once, and the lower rank's connection is kept"}
		}
		m.control.beginOpening(rank)
	case channelData:
		if m.cfg.Data == nil {
			return &refusal{reason: reasonGone, text: fmt.Sprintf("data: rank %d accepts no data connections", m.cfg.Rank)}
		} else if err := m.mayAcceptData(rank, h.position.epoch); errors.Is(err, errDuplicate) {
			return &refusal{reason: reasonDuplicate, text: "data: " + err.Error()}
		} else if err != nil {
			return &refusal{reason: reasonGone, text: "data: " + err.Error()}
		}
	}
	return nil
}

// checkLive returns a refusal if the rank is gone, or if this rank is closing. With Config.Redial,
// a rank that is closing accepts control links, because a link that was broken carries the goodbye.
func (m *Mesh) checkLive(rank int, l channel) *refusal {
	m.mu.Lock()
	defer m.mu.Unlock()
	p := &m.peers[rank]
	switch {
	case m.ended || m.peers[m.cfg.Rank].departed && (l != channelControl || m.cfg.Redial == 0):
		return &refusal{reason: reasonGone, text: fmt.Sprintf("closed: rank %d is closing", m.cfg.Rank)}
	case p.lost != nil:
		return &refusal{reason: reasonLost, text: fmt.Sprintf("lost: rank %d was marked dead: %v", rank, p.lost)}
	case p.departed:
		return &refusal{reason: reasonGone, text: fmt.Sprintf("closed: rank %d has said goodbye", rank)}
	}
	return nil
}

// logRefused logs at most one line about a refused connection.
//
//	what happened                                   log
//	this rank is closing, or the mux has logged it  nothing
//	the peer closed before it was admitted          debug
//	duplicate, or a rank that has closed            debug: usual when ranks dial at once, or close
//	anything else                                   warning, at a limited rate
func (m *Mesh) logRefused(c transport.Conn, err error) {
	var no *refusal
	var from net.Addr
	p, pending := c.(transport.Pending)
	ended := errors.Is(err, fault.Closed) || errors.Is(err, net.ErrClosed)
	if pending {
		from = p.RemoteAddr()
	}
	switch {
	case m.ctx.Err() != nil || pending && ended && no == nil:
		return // this rank is closing, or the mux has closed the connection and logged it
	case errors.Is(err, io.EOF):
		m.log.Debug("connection closed before it was admitted", "from", from)
		return
	case errors.As(err, &no) && (no.reason == reasonDuplicate || no.reason == reasonGone):
		m.log.Debug("a connection refused", "from", from, "because", no.text)
		return
	case errors.Is(err, context.DeadlineExceeded):
		err = errNotAuthenticated
	}
	m.refusals.Refused(from, err.Error())
}
