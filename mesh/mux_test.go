package mesh

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/pending"
	"github.com/tutti-go/tutti/internal/test/leak"
	"github.com/tutti-go/tutti/internal/test/starved"
	"github.com/tutti-go/tutti/internal/test/tlstest"
	"github.com/tutti-go/tutti/transport"
	"github.com/tutti-go/tutti/transport/grpc"
	"github.com/tutti-go/tutti/transport/tcp"
)

// listen opens a listener on loopback.
func listen(t testing.TB) net.Listener {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return ln
}

// wires maps the names of the stream transports, which share the mux's listener, to functions that
// make one.
var wires = map[string]func(conf *tls.Config) transport.Transport{
	"tcp":  func(conf *tls.Config) transport.Transport { return tcp.New(tcp.Options{TLS: options(conf)}) },
	"grpc": func(conf *tls.Config) transport.Transport { return grpc.New(grpc.Options{TLS: options(conf)}) },
}

func options(conf *tls.Config) *tcp.TLS {
	if conf == nil {
		return nil
	}
	return &tcp.TLS{Config: conf}
}

// A wiredJob is a job of n ranks in this process, over tcp unless the test changes the Config.
type wiredJob struct {
	*testJob
	addrs []string
}

func startWired(t *testing.T, n int, tweak func(i int, cfg *Config)) *wiredJob {
	t.Helper()
	w := &wiredJob{testJob: newTestJob(t, n)}
	lns := make([]net.Listener, n)
	for i := range lns {
		lns[i] = listen(t)
		w.addrs = append(w.addrs, lns[i].Addr().String())
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	w.start(ctx, upTo(n), func(i int, cfg *Config) {
		cfg.Transport, cfg.Listener, cfg.Root = tcp.New(tcp.Options{}), lns[i], w.addrs[0]
		if tweak != nil {
			tweak(i, cfg)
		}
	})
	for i, err := range w.errs {
		if err != nil {
			t.Fatalf("rank %d: %v", i, err)
		}
	}
	return w
}

// connect opens a TCP connection to a rank's port, without a handshake.
func connect(t *testing.T, addr string) net.Conn {
	t.Helper()
	nc, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { nc.Close() })
	return nc
}

// closedAfter returns how long a connection stays open, and what was received on it.
func closedAfter(t *testing.T, nc net.Conn) (time.Duration, string) {
	t.Helper()
	start := time.Now()
	nc.SetReadDeadline(start.Add(10 * time.Second))
	text, err := io.ReadAll(nc)
	if isTimeout(err) {
		t.Error("the connection stays open")
	}
	return time.Since(start), string(text)
}

// wantClosed fails the test unless a connection is closed within the given time plus the time for
// which this process starved.
func wantClosed(t *testing.T, what string, nc net.Conn, most time.Duration) {
	t.Helper()
	waited := starved.Since(os.Getpid())
	if elapsed, _ := closedAfter(t, nc); elapsed > most+waited() {
		t.Errorf("%s: closed after %v", what, elapsed)
	}
}

// slots returns how many pending connections hold a slot.
func (m *Mesh) slots() int {
	m.mux.mu.Lock()
	defer m.mux.mu.Unlock()
	return len(m.mux.pending)
}

// eventually polls until ok returns true, for at most 10 s.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	eventuallyWithin(t, 10*time.Second, what, ok)
}

// eventuallyWithin polls until ok returns true, for at most the given time.
func eventuallyWithin(t testing.TB, most time.Duration, what string, ok func() bool) {
	t.Helper()
	poll := time.NewTicker(time.Millisecond)
	defer poll.Stop()
	for end := time.Now().Add(most); !ok(); <-poll.C {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", most, what)
		}
	}
}

// tcpMagic returns the first bytes of a connection of package tcp.
func tcpMagic(t *testing.T) string {
	t.Helper()
	ln := listen(t)
	defer ln.Close()
	tr := tcp.New(tcp.Options{})
	defer tr.Close()
	if _, err := tr.Dial(t.Context(), ln.Addr().String()); err != nil {
		t.Fatal(err)
	}
	nc, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	first := make([]byte, 4)
	if _, err := io.ReadFull(nc, first); err != nil {
		t.Fatal(err)
	}
	return string(first)
}

