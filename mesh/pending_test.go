package mesh

import (
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tutti-go/tutti/internal/pending"
	"github.com/tutti-go/tutti/internal/test/leak"
	"github.com/tutti-go/tutti/transport"
	"github.com/tutti-go/tutti/transport/tcp"
)

// slowConns keeps n slow connections to addr open. When a connection is closed, slowConns opens
// another connection. Every second connection sends the transport's first bytes, and then one byte
// at a time. The others send nothing. The returned function ends all connections, and waits until
// they have ended.
func slowConns(t *testing.T, addr string, n int) (stop func()) {
	t.Helper()
	greeting := tcpMagic(t)
	var work sync.WaitGroup
	var connected sync.WaitGroup
	var ended atomic.Bool
	for i := range n {
		connected.Add(1)
		work.Go(func() {
			first := sync.OnceFunc(connected.Done)
			defer first()
			for !ended.Load() {
				nc, err := net.Dial("tcp", addr)
				first()
				if err != nil {
					return // the rank has closed
				}
				if i%2 == 0 {
					nc.Write([]byte(greeting))
				}
				for one := make([]byte, 1); !ended.Load(); {
					nc.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
					if _, err := nc.Read(one); !isTimeout(err) {
						break
					}
					if i%2 == 0 {
						nc.Write(one)
					}
				}
				nc.Close()
			}
		})
	}
	connected.Wait()
	return func() {
		ended.Store(true)
		work.Wait()
	}
}

// slowConnCounts are the numbers of slow connections in the tests below: a few more than there are
// slots, and many more.
var slowConnCounts = []int{70, 300, 1000}

func TestAJobStartsBesideSlowConns(t *testing.T) {
	for _, n := range slowConnCounts {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			leak.Check(t)
			var once sync.Once
			stop := func() {}
			defer func() { stop() }()
			began := time.Now()
			w := startWired(t, 4, func(i int, cfg *Config) {
				once.Do(func() { stop = slowConns(t, cfg.Root, n); began = time.Now() })
			})
			defer w.close()
			elapsed := time.Since(began)
			if elapsed > 10*time.Second {
				t.Errorf("4 ranks start in %v, want at most 10 s", elapsed)
			}
			w.healthy()
			if got, most := len(w.logs.all()), 4*pending.Burst+int(time.Since(began)/pending.Interval)*4; got > most {
				t.Errorf("%d lines are logged, want at most %d", got, most)
			}
		})
	}
}

func TestDataConnsComeUpBesideSlowConns(t *testing.T) {
	for _, n := range slowConnCounts {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			leak.Check(t)
			const size = 4
			got := make([]*recorder, size)
			w := startWired(t, size, func(i int, cfg *Config) {
				got[i] = &recorder{got: make(map[string]int)}
				cfg.Data = got[i]
			})
			defer w.close()
			for _, addr := range w.addrs[1:3] {
				defer slowConns(t, addr, n/2)()
			}
			for _, m := range w.meshes {
				for _, to := range without(size, m.Rank()) {
					m.Link(to).Send(&transport.Frame{Head: []byte("h"), Body: fmt.Appendf(nil, "from %d", m.Rank()), Done: func(error) {}})
				}
			}
			for i := range got {
				eventually(t, fmt.Sprintf("rank %d has a frame of each other rank", i), func() bool { return got[i].count() == size-1 })
			}
			w.healthy()
		})
	}
}

func TestTheSourceWithTheMostSlotsLosesOne(t *testing.T) {
	now := time.Now()
	f := &mux{pending: make(map[*pendingConn]struct{})}
	add := func(source string, safeFor time.Duration) *pendingConn {
		g := &pendingConn{source: netip.MustParsePrefix(source), notEvictedBefore: now.Add(safeFor)}
		f.pending[g] = struct{}{}
		return g
	}
	add("10.0.0.1/32", time.Millisecond) // the oldest, alone on its host
	for i := range 5 {
		add("10.0.0.2/32", time.Duration(10+i)*time.Millisecond)
	}
	oldest := add("10.0.0.2/32", 5*time.Millisecond)
	add("10.0.0.3/32", 2*time.Millisecond)
	if got := f.victim(); got != oldest {
		t.Errorf("got the one of %v that is safe for %v, want the oldest of 10.0.0.2", got.source, got.notEvictedBefore.Sub(now))
	}
}

