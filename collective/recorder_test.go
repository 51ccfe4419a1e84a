package collective

import (
	"bytes"
	"context"
	"encoding/binary"
	"net"
	"sync"
	"testing"

	"github.com/tutti-go/tutti/internal/test/teamtest"
	"github.com/tutti-go/tutti/topology"
	"github.com/tutti-go/tutti/transport"
)

// A sentFrame is a frame that a recorded run sent.
type sentFrame struct {
	from, to int
	body     []byte
}

// A frameRecorder records every frame that a team's ranks send.
type frameRecorder struct {
	mu   sync.Mutex // guards seen
	seen []sentFrame

	dialing  sync.Mutex // one dial at a time, so that its other end is known
	dialer   int
	accepted chan struct{}
}

// newRecordedTeam returns a team whose messages are recorded. The function returns those since
// its last call, each rank's in the order sent. They must be short enough for one segment.
func newRecordedTeam(t testing.TB, n int) (tm *teamtest.Team, seen func() []sentFrame) {
	t.Helper()
	return newRecordedTeamAt(t, make([]topology.Place, n), teamtest.SharedMemory)
}

// newRecordedTeamAt is newRecordedTeam with a rank at each place.
func newRecordedTeamAt(t testing.TB, placement []topology.Place, share bool) (tm *teamtest.Team, seen func() []sentFrame) {
	t.Helper()
	w := &frameRecorder{accepted: make(chan struct{})}
	tm = teamtest.StartAt(t, placement, share, 0, func(rank int, tr transport.Transport) transport.Transport {
		return &recordingTransport{Transport: tr, w: w, rank: rank}
	})
	return tm, func() []sentFrame {
		w.mu.Lock()
		defer w.mu.Unlock()
		seen := w.seen
		w.seen = nil
		return seen
	}
}

// A recordingTransport hides every optional ability of the wrapped one.
type recordingTransport struct {
	transport.Transport
	w    *frameRecorder
	rank int
}

func (t *recordingTransport) Serve(in net.Listener, accept func(transport.Conn)) (string, error) {
	return t.Transport.Serve(in, func(c transport.Conn) {
		peer := t.w.dialer
		t.w.accepted <- struct{}{}
		accept(&recordingConn{c, t.w, t.rank, peer})
	})
}

func (t *recordingTransport) Dial(ctx context.Context, addr string) (transport.Conn, error) {
	t.w.dialing.Lock()
	defer t.w.dialing.Unlock()
	t.w.dialer = t.rank
	c, err := t.Transport.Dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	<-t.w.accepted // memory hands every dialled Conn to the one who serves
	peer := int(addr[len(addr)-1] - '0')
	return &recordingConn{c, t.w, t.rank, peer}, nil
}

type recordingConn struct {
	transport.Conn
	w    *frameRecorder
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

func (c *recordingConn) Send(f *transport.Frame) {
	if h := f.Head; len(h) >= eagerHead && h[0] == kindEager && binary.LittleEndian.Uint64(h[atContext:]) == collectives {
		c.w.mu.Lock()
		c.w.seen = append(c.w.seen, sentFrame{c.from, c.to, bytes.Clone(f.Body)})
		c.w.mu.Unlock()
	}
	c.Conn.Send(f)
}
