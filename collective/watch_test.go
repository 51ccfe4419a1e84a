package collective

import (
	"bytes"
	"context"
	"encoding/binary"
	"net"
	"sync"
	"testing"

	"github.com/tutti-go/tutti/internal/teamtest"
	"github.com/tutti-go/tutti/topology"
	"github.com/tutti-go/tutti/transport"
)

// A sighting is the body of a message that was seen on its way.
type sighting struct {
	from, to int
	body     []byte
}

// A watch sees every frame that a team's ranks send.
type watch struct {
	mu   sync.Mutex // guards seen
	seen []sighting

	dialing  sync.Mutex // one dial at a time, so that its other end is known
	dialer   int
	accepted chan struct{}
}

// newWatchedTeam is a team whose messages can be looked at: the function returns
// those since its last call, each rank's in the order in which it sent them. They
// must be short enough for one segment.
func newWatchedTeam(t testing.TB, n int) (tm *teamtest.Team, seen func() []sighting) {
	t.Helper()
	return newWatchedTeamAt(t, make([]topology.Place, n), teamtest.SharedMemory)
}

// newWatchedTeamAt is newWatchedTeam with a rank at each place.
func newWatchedTeamAt(t testing.TB, places []topology.Place, share bool) (tm *teamtest.Team, seen func() []sighting) {
	t.Helper()
	w := &watch{accepted: make(chan struct{})}
	tm = teamtest.StartAt(t, places, share, 0, func(rank int, tr transport.Transport) transport.Transport {
		return &watchedTransport{Transport: tr, w: w, rank: rank}
	})
	return tm, func() []sighting {
		w.mu.Lock()
		defer w.mu.Unlock()
		seen := w.seen
		w.seen = nil
		return seen
	}
}

// A watchedTransport hides every ability of the one it wraps, but the frames.
type watchedTransport struct {
	transport.Transport
	w    *watch
	rank int
}

func (t *watchedTransport) Serve(in net.Listener, accept func(transport.Conn)) (string, error) {
	return t.Transport.Serve(in, func(c transport.Conn) {
		peer := t.w.dialer
		t.w.accepted <- struct{}{}
		accept(&watchedConn{c, t.w, t.rank, peer})
	})
}

func (t *watchedTransport) Dial(ctx context.Context, addr string) (transport.Conn, error) {
	t.w.dialing.Lock()
	defer t.w.dialing.Unlock()
	t.w.dialer = t.rank
	c, err := t.Transport.Dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	<-t.w.accepted // memory hands every dialled Conn to the one who serves
	peer := int(addr[len(addr)-1] - '0')
	return &watchedConn{c, t.w, t.rank, peer}, nil
}

type watchedConn struct {
	transport.Conn
	w    *watch
	from int
	to   int
}

// The parts of a message's head that tell it from other frames; package
// rendezvous has the layout.
const (
	kindEager   = 1
	atContext   = 12
	eagerHead   = 40
	collectives = teamtest.ID<<1 | 1
)

func (c *watchedConn) Send(f *transport.Frame) {
	if h := f.Head; len(h) >= eagerHead && h[0] == kindEager && binary.LittleEndian.Uint64(h[atContext:]) == collectives {
		c.w.mu.Lock()
		c.w.seen = append(c.w.seen, sighting{c.from, c.to, bytes.Clone(f.Body)})
		c.w.mu.Unlock()
	}
	c.Conn.Send(f)
}
