// Package memory is the transport between ranks that are goroutines of one process. It needs no
// wire, and one copy per body.
//
// A frame is queued at the peer's end by reference. The peer's Progress copies its body once, into
// the buffer that the Sink returns or into exposed memory, and then runs the sender's Done, on the
// receiver's goroutine. There is no buffer in between. So a queued frame uses only its sender's
// memory, and a frame that is done has been received.
//
// A frame passes as follows:
//
//	sender                          receiver
//	Send puts a reference into
//	the receiver's inbox    ----->  Arm's callback is scheduled, or a poll sees it
//	                                Progress pins the frame and asks the Sink for a buffer
//	                                Progress copies at most 256 KiB, and calls Arrived
//	                                ... further calls of Progress copy the rest
//	Done runs               <-----  Progress removes the whole frame from the inbox
//
// Failures have these effects:
//
//	what happens                      this end                    the peer
//	Close of this Conn                fails with fault.Closed     fails with fault.LinkLost
//	Close of this Transport           the same, for every Conn    the same
//	a frame that is not exposed, or   fails with fault.Misuse     fails with the same error
//	a Sink's buffer that is too short
//	a Sink that does not receive      nothing; the peer's Unsent  frames wait
//	                                  reports it
//
// Three kinds of locks guard the state. Each pair of Conns has the lock of its link. Each Transport
// has a lock for its Conns and its notifier, which may be taken inside a link's lock. The Hub has a
// lock that is never held together with another lock. No lock is held while a Sink, a Done, a ready
// or an accept runs.
//
// Its Conns are Exposers and its Transport is a Sharer. Tests with this package must also be valid
// for hardware. So the package offers no more than hardware. In particular, a frame into exposed
// memory arrives without its Head.
//
// In the steady state a frame causes no allocation. The package does not know ranks: an address is
// the number of a Transport in its Hub.
//
// Its memory is bounded as follows. A queued frame belongs to its sender, and costs 16 bytes here.
// A Conn keeps as many exposure entries as its owner has used at the same time. A Hub keeps an
// entry for each Transport that it has ever made.
package memory

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/transport"
)

// Name is the name that selects this transport.
const Name = "memory"

// addrPrefix precedes a Transport's number in its address.
const addrPrefix = "hub/"

// A Hub joins the ranks of one process. Transports of the same Hub can dial each other, but cannot
// dial Transports of another Hub. A process that runs several jobs has one Hub per job. All its
// methods may be called concurrently.
type Hub struct {
	id string // see ID

	exposures atomic.Uint64 // the last generation of an exposure in this Hub; see expose.go

	mu     sync.Mutex         // guards the rest
	ends   map[int]*Transport // by number; closed ones stay, because numbers are not reused
	next   int                // every number below this one is used
	shares map[string]*shareGroup
}

// New returns a Hub without Transports.
func New() *Hub {
	var id [8]byte
	rand.Read(id[:]) // never fails since Go 1.24
	return &Hub{
		id:     hex.EncodeToString(id[:]),
		ends:   make(map[int]*Transport),
		shares: make(map[string]*shareGroup),
	}
}

// ID returns a random text of 16 letters that no other Hub has, in any process. A rank uses it to
// check whether its own Hub has issued an address.
func (h *Hub) ID() string { return h.id }

// Addr returns the address at which Transport number n serves.
func (h *Hub) Addr(n int) string { return addrPrefix + strconv.Itoa(n) }

// Transport makes the Transport with the lowest unused number, from 0. The Transport holds no
// resources until it serves, dials or shares. After that it needs a Close.
func (h *Hub) Transport() *Transport {
	h.mu.Lock()
	defer h.mu.Unlock()
	for h.ends[h.next] != nil {
		h.next++
	}
	return h.make(h.next)
}

// Number makes Transport number n, so that ranks can be made in any order. It returns fault.Misuse
// if the number was used before.
func (h *Hub) Number(n int) (*Transport, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if n < 0 || h.ends[n] != nil {
		return nil, failure(fault.Misuse, "transport", fmt.Errorf("got number %d, want one that is at least 0 and was not used before", n))
	}
	return h.make(n), nil
}

// make makes Transport number n. h.mu is held.
func (h *Hub) make(n int) *Transport {
	t := &Transport{
		hub:   h,
		addr:  h.Addr(n),
		conns: make(map[*conn]struct{}),
		done:  make(chan struct{}),
	}
	t.wake.L = &t.mu
	h.ends[n] = t
	return t
}

