package mesh

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/test/leak"
	"github.com/tutti-go/tutti/internal/test/relay"
	"github.com/tutti-go/tutti/internal/test/tlstest"
	"github.com/tutti-go/tutti/transport"
	"github.com/tutti-go/tutti/transport/grpc"
	"github.com/tutti-go/tutti/transport/tcp"
)

// A meteredConn is a Conn whose counts the test sets. Its Progress delivers the bytes that have
// arrived, unless the test makes the Conn slow.
type meteredConn struct {
	scriptedConn
	mu                             sync.Mutex
	sent, acked, received, arrived uint64
	reading                        uint64 // bytes that the next Progress delivers
	// If finds is not Idle, Progress returns finds and delivers nothing.
	finds transport.State
	polls int // calls of Progress
}

func newMeteredConn() *meteredConn {
	c := new(meteredConn)
	c.close = func() {}
	c.progress = func() transport.State {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.polls++
		if c.finds != transport.Idle {
			return c.finds
		}
		if c.reading == 0 {
			return transport.Idle
		}
		c.received, c.reading = c.received+c.reading, 0
		return transport.Moved
	}
	return c
}

func (c *meteredConn) Traffic() (sent, acked, received, arrived uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.sent, c.acked, c.received, c.arrived
}

// set changes the counts.
func (c *meteredConn) set(change func(c *meteredConn)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change(c)
}

// An ackStep is one step of a test of acknowledgements. The field near is the sender's Conn, and
// the field far is the receiver's Conn.
type ackStep struct {
	do    func(near, far *meteredConn)
	lasts time.Duration
	lost  bool
}

func TestASilentLinkFailsAndAWorkingOneDoesNot(t *testing.T) {
	const limit = DefaultStall
	// The time between two checks is at most stallEvery plus one heartbeat. A standstill begins
	// only when the bytes are older than one check, and the failure comes with an answer.
	const least, most = limit, limit + stallEvery + 3*DefaultHeartbeat
	send := func(near, _ *meteredConn) { near.set(func(c *meteredConn) { c.sent += 100 }) }
	for name, steps := range map[string][]ackStep{
		"nothing arrives":       {{send, least, false}, {nil, most - least, true}},
		"a part arrives":        {{send, 0, false}, {deliver(50), least, false}, {nil, most - least + stallEvery, true}},
		"nothing after a while": {{send, 0, false}, {deliver(100), time.Hour, false}, {send, least, false}, {nil, most - least, true}},
		"all arrives":           {{send, 0, false}, {deliver(100), time.Hour, false}},
		"a little at a time": {{send, 0, false}, {deliver(1), limit - 2*stallEvery, false}, {deliver(1), limit - 2*stallEvery, false},
			{deliver(1), limit - 2*stallEvery, false}, {deliver(97), time.Hour, false}},
		"the peer acknowledges by a frame": {{send, limit - 2*stallEvery, false},
			{func(near, _ *meteredConn) { near.set(func(c *meteredConn) { c.acked = 100 }) }, time.Hour, false}},
		"a part of a message arrives": {{send, limit - 2*stallEvery, false}, {arrive, limit - 2*stallEvery, false}, {arrive, limit - 2*stallEvery, false},
			{deliver(100), time.Hour, false}},
		"the peer is slow": {{send, 0, false}, {func(_, far *meteredConn) { far.set(func(c *meteredConn) { c.finds = transport.Moved }) }, 4 * limit, false},
			{func(_, far *meteredConn) { far.set(func(c *meteredConn) { c.finds = transport.Idle }) }, most + stallEvery, true}},
		"the peer stops reading": {{send, 0, false}, {func(_, far *meteredConn) { far.set(func(c *meteredConn) { c.finds = transport.Busy }) }, 4 * limit, false}},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := started(t, 2, func(i int, cfg *Config) { withData(i, cfg); cfg.Silence = time.Hour })
				defer r.close()
				near, far := newMeteredConn(), newMeteredConn()
				r.up(near)
				r.upAt(1, 0, far)
				<-time.After(10 * time.Second)
				for i, s := range steps {
					if s.do != nil {
						s.do(near, far)
					}
					<-time.After(s.lasts)
					synctest.Wait()
					e, _ := r.events[1].first()
					if lost := blames(e, fault.LinkLost, 0, 1); lost != s.lost {
						t.Fatalf("after step %d: the link is lost: %v (%v)", i, lost, e)
					}
				}
			})
		})
	}
}

