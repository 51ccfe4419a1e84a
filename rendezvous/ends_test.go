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

// A team is some ranks of one process, each an Engine and its Mesh.
type team struct {
	engines []*Engine
	meshes  []*mesh.Mesh
}

func newTeam(t *testing.T, n int) *team {
	t.Helper()
	return newTeamOf(t, n, Config{}, func(w transport.Transport) transport.Transport { return w })
}

// newTeamOf is a team whose Engines have cfg, and whose Transports are wrapped.
func newTeamOf(t *testing.T, n int, of Config, wrap func(transport.Transport) transport.Transport) *team {
	t.Helper()
	hub := memory.New()
	tm := &team{meshes: make([]*mesh.Mesh, n)}
	peers := make([]string, n)
	for r := range n {
		peers[r] = hub.Addr(r)
		tm.engines = append(tm.engines, New(Config{Rank: r, Size: n, Credit: of.Credit, Region: of.Region, Drive: of.Drive}))
	}
	var starts sync.WaitGroup
	for r := range n {
		cfg := mesh.Config{Rank: r, Size: n, Job: "test", Transport: wrap(hub.Transport()), Peers: peers, InProcess: true, Data: tm.engines[r]}
		starts.Go(func() {
			m, err := mesh.Start(t.Context(), cfg)
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

// close ends all ranks; twice is once.
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

// connect opens the data Conn from one rank to another, and returns when nothing
// is on its way on it.
func (tm *team) connect(t *testing.T, from, to int) {
	t.Helper()
	op := tm.engines[from].Open(99, []int{from, to}).Start(to, 0, 0, []byte{1}, Push)
	into := tm.engines[to].Open(99, []int{from, to}).Post(from, 0, 0, make([]byte, 1))
	for _, op := range []*Op{op, into} {
		if err := op.e.Wait(t.Context(), op, nil); err != nil {
			t.Fatal(err)
		}
	}
	e, p := tm.engines[from], tm.engines[from].peers[to]
	for granted := false; !granted; { // all its credit, which comes back with the first message
		e.m.Link(to).Progress()
		e.mu.Lock()
		granted = p.credit > minCredit
		e.mu.Unlock()
	}
}

// arriving has the head of a frame from a rank arrive, and returns what has the
// rest of it arrive.
func (e *Engine) arriving(from int, h head) (rest func()) {
	var room [transport.MaxHead]byte
	f := transport.Header{Head: room[:h.encode(&room)]}
	if h.kind == kindEager || h.kind == kindData || h.kind == kindName || h.kind == kindRegion || h.kind == kindFreed {
		f.Size = int(h.size)
	}
	e.peers[from].Buffer(f)
	return func() { e.peers[from].Arrived(f, f.Size) }
}

var (
	errEnded   = errors.New("ended")
	errRevoked = errors.New("revoked")
)

func TestAReceiveIsHeldUntilTheMessageThatDoesNotFitIsIn(t *testing.T) {
	e := newTeam(t, 2).engines[0]
	s, other := e.Open(5, []int{0, 1}), e.Open(6, []int{0, 1})
	op := s.Post(1, 3, 77, make([]byte, 100))
	rest := e.arriving(1, head{kind: kindEager, context: 5, tag: 3, size: 100, print: 78})
	s.Revoke(errRevoked)
	if op.Happened() {
		op.Free()
		next := other.Post(1, 9, 0, nil) // takes the same memory
		rest()
		if next.Happened() {
			t.Fatal("the end of a message ended a receive of another space")
		}
		t.Fatal("the receive ended while its frame still held it")
	}
	rest()
	if !op.Happened() || !errors.Is(op.Err(), errRevoked) {
		t.Errorf("ended %v with %v, want the revoke", op.Happened(), op.Err())
	}
}

func TestMessagesForARevokedSpaceGiveTheirCreditBack(t *testing.T) {
	tm := newTeam(t, 2)
	e := tm.engines[0]
	s := e.Open(5, []int{0, 1})
	s.Revoke(errRevoked)
	e.arriving(1, head{kind: kindEager, context: 5, tag: 3, size: 100})()
	e.arriving(1, head{kind: kindOffer, context: 5, tag: 3, size: 1 << 20, id: 7})()
	s.Close(errEnded)
	e.mu.Lock()
	defer e.release()
	if p := e.peers[1]; p.held != 0 || len(p.offered) != 0 {
		t.Errorf("%d bytes of the peer's credit and %d offers are held for a space that nobody can receive in", p.held, len(p.offered))
	}
}

func TestAnUnreceivedMessageToOneselfEndsWithItsSpace(t *testing.T) {
	e := newTeam(t, 2).engines[0]
	s := e.Open(5, []int{0, 1})
	op := s.Start(0, 3, 0, []byte("hello"), Auto)
	s.Close(errEnded)
	if !op.Happened() || !errors.Is(op.Err(), errEnded) {
		t.Errorf("ended %v with %v, want the space's error", op.Happened(), op.Err())
	}
	e.mu.Lock()
	defer e.release()
	if p := e.peers[0]; p.unsent != 0 || p.broken != nil {
		t.Errorf("%d frames were sent to this rank itself; its link: %v", p.unsent, p.broken)
	}
}

func TestReceivesEndWithTheMesh(t *testing.T) {
	for name, begin := range map[string]func(e *Engine){
		"half arrived": func(e *Engine) {
			e.arriving(1, head{kind: kindEager, context: 5, tag: 3, size: 1 << 16})
		},
		"shown to its sender": func(e *Engine) {
			e.arriving(1, head{kind: kindOffer, context: 5, tag: 3, size: 1 << 20, id: 4711})()
		},
	} {
		for _, closed := range []bool{false, true} { // the space, before
			t.Run(name, func(t *testing.T) {
				tm := newTeam(t, 2)
				tm.connect(t, 0, 1)
				e := tm.engines[0]
				s := e.Open(5, []int{0, 1})
				op := s.Post(1, 3, 0, make([]byte, 1<<20))
				begin(e)
				if closed {
					s.Close(errEnded)
				}
				e.End(errEnded)
				if op.Happened() {
					t.Fatal("the buffer was given back while the Conn could write into it")
				}
				tm.close()
				if !op.Happened() || !errors.Is(op.Err(), errEnded) {
					t.Errorf("ended %v with %v, want the engine's end", op.Happened(), op.Err())
				}
			})
		}
	}
}

func TestAReceiveInAClosedSpaceEndsWithItsSender(t *testing.T) {
	tm := newTeam(t, 2)
	tm.connect(t, 0, 1)
	e := tm.engines[0]
	s := e.Open(5, []int{0, 1})
	op := s.Post(1, 3, 0, make([]byte, 1<<20))
	e.arriving(1, head{kind: kindOffer, context: 5, tag: 3, size: 1 << 20, id: 4711})()
	s.Close(errEnded)
	e.FailPeer(1, fault.PeerLost)
	if !op.Happened() || !errors.Is(op.Err(), errEnded) {
		t.Errorf("ended %v with %v, want the space's error", op.Happened(), op.Err())
	}
}

func TestAcceptedSendsOutliveTheirSpace(t *testing.T) {
	for _, size := range []int{10, 1 << 20} {
		tm := newTeam(t, 2)
		from, to := tm.engines[0], tm.engines[1]
		s := from.Open(5, []int{0, 1})
		if err := s.Send(t.Context(), nil, 1, 3, 0, make([]byte, size), Pull); err != nil {
			t.Fatal(err)
		}
		waits := s.Start(1, 4, 0, make([]byte, size), Pull)
		s.Close(errEnded)
		if !errors.Is(waits.Err(), errEnded) {
			t.Errorf("a send that was not accepted got %v, want the space's error", waits.Err())
		}
		env, err := to.Open(5, []int{0, 1}).Recv(t.Context(), nil, 0, 3, 0, make([]byte, size))
		if err != nil || env.Bytes != size {
			t.Errorf("got %d bytes, %v; want %d", env.Bytes, err, size)
		}
	}
}

func goodbye(rank int) error { return fault.New(fault.Closed, "close", rank, "") }

func TestAReceiveFromAnySourceOutlivesGoodbyesButTheLast(t *testing.T) {
	e := newTeam(t, 3).engines[0]
	s := e.Open(5, []int{0, 1, 2})
	op := s.Post(Any, 3, 0, nil)
	e.FailPeer(1, goodbye(1))
	if later := s.Post(Any, 4, 0, nil); op.Happened() || later.Happened() {
		t.Fatalf("ended with %v and %v while another rank can still send", op.Err(), later.Err())
	}
	e.FailPeer(2, goodbye(2))
	if !op.Happened() || !errors.Is(op.Err(), fault.Closed) {
		t.Errorf("ended %v with %v, want closed", op.Happened(), op.Err())
	}
}

func TestAReceiveFromAnySourceEndsWithAnyLoss(t *testing.T) {
	e := newTeam(t, 3).engines[0]
	op := e.Open(5, []int{0, 1, 2}).Post(Any, 3, 0, nil)
	apart := e.Open(6, []int{0, 1}).Post(Any, 3, 0, nil)
	e.FailPeer(2, fault.PeerLost)
	if !errors.Is(op.Err(), fault.PeerLost) || apart.Happened() {
		t.Errorf("got %v; another space's receive ended %v, with %v", op.Err(), apart.Happened(), apart.Err())
	}
}

func TestDrainEndsWithTheEngine(t *testing.T) {
	tm := newTeam(t, 2)
	e := tm.engines[0]
	e.Open(5, []int{0, 1}).Start(1, 3, 0, make([]byte, 100), Pull) // nobody receives it
	ended := make(chan error, 1)
	go func() { ended <- e.Drain(t.Context()) }()
	e.End(errEnded)
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestOnlyWhatWasSentToOthersCountsAsNotDelivered(t *testing.T) {
	for to, want := range []error{nil, fault.PeerLost} {
		e := newTeam(t, 2).engines[0]
		s := e.Open(5, []int{0, 1})
		if err := s.Send(t.Context(), nil, to, 3, 0, make([]byte, 100), Pull); err != nil {
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
	if got := after(&n); got != 1 {
		t.Errorf("got %d, want 1", got)
	}
}
