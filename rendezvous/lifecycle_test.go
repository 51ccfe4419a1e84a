package rendezvous

import (
	"context"
	"errors"
	"math"
	"sync"
	"testing"
	"time"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/mesh"
	"github.com/tutti-go/tutti/transport"
	"github.com/tutti-go/tutti/transport/memory"
)

// A team is several ranks in one process. Each rank is an Engine with its Mesh.
type team struct {
	engines []*Engine
	meshes  []*mesh.Mesh
}

func newTeam(t *testing.T, n int) *team {
	t.Helper()
	return newTeamWith(t, n, Config{}, func(w transport.Transport) transport.Transport { return w })
}

// newTeamWith returns a team whose Engines have cfg, and whose Transports are wrapped.
func newTeamWith(t *testing.T, n int, cfg Config, wrap func(transport.Transport) transport.Transport) *team {
	t.Helper()
	hub := memory.New()
	tm := &team{meshes: make([]*mesh.Mesh, n)}
	peers := make([]string, n)
	for r := range n {
		peers[r] = hub.Addr(r)
		cfg.Rank, cfg.Size = r, n
		tm.engines = append(tm.engines, New(cfg))
	}
	var starts sync.WaitGroup
	for r := range n {
		meshCfg := mesh.Config{Rank: r, Size: n, Job: "test", Transport: wrap(hub.Transport()), Peers: peers, InProcess: true, Data: tm.engines[r]}
		starts.Go(func() {
			m, err := mesh.Start(t.Context(), meshCfg)
			if err != nil {
				t.Error(err)
				return
			}
			tm.meshes[r] = m
			tm.engines[r].Bind(m)
		})
	}
	starts.Wait()
	if t.Failed() {
		t.FailNow()
	}
	t.Cleanup(tm.close)
	return tm
}

// close ends all ranks. A second call does nothing.
func (tm *team) close() {
	var ends sync.WaitGroup
	for r, m := range tm.meshes {
		ends.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
			defer cancel()
			tm.engines[r].End(errEnded)
			m.Close(ctx)
		})
	}
	ends.Wait()
}

// connect opens the data Conn from one rank to another, and returns when nothing is in flight on
// it.
func (tm *team) connect(t *testing.T, from, to int) {
	t.Helper()
	req := tm.engines[from].Open(99, []int{from, to}).PostSend(to, 0, 0, []byte{1}, Eager)
	into := tm.engines[to].Open(99, []int{from, to}).PostRecv(from, 0, 0, make([]byte, 1))
	for _, req := range []*Request{req, into} {
		if err := req.e.Wait(t.Context(), req, nil); err != nil {
			t.Fatal(err)
		}
	}
	e, p := tm.engines[from], tm.engines[from].peers[to]
	for granted := false; !granted; { // until the first message has returned all credit
		e.m.Link(to).Progress()
		e.mu.Lock()
		granted = p.credit > minCredit
		e.mu.Unlock()
	}
}

// zeroName is the name in a kindName or kindPrepare frame of three bytes in these tests. The tests
// never fill in the body, so its bytes are zero.
const zeroName = "\x00\x00\x00"

// startArrival lets the header of a frame from a rank arrive, and returns a function that completes
// the frame.
func (e *Engine) startArrival(from int, h frameHeader) (rest func()) {
	var room [transport.MaxHead]byte
	f := transport.Header{Head: room[:h.encode(&room)]}
	switch h.kind {
	case kindEager, kindData, kindName:
		f.Size = int(h.size)
	case kindPrepare:
		f.Size = len(zeroName)
	}
	e.peers[from].Buffer(f)
	return func() { e.peers[from].Arrived(f, f.Size) }
}

var (
	errEnded   = errors.New("ended")
	errRevoked = errors.New("revoked")
)