func TestUnknownConnectionsAreRefusedWithOneLogLine(t *testing.T) {
	leak.Check(t)
	junk := make([]byte, 3000)
	rand.Read(junk)
	copy(junk, "\x00\x01\x02\x03")
	preface := "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
	// These are prefixes of the first bytes of a rank's connection.
	for name, begins := range map[string][]string{
		"tcp":  {tcpMagic(t), tcpMagic(t) + "\x48\x00\x00"},
		"grpc": {preface, preface + "\x00\x00\x00\x04\x00\x00\x00\x00\x00"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // it waits for handshakeTimeout
			w := startWired(t, 3, func(i int, cfg *Config) { cfg.Transport = wires[name](nil) })
			defer w.close()
			for what, sender := range map[string]struct{ bytes, because string }{
				"random bytes":                {string(junk), "does not speak this transport's protocol"},
				"HTTP":                        {"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "does not speak this transport's protocol"},
				"TLS":                         {"\x16\x03\x01\x00\xf4\x01\x00\x00\xf0", "got a TLS handshake"},
				"our first bytes, then junk":  {begins[0] + strings.Repeat("\xff", 3000), ""},
				"our second bytes, then junk": {begins[1] + strings.Repeat("\xff", 3000), ""},
			} {
				before := len(w.logs.all())
				nc := connect(t, w.addrs[1])
				io.WriteString(nc, sender.bytes)
				wantClosed(t, what, nc, time.Second)
				w.logged(before, what, 1, sender.because)
			}
			w.healthy()
			testSilentConnections(t, w, append(begins, "", "abc"))
			w.healthy()
		})
	}
}

// testSilentConnections opens connections that send the given bytes and then nothing. It checks
// when each connection is closed. Connections that send fewer bytes than a rank's first bytes must
// be closed earlier.
func testSilentConnections(t *testing.T, w *wiredJob, begins []string) {
	t.Helper()
	before := len(w.logs.all())
	var all sync.WaitGroup
	for _, bytes := range begins {
		began, waited := time.Now(), starved.Since(os.Getpid())
		nc := connect(t, w.addrs[1])
		io.WriteString(nc, bytes)
		want := handshakeTimeout
		if len(bytes) < minPeek {
			want = greetTimeout
		}
		all.Go(func() {
			closedAfter(t, nc)
			if elapsed := time.Since(began); elapsed < want || elapsed > want+time.Second+waited() {
				t.Errorf("a connection that says %q and no more is closed after %v, want %v", bytes, elapsed, want)
			}
		})
	}
	all.Wait()
	w.logged(before, "silent strangers", len(begins), "a connection refused")
	eventually(t, "no slot is taken", func() bool { return w.meshes[1].slots() == 0 })
}

// logged checks that exactly n lines were logged since the given line, and that all of them contain
// the given words.
func (w *wiredJob) logged(before int, what string, n int, words string) {
	w.t.Helper()
	for end := time.Now().Add(10 * time.Second); len(w.logs.all()) < before+n && time.Now().Before(end); {
		// Reason: the lines must be logged before the loop ends, and a log has no event to wait
		// for.
		time.Sleep(time.Millisecond)
	}
	// Reason: no further line must be logged within this time, and a surplus line has no event to
	// wait for.
	time.Sleep(50 * time.Millisecond)
	got := w.logs.all()[before:]
	for _, line := range got {
		if !strings.Contains(line, words) {
			w.t.Errorf("%s: logged %q, without %q", what, line, words)
		}
	}
	if len(got) != n {
		w.t.Errorf("%s: %d lines, want %d: %q", what, len(got), n, got)
	}
}

// healthy checks that the job goes on: floods arrive, and no rank is blamed.
func (w *wiredJob) healthy() {
	w.t.Helper()
	before := make([]int, len(w.events))
	for i, ear := range w.events {
		before[i] = len(ear.floodsSeen())
		if e, _ := ear.first(); e != nil {
			w.t.Errorf("rank %d hears %v", i, e)
		}
	}
	w.meshes[0].Flood(1, []byte("still here"))
	for i := 1; i < len(w.events); i++ {
		eventuallyWithin(w.t, 5*time.Second, fmt.Sprintf("rank %d hears a flood", i), func() bool { return len(w.events[i].floodsSeen()) > before[i] })
	}
}

