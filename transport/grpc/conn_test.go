package grpc

import (
	"bytes"
	"context"
	"errors"
	"net"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/test/leak"
	"github.com/tutti-go/tutti/transport"
)

// exchange sends one body from near to far, and checks that it arrives unchanged.
func exchange(tb testing.TB, near, far transport.Conn, body []byte) {
	tb.Helper()
	var got recordingSink
	done := make(chan error, 1)
	near.Send(&transport.Frame{Head: []byte("head"), Body: body, Done: func(err error) { done <- err }})
	frames, err := drain(tb, far, &got, func(n int) bool { return n == 1 })
	if frames != 1 || err != nil {
		tb.Fatalf("%d frames arrived, and %v", frames, err)
	}
	if !bytes.Equal(got.bodies[0], body) {
		tb.Fatal("the body arrived changed")
	}
	if err := <-done; err != nil {
		tb.Fatalf("Done: %v", err)
	}
}

// A counter is a Sink that counts whole frames.
type counter struct {
	transport.Sink
	n int
}

func (c *counter) Arrived(h transport.Header, n int) {
	c.Sink.Arrived(h, n)
	if n == h.Size {
		c.n++
	}
}

// drain calls Progress until the function enough returns true or an error occurs. The function gets
// the number of whole frames.
func drain(tb testing.TB, c transport.Conn, in transport.Sink, enough func(n int) bool) (int, error) {
	tb.Helper()
	count := &counter{Sink: in}
	woken := make(chan struct{}, 1)
	late := time.After(20 * time.Second)
	for !enough(count.n) {
		state, err := c.Progress(count, 1)
		if err != nil {
			return count.n, err
		}
		if state != transport.Idle {
			continue
		}
		c.Arm(func() { woken <- struct{}{} })
		select {
		case <-woken:
		case <-late:
			tb.Fatalf("only %d frames have arrived after 20 s", count.n)
		}
	}
	return count.n, nil
}

func never(int) bool { return false }

// A probe counts the bytes that are written to a connection, and can block the writes.
type probe struct {
	*net.TCPConn
	written atomic.Int64
	mu      sync.Mutex // held to block Write
}

func (p *probe) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n, err := p.TCPConn.Write(b)
	p.written.Add(int64(n))
	return n, err
}

// probes wraps every dialled or accepted connection of a Transport in a probe.
type probes struct {
	net.Listener
	made chan *probe
}

func newProbes(tb testing.TB) *probes {
	return &probes{Listener: listen(tb), made: make(chan *probe, 2)}
}

func (p *probes) wrap(c net.Conn, err error) (net.Conn, error) {
	if err != nil {
		return nil, err
	}
	w := &probe{TCPConn: c.(*net.TCPConn)}
	p.made <- w
	return w, nil
}

func (p *probes) Accept() (net.Conn, error) { return p.wrap(p.Listener.Accept()) }

func (p *probes) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	return p.wrap(new(net.Dialer).DialContext(ctx, network, addr))
}

// probed returns a link whose sender writes through the probe.
func probed(tb testing.TB, tune tuning, dialerSends bool) (sender, receiver transport.Conn, p *probe) {
	tb.Helper()
	ps := newProbes(tb)
	opts, in := Options{tune: tune}, net.Listener(ps)
	if dialerSends {
		opts.Dial, in = ps.dial, ps.Listener
	}
	a, b := New(opts), New(opts)
	tb.Cleanup(func() { a.Close(); b.Close() })
	accepted := make(chan transport.Conn, 1)
	addr, err := b.Serve(in, func(c transport.Conn) { accepted <- c })
	if err != nil {
		tb.Fatal(err)
	}
	near, err := a.Dial(context.Background(), addr)
	if err != nil {
		tb.Fatal(err)
	}
	far := <-accepted
	far.(transport.Pending).Admit()
	if dialerSends {
		return near, far, <-ps.made
	}
	return far, near, <-ps.made
}