// find returns the Transport whose address is addr, or nil. That Transport may have closed already.
func (h *Hub) find(addr string) *Transport {
	digits, ok := strings.CutPrefix(addr, addrPrefix)
	n, err := strconv.Atoi(digits)
	if !ok || err != nil {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.ends[n]
}

// A Transport is one rank's end of a Hub. It implements transport.Transport and transport.Sharer.
// All its methods may be called concurrently.
//
//	state    accept  closed  what it can do
//	new      nil     no      dial and share
//	serving  set     no      also accept
//	closed   any     yes     nothing; its Conns have failed
type Transport struct {
	hub  *Hub
	addr string        // the address that others dial, once the Transport serves
	done chan struct{} // closed when Close begins

	// mu guards the rest. It may be taken while a link's lock is held. No link's lock is taken
	// while mu is held.
	mu       sync.Mutex
	conns    map[*conn]struct{}
	accept   func(transport.Conn)
	closed   bool
	notifier notifier
	wake     sync.Cond // wakes the notifier
}

// Name returns "memory".
func (t *Transport) Name() string { return Name }

// Serve implements transport.Transport. Others can dial the address that it returns. It needs no
// listener and ignores that argument. A second call returns fault.Misuse.
func (t *Transport) Serve(_ net.Listener, accept func(transport.Conn)) (string, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.closed:
		return "", failure(fault.Closed, "serve", nil)
	case t.accept != nil:
		return "", failure(fault.Misuse, "serve", errors.New("got a second call of Serve, want one per Transport"))
	case accept == nil:
		return "", failure(fault.Misuse, "serve", errors.New("accept function: got nil, want a function"))
	}
	t.accept = accept // from now on serving returns true
	return t.addr, nil
}

// Dial opens a Conn to the Transport that serves addr. It never waits: if no Transport serves the
// address at this moment, it returns fault.Refused. Both ends exist when Dial returns. The peer's
// notifier passes the other end to accept soon after that.
func (t *Transport) Dial(ctx context.Context, addr string) (transport.Conn, error) {
	if err := ctxFailure(ctx, "dial "+addr); err != nil {
		return nil, err
	}
	peer := t.hub.find(addr)
	if peer == nil || !peer.serving() {
		return nil, failure(fault.Refused, "dial "+addr, errors.New("no transport of this process serves the address"))
	}
	near, far := newPair(t, peer)
	if !t.register(near) {
		return nil, failure(fault.Closed, "dial "+addr, nil)
	}
	if !peer.acceptFrom(far) {
		near.Close()
		return nil, failure(fault.Refused, "dial "+addr, errors.New("the peer has closed"))
	}
	return near, nil
}

// Close ends every Conn of this Transport and every Share that waits. It waits for the notifier,
// and so for a running callback accept or ready. Therefore these callbacks must not call Close. The
// Transport's number is not used again.
func (t *Transport) Close() error {
	t.mu.Lock()
	first := !t.closed
	t.closed = true
	open := make([]*conn, 0, len(t.conns))
	for c := range t.conns {
		open = append(open, c)
	}
	t.mu.Unlock()
	if first {
		close(t.done)
	}
	for _, c := range open { // without the lock: Close of a Conn takes its link's lock first
		c.Close()
	}
	t.stopNotifier()
	return nil
}

// serving reports whether others may dial. The Transport may still close before a Dial completes,
// so acceptFrom makes the final decision.
func (t *Transport) serving() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.accept != nil && !t.closed
}

// register adds c to the Conns that Close ends. It returns false after Close.
func (t *Transport) register(c *conn) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return false
	}
	t.conns[c] = struct{}{}
	return true
}

// acceptFrom registers a Conn that a peer has opened, and schedules the call of accept on the
// notifier. It returns false after Close.
func (t *Transport) acceptFrom(c *conn) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return false
	}
	t.conns[c] = struct{}{}
	t.notifier.arrivals = append(t.notifier.arrivals, c)
	t.wakeNotifier()
	return true
}

// unregister removes a closed Conn.
func (t *Transport) unregister(c *conn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.conns, c)
}

// failure returns an error of this package. A transport does not know ranks, so Rank is -1.
func failure(k fault.Kind, op string, err error) error {
	return &fault.Error{Kind: k, Op: "memory: " + op, Rank: -1, Err: err}
}

// ctxFailure returns an error of kind fault.Timeout or fault.Canceled if ctx has ended, and nil
// otherwise.
func ctxFailure(ctx context.Context, op string) error {
	err := ctx.Err()
	if err == nil {
		return nil
	}
	return failure(fault.ContextKind(err), op, err)
}

// errPeerClosed returns the error of a Conn whose peer has called Close. This is the only way to
// lose a peer here, because all ranks share one process and no rank can die alone.
func errPeerClosed() error { return failure(fault.LinkLost, "the peer closed the link", io.EOF) }

var (
	_ transport.Transport = (*Transport)(nil)
	_ transport.Sharer    = (*Transport)(nil)
)
