package mesh

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/test/leak"
	"github.com/tutti-go/tutti/transport"
	"github.com/tutti-go/tutti/transport/tcp"
)

// A recorder is the layer above the data Conns in tests. It counts the frames that arrive.
type recorder struct {
	mu   sync.Mutex
	got  map[string]int // bodies, by sender
	down []int
}

type recorderSink struct {
	*recorder
	from int
	body []byte
}

func (p *recorder) Sink(l *Link) transport.Sink { return &recorderSink{recorder: p, from: l.Rank} }

func (p *recorder) LinkDown(rank int, _ error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.down = append(p.down, rank)
}

func (s *recorderSink) Buffer(h transport.Header) []byte {
	s.body = make([]byte, h.Size)
	return s.body
}

func (s *recorderSink) Arrived(h transport.Header, n int) {
	if n == h.Size {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.got[fmt.Sprintf("%d: %s", s.from, s.body)]++
	}
}

func (p *recorder) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.got)
}

func (p *recorder) lost() []int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.down)
}

// All ranks send to all other ranks at the same time, so both ends of each pair dial. Each pair
// must get one connection, and each frame must arrive.
func TestDataConnsComeUpWhenBothSidesDial(t *testing.T) {
	for round := range 10 {
		for _, wire := range []string{"memory", "tcp"} {
			t.Run(fmt.Sprintf("%s/%d", wire, round), func(t *testing.T) {
				leak.Check(t)
				const n = 5
				piles := make([]*recorder, n)
				tweak := func(i int, cfg *Config) {
					piles[i] = &recorder{got: make(map[string]int)}
					cfg.Data = piles[i]
					cfg.InProcess = wire == "memory"
				}
				var r *testJob
				if wire == "memory" {
					r = started(t, n, tweak)
				} else {
					r = startWired(t, n, func(i int, cfg *Config) {
						tweak(i, cfg)
						cfg.Transport = tcp.New(tcp.Options{})
					}).testJob
				}
				defer r.close()
				for i, m := range r.meshes {
					for _, to := range without(n, i) {
						f := &transport.Frame{Head: []byte("h"), Body: fmt.Appendf(nil, "to %d", to), Done: func(error) {}}
						go m.Link(to).Send(f)
					}
				}
				for i, p := range piles {
					eventually(t, fmt.Sprintf("rank %d has %d frames", i, n-1), func() bool { return p.count() == n-1 })
				}
				for i := range r.events {
					if e, _ := r.events[i].first(); e != nil || len(piles[i].lost()) != 0 {
						t.Errorf("rank %d hears %v, and has lost the links to %v", i, e, piles[i].lost())
					}
				}
				if got := r.logs.all(); len(got) != 0 {
					t.Errorf("logged %q", got)
				}
			})
		}
	}
}

func TestAVanishedDataConnOfLiveRanksIsALostLink(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := started(t, 3, func(_ int, cfg *Config) { cfg.Data = &recorder{got: make(map[string]int)} })
		defer r.close()
		f := &transport.Frame{Head: []byte("h"), Done: func(error) {}}
		r.meshes[0].Link(2).Send(f)
		eventually(t, "the Conn is up", func() bool { return r.meshes[0].Link(2).Conn() != nil })
		start := time.Now()
		r.meshes[0].Link(2).Conn().Close()
		for i := range r.events {
			eventually(t, "a verdict", func() bool { e, _ := r.events[i].first(); return e != nil })
			if e, when := r.events[i].first(); !blames(e, fault.LinkLost, 0, 2) || when.Sub(start) > time.Second {
				t.Errorf("rank %d hears %v after %v", i, e, when.Sub(start))
			}
		}
	})
}

// A turnAway is a transport. While its field closed is set, the connections that it dials end at
// once, as if a mux needed their slots.
type turnAway struct {
	transport.Transport
	closed atomic.Bool
}

func (a *turnAway) Dial(ctx context.Context, addr string) (transport.Conn, error) {
	c, err := a.Transport.Dial(ctx, addr)
	if err == nil && a.closed.Load() {
		c = endedConn{c}
	}
	return c, err
}

// An endedConn is a Conn whose peer has closed it.
type endedConn struct{ transport.Conn }

func (endedConn) Progress(transport.Sink, int) (transport.State, error) {
	return transport.Idle, io.EOF
}

