package verbs

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"net"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/tlsopt"
	"github.com/tutti-go/tutti/transport"
	"github.com/tutti-go/tutti/transport/verbs/internal/rdma"
)

// Two ends agree on their queue pairs like this. Left is the dialling end:
//
//	Dial                        .. the caller's frames ..      accept
//	(WANT, with OnRequest)  ------------------------------>
//	                                                           Admit
//	                                                           makes a queue pair (INIT)
//	                        <------------ OFFER ------------
//	makes a queue pair, connects it: it can receive
//	                        ------------ ANSWER ----------->
//	                                                           connects: it can receive
//	                        <------------ READY ------------
//	                                                           READY is Done: sends over it
//	delivers from it
//	                        ------------- OVER ------------>
//	OVER is Done: sends over it                                delivers from it
//
// Neither end sends to a queue pair that cannot receive yet, and neither overtakes its own frames
// on the set-up link. If an end fails meanwhile, it sends REFUSE with the reason, and both Conns
// fail with this reason.

// newSalt returns a random number by which a Conn recognises its own Tokens.
func newSalt() uint64 {
	var b [8]byte
	rand.Read(b[:]) // never fails since Go 1.24
	return binary.LittleEndian.Uint64(b[:])
}

// A pendingConn is the accepting end before Admit. It has no queue pair and no registered
// memory, so an unauthenticated peer costs no more than on the set-up link.
type pendingConn struct{ *conn }

// Admit implements transport.Pending. It lifts the limits of the set-up link. If a queue pair is
// wanted, it offers one to the peer.
func (g pendingConn) Admit() {
	if sg, ok := g.setup.(transport.Pending); ok {
		sg.Admit()
	}
	if g.readyToOffer(func() { g.admitted = true }) {
		g.offer()
	}
}

// readyToOffer calls its function argument, and reports whether an OFFER may now be sent. An OFFER
// requires Admit, and with Options.OnRequest also a WANT from the peer.
func (c *conn) readyToOffer(set func()) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	set()
	return c.admitted && c.wanted
}

// RemoteAddr returns the remote address of the set-up link, or nil if it has none.
func (c *conn) RemoteAddr() net.Addr {
	if r, ok := c.setup.(transport.Pending); ok {
		return r.RemoteAddr()
	}
	return nil
}

// PeerName returns the peer's name on the set-up link, or "" if the peer has no name there.
func (c *conn) PeerName() string {
	if n, ok := c.setup.(tlsopt.Named); ok {
		return n.PeerName()
	}
	return ""
}

// offer makes the accepting end's queue pair and sends its address.
func (c *conn) offer() {
	l, err := c.newEndpoint()
	if err != nil {
		c.refuse(err)
		return
	}
	// The Conn may have failed while the queue pair was made.
	if !c.install(l) {
		c.discard(l)
		return
	}
	c.setup.Send(c.hello(setupOffer))
}

// install makes l the endpoint of the Conn, unless the Conn has failed or has one.
func (c *conn) install(l *endpoint) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil || c.endpoint != nil {
		return false
	}
	c.endpoint, c.stage = l, negotiating
	return true
}

// discard closes an endpoint that the Conn does not use.
func (c *conn) discard(l *endpoint) {
	l.close()
	if l.releaseBuffers() {
		c.transport.releaseDevice()
	}
}

// hello returns the frame with this end's hello.
func (c *conn) hello(kind byte) *transport.Frame {
	body := make([]byte, helloLen)
	h := hello{Address: c.endpoint.qp.Local(), depth: uint32(c.endpoint.depth), buffer: uint32(c.endpoint.bufferSize), salt: c.salt}
	h.put(body)
	return setupFrame(kind, body, ignore)
}

// refuse tells the peer why there is no queue pair, and fails the Conn with the same reason.
func (c *conn) refuse(err error) {
	text := []byte(err.Error())
	// The Conn fails only once the message is sent, so that the reason can reach the peer.
	c.setup.Send(setupFrame(setupRefuse, text[:min(len(text), maxRefusal)], func(error) { c.fail(err, true) }))
}

