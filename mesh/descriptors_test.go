package mesh

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/test/leak"
	"github.com/tutti-go/tutti/internal/test/starved"
	"github.com/tutti-go/tutti/transport"
	"github.com/tutti-go/tutti/transport/tcp"
)

func TestALimitThatIsTooLowIsNamedWithTheNumberNeeded(t *testing.T) {
	for _, tc := range []struct {
		limit, open, size int
		joinServer        bool
		want              string // a part of the error; "": none
	}{
		{24, 8, 7, false, "got a limit of 24, want at least 28 for a rank of 7"},
		{27, 8, 7, true, "want at least 28"},
		{28, 8, 7, true, ""},
		{1024, 10, 1000, true, ""},
		{50, 10, 1000, false, "want at least 58 for a rank of 1000, and 1037 for messages between all ranks (10 are open now): raise ulimit -n"},
		{58, 10, 1000, false, ""},
		{1016, 10, 1000, true, "got a limit of 1016, want at least 1017 for a rank of 1000, and 1037 for messages between all ranks"},
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
// lack of file descriptors.
type shortWire struct {
	transport.Transport
	short atomic.Bool
}

func (s *shortWire) Dial(ctx context.Context, addr string) (transport.Conn, error) {
	if s.short.Load() {
		return nil, fmt.Errorf("dial %s: %w", addr, os.NewSyscallError("socket", syscall.EMFILE))
	}
	return s.Transport.Dial(ctx, addr)
}

// isShortage reports whether e blames a rank for its lack of file descriptors, and says what to do.
func isShortage(err error, rank int) bool {
	var e *fault.Error
	return errors.As(err, &e) && blames(e, fault.Exhausted, rank) && strings.Contains(err.Error(), "raise ulimit -n")
}

// If a rank lacks descriptors for a data connection, all ranks must blame that rank and not its
// peer.
func TestALackOfDescriptorsIsTheFailureOfTheRankThatHasIt(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var wire shortWire
		r := newTestJob(t, 3)
		defer r.close()
		r.start(t.Context(), upTo(3), func(i int, cfg *Config) {
			cfg.Data = &recorder{got: make(map[string]int)}
			if i == 1 {
				wire.Transport = cfg.Transport
				cfg.Transport = &wire
			}
		})
		wire.short.Store(true)
		r.meshes[1].Link(2).Open()
		time.Sleep(time.Second)
		for i, events := range r.events {
			if e, _ := events.first(); !isShortage(e, 1) {
				t.Errorf("rank %d hears %v", i, e)
			}
		}
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

// A start must fail at once if a rank lacks descriptors. In one case rank 1 lacks them while it
// joins, in the other case rank 0 lacks them while it opens a control link.
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
		f := openMux(ln, &pendingEcho{}, nil, nil, logs.logger(), newRefusalLog(logs.logger()), func(err error) {
			if !errors.Is(err, syscall.EMFILE) {
				t.Errorf("got %v, want %v", err, syscall.EMFILE)
			}
			reported.Add(1)
		})
		defer f.Close()
		time.Sleep(shortageTime / 2)
		if n := reported.Load(); n != 0 {
			t.Errorf("%d reports after %v, want none", n, shortageTime/2)
		}
		time.Sleep(2 * shortageTime)
		if reported.Load() == 0 {
			t.Errorf("no report after %v", 5*shortageTime/2)
		}
	})
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
