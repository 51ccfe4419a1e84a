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

// A sentFrame is a frame of a recorded run.
type sentFrame struct {
	from, to int
	body     []byte
}

// A frameRecorder records every frame that a team's ranks send.
type frameRecorder struct {
	mu   sync.Mutex // guards seen
	seen []sentFrame

	dialing  sync.Mutex // one dial at a time, so that accepted Conns match the dials
	dialer   int
	accepted chan struct{}
}

// newRecordedTeam returns a team whose messages are recorded. The function seen returns the
// messages since its last call. Messages of one rank are in the order sent. Each message must fit
// into one segment.
func newRecordedTeam(t testing.TB, n int) (tm *teamtest.Team, seen func() []sentFrame) {
	t.Helper()
	return newRecordedTeamAt(t, make([]topology.Place, n), teamtest.SharedMemory)
}

// newRecordedTeamAt is like newRecordedTeam, with one rank at each of the given places.
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

// A recordingTransport hides all optional interfaces of the wrapped Transport.
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
	<-t.w.accepted // the memory transport passes each dialled Conn to the serving side
	peer := int(addr[len(addr)-1] - '0')
	return &recordingConn{c, t.w, t.rank, peer}, nil
}

type recordingConn struct {
	transport.Conn
	w    *frameRecorder
	from int
	to   int
}

// The offsets of header fields that distinguish a message from other frames. Package rendezvous
// documents the layout.
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
