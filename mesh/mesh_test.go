package mesh

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tutti-go/tutti/fault"
)

func TestRanksFindEachOther(t *testing.T) {
	modes := map[string]func(r *rig) func(int, *Config){
		"through rank 0":  func(*rig) func(int, *Config) { return nil },
		"by a list":       func(r *rig) func(int, *Config) { return func(_ int, cfg *Config) { r.static(cfg) } },
		"without secrets": func(*rig) func(int, *Config) { return func(_ int, cfg *Config) { cfg.Secret = nil } },
	}
	for name, mode := range modes {
		for _, n := range []int{1, 2, 3, 4, 5, 9, 17} {
			t.Run(fmt.Sprintf("%s/%d", name, n), func(t *testing.T) {
				bubble(t, func(t *testing.T) {
					r := newRig(t, n)
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
			r := newRig(t, 5)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			done := make(chan int)
			for i, late := range []time.Duration{20 * time.Second, 0, 13 * time.Second, 7 * time.Second, 30 * time.Second} {
				go func() {
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
				r := newRig(t, 5)
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
		r := newRig(t, 4)
		done := make(chan error, 3)
		ctx, cancel := context.WithCancel(t.Context())
		for _, i := range []int{0, 1, 2} { // rank 3 never comes
			use := t.Context()
			if i == 1 {
				use = ctx
			}
			go func() {
				r.start(use, []int{i}, func(_ int, cfg *Config) { r.static(cfg) })
				done <- r.errs[i]
			}()
		}
		time.Sleep(time.Second)
		cancel()
		for range 3 {
			if err := <-done; !errors.Is(err, fault.Canceled) {
				t.Errorf("got %v, want the cancellation of rank 1", err)
			}
		}
	})
}

func TestAKilledRankIsReportedWithItsLastCall(t *testing.T) {
	for n := 2; n <= 6; n++ {
		for victim := range n {
			bubble(t, func(t *testing.T) {
				r := started(t, n, nil)
				defer r.close()
				r.ears[victim].mu.Lock()
				r.ears[victim].call = "allreduce #41 at train.go:88"
				r.ears[victim].mu.Unlock()
				time.Sleep(time.Second)
				start := time.Now()
				r.kill(victim)
				time.Sleep(time.Second)
				for _, i := range without(n, victim) {
					e, when := r.ears[i].first()
					if !blames(e, fault.PeerLost, victim) {
						t.Fatalf("%d ranks, %d killed: rank %d hears %v", n, victim, i, e)
					}
					if took := when.Sub(start); took > 500*time.Millisecond {
						t.Errorf("%d ranks, %d killed: rank %d hears it after %v", n, victim, i, took)
					}
					want := fault.Peer{Rank: victim, Host: fmt.Sprintf("host-%d", victim), Call: "allreduce #41 at train.go:88"}
					if e.Peers[0] != want {
						t.Errorf("%d ranks: rank %d names %+v, want %+v", n, i, e.Peers[0], want)
					}
				}
			})
		}
	}
}

func TestASilentRankIsGivenUpAndHearsSoWhenItWakes(t *testing.T) {
	for _, n := range []int{2, 3, 5, 9} {
		bubble(t, func(t *testing.T) {
			r := started(t, n, nil)
			defer r.close()
			time.Sleep(time.Second)
			start := time.Now()
			thaw := r.freeze(1)
			time.Sleep(10 * time.Second)
			for _, i := range without(n, 1) {
				e, when := r.ears[i].first()
				if took := when.Sub(start); !blames(e, fault.PeerLost, 1) || took < 3700*time.Millisecond || took > 4500*time.Millisecond {
					t.Errorf("%d ranks: rank %d hears %v after %v", n, i, e, took)
				}
			}
			thaw()
			time.Sleep(time.Second)
			if e, _ := r.ears[1].first(); !blames(e, fault.PeerLost, 1) {
				t.Errorf("%d ranks: the silent rank hears %v, want itself blamed", n, e)
			}
		})
	}
}

func TestAShortPauseHarmsNobody(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := started(t, 5, nil)
		defer r.close()
		thaw := r.freeze(2)
		time.Sleep(3500 * time.Millisecond)
		thaw()
		time.Sleep(10 * time.Second)
		for i := range r.ears {
			if e, _ := r.ears[i].first(); e != nil {
				t.Errorf("rank %d hears %v", i, e)
			}
		}
	})
}

func TestAllRanksPausingTogetherBlameNobody(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := started(t, 5, nil)
		defer r.close()
		var thaws []func()
		for i := range r.meshes {
			thaws = append(thaws, r.freeze(i))
		}
		time.Sleep(time.Hour)
		for _, thaw := range thaws {
			thaw()
			time.Sleep(100 * time.Millisecond)
		}
		time.Sleep(10 * time.Second)
		for i := range r.ears {
			if e, _ := r.ears[i].first(); e != nil {
				t.Errorf("rank %d hears %v", i, e)
			}
		}
	})
}

func TestHeartbeatsAndSilenceAreOptions(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := started(t, 3, func(_ int, cfg *Config) { cfg.Heartbeat, cfg.Silence = 50*time.Millisecond, 500*time.Millisecond })
		defer r.close()
		start := time.Now()
		defer r.freeze(2)()
		time.Sleep(2 * time.Second)
		if e, when := r.ears[0].first(); !blames(e, fault.PeerLost, 2) || when.Sub(start) > time.Second {
			t.Errorf("rank 0 hears %v after %v", e, when.Sub(start))
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
		r.meshes[0].Flood(1, make([]byte, MaxFlood+1)) // is dropped
		time.Sleep(time.Second)
		for i, ear := range r.ears {
			want := 50*(n-1) + 1
			if i == 0 {
				want--
			}
			got := ear.heard()
			slices.Sort(got)
			if len(got) != want || len(slices.Compact(got)) != want {
				t.Errorf("rank %d has %d floods, want %d", i, len(got), want)
			}
		}
	})
}

func TestQuestionsAreAnswered(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := started(t, 6, nil)
		defer r.close()
		for i, ear := range r.ears {
			ear.mu.Lock()
			ear.call = fmt.Sprintf("barrier #%d", i)
			if i != 3 {
				ear.reply = func(from int, q []byte) []byte { return fmt.Appendf(nil, "%d to %d: %s", i, from, q) }
			}
			ear.mu.Unlock()
		}
		time.Sleep(time.Second)
		defer r.freeze(5)()
		time.Sleep(time.Second)
		start := time.Now()
		got := r.meshes[0].Ask(t.Context(), []int{4, 3, 5, 0, 99, 1}, []byte("where?"))
		if took := time.Since(start); took > 1100*time.Millisecond {
			t.Errorf("it took %v", took)
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
		if took := time.Since(start); took > 100*time.Millisecond {
			t.Errorf("live ranks took %v to answer", took)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		start = time.Now()
		r.meshes[0].Ask(ctx, []int{5}, nil)
		if took := time.Since(start); took != 100*time.Millisecond {
			t.Errorf("a question that was cut short took %v, want 100ms", took)
		}
	})
}

func TestABrokenDataLinkHasAVerdict(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := started(t, 4, nil)
		defer r.close()
		start := time.Now()
		r.meshes[3].Suspect(1, errors.New("reset"))
		time.Sleep(time.Second)
		for i, ear := range r.ears {
			if e, when := ear.first(); !blames(e, fault.LinkLost, 1, 3) || when.Sub(start) > 500*time.Millisecond {
				t.Errorf("rank %d hears %v", i, e)
			}
		}
	})
}

