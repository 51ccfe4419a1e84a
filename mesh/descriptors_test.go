package mesh

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/pending"
	"github.com/tutti-go/tutti/internal/test/leak"
	"github.com/tutti-go/tutti/internal/test/starved"
	"github.com/tutti-go/tutti/transport"
	"github.com/tutti-go/tutti/transport/tcp"
)

func TestALimitThatIsTooLowIsNamedWithTheNumberNeeded(t *testing.T) {
	for _, tc := range []struct {
		limit, open, size int
		joinServer        bool
		want              string // a part of the error; "": no error
	}{
		{24, 8, 7, false, "got a limit of 24, want at least 28 on this rank of a job of 7 ranks"},
		{27, 8, 7, true, "want at least 28"},
		{28, 8, 7, true, ""},
		{1024, 10, 1000, true, ""},
		{50, 10, 1000, false, "want at least 58 on this rank of a job of 1000 ranks, or 1037 if it exchanges messages with all ranks (10 are open now): raise ulimit -n"},
		{58, 10, 1000, false, ""},
		{1016, 10, 1000, true, "got a limit of 1016, want at least 1017 on this rank of a job of 1000 ranks, or 1037 if it exchanges messages with all ranks"},
		{1017, 10, 1000, true, ""},
		{-1, 8, 7, true, ""},
		{10, 2, 1, true, ""},
	} {
		err := descriptorShortage(tc.limit, tc.open, tc.size, tc.joinServer)
		if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
			t.Errorf("%d of %d descriptors open, %d ranks: got %v, want %q", tc.open, tc.limit, tc.size, err, tc.want)
		}
	}
}

// A shortWire is a transport. While its field short is set, its dials fail with the error for a
// lack of file descriptors, or with err if that is set.
type shortWire struct {
	transport.Transport
	short atomic.Bool
	err   error
}

func (s *shortWire) Dial(ctx context.Context, addr string) (transport.Conn, error) {
	if s.short.Load() && s.err != nil {
		return nil, s.err
	} else if s.short.Load() {
		return nil, fmt.Errorf("dial %s: %w", addr, os.NewSyscallError("socket", syscall.EMFILE))
	}
	return s.Transport.Dial(ctx, addr)
}

// isShortage reports whether err blames a rank for its lack of file descriptors, and says what to
// do.
func isShortage(err error, rank int) bool {
	var e *fault.Error
	return errors.As(err, &e) && blames(e, fault.Exhausted, rank) && strings.Contains(err.Error(), "raise ulimit -n")
}

// startShort starts ranks over the memory transport, and returns the shortWire of each rank.
func startShort(t *testing.T, n int) (*testJob, []*shortWire) {
	wires := make([]*shortWire, n)
	r := started(t, n, func(i int, cfg *Config) {
		cfg.Data = &recorder{got: make(map[string]int)}
		wires[i] = &shortWire{Transport: cfg.Transport}
		cfg.Transport = wires[i]
	})
	return r, wires
}

// blameless checks that no rank reports a failure.
func (r *testJob) blameless(when string) {
	r.t.Helper()
	for i, events := range r.events {
		if e, _ := events.first(); e != nil {
			r.t.Errorf("%s: rank %d hears %v", when, i, e)
		}
	}
}

// If a rank lacks descriptors for a data connection until the deadline of the dial, all ranks must
// blame that rank and not its peer. If the lack ends earlier, the connection must come up.
func TestALackOfDescriptorsIsTheFailureOfTheRankThatHasIt(t *testing.T) {
	for _, ends := range []bool{false, true} {
		bubble(t, func(t *testing.T) {
			r, wires := startShort(t, 3)
			defer r.close()
			wire := wires[1]
			wire.short.Store(true)
			l := r.meshes[1].Link(2)
			l.Open()
			// Reason: no rank must report a failure before the dial's deadline. The bubble's clock
			// passes it at once.
			time.Sleep(dialTimeout - time.Second)
			r.blameless("before the deadline")
			wire.short.Store(!ends)
			// Reason: the dial's deadline is within this time. Then the connection must be up, or
			// all ranks must have reported the failure. The bubble's clock passes it at once.
			time.Sleep(2 * time.Second)
			if ends {
				r.blameless("after the lack")
				if l.conn.Load() == nil {
					t.Error("the data connection is not up after the lack")
				}
				return
			}
			for i, events := range r.events {
				if e, _ := events.first(); !isShortage(e, 1) {
					t.Errorf("rank %d hears %v", i, e)
				}
			}
		})
	}
}