// A peer may prove its identity after its connection was chosen for eviction, or just before its
// deadline. The mux must not close that connection.
func TestAnAdmittedConnectionIsNeitherEvictedNorExpired(t *testing.T) {
	for what, end := range map[string]func(g *pendingConn){
		"evict":  func(g *pendingConn) { g.mux.evict(g, errSlotNeeded) },
		"expire": (*pendingConn).expire,
	} {
		var logs logBuffer
		f := &mux{pending: make(map[*pendingConn]struct{}), slotFree: newWakeup(), refusals: pending.NewLog(logs.logger())}
		near, far := net.Pipe()
		defer far.Close()
		g, _, _ := f.tryReserve(near)
		for range pendingSlots - 1 {
			other, _ := net.Pipe()
			slow, _, _ := f.tryReserve(other)
			defer slow.drop()
			slow.notEvictedBefore = g.notEvictedBefore.Add(time.Hour)
		}
		waiting, _ := net.Pipe()
		defer waiting.Close()
		if _, victim, _ := f.tryReserve(waiting); victim != g {
			t.Fatalf("%s: the victim is not the oldest connection", what)
		}
		var conn int // how often the transport's Conn is closed
		g.SetCloser(func() error { conn++; return nil })
		g.Admit()
		end(g)
		if conn != 0 || len(logs.all()) != 0 {
			t.Errorf("%s: the Conn is closed %d times, logged %q; want neither", what, conn, logs.all())
		}
		go far.Write([]byte("x"))
		if n, err := g.Read(make([]byte, 1)); n != 1 || err != nil {
			t.Errorf("%s: read %d bytes, %v, from an admitted connection", what, n, err)
		}
		g.Close()
	}
}

// A peer whose hello has named the job must keep its slot for greetedHold.
func TestAConnectionWithAHelloKeepsItsSlot(t *testing.T) {
	leak.Check(t)
	w := startWired(t, 2, nil)
	defer w.close()
	wire := tcp.New(tcp.Options{})
	defer wire.Close()
	c, err := wire.Dial(t.Context(), w.addrs[0])
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	sent := time.Now()
	hello := w.meshes[1].id.hello(0, channelControl)
	conn := newHandshakeConn(c)
	conn.send(hello.append(nil), nil)
	if _, _, err := conn.recv(t.Context(), maxRefusal); err != nil { // the challenge
		t.Fatal(err)
	}
	f := w.meshes[0].mux
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.pending) != 1 {
		t.Fatalf("%d slots are taken, want 1", len(f.pending))
	}
	for g := range f.pending {
		if safe := g.notEvictedBefore.Sub(sent); safe < greetedHold {
			t.Errorf("the slot is safe for %v, want at least %v", safe, greetedHold)
		}
	}
}

// A connection under TLS must keep its slot for a round trip, before its peer can send its hello.
func TestAConnectionThatBeginsTLSKeepsItsSlot(t *testing.T) {
	leak.Check(t)
	ca := newTestCA(t)
	w := startWired(t, 2, func(i int, cfg *Config) { ca.secure(cfg, "tcp", i) })
	defer w.close()
	nc := connect(t, w.addrs[0])
	defer nc.Close()
	sent := time.Now()
	nc.Write([]byte{tlsRecord, 3, 1, 0, 200})
	f := w.meshes[0].mux
	eventually(t, "the slot is safe for a round trip", func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		for g := range f.pending {
			return g.notEvictedBefore.Sub(sent) >= tlsHold
		}
		return false
	})
}