func TestARankOfAnotherJobIsRefusedOverTCP(t *testing.T) {
	leak.Check(t)
	w := startWired(t, 2, nil)
	defer w.close()
	for what, tweak := range map[string]func(*Config){
		"job: ":        func(c *Config) { c.Job = "other" },
		"secret: ":     func(c *Config) { c.Secret = []byte("wrong") },
		"world size: ": func(c *Config) { c.Size = 3 },
	} {
		before := len(w.logs.all())
		// The limit is that of startWired. The refusal must end the start earlier.
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		cfg := w.config(1)
		cfg.Listener, cfg.Root = listen(t), w.addrs[0]
		cfg.Transport = tcp.New(tcp.Options{})
		tweak(&cfg)
		_, err := Start(ctx, cfg)
		cancel()
		if !errors.Is(err, fault.Refused) || !strings.Contains(err.Error(), what) {
			t.Errorf("%sgot %v", what, err)
		}
		eventually(t, "a line", func() bool { return len(w.logs.all()) > before })
		if got := w.logs.all()[before:]; len(got) != 1 || !strings.Contains(got[0], what) {
			t.Errorf("%slogged %q", what, got)
		}
	}
	w.healthy()
}

// While all slots are taken, each further connection must get the slot of the oldest connection.
func TestOnly64ConnectionsMayBePending(t *testing.T) {
	leak.Check(t)
	w := startWired(t, 2, nil)
	defer w.close()
	ours := tcpMagic(t)
	var silent []net.Conn
	open := func(n int) {
		for range n {
			nc := connect(t, w.addrs[0])
			io.WriteString(nc, ours)
			silent = append(silent, nc)
		}
	}
	open(pendingSlots)
	eventually(t, "64 slots are taken", func() bool { return w.meshes[0].slots() == pendingSlots })
	const more = 20
	open(more)
	for _, nc := range silent[:more] {
		wantClosed(t, "a connection whose slot is needed", nc, 2*time.Second)
	}
	if got := w.meshes[0].slots(); got > pendingSlots {
		t.Errorf("%d slots are taken, want at most %d", got, pendingSlots)
	}
	w.healthy()
	for _, nc := range silent[more:] {
		nc.Close()
	}
	eventually(t, "all slots are free", func() bool { return w.meshes[0].slots() == 0 })
	w.healthy()
}

func TestKillOverAWireIsReported(t *testing.T) {
	for name, wire := range wires {
		for victim := range 4 {
			t.Run(fmt.Sprintf("%s/%d", name, victim), func(t *testing.T) {
				leak.Check(t)
				const n = 4
				ends := make([]transport.Transport, n)
				w := startWired(t, n, func(i int, cfg *Config) {
					ends[i] = wire(nil)
					cfg.Transport = ends[i]
				})
				defer w.close()
				start, waited := time.Now(), starved.Since(os.Getpid())
				go ends[victim].Close()
				for _, i := range without(n, victim) {
					eventually(t, "a verdict", func() bool { e, _ := w.events[i].first(); return e != nil })
					if e, when := w.events[i].first(); !blames(e, fault.PeerLost, victim) || when.Sub(start) > time.Second+waited() {
						t.Errorf("rank %d hears %v after %v", i, e, when.Sub(start))
					}
				}
			})
		}
	}
}

func TestCloseOverAWireIsNoLoss(t *testing.T) {
	for name, wire := range wires {
		t.Run(name, func(t *testing.T) {
			leak.Check(t)
			closeAll(t, startWired(t, 4, func(_ int, cfg *Config) { cfg.Transport = wire(nil) }))
		})
	}
}