// If a rank lacks descriptors for a control link of a running job, only a lack that lasts must be a
// failure.
func TestARunningJobSurvivesAShortLackOfDescriptors(t *testing.T) {
	for _, ends := range []bool{false, true} {
		bubble(t, func(t *testing.T) {
			r, wires := startShort(t, 3)
			defer r.close()
			wire := wires[0]
			// With this error, only rank 0 can open the link again.
			wires[1].err = errors.New("unreachable")
			wires[1].short.Store(true)
			wire.short.Store(true)
			r.meshes[0].control.post(func(c *control) { c.linkDown(c.links[1], "cut by the test") })
			// Reason: no rank must report a failure within this time. No real time passes.
			time.Sleep(shortageTime / 2)
			r.blameless("during the lack")
			wire.short.Store(!ends)
			// Reason: if the lack goes on, all ranks must report the failure within this time.
			// Otherwise no rank must. The bubble's clock passes it at once.
			time.Sleep(2 * shortageTime)
			if ends {
				r.blameless("after the lack")
				return
			}
			for i, events := range r.events {
				if e, _ := events.first(); !isShortage(e, 0) {
					t.Errorf("rank %d hears %v", i, e)
				}
			}
		})
	}
}

// Once all ranks have started, a lack of descriptors in Accept must not end the job.
func TestALackOfDescriptorsInAcceptDoesNotEndARunningJob(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r, _ := startShort(t, 2)
		defer r.close()
		r.meshes[0].acceptShortage(syscall.EMFILE)
		// Reason: no rank must report a failure within this time. No real time passes.
		time.Sleep(time.Second)
		r.blameless("after the start")
	})
}

// A rank 0 that has no descriptor left for the other ranks must end the start at once, and a rank
// that has joined must get the reason.
func TestALackOfDescriptorsInAcceptEndsTheAddressExchange(t *testing.T) {
	leak.Check(t)
	ln := listen(t)
	short := &shortListener{Listener: ln, done: make(chan struct{})}
	short.first.Store(1) // rank 1 joins, and rank 2 cannot
	r := newTestJob(t, 3)
	began, waited := time.Now(), starved.Since(os.Getpid())
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	r.start(ctx, []int{0, 1}, func(i int, cfg *Config) {
		cfg.Transport, cfg.Root = tcp.New(tcp.Options{}), ln.Addr().String()
		cfg.Listener = short
		if i != 0 {
			cfg.Listener = listen(t)
		}
	})
	if elapsed := time.Since(began); elapsed > 2*time.Second+waited() {
		t.Errorf("the start ends after %v", elapsed)
	}
	for i := range 2 {
		if !isShortage(r.errs[i], 0) {
			t.Errorf("rank %d: got %v, want %v of rank 0", i, r.errs[i], fault.Exhausted)
		}
	}
}

// A joining rank whose Accept lacks descriptors must end its start at once and blame itself. The
// other ranks could not open their links to it.
func TestALackOfDescriptorsInAcceptEndsTheJoin(t *testing.T) {
	leak.Check(t)
	ln := listen(t)
	r := newTestJob(t, 3)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var root sync.WaitGroup
	over := func(own net.Listener) func(int, *Config) {
		return func(_ int, cfg *Config) {
			cfg.Transport, cfg.Root, cfg.Listener = tcp.New(tcp.Options{}), ln.Addr().String(), own
			cfg.EndOnLoss = true
		}
	}
	root.Go(func() { r.start(ctx, []int{0}, over(ln)) })
	began, waited := time.Now(), starved.Since(os.Getpid())
	r.start(ctx, []int{1}, over(&shortListener{Listener: listen(t), done: make(chan struct{})}))
	root.Wait()
	if elapsed := time.Since(began); elapsed > 3*time.Second+waited() {
		t.Errorf("the start ends after %v", elapsed)
	}
	if !isShortage(r.errs[1], 1) {
		t.Errorf("rank 1: got %v, want %v of itself", r.errs[1], fault.Exhausted)
	}
	if !errors.Is(r.errs[0], fault.PeerLost) {
		t.Errorf("rank 0: got %v, want %v", r.errs[0], fault.PeerLost)
	}
}