// The time for which either rank is suspended must not count as a standstill. A suspended rank can
// read or count bytes only when it runs again.
func TestSuspendedTimeIsNoStandstill(t *testing.T) {
	for suspended := range 2 {
		t.Run(fmt.Sprint("rank ", suspended), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := started(t, 2, func(i int, cfg *Config) { withData(i, cfg); cfg.Silence = time.Hour })
				defer r.close()
				near, far := newMeteredConn(), newMeteredConn()
				r.up(near)
				r.upAt(1, 0, far)
				near.set(func(c *meteredConn) { c.sent = 100 })
				<-time.After(3 * stallEvery) // a standstill has begun
				thaw := r.freeze(suspended)
				<-time.After(4 * DefaultStall)
				thaw()
				<-time.After(DefaultStall - stallEvery)
				deliver(100)(near, far)
				<-time.After(time.Hour)
				synctest.Wait()
				for i, ear := range r.events {
					if e, _ := ear.first(); e != nil {
						t.Errorf("rank %d reports %v", i, e)
					}
				}
			})
		})
	}
}

// deliver lets bytes of the near end arrive. The next Progress of the far end reads them.
func deliver(n uint64) func(_, _ *meteredConn) {
	return func(_, far *meteredConn) { far.set(func(c *meteredConn) { c.reading += n }) }
}

// arrive lets only the beginning of a message arrive, so that nothing is delivered yet.
func arrive(_, far *meteredConn) { far.set(func(c *meteredConn) { c.arrived++ }) }

// The Mesh must not ask about a link whose bytes are all acknowledged. About a link with
// unacknowledged bytes, it must ask at most once per second.
func TestQuestionsAboutTrafficAreFew(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := started(t, 2, func(i int, cfg *Config) { withData(i, cfg); cfg.Silence = time.Hour })
		defer r.close()
		near, far := newMeteredConn(), newMeteredConn()
		r.up(near)
		r.upAt(1, 0, far)
		polls := func(d time.Duration) (n int) { // a question makes the far end's Mesh poll
			far.set(func(c *meteredConn) { c.polls = 0 })
			<-time.After(d)
			synctest.Wait()
			far.set(func(c *meteredConn) { n = c.polls })
			return n
		}
		near.set(func(c *meteredConn) { c.sent, c.acked = 100, 100 })
		far.set(func(c *meteredConn) { c.received = 100 })
		if got := polls(time.Minute); got != 0 {
			t.Errorf("the peer's end was polled %d times in a minute in which all was acknowledged, want none", got)
		}
		near.set(func(c *meteredConn) { c.sent = 200 })
		deliver(100)(near, far)
		if got := polls(time.Minute); got != 2 {
			t.Errorf("the peer's end was polled %d times about bytes that have arrived, want one question, with 2 polls", got)
		}
		near.set(func(c *meteredConn) { c.sent = 300 })
		far.set(func(c *meteredConn) { c.finds = transport.Moved })
		if got := polls(time.Minute) / maxReadyTurns; got < 40 || got > 60 {
			t.Errorf("a slow peer was asked %d times in a minute, want about one question per second", got)
		}
	})
}

// upAt makes c the data Conn from one rank to another.
func (r *testJob) upAt(rank, peer int, c transport.Conn) {
	l := r.meshes[rank].Link(peer)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.state = linkUp
	l.conn.Store(&upConn{Conn: c})
}