func TestMismatchedRecvWaitsForItsMessage(t *testing.T) {
	e := newTeam(t, 2).engines[0]
	s, other := e.Open(5, []int{0, 1}), e.Open(6, []int{0, 1})
	req := s.PostRecv(1, 3, 77, make([]byte, 100))
	rest := e.startArrival(1, frameHeader{kind: kindEager, context: 5, tag: 3, size: 100, fingerprint: 78})
	s.Revoke(errRevoked)
	if req.Met() {
		req.Free()
		next := other.PostRecv(1, 9, 0, nil) // it gets the same memory
		rest()
		if next.Met() {
			t.Fatal("the end of a message ended a receive of another context")
		}
		t.Fatal("the receive ended while its frame still held it")
	}
	rest()
	if !req.Met() || !errors.Is(req.Err(), errRevoked) {
		t.Errorf("ended %v with %v, want the revoke", req.Met(), req.Err())
	}
}

func TestMessagesForRevokedContextReturnTheirCredit(t *testing.T) {
	tm := newTeam(t, 2)
	e := tm.engines[0]
	s := e.Open(5, []int{0, 1})
	s.Revoke(errRevoked)
	e.startArrival(1, frameHeader{kind: kindEager, context: 5, tag: 3, size: 100})()
	e.startArrival(1, frameHeader{kind: kindOffer, context: 5, tag: 3, size: 1 << 20, id: 7})()
	s.Close(errEnded)
	e.mu.Lock()
	defer e.unlock()
	if p := e.peers[1]; p.heldCredit != 0 || len(p.queuedOffers) != 0 {
		t.Errorf("%d bytes of the peer's credit and %d offers are held for a context that nobody can receive in", p.heldCredit, len(p.queuedOffers))
	}
}

func TestUnreceivedMessageToSelfEndsWithItsContext(t *testing.T) {
	e := newTeam(t, 2).engines[0]
	s := e.Open(5, []int{0, 1})
	req := s.PostSend(0, 3, 0, []byte("hello"), Auto)
	s.Close(errEnded)
	if !req.Met() || !errors.Is(req.Err(), errEnded) {
		t.Errorf("ended %v with %v, want the context's error", req.Met(), req.Err())
	}
	e.mu.Lock()
	defer e.unlock()
	if p := e.peers[0]; p.inConn != 0 || p.connErr != nil {
		t.Errorf("%d frames were sent to this rank itself; its link: %v", p.inConn, p.connErr)
	}
}

func TestRecvsEndWithTheMesh(t *testing.T) {
	for name, begin := range map[string]func(e *Engine){
		"half arrived": func(e *Engine) {
			e.startArrival(1, frameHeader{kind: kindEager, context: 5, tag: 3, size: 1 << 16})
		},
		"shown to its sender": func(e *Engine) {
			e.startArrival(1, frameHeader{kind: kindOffer, context: 5, tag: 3, size: 1 << 20, id: 4711})()
		},
	} {
		for _, closed := range []bool{false, true} { // whether the context is closed before
			t.Run(name, func(t *testing.T) {
				tm := newTeam(t, 2)
				tm.connect(t, 0, 1)
				e := tm.engines[0]
				s := e.Open(5, []int{0, 1})
				req := s.PostRecv(1, 3, 0, make([]byte, 1<<20))
				begin(e)
				if closed {
					s.Close(errEnded)
				}
				e.End(errEnded)
				if req.Met() {
					t.Fatal("the buffer was given back while the Conn could write into it")
				}
				tm.close()
				if !req.Met() || !errors.Is(req.Err(), errEnded) {
					t.Errorf("ended %v with %v, want the engine's end", req.Met(), req.Err())
				}
			})
		}
	}
}

func TestRecvInClosedContextEndsWithItsSender(t *testing.T) {
	tm := newTeam(t, 2)
	tm.connect(t, 0, 1)
	e := tm.engines[0]
	s := e.Open(5, []int{0, 1})
	req := s.PostRecv(1, 3, 0, make([]byte, 1<<20))
	e.startArrival(1, frameHeader{kind: kindOffer, context: 5, tag: 3, size: 1 << 20, id: 4711})()
	s.Close(errEnded)
	e.FailPeer(1, fault.PeerLost)
	if !req.Met() || !errors.Is(req.Err(), errEnded) {
		t.Errorf("ended %v with %v, want the context's error", req.Met(), req.Err())
	}
}