// If a data dial gets no slot, the rank must retry for longer than dialTimeout, because the peer is
// alive. After dialUnanswered the link is lost.
func TestADataDialThatIsTurnedAwayIsTriedAgain(t *testing.T) {
	for _, tc := range []struct {
		turnedAway time.Duration
		lost       bool
	}{{dialTimeout + 5*time.Second, false}, {dialUnanswered + time.Second, true}} {
		bubble(t, func(t *testing.T) {
			got := &recorder{got: make(map[string]int)}
			var wire turnAway
			r := newTestJob(t, 2)
			defer r.close()
			r.start(t.Context(), upTo(2), func(i int, cfg *Config) {
				cfg.Data = got
				if i == 0 {
					wire.Transport = cfg.Transport
					cfg.Transport = &wire
				}
			})
			wire.closed.Store(true)
			r.meshes[0].Link(1).Send(&transport.Frame{Head: []byte("h"), Body: []byte("hello"), Done: func(error) {}})
			// Reason: every dial of rank 0 is turned away for this time. No real time passes.
			time.Sleep(tc.turnedAway)
			wire.closed.Store(false)
			// Reason: rank 1 must get the frame or report the lost link within this time. The
			// bubble's clock passes it at once.
			time.Sleep(2 * time.Second)
			e, _ := r.events[1].first()
			if lost := e != nil; lost != tc.lost || lost == (got.count() == 1) {
				t.Errorf("turned away for %v: %d frames arrive, and rank 1 hears %v, want a lost link: %v", tc.turnedAway, got.count(), e, tc.lost)
			}
		})
	}
}

// A firewall is a transport. While the field rule is set, it decides what happens to dials.
type firewall struct {
	transport.Transport
	rule atomic.Pointer[func(ctx context.Context, c transport.Conn) (transport.Conn, error)]
}

func (w *firewall) Dial(ctx context.Context, addr string) (transport.Conn, error) {
	c, err := w.Transport.Dial(ctx, addr)
	if rule := w.rule.Load(); err == nil && rule != nil {
		return (*rule)(ctx, c)
	}
	return c, err
}

// A muteConn is a Conn whose peer accepts and says nothing.
type muteConn struct{ transport.Conn }

func (muteConn) Progress(transport.Sink, int) (transport.State, error) { return transport.Idle, nil }
func (muteConn) Arm(func())                                            {}

// If a firewall lets control links pass but no new data connection, all ranks must be told in time,
// with the address and the remedy.
func TestADataDialThatAFirewallStopsIsReportedToAllRanks(t *testing.T) {
	for name, tc := range map[string]struct {
		rule func(ctx context.Context, c transport.Conn) (transport.Conn, error)
		most time.Duration
	}{
		"refused": {func(_ context.Context, c transport.Conn) (transport.Conn, error) {
			c.Close()
			return nil, fmt.Errorf("dial: %w", os.NewSyscallError("connect", syscall.ECONNREFUSED))
		}, dialRefused},
		"dropped": {func(ctx context.Context, c transport.Conn) (transport.Conn, error) {
			c.Close()
			<-ctx.Done()
			return nil, ctx.Err()
		}, dialSilent},
		"accepted in silence": {func(_ context.Context, c transport.Conn) (transport.Conn, error) {
			return muteConn{c}, nil
		}, dialSilent},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				wires := make([]firewall, 7)
				r := started(t, len(wires), func(i int, cfg *Config) {
					cfg.Data = &recorder{got: make(map[string]int)}
					wires[i].Transport = cfg.Transport
					cfg.Transport = &wires[i]
				})
				defer r.close()
				wires[1].rule.Store(&tc.rule)
				start := time.Now()
				r.meshes[1].Link(5).Open()
				// Reason: all ranks must report the failure within this time. No real time passes.
				time.Sleep(tc.most + time.Second)
				for i := range r.events {
					e, when := r.events[i].first()
					if !blames(e, fault.LinkLost, 1, 5) || when.Sub(start) > tc.most+300*time.Millisecond {
						t.Errorf("rank %d hears %v after %v", i, e, when.Sub(start))
						continue
					}
					for _, want := range []string{r.hub.Addr(5), "firewall", "rank 1 on host-1", "rank 5 on host-5", fmt.Sprint(tc.most)} {
						if !strings.Contains(e.Error(), want) {
							t.Errorf("rank %d hears %v, want %q in it", i, e, want)
						}
					}
				}
			})
		})
	}
}

// A rank whose heartbeats say that it runs late must get more time to answer a data dial.
func TestADataDialWaitsLongerForARankThatRunsLate(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var wire firewall
		r := started(t, 2, func(i int, cfg *Config) {
			cfg.Data = &recorder{got: make(map[string]int)}
			if i == 0 {
				wire.Transport = cfg.Transport
				cfg.Transport = &wire
			}
		})
		defer r.close()
		thaw := r.freeze(1)
		// Reason: rank 1 does not run for this time. The bubble's clock passes it at once.
		time.Sleep(time.Second)
		thaw()
		// Reason: rank 1 sends heartbeats in this time. The bubble's clock passes it at once.
		time.Sleep(time.Second)
		mute := func(_ context.Context, c transport.Conn) (transport.Conn, error) { return muteConn{c}, nil }
		wire.rule.Store(&mute)
		l := r.meshes[0].Link(1)
		l.Open()
		// Reason: the first attempt begins in this time. The bubble's clock passes it at once.
		time.Sleep(time.Second)
		wire.rule.Store(nil)
		// Reason: the next attempt is made in this time. The bubble's clock passes it at once.
		time.Sleep(dialSilent)
		r.blameless("after the second attempt")
		if l.Conn() == nil {
			t.Error("the data connection is not up although rank 1 answers")
		}
	})
}