func TestMalformedAnswersAboutTrafficAreIgnored(t *testing.T) {
	good := trafficAnswer{received: 1 << 40, arrived: 7, idle: true}
	if got, ok := parseTrafficAnswer(good.append(nil)); !ok || got != good {
		t.Errorf("got %+v, %v; want %+v", got, ok, good)
	}
	for _, b := range [][]byte{nil, {}, good.append(nil)[:16], append(good.append(nil), 0), append(good.append(nil)[:16], 2)} {
		if got, ok := parseTrafficAnswer(b); ok {
			t.Errorf("%x: got %+v, want no answer", b, got)
		}
	}
}

// startRelayed starts three ranks. Rank 0 reaches rank 1 only through a relay. The second
// connection between the two is the data Conn; filters returns its Filters.
func startRelayed(t *testing.T, transports func(cfg *Config), filters func() (up, down relay.Filter)) (*testJob, []*recorder) {
	t.Helper()
	r := newTestJob(t, 3)
	lns, addrs, recorders := make([]net.Listener, 3), make([]string, 3), make([]*recorder, 3)
	for i := range lns {
		lns[i] = listen(t)
		addrs[i] = lns[i].Addr().String()
	}
	through := relay.Start(t, addrs[1], func(conn int) (up, down relay.Filter) {
		if conn == 0 {
			return nil, nil // the control link
		}
		return filters()
	})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	r.start(ctx, upTo(3), func(i int, cfg *Config) {
		recorders[i] = &recorder{got: make(map[string]int)}
		transports(cfg)
		cfg.Listener, cfg.Root, cfg.Data = lns[i], "", recorders[i]
		cfg.Peers, cfg.Stall, cfg.InProcess = addrs, stallTestLimit, false
		if i == 0 {
			cfg.Peers = []string{addrs[0], through, addrs[2]}
		}
	})
	t.Cleanup(r.close)
	for i, err := range r.errs {
		if err != nil {
			t.Fatalf("rank %d: %v", i, err)
		}
	}
	return r, recorders
}

// silentWires maps each wire whose connections can go silent to the function that makes a rank's
// Transport.
func silentWires(t *testing.T) map[string]func(cfg *Config) {
	cert, pool := tlstest.New(t).Load(t)
	secured := &tls.Config{Certificates: []tls.Certificate{cert}, RootCAs: pool}
	return map[string]func(cfg *Config){
		"tcp":  overTCP,
		"grpc": func(cfg *Config) { cfg.Transport = grpc.New(grpc.Options{}) },
		"tcp, TLS": func(cfg *Config) {
			cfg.TLS, cfg.Transport = &tls.Config{Certificates: []tls.Certificate{cert}}, tcp.New(tcp.Options{TLS: &tcp.TLS{Config: secured}})
		},
	}
}

func overTCP(cfg *Config) { cfg.Transport = tcp.New(tcp.Options{}) }

// silentReported bounds the time from the last bytes to the report of the lost link on all ranks:
// the bytes are found unacknowledged one check later.
const silentReported = stallReported + stallEvery