func TestAcceptedSendsOutliveTheirContext(t *testing.T) {
	for _, size := range []int{10, 1 << 20} {
		tm := newTeam(t, 2)
		from, to := tm.engines[0], tm.engines[1]
		s := from.Open(5, []int{0, 1})
		if err := s.Send(t.Context(), nil, 1, 3, 0, make([]byte, size), Rendezvous); err != nil {
			t.Fatal(err)
		}
		waits := s.PostSend(1, 4, 0, make([]byte, size), Rendezvous)
		s.Close(errEnded)
		if !errors.Is(waits.Err(), errEnded) {
			t.Errorf("a send that was not accepted got %v, want the context's error", waits.Err())
		}
		env, err := to.Open(5, []int{0, 1}).Recv(t.Context(), nil, 0, 3, 0, make([]byte, size))
		if err != nil || env.Bytes != size {
			t.Errorf("got %d bytes, %v; want %d", env.Bytes, err, size)
		}
	}
}

func byeError(rank int) error { return fault.New(fault.Closed, "close", rank, "") }

func TestRecvFromAnySourceEndsWithTheLastBye(t *testing.T) {
	e := newTeam(t, 3).engines[0]
	s := e.Open(5, []int{0, 1, 2})
	req := s.PostRecv(Any, 3, 0, nil)
	e.FailPeer(1, byeError(1))
	if later := s.PostRecv(Any, 4, 0, nil); req.Met() || later.Met() {
		t.Fatalf("ended with %v and %v while another rank can still send", req.Err(), later.Err())
	}
	e.FailPeer(2, byeError(2))
	if !req.Met() || !errors.Is(req.Err(), fault.Closed) {
		t.Errorf("ended %v with %v, want closed", req.Met(), req.Err())
	}
}

func TestRecvFromAnySourceEndsWithAnyLoss(t *testing.T) {
	e := newTeam(t, 3).engines[0]
	req := e.Open(5, []int{0, 1, 2}).PostRecv(Any, 3, 0, nil)
	other := e.Open(6, []int{0, 1}).PostRecv(Any, 3, 0, nil)
	e.FailPeer(2, fault.PeerLost)
	if !errors.Is(req.Err(), fault.PeerLost) || other.Met() {
		t.Errorf("got %v; another context's receive ended %v, with %v", req.Err(), other.Met(), other.Err())
	}
}

func TestDrainEndsWithTheEngine(t *testing.T) {
	tm := newTeam(t, 2)
	e := tm.engines[0]
	e.Open(5, []int{0, 1}).PostSend(1, 3, 0, make([]byte, 100), Rendezvous) // nobody receives it
	ended := make(chan error, 1)
	go func() { ended <- e.Drain(t.Context()) }()
	e.End(errEnded)
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestOnlyMessagesToOthersCountAsUndelivered(t *testing.T) {
	for to, want := range []error{nil, fault.PeerLost} {
		e := newTeam(t, 2).engines[0]
		s := e.Open(5, []int{0, 1})
		if err := s.Send(t.Context(), nil, to, 3, 0, make([]byte, 100), Rendezvous); err != nil {
			t.Fatal(err)
		}
		e.FailPeer(to, fault.New(fault.PeerLost, "mesh", 1-to, ""))
		if err := e.Drain(t.Context()); !errors.Is(err, want) {
			t.Errorf("to rank %d: got %v, want %v", to, err, want)
		}
	}
}

func TestIDsAreNeverZero(t *testing.T) {
	n := uint32(math.MaxUint32)
	if got := nextID(&n); got != 1 {
		t.Errorf("got %d, want 1", got)
	}
}