// handleSetup applies a message of the peer on the set-up link. It returns an error if the message
// violates the protocol. If this end's device refuses a request, handleSetup fails the Conn itself,
// and returns no error.
func (c *conn) handleSetup(kind byte, body []byte) error {
	switch negotiating := c.inStage(negotiating); {
	// Each message is valid in only one state. A peer that repeats or reorders messages has
	// violated the protocol.
	case kind == setupLiteral:
		c.setupSink.literal = true
	case kind == setupRequest && c.accepted && !c.wanted:
		if c.readyToOffer(func() { c.wanted = true }) {
			c.offer()
		}
	case kind == setupRefuse:
		c.fail(failure(fault.Refused, "connect", fmt.Errorf("the peer refuses a queue pair for this link: %q", body)), true)
	case kind == setupOffer && !c.accepted && c.inStage(onSetupLink), kind == setupAnswer && c.accepted && negotiating:
		peer, err := parseHello(body)
		if err != nil {
			return err
		}
		if c.accepted {
			c.acceptAnswer(peer)
		} else {
			c.answerOffer(peer)
		}
	case kind == setupReady && !c.accepted && negotiating:
		c.switchSend(setupSwitched)
		c.switchReceive()
	case kind == setupSwitched && c.accepted && !c.recvSwitched.Load() && !c.inStage(onSetupLink) && !negotiating:
		c.switchReceive()
	default:
		return fmt.Errorf("set-up message: got kind %d in the wrong order, want WANT (%d, optional), OFFER (%d), ANSWER (%d), READY (%d), OVER (%d)",
			kind, setupRequest, setupOffer, setupAnswer, setupReady, setupSwitched)
	}
	return nil
}

// switchReceive begins to deliver arrivals of the queue pair. From now on Progress of the set-up
// link is called only after its Arm has fired.
func (c *conn) switchReceive() {
	c.recvSwitched.Store(true)
	c.setupPending.Store(true)
}

// inStage reports whether the Conn is in stage s.
func (c *conn) inStage(s stage) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stage == s
}

// answerOffer handles an OFFER at the dialling end. It connects its queue pair before it sends
// ANSWER, so that the queue pair can receive as soon as the peer may send.
func (c *conn) answerOffer(peer hello) {
	l, err := c.newEndpoint()
	if err != nil {
		c.refuse(err)
		return
	}
	// Connecting may fail for reasons that lie between the two ends, such as GIDs of different
	// networks. Both ends get the reason.
	if err := l.qp.Connect(peer.Address); err != nil {
		c.discard(l)
		c.refuse(connectError(c.transport.device, err))
		return
	}
	if !c.install(l) {
		c.discard(l)
		return
	}
	c.setPeer(peer)
	c.setup.Send(c.hello(setupAnswer))
}

// acceptAnswer handles an ANSWER at the accepting end: it connects the queue pair and switches
// to it for sending.
func (c *conn) acceptAnswer(peer hello) {
	c.mu.Lock()
	if c.err != nil {
		c.mu.Unlock()
		return
	}
	err := c.endpoint.qp.Connect(peer.Address)
	c.mu.Unlock()
	if err != nil {
		c.refuse(connectError(c.transport.device, err))
		return
	}
	c.setPeer(peer)
	c.switchSend(setupReady)
}

// setPeer records the sizes that the peer can receive.
func (c *conn) setPeer(peer hello) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.peer = peer
	c.flow.credits = int(peer.depth)
	// A message must fit the buffers of both ends.
	c.flow.payload = min(int(peer.buffer), c.endpoint.bufferSize) - packetLen
}

// switchSend queues the last frame for the set-up link. Once this frame is Done, it is certain to
// arrive, and frames go over the queue pair.
func (c *conn) switchSend(kind byte) {
	c.mu.Lock()
	if c.err != nil {
		c.mu.Unlock()
		return
	}
	// Frames that are sent from now on wait for the queue pair, even though it is not used yet.
	c.stage, c.holding = switching, true
	c.marker = setupFrame(kind, nil, c.goLive)
	c.setupQueue.Push(c.marker)
	c.flushSetupQueueAndUnlock()
}

// goLive is the Done of the last frame on the set-up link. It posts the frames that have waited.
func (c *conn) goLive(err error) {
	c.mu.Lock()
	// If the set-up link has failed, Progress fails the Conn, so goLive does not.
	if err == nil && c.err == nil {
		c.stage = live
	}
	c.pumpAndUnlock()
}

// connectError returns the error of a queue pair that cannot be connected.
func connectError(d rdma.Device, err error) error {
	return failure(fault.LinkLost, "connect", fmt.Errorf("%s: %w; compare GID index, RoCE version and MTU of both ends", d.Describe(), err))
}
