package rendezvous

import (
	"encoding/binary"
	"hash/crc32"
	"log/slog"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/mesh"
	"github.com/tutti-go/tutti/transport"
	"github.com/tutti-go/tutti/transport/memory"
)

// silentData is the upper layer of a silent rank: it accepts every frame and sends none.
type silentData struct{}

func (silentData) Sink(*mesh.Link) transport.Sink    { return silentData{} }
func (silentData) LinkDown(int, error)               {}
func (silentData) Buffer(transport.Header) []byte    { return nil }
func (silentData) Arrived(h transport.Header, n int) {}

// newWithSilentPeer returns rank 0 of two, with a Conn to a silent rank 1, so that a test can send
// any frame in the name of rank 1.
func newWithSilentPeer(t *testing.T) *Engine {
	t.Helper()
	hub := memory.New()
	e := New(Config{Rank: 0, Size: 2, Static: 64 << 10})
	meshes := make(chan *mesh.Mesh, 2)
	for r, data := range []mesh.Data{e, silentData{}} {
		cfg := mesh.Config{
			Rank: r, Size: 2, Job: "test", Transport: hub.Transport(), Peers: []string{hub.Addr(0), hub.Addr(1)},
			InProcess: true, Data: data, Log: slog.New(slog.DiscardHandler),
		}
		go func() {
			m, err := mesh.Start(t.Context(), cfg)
			if err != nil {
				t.Error(err)
			}
			meshes <- m
		}()
	}
	tm := &team{engines: []*Engine{e, New(Config{Size: 1})}, meshes: []*mesh.Mesh{<-meshes, <-meshes}}
	if t.Failed() {
		t.FailNow()
	}
	t.Cleanup(tm.close)
	for _, m := range tm.meshes {
		if m.Rank() == 0 {
			e.Bind(m)
		}
	}
	e.m.Link(1).Open()
	for e.m.Link(1).Conn() == nil {
		// Reason: a Link has no event for being up.
		time.Sleep(time.Millisecond)
	}
	return e
}

// A randomPeer makes random calls on one rank, and lets well-formed random frames of its peer
// arrive.
type randomPeer struct {
	*rand.Rand
	e        *Engine
	contexts []*MatchContext
	reqs     []*Request
	prepared []*PreparedRecv
}

// randomCall makes a random call that is legal for a program.
func (b *randomPeer) randomCall() {
	s := b.contexts[b.IntN(len(b.contexts))]
	fingerprint, buf := uint64(b.IntN(2)), make([]byte, b.IntN(4)*20000)
	step, name := uint64(b.IntN(3)), []string{"a", "b", zeroName}[b.IntN(3)]
	switch b.IntN(12) {
	case 0, 1, 2:
		from, tag := []int{0, 1, Any}[b.IntN(3)], int32(b.IntN(4))-1
		b.reqs = append(b.reqs, s.PostRecv(from, tag, fingerprint, buf))
	case 3, 4:
		b.reqs = append(b.reqs, s.PostSend(b.IntN(2), int32(b.IntN(3)), fingerprint, buf, Protocol(b.IntN(3))))
	case 5, 6:
		if len(b.reqs) > 0 {
			b.reqs[b.IntN(len(b.reqs))].Cancel(errEnded)
		}
		b.reap()
	case 7:
		s.SendNamed(step, b.IntN(2), name, Tensor{Data: buf}, nil)
		s.RecvNamedAsync(step, b.IntN(2), name, nil, func(Tensor, error) {})
	case 8:
		b.e.endStep(stepID{s.id, step}, 0, "")
	case 9:
		if pr, err := s.PrepareNamed(b.IntN(2), name, make([]byte, 20000)); err == nil {
			b.prepared = append(b.prepared, pr)
		}
	case 10:
		if len(b.prepared) > 0 {
			pr := b.prepared[b.IntN(len(b.prepared))]
			b.e.mu.Lock()
			pr.stop()
			b.e.unlock()
		}
	case 11:
		if b.IntN(20) == 0 {
			s.Revoke(errRevoked)
		}
	}
}

// reap frees the requests that are done.
func (b *randomPeer) reap() {
	waiting := b.reqs[:0]
	for _, req := range b.reqs {
		if req.Met() {
			req.Free()
		} else {
			waiting = append(waiting, req)
		}
	}
	b.reqs = waiting
}

