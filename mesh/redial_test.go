package mesh

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/test/leak"
	"github.com/tutti-go/tutti/internal/test/relay"
	"github.com/tutti-go/tutti/internal/test/starved"
	"github.com/tutti-go/tutti/transport"
	"github.com/tutti-go/tutti/transport/tcp"
)

// A checker is the layer above the data Conns. It requires that the frames of each sender arrive
// once and in order.
type checker struct {
	mu   sync.Mutex
	err  error
	down error
	got  int
}

func (p *checker) Sink(*Link) transport.Sink { return &checkerSink{checker: p} }

func (p *checker) LinkDown(rank int, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.down == nil {
		p.down = err
	}
}

func (p *checker) state() (got int, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err == nil {
		return p.got, p.down
	}
	return p.got, p.err
}

type checkerSink struct {
	*checker
	body    []byte
	arrived int
}

func (s *checkerSink) Buffer(h transport.Header) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.body != nil {
		s.err = fmt.Errorf("frame %d: Buffer is called twice", s.got)
	}
	s.body, s.arrived = make([]byte, h.Size), -1
	return s.body
}

func (s *checkerSink) Arrived(h transport.Header, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n <= s.arrived {
		s.err = fmt.Errorf("frame %d: %d bytes have arrived, after %d", s.got, n, s.arrived)
	}
	if s.arrived = n; n < h.Size {
		return
	}
	if want := numbered(s.got); string(h.Head) != string(want.Head) || string(s.body) != string(want.Body) {
		s.err = fmt.Errorf("frame %d: got number %d with %d bytes, want %d bytes", s.got, binary.LittleEndian.Uint64(h.Head), h.Size, len(want.Body))
	}
	s.body = nil
	s.got++
}

// numbered returns frame number i of a stream. Some frames are small enough to be copied.
func numbered(i int) *transport.Frame {
	body := make([]byte, []int{0, 40, 7, replayCopy + 100, 300}[i%5])
	for k := range body {
		body[k] = byte(i*7 + k)
	}
	return &transport.Frame{Head: binary.LittleEndian.AppendUint64(nil, uint64(i)), Body: body, Parts: nil}
}

// stream sends numbered frames, at most eight at a time, until the context ends, and returns their
// number. Each body is destroyed once its frame is done.
func stream(ctx context.Context, l *Link) int {
	room := make(chan struct{}, 8)
	for i := 0; ; i++ {
		select {
		case room <- struct{}{}:
		case <-ctx.Done():
			for range cap(room) {
				room <- struct{}{}
			}
			return i
		}
		f := numbered(i)
		f.Done = func(error) {
			clear(f.Body)
			<-room
		}
		l.Send(f)
	}
}

// streamBothWays lets ranks 0 and 1 send frames to each other until stop or the end of the test.
// The function stop returns how many frames each rank has sent.
func streamBothWays(t *testing.T, r *testJob) (stop func() []int) {
	ctx, cancel := context.WithCancel(t.Context())
	var work sync.WaitGroup
	sent := make([]int, 2)
	for i := range sent {
		work.Go(func() { sent[i] = stream(ctx, r.meshes[i].Link(1-i)) })
	}
	return func() []int {
		cancel()
		work.Wait()
		return sent
	}
}