// From some moment on, the relay reads everything from the data connection and forwards nothing, in
// one direction or in both. All ranks must report the lost link. A network path that drops large
// packets behaves in the same way.
func TestAConnectionThatGoesSilentIsReportedWithBothEnds(t *testing.T) {
	leak.Check(t)
	for wire, transports := range silentWires(t) {
		for _, dir := range []string{"towards the peer", "towards this rank", "both ways"} {
			t.Run(wire+", "+dir, func(t *testing.T) {
				t.Parallel()
				var silent atomic.Bool
				mute := func(p []byte) []byte {
					if silent.Load() {
						return nil
					}
					return p
				}
				r, recorders := startRelayed(t, transports, func() (up, down relay.Filter) {
					switch dir {
					case "towards the peer":
						return mute, nil
					case "towards this rank":
						return nil, mute
					}
					return mute, mute
				})
				r.send([]byte("hello"))
				eventually(t, "the first frame arrives", func() bool { return recorders[1].count() == 1 })
				silent.Store(true)
				start := time.Now()
				from, to := 0, 1
				if dir == "towards this rank" {
					from, to = 1, 0
				}
				f := &transport.Frame{Head: []byte("h"), Body: bytes.Repeat([]byte("x"), 5000), Done: func(error) {}}
				r.meshes[from].Link(to).Send(f)
				if err := r.lostLink(start, silentReported); err != nil {
					t.Fatal(err)
				}
				e, _ := r.events[2].first()
				want := fmt.Sprintf("rank %d has received ", to)
				if wire == "tcp" && runtime.GOOS == "linux" && !strings.Contains(e.Error(), "has acknowledged everything") {
					t.Errorf("got %q, want a text that says what the kernel knows", e)
				}
				if text := e.Error(); !strings.Contains(text, want) || !strings.Contains(text, "MTU") || !strings.Contains(text, "firewall") {
					t.Errorf("got %q, want a text with %q, MTU and firewall", text, want)
				}
			})
		}
	}
}

// tcpFrames describes package tcp's streams from the dialling side.
var tcpFrames = relay.TCP(true)

// handshakeFrames is the number of frames that the dialling side sends in the handshake: HELLO and
// PROOF.
const handshakeFrames = 2

// A relay drops, doubles or swaps one of four frames on a data link. All ranks must report the lost
// link. They report it at once with the frame numbers, except if the last frame is dropped or
// swapped: then they report it because the frame is not acknowledged. No frame may be delivered
// twice or out of order.
func TestAlteredFramesAreReportedWithBothEnds(t *testing.T) {
	leak.Check(t)
	const frames = 4
	for _, lie := range []relay.Fault{relay.Drop, relay.Double, relay.Swap} {
		for k := range frames {
			t.Run(fmt.Sprintf("%s %d", lie, k), func(t *testing.T) {
				t.Parallel()
				r, recorders := startRelayed(t, overTCP,
					func() (up, down relay.Filter) { return tcpFrames.Alter(lie, handshakeFrames+k), nil })
				start := time.Now()
				for i := range frames {
					r.send(fmt.Append(nil, "body ", i))
				}
				limit, want := time.Second, "got sequence number"
				if k == frames-1 && lie != relay.Double {
					limit, want = silentReported, "and nothing more"
				}
				if err := r.lostLink(start, limit); err != nil {
					t.Fatal(err)
				}
				if e, _ := r.events[2].first(); !strings.Contains(e.Error(), want) {
					t.Errorf("got %v, want a text with %q", e, want)
				}
				right := k
				if lie == relay.Double {
					right++
				}
				recorders[1].mu.Lock()
				defer recorders[1].mu.Unlock()
				if len(recorders[1].got) != right {
					t.Errorf("got %v, want the %d frames before the fault", recorders[1].got, right)
				}
				for i := range right {
					if n := recorders[1].got[fmt.Sprint("0: body ", i)]; n != 1 {
						t.Errorf("frame %d was delivered %d times, want once", i, n)
					}
				}
			})
		}
	}
}

// A peer that does not read a small frame must keep its link, because the frame is in its kernel.
func TestAPeerThatDoesNotReadKeepsItsLink(t *testing.T) {
	leak.Check(t)
	r, recorders := startOver(t, "tcp", 2, func(tr transport.Transport, _ int) transport.Transport { return tr })
	r.send([]byte("hello"))
	eventually(t, "the first frame arrives", func() bool { return recorders[1].count() == 1 })
	resume := r.meshes[1].Link(0).stopReading()
	r.send([]byte("later"))
	// Reason: rank 0 must report no failure within this time. A failure that is not reported has no
	// event to wait for.
	time.Sleep(stallTestLimit + 2*stallEvery)
	if e, _ := r.events[0].first(); e != nil {
		t.Errorf("got %v while the peer reads nothing, want no failure", e)
	}
	resume()
	eventually(t, "the second frame arrives", func() bool { return recorders[1].count() == 2 })
}