// When a connection ends, gRPC's server randomly drops messages that it has not delivered yet. The
// Conn must deliver these messages. The tiny inbox of this test ensures that many messages are
// undelivered.
func TestWhatCameBeforeAConnectionBrokeIsDelivered(t *testing.T) {
	const frames, size = 20, 3000
	tune := tuning{}.orDefault()
	tune.inbox = 1
	for _, dialerSends := range []bool{true, false} {
		name := map[bool]string{true: "the acceptor receives", false: "the dialler receives"}[dialerSends]
		t.Run(name, func(t *testing.T) {
			for range 60 {
				sender, receiver, p := probed(t, tune, dialerSends)
				for range frames {
					sender.Send(&transport.Frame{Body: make([]byte, size), Done: func(error) {}})
				}
				for p.written.Load() < frames*(size+preambleSize) {
					runtime.Gosched()
				}
				p.TCPConn.CloseWrite()
				n, err := drain(t, receiver, new(recordingSink), never)
				if n != frames || !errors.Is(err, fault.LinkLost) {
					t.Fatalf("%d of %d frames arrived, and then %v", n, frames, err)
				}
			}
		})
	}
}

func TestABlockedWireDoesNotBlockClose(t *testing.T) {
	leak.Check(t)
	for _, dialerSends := range []bool{true, false} {
		sender, receiver, p := probed(t, tuning{}.orDefault(), dialerSends)
		p.mu.Lock()
		done := make(chan error, 3)
		start := time.Now()
		for range cap(done) {
			sender.Send(&transport.Frame{Body: make([]byte, 1<<20), Done: func(err error) { done <- err }})
		}
		if n, since := sender.(unsender).Unsent(); n < 3<<20 || since.Before(start) {
			t.Errorf("Unsent: got %d bytes since %v before the first Send, want 3 MiB since it", n, start.Sub(since))
		}
		sender.Close()
		p.mu.Unlock() // closing a socket ends a Write on the socket, but does not unlock mu
		for range cap(done) {
			if err := <-done; err != nil && !errors.Is(err, fault.Closed) {
				t.Errorf("Done: got %v, want %v", err, fault.Closed)
			}
		}
		if n, _ := sender.(unsender).Unsent(); n != 0 {
			t.Errorf("Unsent: got %d bytes after Close, want 0", n)
		}
		receiver.Close()
	}
}

// An unsender is the interface for which package mesh checks a Conn.
type unsender interface {
	Unsent() (bytes int, since time.Time)
}

func TestUnsentEndsWhenAllIsWritten(t *testing.T) {
	near, far := connect(t, Options{})
	exchange(t, near, far, make([]byte, 2<<20))
	for deadline := time.Now().Add(10 * time.Second); ; runtime.Gosched() {
		n, since := near.(unsender).Unsent()
		if n == 0 && since.IsZero() {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("Unsent: got %d bytes since %v, want none", n, since)
		}
	}
}

func TestErrorsNameTheCauseWithoutStatusCodes(t *testing.T) {
	near, far := connect(t, Options{})
	far.Close()
	_, err := drain(t, near, new(recordingSink), never)
	if !errors.Is(err, fault.LinkLost) || !strings.Contains(err.Error(), "the peer closed the link") {
		t.Errorf("got %v, want %v: the peer closed the link", err, fault.LinkLost)
	}
	if strings.Contains(err.Error(), "code =") {
		t.Errorf("got %q, with a status code", err)
	}
}

func TestDialErrorsNameTheCause(t *testing.T) {
	leak.Check(t)
	nobody := listen(t)
	nobody.Close()
	silent := listen(t)
	defer silent.Close()
	web := listen(t)
	defer web.Close()
	go answer(web, "HTTP/1.1 400 Bad Request\r\n\r\n")
	ended, end := context.WithCancel(context.Background())
	end()
	short, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	for _, tc := range []struct {
		name string
		ctx  context.Context
		addr string
		want fault.Kind
	}{
		{"nobody listens", context.Background(), nobody.Addr().String(), fault.Refused},
		{"a web server listens", context.Background(), web.Addr().String(), fault.Refused},
		{"who listens says nothing", short, silent.Addr().String(), fault.Timeout},
		{"the context has ended", ended, silent.Addr().String(), fault.Canceled},
		{"the address is none", context.Background(), "nowhere", fault.Refused},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tr := New(Options{})
			defer tr.Close()
			_, err := tr.Dial(tc.ctx, tc.addr)
			if !errors.Is(err, tc.want) || strings.Contains(err.Error(), "code =") {
				t.Errorf("got %v, want %v", err, tc.want)
			}
		})
	}
}

