package mesh

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/transport"
)

func TestAKilledRankIsReportedWithItsLastCall(t *testing.T) {
	for n := 2; n <= 6; n++ {
		for victim := range n {
			bubble(t, func(t *testing.T) {
				r := started(t, n, nil)
				defer r.close()
				r.events[victim].mu.Lock()
				r.events[victim].call = "allreduce #41 at train.go:88"
				r.events[victim].mu.Unlock()
				// Reason: heartbeats tell the call to all ranks. No real time passes.
				time.Sleep(time.Second)
				start := time.Now()
				r.kill(victim)
				// Reason: all ranks must report the loss within this time. No real time passes.
				time.Sleep(time.Second)
				for _, i := range without(n, victim) {
					e, when := r.events[i].first()
					if !blames(e, fault.PeerLost, victim) {
						t.Fatalf("%d ranks, %d killed: rank %d hears %v", n, victim, i, e)
					}
					if elapsed := when.Sub(start); elapsed > 500*time.Millisecond {
						t.Errorf("%d ranks, %d killed: rank %d hears it after %v", n, victim, i, elapsed)
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

func TestASilentRankIsEvictedAndLearnsItWhenItWakes(t *testing.T) {
	for _, n := range []int{2, 3, 5, 9} {
		bubble(t, func(t *testing.T) {
			r := started(t, n, nil)
			defer r.close()
			// Reason: the ranks exchange heartbeats in this time. No real time passes.
			time.Sleep(time.Second)
			start := time.Now()
			thaw := r.freeze(1)
			// Reason: all ranks must report the silent rank within this time. No real time passes.
			time.Sleep(10 * time.Second)
			for _, i := range without(n, 1) {
				e, when := r.events[i].first()
				if elapsed := when.Sub(start); !blames(e, fault.PeerLost, 1) || elapsed < 3700*time.Millisecond || elapsed > 4500*time.Millisecond {
					t.Errorf("%d ranks: rank %d hears %v after %v", n, i, e, elapsed)
				}
			}
			thaw()
			// Reason: the silent rank learns of its eviction in this time. No real time passes.
			time.Sleep(time.Second)
			if e, _ := r.events[1].first(); !blames(e, fault.PeerLost, 1) {
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
		// Reason: rank 2 pauses for less than the silence limit. No real time passes.
		time.Sleep(3500 * time.Millisecond)
		thaw()
		// Reason: no rank must report a failure within this time. No real time passes.
		time.Sleep(10 * time.Second)
		for i := range r.events {
			if e, _ := r.events[i].first(); e != nil {
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
		// Reason: all ranks pause for this time. No real time passes.
		time.Sleep(time.Hour)
		for _, thaw := range thaws {
			thaw()
			// Reason: the ranks resume one after another. No real time passes.
			time.Sleep(100 * time.Millisecond)
		}
		// Reason: no rank must report a failure within this time. No real time passes.
		time.Sleep(10 * time.Second)
		for i := range r.events {
			if e, _ := r.events[i].first(); e != nil {
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
		// Reason: rank 0 must report the silent rank within this time. No real time passes.
		time.Sleep(2 * time.Second)
		if e, when := r.events[0].first(); !blames(e, fault.PeerLost, 2) || when.Sub(start) > time.Second {
			t.Errorf("rank 0 hears %v after %v", e, when.Sub(start))
		}
	})
}

// When both ranks have dialled, one of the two connections is closed. This rank may notice the
// close before the other connection is up. The close must not count as a loss.
func TestAReplacedControlLinkIsNoLoss(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := started(t, 2, nil)
		defer r.close()
		low := r.meshes[0]
		low.control.beginOpening(1)
		conn, _, err := low.dialChannel(t.Context(), 1, channelControl) // rank 1 closes the first link
		if err != nil {
			t.Fatal(err)
		}
		// Reason: rank 0 notices the close, and goes on without the new link. No real time passes.
		time.Sleep(time.Second)
		low.control.linkUp(1, conn)
		// Reason: no rank must report a failure within this time. No real time passes.
		time.Sleep(10 * time.Second)
		for i, events := range r.events {
			if e, _ := events.first(); e != nil {
				t.Errorf("rank %d hears %v", i, e)
			}
		}
	})
}

// If a link breaks while another connection is being opened, the break must be reported when the
// other connection fails.
func TestALinkThatBreaksDuringADialIsReportedAfterIt(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := started(t, 2, nil)
		defer r.close()
		low := r.meshes[0]
		low.control.beginOpening(1)
		r.kill(1)
		// Reason: rank 0 must report no failure while the other connection is being opened. The
		// bubble's clock passes it at once.
		time.Sleep(time.Second)
		if e, _ := r.events[0].first(); e != nil {
			t.Errorf("rank 0 hears %v during the dial", e)
		}
		low.control.post(func(c *control) { c.endOpening(1) })
		// Reason: rank 0 must report the loss within this time. No real time passes.
		time.Sleep(500 * time.Millisecond)
		if e, _ := r.events[0].first(); !blames(e, fault.PeerLost, 1) {
			t.Errorf("rank 0 hears %v after the dial", e)
		}
	})
}

// A firewall drops all dials of rank 0, and the control link breaks. With Config.Redial rank 0
// accepts the dial of rank 1, although the lower rank's dial usually wins, so no rank is lost.
func TestTheHigherRanksDialIsEnough(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var wire firewall
		r := started(t, 2, func(i int, cfg *Config) {
			cfg.Redial = time.Minute
			if i == 0 {
				wire.Transport = cfg.Transport
				cfg.Transport = &wire
			}
		})
		defer r.close()
		drop := func(ctx context.Context, c transport.Conn) (transport.Conn, error) {
			c.Close()
			<-ctx.Done()
			return nil, ctx.Err()
		}
		wire.rule.Store(&drop)
		for range 3 {
			for i, m := range r.meshes {
				m.control.post(func(c *control) { c.linkDown(c.links[1-i], "reset") })
			}
			// Reason: no rank must fail within this time; the bubble's clock passes it at once.
			time.Sleep(10 * time.Second)
			for i, m := range r.meshes {
				if e, _ := r.events[i].first(); e != nil {
					t.Fatalf("rank %d hears %v", i, e)
				}
				up := make(chan bool, 1)
				m.control.post(func(c *control) { up <- c.links[1-i] != nil })
				if !<-up {
					t.Fatalf("rank %d has no link to rank %d", i, 1-i)
				}
			}
		}
	})
}