func TestAVerdictOfOnesOwnIsHeardByAll(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := started(t, 4, nil)
		defer r.close()
		e := fault.New(fault.PeerLost, "run", 2, "panic: boom")
		e.Peers = []fault.Peer{{Rank: 2, At: "main.go:7"}}
		r.meshes[2].Verdict(e)
		time.Sleep(time.Second)
		for i, ear := range r.ears {
			if got, _ := ear.first(); got == nil || got.Error() != e.Error() || len(ear.verdicts) != 1 {
				t.Errorf("rank %d hears %v", i, ear.verdicts)
			}
		}
	})
}

func TestGoodbyesComeInAnyOrderAndLinksAreKnitAnew(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const n = 9
		r := started(t, n, nil)
		order := []int{4, 0, 8, 5, 3, 1, 7, 2}
		for k, i := range order {
			if err := r.meshes[i].Close(t.Context()); err != nil {
				t.Errorf("rank %d: %v", i, err)
			}
			time.Sleep(200 * time.Millisecond)
			if got := r.ears[6].left(); !slices.Equal(got, order[:k+1]) {
				t.Errorf("rank 6 has heard the goodbyes of %v, want %v", got, order[:k+1])
			}
			last := order[len(order)-1]
			if i != last {
				r.meshes[last].Flood(1, nil)
				synctest.Wait()
				if got := r.ears[6].heard(); len(got) != k+1 {
					t.Errorf("after %d goodbyes rank 6 has %d floods of rank %d", k+1, len(got), last)
				}
			}
		}
		if err := r.meshes[6].Close(t.Context()); err != nil {
			t.Error(err)
		}
		for i, ear := range r.ears {
			if e, _ := ear.first(); e != nil {
				t.Errorf("rank %d hears %v", i, e)
			}
		}
		if got := r.logs.all(); len(got) != 0 {
			t.Errorf("logged: %q", got)
		}
	})
}

