package mesh

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tutti-go/tutti/fault"
)

func TestRanksFindEachOther(t *testing.T) {
	modes := map[string]func(r *testJob) func(int, *Config){
		"through rank 0":  func(*testJob) func(int, *Config) { return nil },
		"by a list":       func(r *testJob) func(int, *Config) { return func(_ int, cfg *Config) { r.static(cfg) } },
		"without secrets": func(*testJob) func(int, *Config) { return func(_ int, cfg *Config) { cfg.Secret = nil } },
	}
	for name, mode := range modes {
		for _, n := range []int{1, 2, 3, 4, 5, 9, 17} {
			t.Run(fmt.Sprintf("%s/%d", name, n), func(t *testing.T) {
				bubble(t, func(t *testing.T) {
					r := newTestJob(t, n)
					r.start(t.Context(), upTo(n), mode(r))
					defer r.close()
					for i, m := range r.meshes {
						if r.errs[i] != nil {
							t.Fatalf("rank %d: %v", i, r.errs[i])
						}
						for q := range n {
							if got, want := m.Host(q), fmt.Sprintf("host-%d", q); got != want {
								t.Errorf("rank %d: host of %d is %q, want %q", i, q, got, want)
							}
						}
					}
					if got := r.logs.all(); len(got) != 0 {
						t.Errorf("logged: %q", got)
					}
				})
			})
		}
	}
}

func TestRanksMayStartLate(t *testing.T) {
	for _, list := range []bool{false, true} {
		bubble(t, func(t *testing.T) {
			r := newTestJob(t, 5)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			done := make(chan int)
			for i, late := range []time.Duration{20 * time.Second, 0, 13 * time.Second, 7 * time.Second, 30 * time.Second} {
				go func() {
					// Reason: the rank starts late. No real time passes.
					time.Sleep(late)
					r.start(ctx, []int{i}, func(_ int, cfg *Config) {
						if list {
							r.static(cfg)
						}
					})
					done <- i
				}()
			}
			for range 5 {
				if i := <-done; r.errs[i] != nil {
					t.Errorf("list %v: rank %d: %v", list, i, r.errs[i])
				}
			}
			r.close()
		})
	}
}

func TestAMissingRankIsNamedByAllTheOthers(t *testing.T) {
	for _, list := range []bool{false, true} {
		for _, gone := range []int{0, 2, 4} {
			bubble(t, func(t *testing.T) {
				r := newTestJob(t, 5)
				ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
				defer cancel()
				r.start(ctx, without(5, gone), func(_ int, cfg *Config) {
					if list {
						r.static(cfg)
					}
				})
				for _, i := range without(5, gone) {
					var e *fault.Error
					if !errors.As(r.errs[i], &e) || !blames(e, fault.Timeout, gone) {
						t.Errorf("list %v, without %d: rank %d: %v", list, gone, i, r.errs[i])
					}
				}
			})
		}
	}
}

func TestACancelledStartEndsTheOthers(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newTestJob(t, 4)
		done := make(chan error, 3)
		ctx, cancel := context.WithCancel(t.Context())
		for _, i := range []int{0, 1, 2} { // rank 3 never starts
			use := t.Context()
			if i == 1 {
				use = ctx
			}
			go func() {
				r.start(use, []int{i}, func(_ int, cfg *Config) { r.static(cfg) })
				done <- r.errs[i]
			}()
		}
		// Reason: all three ranks wait for rank 3 by then. No real time passes.
		time.Sleep(time.Second)
		cancel()
		for range 3 {
			if err := <-done; !errors.Is(err, fault.Canceled) {
				t.Errorf("got %v, want the cancellation of rank 1", err)
			}
		}
	})
}

func TestFloodsReachAllOnce(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const n = 9
		r := started(t, n, nil)
		defer r.close()
		for i, m := range r.meshes {
			for k := range 50 {
				m.Flood(byte(k), fmt.Appendf(nil, "from %d", i))
			}
		}
		r.meshes[0].Flood(1, make([]byte, MaxFlood))
		r.meshes[0].Flood(1, make([]byte, MaxFlood+1)) // too large: dropped
		// Reason: all floods arrive within this time. No real time passes.
		time.Sleep(time.Second)
		for i, ear := range r.events {
			want := 50*(n-1) + 1
			if i == 0 {
				want--
			}
			got := ear.floodsSeen()
			slices.Sort(got)
			if len(got) != want || len(slices.Compact(got)) != want {
				t.Errorf("rank %d has %d floods, want %d", i, len(got), want)
			}
		}
	})
}

func TestANeighbourThatReadsNothingIsBoundedAndMarkedDead(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := started(t, 3, func(_ int, cfg *Config) { cfg.Silence, cfg.Stall = time.Minute, 5*time.Second })
		defer r.close()
		defer r.freeze(1)()
		start := time.Now()
		for range 1000 {
			r.meshes[0].Flood(1, make([]byte, MaxFlood))
			synctest.Wait()
		}
		queued := make(chan int64, 1)
		r.meshes[0].control.post(func(c *control) { queued <- c.links[1].queued.Load() })
		if got := <-queued; got > maxQueuedBytes+maxBody || got < maxQueuedBytes/2 {
			t.Errorf("%d bytes are queued for it, want about %d", got, maxQueuedBytes)
		}
		// Reason: the other ranks must report rank 1 within this time. No real time passes.
		time.Sleep(10 * time.Second)
		for _, i := range []int{0, 2} {
			if e, when := r.events[i].first(); !blames(e, fault.PeerLost, 1) || when.Sub(start) > 6*time.Second {
				t.Errorf("rank %d hears %v after %v", i, e, when.Sub(start))
			}
		}
		if got := len(r.events[2].floodsSeen()); got != 1000 {
			t.Errorf("rank 2 has %d floods, want 1000", got)
		}
	})
}