// startCut starts two ranks with these layers over a wire. All connections between them pass
// relays. The function cutters returns the Cutters of a data connection.
func startCut(t *testing.T, transports func(cfg *Config), layers []*checker, cutters func() (up, down relay.Cutter)) *testJob {
	t.Helper()
	r := newTestJob(t, 2)
	lns, direct, through := make([]net.Listener, 2), make([]string, 2), make([]string, 2)
	var control atomic.Bool
	for i := range lns {
		lns[i] = listen(t)
		direct[i] = lns[i].Addr().String()
		through[i] = relay.StartCutting(t, direct[i], func(int) (up, down relay.Cutter) {
			if control.CompareAndSwap(false, true) { // the first connection is the control link
				return relay.CutAfter(-1), relay.CutAfter(-1)
			}
			return cutters()
		})
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	r.start(ctx, upTo(2), func(i int, cfg *Config) {
		transports(cfg)
		cfg.Listener, cfg.Root, cfg.Data, cfg.InProcess = lns[i], "", layers[i], false
		cfg.Peers = []string{through[0], through[1]}
		cfg.Peers[i] = direct[i]
		cfg.Redial = 10 * time.Second
	})
	t.Cleanup(r.close)
	for i, err := range r.errs {
		if err != nil {
			t.Fatalf("rank %d: %v", i, err)
		}
	}
	return r
}

// A cutPlan says where connections are reset: two connections early, each of them a little later
// than the one before, and further connections only when both ranks have got frames. Without these
// frames, the resets would count as one outage, which Config.Redial ends. A number of bytes does
// not ensure that both ranks get frames, because a reset discards what a rank has not read.
type cutPlan struct {
	stride int // between the places of the first resets, in bytes
	layers []*checker

	mu     sync.Mutex // guards the rest
	conns  int
	early  int    // connections reset early
	wanted [2]int // the frames that the ranks must have got before the next early reset
	last   bool   // no further connection is reset
}

// next returns the Cutter of the next connection.
func (p *cutPlan) next() relay.Cutter {
	// The handshake and the small frames have fewer bytes than small, and all frames of a round
	// fewer than large.
	const small, large = 400, replayCopy + 2000
	p.mu.Lock()
	defer p.mu.Unlock()
	p.conns++
	if wanted := p.wanted; !p.delivered(wanted) {
		return func(b []byte) ([]byte, bool) { return b, p.delivered(wanted) }
	}
	at := p.early / 2 * p.stride
	if at > small {
		at = small + (at-small)*499
	}
	if at > large {
		p.last = true
		return relay.CutAfter(-1)
	}
	if p.early++; p.early%2 == 0 {
		for i, l := range p.layers {
			got, _ := l.state()
			p.wanted[i] = got + 5 // one of each size
		}
	}
	return relay.CutAfter(at)
}

// delivered reports whether both ranks have got as many frames.
func (p *cutPlan) delivered(frames [2]int) bool {
	for i, l := range p.layers {
		if got, _ := l.state(); got < frames[i] {
			return false
		}
	}
	return true
}

// progress returns the number of connections so far, and whether the resets are over.
func (p *cutPlan) progress() (conns int, last bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.conns, p.last
}

// Connections are reset in the handshake and in the first frames, each time a little later, in one
// direction or the other. In the first 400 bytes, the places are 1 byte apart over tcp and 7 bytes
// apart over the other wires. Two connections in a row are reset there, so links also break twice
// in a row and during the redial itself. Frames that both ranks send meanwhile must arrive once, in
// order and unharmed.
func TestALinkThatIsCutAnywhereLosesNothing(t *testing.T) {
	leak.Check(t)
	for wire, transports := range silentWires(t) {
		for dir := range 2 {
			t.Run(fmt.Sprintf("%s/direction %d", wire, dir), func(t *testing.T) {
				t.Parallel()
				plan := &cutPlan{stride: 7, layers: []*checker{{}, {}}}
				if wire == "tcp" {
					plan.stride = 1
				}
				layers := plan.layers
				r := startCut(t, transports, layers, func() (up, down relay.Cutter) {
					if dir == 0 {
						return plan.next(), relay.CutAfter(-1)
					}
					return relay.CutAfter(-1), plan.next()
				})
				stop := streamBothWays(t, r)
				for n, last := plan.progress(); !last; n, last = plan.progress() {
					eventually(t, fmt.Sprintf("connection %d", n+1), func() bool { now, _ := plan.progress(); return now > n || broken(layers) != nil })
					if err := broken(layers); err != nil {
						t.Fatal(err)
					}
				}
				sent := stop()
				for i := range layers {
					eventually(t, "all frames", func() bool { got, _ := layers[i].state(); return got == sent[1-i] })
				}
				if err := broken(layers); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// All connections of a job, control links and data links, are reset again and again while all ranks
// live. With Config.Redial no rank is lost, and no frame is lost or doubled. Without Config.Redial,
// a rank is lost.
func TestRanksWhoseConnectionsAreAllResetGoOn(t *testing.T) {
	leak.Check(t)
	for wire, transports := range silentWires(t) {
		for _, n := range []int{2, 3} {
			for _, redial := range []time.Duration{10 * time.Second, 0} {
				t.Run(fmt.Sprintf("%s/%d ranks/redial %v", wire, n, redial), func(t *testing.T) {
					t.Parallel()
					r, layers, reset := startReset(t, transports, n, redial)
					stop := streamBothWays(t, r)
					for range 8 {
						before, _ := layers[1].state()
						eventually(t, "frames after the reset", func() bool {
							got, _ := layers[1].state()
							e, _ := r.failed()
							return got > before+20 || e != nil
						})
						reset()
					}
					if e, _ := r.failed(); redial == 0 {
						eventually(t, "a failure", func() bool { e, _ = r.failed(); return e != nil })
						if !errors.Is(e, fault.PeerLost) && !errors.Is(e, fault.LinkLost) {
							t.Errorf("got %v, want a loss", e)
						}
						return
					}
					sent := stop()
					for i := range sent {
						eventually(t, "all frames", func() bool { got, _ := layers[i].state(); return got == sent[1-i] || broken(layers) != nil })
					}
					if e, _ := r.failed(); e != nil || broken(layers) != nil {
						t.Errorf("got %v and %v, want no failure", e, broken(layers))
					}
				})
			}
		}
	}
}

// startReset starts n ranks whose connections pass relays. The function reset resets all of them.
func startReset(t *testing.T, transports func(cfg *Config), n int, redial time.Duration) (r *testJob, layers []*checker, reset func()) {
	t.Helper()
	r = newTestJob(t, n)
	lns, through := make([]net.Listener, n), make([]string, n)
	relays := make([]*relay.Relay, n)
	for i := range lns {
		lns[i] = listen(t)
		var err error
		if relays[i], err = relay.New(lns[i].Addr().String(), func(int) (up, down relay.Filter) { return nil, nil }); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(relays[i].Close)
		through[i] = relays[i].Addr()
	}
	layers = make([]*checker, n)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	r.start(ctx, upTo(n), func(i int, cfg *Config) {
		layers[i] = &checker{}
		transports(cfg)
		cfg.Listener, cfg.Root, cfg.Data, cfg.InProcess = lns[i], "", layers[i], false
		cfg.Peers = slices.Clone(through)
		cfg.Peers[i] = lns[i].Addr().String()
		cfg.Redial = redial
	})
	t.Cleanup(r.close)
	for i, err := range r.errs {
		if err != nil {
			t.Fatalf("rank %d: %v", i, err)
		}
	}
	return r, layers, func() {
		for _, relay := range relays {
			relay.Cut()
		}
	}
}

// broken returns the first error of a layer.
func broken(layers []*checker) error {
	for i, l := range layers {
		if _, err := l.state(); err != nil {
			return fmt.Errorf("rank %d: %w", i, err)
		}
	}
	return nil
}

// exchangeFrame sends a frame from rank 0 to rank 1 and waits until it has arrived.
func exchangeFrame(t *testing.T, r *testJob, layers []*checker) {
	t.Helper()
	got, _ := layers[1].state()
	f := numbered(got)
	f.Done = func(error) {}
	r.meshes[0].Link(1).Send(f)
	eventually(t, "the frame arrives", func() bool { now, _ := layers[1].state(); return now == got+1 })
}

// A breaker is a tcp Transport. A test can make its dials fail, and break its Conns.
type breaker struct {
	transport.Transport
	closed atomic.Bool
	dials  atomic.Int64

	mu    sync.Mutex
	conns []transport.Conn
}

func (b *breaker) Dial(ctx context.Context, addr string) (transport.Conn, error) {
	b.dials.Add(1)
	if b.closed.Load() {
		return nil, errors.New("no route")
	}
	c, err := b.Transport.Dial(ctx, addr)
	if err == nil {
		b.mu.Lock()
		b.conns = append(b.conns, c)
		b.mu.Unlock()
	}
	return c, err
}

// breakData closes all Conns except the first ones, whose number is after, and makes all later
// dials fail.
func (b *breaker) breakData(after int) {
	b.closed.Store(true)
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, c := range b.conns[after:] {
		c.Close()
	}
}

// startBroken starts two ranks over tcp whose data link can be opened again for the given time, and
// opens it.
func startBroken(t *testing.T, redial time.Duration) (r *testJob, layers []*checker, wires []*breaker, breakLink func()) {
	t.Helper()
	r = newTestJob(t, 2)
	lns, addrs := []net.Listener{listen(t), listen(t)}, make([]string, 2)
	layers, wires = make([]*checker, 2), make([]*breaker, 2)
	for i := range lns {
		addrs[i] = lns[i].Addr().String()
		wires[i] = &breaker{Transport: tcp.New(tcp.Options{})}
	}
	r.start(t.Context(), upTo(2), func(i int, cfg *Config) {
		layers[i] = &checker{}
		cfg.Transport, cfg.Listener, cfg.Root, cfg.Data, cfg.InProcess = wires[i], lns[i], "", layers[i], false
		cfg.Peers, cfg.Redial, cfg.Stall = addrs, redial, stallTestLimit
		cfg.Log = slog.New(slog.NewTextHandler(&r.logs, nil))
	})
	t.Cleanup(r.close)
	for i, err := range r.errs {
		if err != nil {
			t.Fatalf("rank %d: %v", i, err)
		}
	}
	control := make([]int, 2)
	for i, w := range wires {
		control[i] = len(w.conns)
	}
	exchangeFrame(t, r, layers)
	eventually(t, "the link is up at both ends", func() bool { return r.meshes[0].Link(1).IsUp() && r.meshes[1].Link(0).IsUp() })
	return r, layers, wires, func() {
		for _, w := range wires {
			w.closed.Store(true) // before any break, so that breakData finds no Conn in a handshake
		}
		for i, w := range wires {
			w.breakData(control[i])
		}
	}
}

// failed returns the first failure of the lowest rank that has reported one, and the time of the
// report. If no rank has, e is nil.
func (r *testJob) failed() (e *fault.Error, when time.Time) {
	for i := range r.events {
		if e, when = r.events[i].first(); e != nil {
			return e, when
		}
	}
	return nil, time.Time{}
}

// Line (c) of the table in docs/fault-tolerance.md: a link that breaks while the control links
// answer is dialled for Config.Redial. A shorter cut loses nothing. After a longer cut, the report
// names both ends.
func TestABrokenLinkIsDialledAgainWithinTheLimit(t *testing.T) {
	leak.Check(t)
	const limit = 2 * time.Second
	t.Run("healed in time", func(t *testing.T) {
		t.Parallel()
		r, layers, wires, breakLink := startBroken(t, 5*limit)
		breakLink()
		sent := make(chan error, 1)
		f := numbered(1)
		f.Done = func(err error) { sent <- err }
		r.meshes[0].Link(1).Send(f)
		// Reason: the cut lasts this long, and no rank must report a failure. A failure that is not
		// reported has no event to wait for.
		time.Sleep(2 * limit)
		for _, w := range wires {
			w.closed.Store(false)
		}
		eventually(t, "the frame arrives", func() bool { got, _ := layers[1].state(); return got == 2 })
		if err := <-sent; err != nil {
			t.Errorf("the send: got %v, want no error", err)
		}
		if e, _ := r.failed(); e != nil || broken(layers) != nil {
			t.Errorf("got %v and %v, want no failure", e, broken(layers))
		}
	})
	t.Run("not healed", func(t *testing.T) {
		t.Parallel()
		r, _, _, breakLink := startBroken(t, limit)
		start := time.Now()
		breakLink()
		for i := range r.events {
			eventually(t, "a failure", func() bool { e, _ := r.events[i].first(); return e != nil })
			e, when := r.events[i].first()
			if after := when.Sub(start); !blames(e, fault.LinkLost, 0, 1) || after < limit {
				t.Errorf("rank %d reports %v after %v, want a lost link of ranks 0 and 1 after %v", i, e, after, limit)
			}
			if !strings.Contains(e.Error(), "could not be opened again within 2s") {
				t.Errorf("got %q, want a text that says how long the link was dialled", e)
			}
		}
	})
	t.Run("off", func(t *testing.T) {
		t.Parallel()
		r, _, wires, breakLink := startBroken(t, 0)
		starving := starved.Since(os.Getpid())
		start, before := time.Now(), wires[0].dials.Load()
		breakLink()
		eventually(t, "a failure", func() bool { e, _ := r.failed(); return e != nil })
		if e, when := r.failed(); !blames(e, fault.LinkLost, 0, 1) || when.Sub(start) > limit+starving() || wires[0].dials.Load() != before {
			t.Errorf("got %v after %v and %d dials, want a lost link at once and no dial", e, when.Sub(start), wires[0].dials.Load()-before)
		}
	})
}

// A link that breaks while it is idle, and is open again, is dialled for the whole limit at its
// next break, however much later that is.
func TestAnIdleLinkIsDialledAgainAtEachBreak(t *testing.T) {
	leak.Check(t)
	r, layers, wires, breakLink := startBroken(t, 10*time.Second)
	l := r.meshes[0].Link(1)
	eventually(t, "the frame is acknowledged", l.replay().isEmpty)
	breakLink()
	eventually(t, "the link has no Conn", func() bool { return l.wire() == nil })
	wires[0].closed.Store(false)
	eventually(t, "the link is open again", func() bool { return l.wire() != nil })
	l.mu.Lock()
	l.outage = l.outage.Add(-time.Hour)
	l.mu.Unlock()
	read := l.stopReading() // the frame is not acknowledged before the Conn breaks
	exchangeFrame(t, r, layers)
	breakLink()
	read()
	eventually(t, "the link has no Conn", func() bool { return l.wire() == nil })
	wires[0].closed.Store(false)
	exchangeFrame(t, r, layers)
	if e, _ := r.failed(); e != nil || broken(layers) != nil {
		t.Errorf("got %v and %v, want no failure", e, broken(layers))
	}
}

// A rank must log each break of a link, and that the link is open again.
func TestBreaksAreLogged(t *testing.T) {
	leak.Check(t)
	r, _, wires, breakLink := startBroken(t, 10*time.Second)
	l := r.meshes[0].Link(1)
	breakLink()
	eventually(t, "the link has no Conn", func() bool { return l.wire() == nil })
	wires[0].closed.Store(false)
	for _, want := range []string{"broke; dialling again\" rank=0 peer=1 err=", "open again\" rank=0 peer=1 after="} {
		eventually(t, want, func() bool { return r.logs.count(want) > 0 })
	}
}

// isEmpty reports whether the peer has acknowledged all frames.
func (c *replayConn) isEmpty() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.first == nil
}

// A connection breaks while more small frames are under way than the window has room to copy. The
// rest stays in the memory of the sender, which destroys each body once its frame is done.
func TestAFullWindowSurvivesABreak(t *testing.T) {
	leak.Check(t)
	r, layers, wires, breakLink := startBroken(t, 10*time.Second)
	const frames = 3000
	var waiting atomic.Int64
	send := func(from, to int) {
		for i := from; i < to; i++ {
			f := numbered(i)
			f.Done = func(error) {
				clear(f.Body)
				waiting.Add(-1)
			}
			waiting.Add(1)
			r.meshes[0].Link(1).Send(f)
		}
	}
	read := r.meshes[1].Link(0).stopReading()
	send(1, frames/2)
	breakLink()
	read()
	send(frames/2, frames)
	if n := waiting.Load(); n <= frames/5 { // every fifth frame is too large for a copy
		t.Errorf("%d frames wait, want more than the large ones", n)
	}
	wires[0].closed.Store(false)
	eventually(t, "all frames arrive", func() bool { got, _ := layers[1].state(); return got == frames && waiting.Load() == 0 })
	if e, _ := r.failed(); e != nil || broken(layers) != nil {
		t.Errorf("got %v and %v, want no failure", e, broken(layers))
	}
}

// A WELCOME is lost with its connection. The accepting rank does not notice it and keeps the Conn,
// and the dialling rank proposes the same epoch again. The accepting rank must accept that epoch.
func TestALostWelcomeDoesNotKeepThePeerOut(t *testing.T) {
	leak.Check(t)
	r, layers, wires, _ := startBroken(t, 10*time.Second)
	for _, w := range wires {
		w.closed.Store(true)
	}
	c, err := wires[0].Transport.Dial(t.Context(), r.meshes[1].Addr(1))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	far := r.meshes[1].Link(0)
	if _, err := r.meshes[0].id.dial(t.Context(), newHandshakeConn(c), 1, channelData, position{epoch: 2}, nil); err != nil {
		t.Fatal(err)
	}
	eventually(t, "rank 1 has the Conn", func() bool { return far.atEpoch(2) })
	wires[0].closed.Store(false)
	exchangeFrame(t, r, layers)
	if e, _ := r.failed(); e != nil || broken(layers) != nil {
		t.Errorf("got %v and %v, want no failure", e, broken(layers))
	}
}

// atEpoch reports whether the link is up with the Conn of that number.
func (l *Link) atEpoch(epoch uint32) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.state == linkUp && l.epoch == epoch
}

// A process that was stopped serves two dials of its peer at once, and the peer has given up both.
// The second dial closes the Conn of the first dial, and is refused as a duplicate. The link must
// then be dialled.
func TestALinkWithoutAConnAfterTwoDialsIsDialled(t *testing.T) {
	leak.Check(t)
	r, layers, wires, _ := startBroken(t, 10*time.Second)
	wires[1].closed.Store(true)
	l := r.meshes[0].Link(1)
	conns := []*heldConn{newHeldConn(), newHeldConn()}
	peers := make([]position, len(conns))
	for range conns {
		if err := r.meshes[0].mayAcceptData(1, 2); err != nil {
			t.Fatal(err)
		}
	}
	for i, c := range conns {
		peers[i] = l.answer(c, 2)
		peers[i].received = 1
		if i == 0 {
			l.install(c, linkAccepting, peers[0])
		}
	}
	l.install(conns[1], linkAccepting, peers[1])
	exchangeFrame(t, r, layers)
	if e, _ := r.failed(); e != nil || broken(layers) != nil {
		t.Errorf("got %v and %v, want no failure", e, broken(layers))
	}
}

// A lateConn calls the function hello before it sends its first frame.
type lateConn struct {
	*meteredWire
	hello func()
}

func (c *lateConn) Send(f *transport.Frame) {
	c.hello()
	c.meteredWire.Send(f)
}

// A dial reaches its handshake when the link is open already. A frame arrives after the dial has
// counted the frames for its hello. The peer must not send this frame again.
func TestADialThatComesLateDoesNotRepeatAFrame(t *testing.T) {
	leak.Check(t)
	r, layers, wires, _ := startBroken(t, 10*time.Second)
	l := r.meshes[0].Link(1)
	c, err := wires[0].Transport.Dial(t.Context(), r.meshes[0].Addr(1))
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range wires {
		w.closed.Store(true) // no other dial opens the link
	}
	answer := func(i int) {
		f := numbered(i)
		f.Done = func(error) {}
		r.meshes[1].Link(0).Send(f)
		eventually(t, "the frame arrives", func() bool { got, _ := layers[0].state(); return got > i })
	}
	answer(0)
	eventually(t, "the frame is acknowledged", r.meshes[1].Link(0).replay().isEmpty)
	late := &lateConn{canReplay(c), sync.OnceFunc(func() { answer(1) })} // not acknowledged
	if peer, err := r.meshes[0].handshake(t.Context(), newHandshakeConn(late), 1, channelData, nil); err != nil {
		c.Close()
		answer(1)
	} else {
		eventually(t, "the link is dialled again", func() bool { return l.isDialing(1) })
		l.install(late, linkDialing, peer)
	}
	answer(2)
	if e, _ := r.failed(); e != nil || broken(layers) != nil {
		t.Errorf("got %v and %v, want no failure", e, broken(layers))
	}
}

// This rank has admitted the peer's Conn, or the link is open. A dial of this rank must then end
// without a hello.
func TestADialThatIsNotNeededSendsNoHello(t *testing.T) {
	leak.Check(t)
	_, l := startReplay(t, newHeldConn())
	l.replay().drop()
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // nobody answers a hello
	for state, want := range map[linkState]int{linkDialing: 1, linkAccepting: 0, linkUp: 0} {
		l.mu.Lock()
		l.state = state
		l.mu.Unlock()
		c := newHeldConn()
		_, err := l.m.handshake(ctx, newHandshakeConn(c), l.Rank, channelData, nil)
		var no *refusal
		if duplicate := errors.As(err, &no) && no.reason == reasonDuplicate; len(c.sent) != want || duplicate != (want == 0) {
			t.Errorf("state %d: got %d hellos and the error %v, want %d hellos, and a duplicate if there is none", state, len(c.sent), err, want)
		}
	}
}

// A closingConn calls the function closing at the end of Close.
type closingConn struct {
	*heldConn
	closing func()
}

func (c *closingConn) Close() error {
	c.heldConn.Close()
	c.closing()
	return nil
}

// Two dials of the peer are served at once. The Conn of the first comes up while the answer to the
// second closes the broken Conn, and a frame arrives on it. The answer to the second does not count
// that frame. The Conn of the second must not be used, because the frame would come again.
func TestAnAnswerIsVoidIfAnotherConnComesUp(t *testing.T) {
	leak.Check(t)
	broken, first, second := &closingConn{heldConn: newHeldConn()}, newHeldConn(), newHeldConn()
	_, l := startReplay(t, broken)
	mayAccept := func(epoch uint32) {
		if err := l.m.mayAcceptData(l.Rank, epoch); err != nil {
			t.Fatal(err)
		}
	}
	mayAccept(2)
	mayAccept(2)
	broken.closing = func() { l.install(first, linkAccepting, l.answer(first, 2)) }
	answer := l.answer(second, 2)
	first.progress = func() transport.State {
		h := transport.Header{Head: []byte("head")}
		l.replay().in.Buffer(h)
		l.replay().in.Arrived(h, 0)
		return transport.Moved
	}
	l.Progress()
	mayAccept(3) // the peer dials once more
	l.install(second, linkAccepting, answer)
	if got := l.replay().received.Load(); l.wire() != first || answer.received != 0 || got != 1 {
		t.Errorf("got the Conn %p after %d frames, and an answer after %d; want the Conn %p after 1, and 0", l.wire(), got, answer.received, first)
	}
}

// Line (a) of the table in docs/fault-tolerance.md: Config.Redial does not delay the loss of a rank
// whose process is dead. The other rank must report the loss within a second.
func TestADeadRankIsNotDialledAgain(t *testing.T) {
	leak.Check(t)
	r, _, wires, _ := startBroken(t, time.Minute)
	starving := starved.Since(os.Getpid())
	start := time.Now()
	r.meshes[1].cfg.Listener.Close()
	wires[1].Transport.Close() // resets all connections of rank 1
	eventually(t, "a failure", func() bool { e, _ := r.events[0].first(); return e != nil })
	if e, when := r.events[0].first(); !blames(e, fault.PeerLost, 1) || when.Sub(start) > time.Second+starving() {
		t.Errorf("got %v after %v, want the loss of rank 1 within 1 s", e, when.Sub(start))
	}
}

// A vanishing transport does not answer dials of one address once gone is set.
type vanishing struct {
	transport.Transport
	addr string
	gone *atomic.Bool
}

func (w vanishing) Dial(ctx context.Context, addr string) (transport.Conn, error) {
	if addr == w.addr && w.gone.Load() {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return w.Transport.Dial(ctx, addr)
}

// The main process of a container dies, and its address vanishes with it. If the launcher records
// the end of the process, all ranks must report the loss within a second. Otherwise the rank counts
// as a silent one.
func TestARankWhoseEndIsRecordedIsNotAwaited(t *testing.T) {
	for recorded, within := range map[bool][2]time.Duration{
		true: {0, time.Second}, false: {DefaultSilence, DefaultSilence + time.Second},
	} {
		for n := 2; n <= 6; n++ {
			bubble(t, func(t *testing.T) {
				var gone, ended atomic.Bool
				r := newTestJob(t, n)
				r.start(t.Context(), upTo(n), func(i int, cfg *Config) {
					cfg.Transport = vanishing{cfg.Transport, r.hub.Addr(n - 1), &gone}
					cfg.Redial = time.Minute
					if recorded {
						cfg.Exited = func(rank int) bool { return rank == n-1 && ended.Load() }
					}
				})
				if err := errors.Join(r.errs...); err != nil {
					t.Fatal(err)
				}
				defer r.close()
				start := time.Now()
				gone.Store(true)
				r.kill(n - 1)
				// Reason: the launcher records the end after the connections close, in the bubble's time.
				time.Sleep(30 * time.Millisecond)
				ended.Store(true)
				// Reason: all ranks must report the loss within this time. No real time passes.
				time.Sleep(within[1])
				for i := range n - 1 {
					e, when := r.events[i].first()
					if got := when.Sub(start); !blames(e, fault.PeerLost, n-1) || got < within[0] || got > within[1] {
						t.Errorf("%d ranks, recorded %v: rank %d hears %v after %v, want the loss of rank %d within %v", n, recorded, i, e, got, n-1, within)
					}
				}
			})
		}
	}
}

// A rank closes while all its connections are broken. With Config.Redial, it dials until the other
// rank has its goodbye, so it is not lost.
func TestARankThatClosesDuringAnOutageIsNotLost(t *testing.T) {
	leak.Check(t)
	r, _, wires, _ := startBroken(t, time.Minute)
	for _, w := range wires {
		w.closed.Store(true)
	}
	for _, w := range wires {
		w.breakData(0)
	}
	var closing sync.WaitGroup
	closing.Go(func() {
		if err := r.meshes[1].Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
	eventually(t, "Close has begun", func() bool { return r.meshes[1].checkLive(0, channelData) != nil })
	for _, w := range wires {
		w.closed.Store(false)
	}
	closing.Wait()
	eventually(t, "the goodbye", func() bool { return slices.Equal(r.events[0].left(), []int{1}) })
	if e, _ := r.failed(); e != nil {
		t.Errorf("got %v, want no failure", e)
	}
}

// Line (b) of the table in docs/fault-tolerance.md: Config.Redial does not delay the loss of a rank
// that is silent. A rank that is silent for less than Config.Silence is not lost.
func TestASilentRankIsLostBeforeTheLimitOfDials(t *testing.T) {
	leak.Check(t)
	for _, lost := range []bool{false, true} {
		t.Run(fmt.Sprintf("lost: %v", lost), func(t *testing.T) {
			t.Parallel()
			r, layers, wires, breakLink := startBroken(t, time.Minute)
			starving := starved.Since(os.Getpid())
			thaw := sync.OnceFunc(r.freeze(1))
			defer thaw()
			start := time.Now()
			breakLink()
			if !lost {
				// Reason: rank 1 is silent for this time, and no rank must report a failure.
				time.Sleep(DefaultSilence / 2)
				thaw()
				for _, w := range wires {
					w.closed.Store(false)
				}
				exchangeFrame(t, r, layers)
				if e, _ := r.failed(); e != nil {
					t.Errorf("got %v, want no failure", e)
				}
				return
			}
			// A rank that runs late is granted more time.
			eventuallyWithin(t, 2*time.Minute, "a failure", func() bool { e, _ := r.events[0].first(); return e != nil })
			const most = DefaultSilence + time.Second
			e, when := r.events[0].first()
			granted := starved.Granted(e.Error(), DefaultSilence, DefaultHeartbeat)
			if !blames(e, fault.PeerLost, 1) || when.Sub(start) < DefaultSilence/2 || when.Sub(start) > most+granted+starving() {
				t.Errorf("got %v after %v, want the loss of rank 1 after %v, and by %v", e, when.Sub(start), DefaultSilence, most+granted)
			}
		})
	}
}

// Line (d) of the table in docs/fault-tolerance.md: a link is dialled again after a stall. If it
// stalls again, it is dialled once more only if frames were delivered in between.
func TestALinkThatStallsAgainIsNotDialledAThirdTime(t *testing.T) {
	leak.Check(t)
	for _, tc := range []struct{ frames, conns int }{{0, 2}, {1, 3}} {
		t.Run(fmt.Sprintf("%d frames pass per connection", tc.frames), func(t *testing.T) {
			t.Parallel()
			var conns atomic.Int64
			r, recorders := startRelayed(t, func(cfg *Config) {
				b := &breaker{Transport: tcp.New(tcp.Options{})}
				b.closed.Store(cfg.Rank == 1) // rank 1 would dial around the relay
				cfg.Transport, cfg.Redial = b, 10*time.Second
			}, func() (up, down relay.Filter) {
				conns.Add(1)
				return tcpFrames.Alter(relay.Silence, handshakeFrames+tc.frames), nil
			})
			for i := range 3 {
				r.send(fmt.Append(nil, "body ", i))
			}
			if tc.frames > 0 {
				eventually(t, "all frames arrive", func() bool { return recorders[1].count() == 3 })
				if e, _ := r.failed(); e != nil {
					t.Errorf("got %v, want no failure", e)
				}
			} else if err := r.lostLink(time.Now(), 2*silentReported); err != nil {
				t.Error(err)
			}
			if n := conns.Load(); n != int64(tc.conns) {
				t.Errorf("got %d data connections, want %d", n, tc.conns)
			}
		})
	}
}