// randomFrame lets a random frame of the peer arrive.
func (b *randomPeer) randomFrame() {
	h := frameHeader{
		kind: frameKind(1 + b.IntN(int(kindEnd)-1)), id: uint32(b.IntN(12)), credit: uint32(b.IntN(1000)),
		context: uint64(5 + b.IntN(4)), tag: int32(b.IntN(3)), size: uint64(b.IntN(3) * 20000), fingerprint: uint64(b.IntN(2)),
		recvID: uint32(b.IntN(8)), offset: uint64(b.IntN(3) * 10000),
	}
	if h.kind == kindName {
		h.size = 3 // the size is not in this header
	}
	if h.kind == kindPrepare && b.IntN(4) > 0 {
		h.flags, h.size = flagToken, 20000
	}
	if h.kind == kindWritten {
		h.flags, h.name = flagNamed, uint32(b.IntN(3))
	}
	if message := h.kind == kindEager || h.kind == kindOffer; message && b.IntN(4) == 0 {
		h.flags |= flagNamed
		h.ndim, h.name, h.step = uint8(b.IntN(maxDims+1)), uint32(b.IntN(3)), uint64(b.IntN(3))
	}
	if h.kind == kindOffer && b.IntN(3) == 0 {
		h.flags |= flagExtra
	}
	rest := b.e.startArrival(1, h)
	if b.IntN(3) == 0 {
		b.randomCall()
	}
	rest()
}

func TestEveryRequestEndsUnderRandomFrames(t *testing.T) {
	for seed := range uint64(100) {
		e := newWithSilentPeer(t)
		b := &randomPeer{Rand: rand.New(rand.NewPCG(seed, 1)), e: e}
		for id := range uint64(3) {
			b.contexts = append(b.contexts, e.Open(5+id, []int{0, 1}))
		}
		for range 400 {
			if b.IntN(2) == 0 {
				b.randomCall()
			} else {
				b.randomFrame()
			}
		}
		e.FailPeer(1, fault.New(fault.PeerLost, "test", 1, ""))
		e.End(errEnded)
		late := time.Now().Add(10 * time.Second)
		for b.reap(); len(b.reqs) > 0; b.reap() {
			if time.Now().After(late) {
				t.Fatalf("seed %d: %d requests hang, the first in phase %d", seed, len(b.reqs), b.reqs[0].phase)
			}
			// Reason: a request that hangs wakes nobody. The loop ends at its deadline.
			time.Sleep(time.Millisecond)
		}
		for i, pr := range b.prepared {
			if err := pr.Close(t.Context()); err != nil {
				t.Fatalf("seed %d: prepared receive %d does not close: %v", seed, i, err)
			}
		}
	}
}

// A scriptSource is a source of random numbers that takes them from a script until the script ends.
type scriptSource struct {
	script []byte
	rest   *rand.PCG
}

func (s *scriptSource) Uint64() uint64 {
	if len(s.script) < 8 {
		return s.rest.Uint64()
	}
	n := binary.LittleEndian.Uint64(s.script)
	s.script = s.script[8:]
	return n
}

// FuzzMember attacks this rank from a peer that belongs to the job and has proven its identity. The
// fuzzed script serves as random numbers, which choose calls of this rank and frames of the peer.
// Between two runs of the script, one more frame arrives. Its head and body size are fuzzed, and
// its checksum is valid. The peer must not make this rank allocate more than the peer's credit.
// Every call must end after the peer's link has failed.
func FuzzMember(f *testing.F) {
	for _, h := range samples() {
		var room [transport.MaxHead]byte
		f.Add([]byte("any script"), append([]byte(nil), room[:h.encode(&room)]...), uint32(h.body()))
		h.size = 2 * DefaultCredit
		f.Add([]byte{}, append([]byte(nil), room[:h.encode(&room)]...), uint32(h.size))
	}
	f.Fuzz(func(t *testing.T, script, head []byte, size uint32) {
		e := newWithSilentPeer(t)
		b := &randomPeer{Rand: rand.New(&scriptSource{script, rand.NewPCG(1, 1)}), e: e}
		for id := range uint64(3) {
			b.contexts = append(b.contexts, e.Open(5+id, []int{0, 1}))
		}
		runScript := func() {
			for range min(len(script)/2, 100) {
				if b.IntN(2) == 0 {
					b.randomCall()
				} else {
					b.randomFrame()
				}
			}
		}
		runScript()
		if n := len(head) - 4; n >= 0 && len(head) <= transport.MaxHead {
			head = binary.LittleEndian.AppendUint32(head[:n:n], crc32.Checksum(head[:n], crc32.MakeTable(crc32.Castagnoli)))
			in := transport.Header{Head: head, Size: int(size)}
			if buf := e.peers[1].Buffer(in); len(buf) > DefaultCredit {
				t.Errorf("a body of %d bytes gets %d bytes of memory, want at most the credit, %d", size, len(buf), DefaultCredit)
			}
			e.peers[1].Arrived(in, in.Size)
		}
		runScript()
		e.FailPeer(1, fault.New(fault.PeerLost, "test", 1, ""))
		e.End(errEnded)
		for late := time.Now().Add(10 * time.Second); ; {
			if b.reap(); len(b.reqs) == 0 {
				return
			}
			if time.Now().After(late) {
				t.Fatalf("%d requests hang, the first in phase %d", len(b.reqs), b.reqs[0].phase)
			}
			// Reason: a request that hangs wakes nobody.
			time.Sleep(time.Millisecond)
		}
	})
}