// answer sends the same text to every client.
func answer(l net.Listener, text string) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		c.Write([]byte(text))
		c.Close()
	}
}

func TestCloseEndsADialInProgress(t *testing.T) {
	leak.Check(t)
	silent := listen(t)
	defer silent.Close()
	tr := New(Options{})
	dialled := make(chan error)
	go func() {
		_, err := tr.Dial(context.Background(), silent.Addr().String())
		dialled <- err
	}()
	c, err := silent.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	tr.Close()
	if err := <-dialled; !errors.Is(err, fault.Closed) {
		t.Errorf("Dial: got %v, want %v", err, fault.Closed)
	}
	if _, err := tr.Dial(context.Background(), silent.Addr().String()); !errors.Is(err, fault.Closed) {
		t.Errorf("Dial after Close: got %v, want %v", err, fault.Closed)
	}
}

func TestServeIsCalledOnceAndWithEverything(t *testing.T) {
	tr := New(Options{})
	accept := func(transport.Conn) {}
	if _, err := tr.Serve(nil, accept); !errors.Is(err, fault.Misuse) {
		t.Errorf("without a listener: got %v, want %v", err, fault.Misuse)
	}
	if _, err := tr.Serve(listen(t), accept); err != nil {
		t.Error(err)
	}
	extra := listen(t)
	defer extra.Close()
	if _, err := tr.Serve(extra, accept); !errors.Is(err, fault.Misuse) {
		t.Errorf("twice: got %v, want %v", err, fault.Misuse)
	}
	tr.Close()
	if _, err := tr.Serve(extra, accept); !errors.Is(err, fault.Closed) {
		t.Errorf("after Close: got %v, want %v", err, fault.Closed)
	}
}

func TestGreeterKnowsItsOwn(t *testing.T) {
	tr := New(Options{})
	for first, want := range map[string]bool{"PRI * HTTP/2.0": true, "PRI ": true, "GET / HTTP/1.1": false, "PRIV": false} {
		if got := tr.Prefix([]byte(first)); got != want {
			t.Errorf("Prefix(%q): got %v, want %v", first, got, want)
		}
	}
	if got := tr.Proto(); got != "h2" {
		t.Errorf("Proto: got %q, want h2", got)
	}
}

// A frame must cost no more than the given number of allocations, at both ends together. Nearly
// all of them are in gRPC. doc.go has the measured figures.
func TestAllocationsPerFrame(t *testing.T) {
	if raceDetector {
		// Reason: the race detector makes sync.Pool drop items, so frames allocate.
		t.Skip("under the race detector, sync.Pool forgets on purpose")
	}
	for _, tc := range []struct {
		name       string
		size, most int
	}{
		{"1 KiB", 1 << 10, 12},
		{"64 KiB", 64 << 10, 14},
		{"1 MiB", 1 << 20, 40},
	} {
		t.Run(tc.name, func(t *testing.T) {
			near, far := connect(t, Options{})
			done := make(chan error, 1)
			f := &transport.Frame{Head: []byte("head"), Body: make([]byte, tc.size), Done: func(err error) { done <- err }}
			w := newWaiter(t, far)
			w.buf = make([]byte, tc.size)
			got := testing.AllocsPerRun(300, func() {
				near.Send(f)
				w.next()
				<-done
			})
			t.Logf("%.0f allocations", got)
			if got > float64(tc.most) {
				t.Errorf("got %.0f allocations, want at most %d", got, tc.most)
			}
		})
	}
}