// A start must fail at once if a rank lacks descriptors. In one case rank 1 lacks descriptors while
// it joins, in the other case rank 0 lacks descriptors while it opens a control link.
func TestALackOfDescriptorsEndsTheStart(t *testing.T) {
	for short, static := range []bool{true, false} {
		bubble(t, func(t *testing.T) {
			r := newTestJob(t, 2)
			defer r.close()
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			other := make(chan struct{})
			go func() {
				r.start(ctx, []int{1 - short}, func(_ int, cfg *Config) {
					if static {
						r.static(cfg)
					}
				})
				close(other)
			}()
			cfg := r.config(short)
			if static {
				r.static(&cfg)
			}
			wire := &shortWire{Transport: cfg.Transport}
			wire.short.Store(true)
			cfg.Transport = wire
			began := time.Now()
			_, err := Start(ctx, cfg)
			if elapsed := time.Since(began); !isShortage(err, short) || elapsed > time.Second {
				t.Errorf("addresses known: %v: rank %d reports %v after %v", static, short, err, elapsed)
			}
			cancel()
			<-other
		})
	}
}

// The mux must report a lasting lack of descriptors, and must not report a short one.
func TestALackOfDescriptorsThatLastsIsReported(t *testing.T) {
	bubble(t, func(t *testing.T) {
		ln := &shortListener{done: make(chan struct{})}
		var logs logBuffer
		var reported atomic.Int32
		f := openMux(ln, &pendingEcho{}, nil, nil, pending.NewLog(logs.logger()), func(err error) {
			if !errors.Is(err, syscall.EMFILE) {
				t.Errorf("got %v, want %v", err, syscall.EMFILE)
			}
			reported.Add(1)
		})
		defer f.Close()
		// Reason: the mux must not report the lack within this time. No real time passes.
		time.Sleep(shortageTime / 2)
		if n := reported.Load(); n != 0 {
			t.Errorf("%d reports after %v, want none", n, shortageTime/2)
		}
		// Reason: the mux must report the lack within this time. No real time passes.
		time.Sleep(2 * shortageTime)
		if reported.Load() == 0 {
			t.Errorf("no report after %v", 5*shortageTime/2)
		}
	})
}

// Connections that prove nothing and take all descriptors must be evicted one after the other,
// until another connection is accepted.
func TestPendingConnectionsGiveUpTheirDescriptors(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const limit = 4
		ln := &countingListener{conns: make(chan net.Conn, limit+1), done: make(chan struct{})}
		ln.free.Store(limit)
		var logs logBuffer
		f := openMux(ln, &pendingEcho{}, nil, nil, pending.NewLog(logs.logger()), func(err error) { t.Errorf("reported: %v", err) })
		defer f.Close()
		for range limit {
			near, _ := net.Pipe()
			ln.conns <- near
		}
		near, far := net.Pipe()
		defer far.Close()
		ln.conns <- near
		go io.WriteString(far, "a rank")
		began := time.Now()
		if _, err := f.listener(nil).Accept(); err != nil {
			t.Fatal(err)
		}
		if elapsed := time.Since(began); elapsed < slotHold || elapsed > 4*slotHold {
			t.Errorf("accepted after %v, want at least %v and at most %v", elapsed, slotHold, 4*slotHold)
		}
		if free := ln.free.Load(); free != 0 {
			t.Errorf("%d descriptors are free, want that only one connection is evicted", free)
		}
	})
}

// A countingListener is a listener whose process has a few descriptors for connections.
type countingListener struct {
	net.Listener
	conns chan net.Conn
	free  atomic.Int32
	done  chan struct{}
}

// A countedConn holds one descriptor of a countingListener.
type countedConn struct {
	net.Conn
	ln   *countingListener
	once sync.Once
}

func (c *countedConn) Close() error {
	c.once.Do(func() { c.ln.free.Add(1) })
	return c.Conn.Close()
}

func (l *countingListener) Accept() (net.Conn, error) {
	if l.free.Load() == 0 && len(l.conns) > 0 {
		return nil, os.NewSyscallError("accept4", syscall.EMFILE)
	}
	select {
	case <-l.done:
		return nil, net.ErrClosed
	case nc := <-l.conns:
		l.free.Add(-1)
		return &countedConn{Conn: nc, ln: l}, nil
	}
}

func (l *countingListener) Close() error {
	close(l.done)
	return nil
}

// A shortListener is a listener whose process lacks descriptors after the first connections.
type shortListener struct {
	net.Listener
	first atomic.Int32 // how many connections are accepted
	done  chan struct{}
	once  sync.Once
}

func (l *shortListener) Accept() (net.Conn, error) {
	if l.first.Add(-1) >= 0 {
		return l.Listener.Accept()
	}
	select {
	case <-l.done:
		return nil, net.ErrClosed
	default:
		return nil, os.NewSyscallError("accept4", syscall.EMFILE)
	}
}

func (l *shortListener) Close() error {
	l.once.Do(func() { close(l.done) })
	if l.Listener != nil {
		return l.Listener.Close()
	}
	return nil
}