func closeAll(t *testing.T, w *wiredJob) {
	t.Helper()
	var work sync.WaitGroup
	for _, m := range w.meshes {
		work.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			if err := m.Close(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	work.Wait()
	for i, ear := range w.events {
		if e, _ := ear.first(); e != nil {
			t.Errorf("rank %d hears %v", i, e)
		}
	}
	if got := w.logs.all(); len(got) != 0 {
		t.Errorf("logged %q", got)
	}
}

func TestTLSOnTheMux(t *testing.T) {
	cert, pool := tlstest.New(t).Load(t)
	both := &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{cert}}
	for name, wire := range wires {
		t.Run(name, func(t *testing.T) {
			leak.Check(t)
			w := startWired(t, 3, func(_ int, cfg *Config) {
				cfg.TLS, cfg.Transport = &tls.Config{Certificates: []tls.Certificate{cert}}, wire(both)
			})
			defer w.close()
			w.healthy()
			if name == "tcp" {
				testRefusedByTLS(t, w, pool)
			}
		})
	}
}

func testRefusedByTLS(t *testing.T, w *wiredJob, pool *x509.CertPool) {
	t.Helper()
	for name, tc := range map[string]struct {
		open    func(nc net.Conn)
		because string
	}{
		"in clear":  {func(nc net.Conn) { io.WriteString(nc, tcpMagic(t)) }, "got no TLS handshake"},
		"bad hello": {func(nc net.Conn) { io.WriteString(nc, "\x16\x03\x01\x00\x05hello") }, "TLS: "},
		"other protocol": {func(nc net.Conn) {
			tls.Client(nc, &tls.Config{RootCAs: pool, ServerName: "127.0.0.1", NextProtos: []string{"h2"}}).Handshake()
		}, "TLS: "},
		"no protocol": {func(nc net.Conn) { tls.Client(nc, &tls.Config{RootCAs: pool, ServerName: "127.0.0.1"}).Handshake() }, "TLS: got protocol"},
	} {
		before := len(w.logs.all())
		nc := connect(t, w.addrs[2])
		tc.open(nc)
		wantClosed(t, name, nc, 2*time.Second)
		eventually(t, "a line", func() bool { return len(w.logs.all()) > before })
		if got := w.logs.all()[before:]; len(got) != 1 || !strings.Contains(got[0], tc.because) {
			t.Errorf("%s: logged %q, want one line with %q", name, got, tc.because)
		}
	}
	w.healthy()
}

// A pendingEcho is a stream transport that does not implement Greeter, so the mux passes every
// connection to it.
type pendingEcho struct {
	transport.Transport
	in net.Listener
}

func (b *pendingEcho) Serve(in net.Listener, accept func(transport.Conn)) (string, error) {
	b.in = in
	return in.Addr().String(), nil
}

func TestAPendingConnReadsFromItsFirstByte(t *testing.T) {
	leak.Check(t)
	ln := listen(t)
	var logs logBuffer
	f := openMux(ln, &pendingEcho{}, nil, nil, pending.NewLog(logs.logger()), nil)
	defer f.Close()
	listener := f.listener(ln.Addr())
	nc := connect(t, ln.Addr().String())
	io.WriteString(nc, "hello, world")
	accepted, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	g := accepted.(*pendingConn)
	if !strings.HasPrefix("hello, world", string(g.Peeked())) || len(g.Peeked()) < minPeek {
		t.Errorf("peeked %q", g.Peeked())
	}
	if _, ok := g.NetConn().(*net.TCPConn); !ok {
		t.Errorf("NetConn is a %T", g.NetConn())
	}
	got := make([]byte, 12)
	if _, err := io.ReadFull(g, got); err != nil || string(got) != "hello, world" {
		t.Errorf("read %q, %v", got, err)
	}
	g.Admit()
	g.Admit()
	if len(f.pending) != 0 {
		t.Error("an admitted guest holds a slot")
	}
	fmt.Fprint(g, "and back")
	g.Close()
	if _, text := closedAfter(t, nc); text != "and back" {
		t.Errorf("said %q", text)
	}
	f.Close()
	if _, err := listener.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("after Close, Accept returns %v", err)
	}
}