func TestAllCloseAtOnce(t *testing.T) {
	for n := 1; n <= 9; n++ {
		bubble(t, func(t *testing.T) {
			r := started(t, n, nil)
			start := time.Now()
			done := make(chan error)
			for _, m := range r.meshes {
				go func() { done <- m.Close(t.Context()) }()
			}
			for range n {
				if err := <-done; err != nil {
					t.Errorf("%d ranks: %v", n, err)
				}
			}
			if took := time.Since(start); took > time.Second {
				t.Errorf("%d ranks took %v to close", n, took)
			}
			for i, ear := range r.ears {
				if e, _ := ear.first(); e != nil {
					t.Errorf("%d ranks: rank %d hears %v", n, i, e)
				}
			}
		})
	}
}

func TestCloseDoesNotWaitForASilentNeighbourBeyondItsContext(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := started(t, 3, nil)
		defer r.close()
		defer r.freeze(1)()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start := time.Now()
		err := r.meshes[0].Close(ctx)
		if took := time.Since(start); took != time.Second || !errors.Is(err, fault.Timeout) {
			t.Errorf("got %v after %v, want a timeout after 1s", err, took)
		}
		if again := r.meshes[0].Close(t.Context()); again != err {
			t.Errorf("the second Close returns %v, want the first one's %v", again, err)
		}
	})
}

func TestCallsAfterCloseReturn(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := started(t, 2, nil)
		r.meshes[1].Close(t.Context())
		r.meshes[0].Close(t.Context())
		m := r.meshes[0]
		m.Flood(1, nil)
		m.Suspect(1, nil)
		m.Verdict(fault.New(fault.Revoked, "x", 0, "late"))
		if got := m.Ask(t.Context(), []int{0, 1}, nil); len(got) != 2 || got[0].Body != nil {
			t.Errorf("a question after Close has the answers %v", got)
		}
		if _, err := m.dialLane(t.Context(), 1, laneData); !errors.Is(err, fault.Closed) {
			t.Errorf("a dial after Close: %v", err)
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
			cfg := newRig(t, 2).config(1)
			cfg.Heartbeat = time.Second
			tweak(&cfg)
			if _, err := Start(t.Context(), cfg); !errors.Is(err, fault.Misuse) {
				t.Errorf("got %v, want misuse", err)
			}
		})
	}
}