func TestANeighbourThatPausesReadingGetsTheLatestFloods(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := started(t, 2, nil)
		defer r.close()
		thaw := r.freeze(1)
		for k := range 250 {
			r.meshes[0].Flood(byte(k), make([]byte, MaxFlood))
		}
		// Reason: rank 1 reads nothing for this time. No real time passes.
		time.Sleep(2 * time.Second)
		thaw()
		// Reason: the queued floods arrive within this time. No real time passes.
		time.Sleep(2 * time.Second)
		got := r.events[1].floodsSeen()
		latest := slices.ContainsFunc(got, func(s string) bool { return strings.HasPrefix(s, "0/249/") })
		if len(got) == 250 || len(got) < 200 || !latest {
			t.Errorf("it has %d floods, the latest %v; want some of 250, and the latest", len(got), latest)
		}
		for i := range r.events {
			if e, _ := r.events[i].first(); e != nil {
				t.Errorf("rank %d hears %v", i, e)
			}
		}
	})
}

func TestQuestionsAreAnswered(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := started(t, 6, nil)
		defer r.close()
		for i, ear := range r.events {
			ear.mu.Lock()
			ear.call = fmt.Sprintf("barrier #%d", i)
			if i != 3 {
				ear.reply = func(from int, q []byte) []byte { return fmt.Appendf(nil, "%d to %d: %s", i, from, q) }
			}
			ear.mu.Unlock()
		}
		// Reason: heartbeats tell the calls to all ranks within this time. No real time passes.
		time.Sleep(time.Second)
		defer r.freeze(5)()
		// Reason: rank 5 is silent for this time before the question. No real time passes.
		time.Sleep(time.Second)
		start := time.Now()
		got := r.meshes[0].Ask(t.Context(), []int{4, 3, 5, 0, 99, 1}, []byte("where?"))
		if elapsed := time.Since(start); elapsed > 1100*time.Millisecond {
			t.Errorf("it took %v", elapsed)
		}
		want := []string{"4 to 0: where?", "", "", "0 to 0: where?", "", "1 to 0: where?"}
		for k, a := range got {
			if string(a.Body) != want[k] {
				t.Errorf("rank %d says %q, want %q", a.Rank, a.Body, want[k])
			}
		}
		if a := got[2]; a.Last != "barrier #5" || a.Silent < time.Second || a.Silent > 3*time.Second {
			t.Errorf("the silent rank: %+v", a)
		}
		start = time.Now()
		r.meshes[0].Ask(t.Context(), []int{1, 2, 3, 4}, nil)
		if elapsed := time.Since(start); elapsed > 100*time.Millisecond {
			t.Errorf("live ranks took %v to answer", elapsed)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		start = time.Now()
		r.meshes[0].Ask(ctx, []int{5}, nil)
		if elapsed := time.Since(start); elapsed != 100*time.Millisecond {
			t.Errorf("a question that was cut short took %v, want 100ms", elapsed)
		}
	})
}

func TestABrokenDataLinkIsReportedAsAFailure(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := started(t, 4, nil)
		defer r.close()
		start := time.Now()
		r.meshes[3].Suspect(1, errors.New("reset"))
		// Reason: all ranks must report the lost link within this time. No real time passes.
		time.Sleep(time.Second)
		for i, ear := range r.events {
			if e, when := ear.first(); !blames(e, fault.LinkLost, 1, 3) || when.Sub(start) > 500*time.Millisecond {
				t.Errorf("rank %d hears %v", i, e)
			}
		}
	})
}

func TestAnAnnouncedFailureReachesAll(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := started(t, 4, nil)
		defer r.close()
		e := fault.New(fault.PeerLost, "run", 2, "panic: boom")
		e.Peers = []fault.Peer{{Rank: 2, At: "main.go:7"}}
		r.meshes[2].Announce(e)
		// Reason: all ranks must report the failure within this time. No real time passes.
		time.Sleep(time.Second)
		for i, ear := range r.events {
			if got, _ := ear.first(); got == nil || got.Error() != e.Error() || len(ear.verdicts) != 1 {
				t.Errorf("rank %d hears %v", i, ear.verdicts)
			}
		}
	})
}

func TestWrongConfigurationsAreMisuse(t *testing.T) {
	for name, tweak := range map[string]func(*Config){
		"no ranks":        func(c *Config) { c.Size = 0 },
		"too many ranks":  func(c *Config) { c.Size = MaxSize + 1 },
		"rank too high":   func(c *Config) { c.Rank = 2 },
		"negative rank":   func(c *Config) { c.Rank = -1 },
		"no transport":    func(c *Config) { c.Transport = nil },
		"nowhere to go":   func(c *Config) { c.Root = "" },
		"short list":      func(c *Config) { c.Root, c.Peers = "", []string{"a"} },
		"negative time":   func(c *Config) { c.Stall = -1 },
		"hasty":           func(c *Config) { c.Silence = c.Heartbeat },
		"hasty heartbeat": func(c *Config) { c.Heartbeat = time.Hour },
	} {
		t.Run(name, func(t *testing.T) {
			cfg := newTestJob(t, 2).config(1)
			cfg.Heartbeat = time.Second
			tweak(&cfg)
			if _, err := Start(t.Context(), cfg); !errors.Is(err, fault.Misuse) {
				t.Errorf("got %v, want misuse", err)
			}
		})
	}
}

func BenchmarkStart(b *testing.B) {
	for _, n := range []int{2, 8, 64} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			for b.Loop() {
				r := started(b, n, nil)
				b.StopTimer()
				r.close()
				b.StartTimer()
			}
		})
	}
}