func TestClosingTheMuxClosesItsPendingConns(t *testing.T) {
	leak.Check(t)
	ln := listen(t)
	var logs logBuffer
	f := openMux(ln, &pendingEcho{}, nil, nil, pending.NewLog(logs.logger()), nil)
	silent, waiting := connect(t, ln.Addr().String()), connect(t, ln.Addr().String())
	io.WriteString(waiting, "nobody accepts this")
	eventually(t, "two guests", func() bool { f.mu.Lock(); defer f.mu.Unlock(); return len(f.pending) == 2 })
	f.Close()
	for _, nc := range []net.Conn{silent, waiting} {
		wantClosed(t, "a pending connection", nc, time.Second)
	}
	if got := logs.all(); len(got) != 0 {
		t.Errorf("logged %q", got)
	}
}

func TestAnUnspecifiedAddressBecomesTheOneThatLeadsToTheRoot(t *testing.T) {
	for _, tc := range []struct{ addr, root, want string }{
		{"0.0.0.0:7", "127.0.0.1:9", "127.0.0.1:7"},
		{"[::]:7", "127.0.0.1:9", "127.0.0.1:7"},
		{"127.0.0.2:7", "127.0.0.1:9", "127.0.0.2:7"},
		{"0.0.0.0:7", "hub/0", "0.0.0.0:7"},
		{"0.0.0.0:7", "", "0.0.0.0:7"},
	} {
		addr, err := net.ResolveTCPAddr("tcp", tc.addr)
		if err != nil {
			t.Fatal(err)
		}
		if got := outward(t.Context(), addr, tc.root).String(); got != tc.want {
			t.Errorf("%s towards %q is %s, want %s", tc.addr, tc.root, got, tc.want)
		}
	}
}

// heap returns the number of bytes in use on the heap.
func heap() int64 {
	var m runtime.MemStats
	for range 3 {
		runtime.GC()
	}
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// This test checks that a connection whose peer has proven nothing costs at most 4 KiB of heap
// beyond what package net needs, whatever the peer sends.
func TestAPendingConnCostsAtMost4KiB(t *testing.T) {
	leak.Check(t)
	w := startWired(t, 2, nil)
	defer w.close()
	plain := listen(t)
	defer plain.Close()
	var accepted []net.Conn
	// full reports whether all connections were still open when the heap had been measured. On a
	// machine that is so busy that some connections have expired by then, the measurement does not
	// count.
	fill := func(addr, text string) (perConn int64, open []net.Conn, full bool) {
		before := heap()
		for range pendingSlots {
			nc := connect(t, addr)
			io.WriteString(nc, text)
			open = append(open, nc)
			if addr == plain.Addr().String() {
				got, err := plain.Accept()
				if err != nil {
					t.Fatal(err)
				}
				accepted = append(accepted, got)
			}
		}
		filled := func() bool { return addr != w.addrs[0] || w.meshes[0].slots() == pendingSlots }
		poll := time.NewTicker(time.Millisecond)
		defer poll.Stop()
		for late := time.Now().Add(greetTimeout); !filled() && time.Now().Before(late); {
			<-poll.C
		}
		// Reason: the mux should read the bytes within this time, and no event reports that it has.
		// Bytes that it has not read would only cost less heap.
		time.Sleep(50 * time.Millisecond)
		perConn = (heap() - before) / pendingSlots
		return perConn, open, filled()
	}
	bare, open, _ := fill(plain.Addr().String(), "")
	for _, nc := range append(open, accepted...) {
		nc.Close()
	}
	hello := tcpMagic(t)
	for name, text := range map[string]string{"nothing": "", "our first bytes": hello, "our first bytes and more": hello + "\x48"} {
		least := int64(math.MaxInt64) // the rest of the process allocates, too
		for counted, tries := 0, 0; counted < 3; tries++ {
			if tries == 60 {
				t.Fatalf("connections that say %s: %d measurements of %d count, want 3", name, counted, tries)
			}
			cost, open, full := fill(w.addrs[0], text)
			if full {
				counted++
				least = min(least, cost)
			}
			for _, nc := range open {
				nc.Close()
			}
			eventually(t, "no slot is taken", func() bool { return w.meshes[0].slots() == 0 })
		}
		t.Logf("a connection that says %s costs %d bytes, a bare one %d", name, least, bare)
		if least-bare > 4<<10 {
			t.Errorf("a stranger who says %s costs %d bytes, want at most 4096", name, least-bare)
		}
	}
	runtime.KeepAlive(accepted)
}
