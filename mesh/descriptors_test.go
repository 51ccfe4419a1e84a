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
	"github.com/tutti-go/tutti/transport"
)

func TestALimitThatIsTooLowIsNamedWithTheNumberNeeded(t *testing.T) {
	for _, tc := range []struct {
		limit, open, size int
		want              string // a part of the error; "": none
	}{
		{24, 8, 7, "got a limit of 24, want at least 28 for a rank of 7"},
		{27, 8, 7, "want at least 28"},
		{28, 8, 7, ""},
		{1024, 10, 1000, ""},
		{50, 10, 1000, "want at least 58 for a rank of 1000, and 1037 for messages between all ranks (10 are open now): raise ulimit -n"},
		{-1, 8, 7, ""},
		{10, 2, 1, ""},
	} {
		err := descriptorShortage(tc.limit, tc.open, tc.size)
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

// A shortListener is a listener whose process lacks descriptors.
type shortListener struct {
	net.Listener
	done chan struct{}
	once sync.Once
}

func (l *shortListener) Accept() (net.Conn, error) {
	select {
	case <-l.done:
		return nil, net.ErrClosed
	default:
		return nil, os.NewSyscallError("accept4", syscall.EMFILE)
	}
}

func (l *shortListener) Close() error {
	l.once.Do(func() { close(l.done) })
	return nil
}
