package mesh

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tutti-go/tutti/fault"
)

// Rank 3 of four never starts, and a rank that has joined leaves. If rank 0 leaves, both other
// ranks must log this at once; if rank 1 leaves, at least one of them must. With EndOnLoss, their
// starts must end at once. Without it, they end only at their deadline.
func TestARankThatEndsWhileOthersJoinIsNamedAtOnce(t *testing.T) {
	for _, victim := range []int{0, 1} {
		for _, ends := range []bool{false, true} {
			bubble(t, func(t *testing.T) {
				const deadline = time.Minute
				r := newTestJob(t, 4)
				began := time.Now()
				dies, die := context.WithCancel(t.Context())
				waits, cancel := context.WithTimeout(t.Context(), deadline)
				defer cancel()
				type end struct {
					rank  int
					after time.Duration
				}
				done := make(chan end, 3)
				for i := range 3 {
					ctx := waits
					if i == victim {
						ctx = dies
					}
					go func() {
						r.start(ctx, []int{i}, func(_ int, cfg *Config) { cfg.EndOnLoss = ends })
						done <- end{i, time.Since(began)}
					}()
				}
				// Reason: all three ranks wait for the fourth rank by then. No real time passes.
				time.Sleep(2 * time.Second)
				// The victim ends without a goodbye, like a killed process.
				r.wires[victim].Close()
				// Reason: the other ranks must log the victim's end within this time. No real time
				// passes.
				time.Sleep(100 * time.Millisecond)
				want := "rank " + string(rune('0'+victim)) + " on "
				naming := 0
				for _, line := range r.logs.all() {
					if strings.Contains(line, want) && strings.Contains(line, "has left before all ranks had joined") {
						naming++
					}
				}
				if least := map[int]int{0: 2, 1: 1}[victim]; naming < least {
					t.Errorf("rank %d leaves: %d lines say so, want %d: %q", victim, naming, least, r.logs.all())
				}
				die()
				for range 3 {
					e := <-done
					if e.rank == victim {
						continue
					}
					var f *fault.Error
					errors.As(r.errs[e.rank], &f)
					if ends && (!blames(f, fault.PeerLost, victim) || e.after > 3*time.Second) {
						t.Errorf("rank %d leaves: rank %d got %v after %v, want %v at once", victim, e.rank, r.errs[e.rank], e.after, fault.PeerLost)
					}
					if !ends && (f == nil || f.Kind != fault.Timeout || e.after < deadline) {
						t.Errorf("rank %d leaves: rank %d got %v after %v, want %v at the deadline", victim, e.rank, r.errs[e.rank], e.after, fault.Timeout)
					}
				}
			})
		}
	}
}

// The launcher has recorded the end of one of four ranks, which had not joined yet or had joined
// without all others. The starts of the other ranks must end soon, name that rank, and not wait for a
// rank in its place. If a rank has ended at its deadline, they must name the missing rank.
func TestARecordedEndEndsTheStart(t *testing.T) {
	for _, c := range []struct {
		name    string
		victim  int
		joins   bool          // the victim had joined
		missing bool          // rank 3 never comes
		gives   time.Duration // the deadline of the victim; 0: it is killed
		kind    fault.Kind
		blamed  int
	}{
		{"rank 1 before it joins", 1, false, false, 0, fault.PeerLost, 1},
		{"rank 1 after it has joined", 1, true, true, 0, fault.PeerLost, 1},
		{"rank 0 before others find it", 0, false, false, 0, fault.PeerLost, 0},
		{"rank 0 after others have joined", 0, true, true, 0, fault.PeerLost, 0},
		{"rank 1 at its deadline", 1, true, true, 2 * time.Second, fault.Timeout, 3},
	} {
		bubble(t, func(t *testing.T) {
			r := newTestJob(t, 4)
			began := time.Now()
			var ended atomic.Bool
			var after [4]time.Duration
			var work sync.WaitGroup
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			short, end := context.WithCancel(ctx) // of the victim
			defer end()
			if c.gives > 0 {
				short, end = context.WithTimeout(ctx, c.gives)
				defer end()
			}
			for i := range 4 {
				own := ctx
				switch {
				case i == c.victim && !c.joins || i == 3 && c.missing:
					continue
				case i == c.victim:
					own = short
				}
				work.Go(func() {
					r.start(own, []int{i}, func(_ int, cfg *Config) {
						cfg.Exited = func(rank int) bool { return rank == c.victim && ended.Load() }
					})
					after[i] = time.Since(began)
				})
			}
			// Reason: all ranks but the victim wait by then. No real time passes.
			time.Sleep(3 * time.Second)
			if c.gives == 0 {
				r.kill(c.victim)
				end()
			}
			died := time.Since(began)
			ended.Store(true)
			work.Wait()
			limit := 2 * DefaultHeartbeat
			if c.missing { // rank 0 also waits for rank 3
				limit += abortTimeout
			}
			for i := range 4 {
				if i == c.victim || i == 3 && c.missing {
					continue
				}
				var f *fault.Error
				errors.As(r.errs[i], &f)
				if !blames(f, c.kind, c.blamed) || after[i]-died > limit {
					t.Errorf("%s: rank %d got %v after %v, want %v of rank %d within %v", c.name, i, r.errs[i], after[i]-died, c.kind, c.blamed, limit)
				}
			}
		})
	}
}

// A rank has given up, has joined again, and is killed. Rank 0 reads the record of its end before
// the connection breaks. The start must end because of that rank, not because of missing ranks.
func TestARankThatJoinsAgainHasNotGivenUp(t *testing.T) {
	g := newJoinServer(3)
	g.exited = func(rank int) bool { return rank == 1 }
	first, second := new(handshakeConn), new(handshakeConn)
	g.add(1, record{instance: 1}, first)
	g.remove(1, first, errDeadlineEnded)
	if no := g.add(1, record{instance: 2}, second); no != nil {
		t.Fatal(no)
	}
	g.endForExit()
	if no := g.failure(); no == nil || no.reason != reasonLeft || no.theirs != 1 {
		t.Errorf("got %v, want that rank 1 has left", no)
	}
}

// Rank 3 of four never comes, and the deadline of rank 1 ends first. With EndOnLoss, this ends the
// starts of the other ranks. All ranks must blame rank 3 alone, even if no WAIT frame has reached
// them since the last rank joined.
func TestARankAtItsDeadlineIsNotBlamed(t *testing.T) {
	for _, first := range []time.Duration{waitInterval / 2, 7 * waitInterval / 2} {
		for _, ends := range []bool{false, true} {
			bubble(t, func(t *testing.T) {
				const last = time.Minute
				r := newTestJob(t, 4)
				began := time.Now()
				after := make([]time.Duration, 3)
				var work sync.WaitGroup
				for i, deadline := range []time.Duration{last, first, last} {
					ctx, cancel := context.WithTimeout(t.Context(), deadline)
					defer cancel()
					work.Go(func() {
						if i == 2 {
							// Reason: rank 2 joins shortly before the deadline of rank 1. The
							// bubble's clock passes this time at once.
							time.Sleep(first - 100*time.Millisecond)
						}
						r.start(ctx, []int{i}, func(_ int, cfg *Config) { cfg.EndOnLoss = ends })
						after[i] = time.Since(began)
					})
				}
				work.Wait()
				for i, late := range after {
					want := last
					if ends || i == 1 {
						want = first
					}
					var f *fault.Error
					errors.As(r.errs[i], &f)
					if !blames(f, fault.Timeout, 3) || late < want || late > want+100*time.Millisecond {
						t.Errorf("EndOnLoss %v: rank %d got %v after %v, want %v of rank 3 after %v", ends, i, r.errs[i], late, fault.Timeout, want)
					}
				}
			})
		}
	}
}

// A rank connects to rank 0 shortly after another rank has left and ended the starts. The late rank
// must blame the rank that has left, and not rank 0, which is about to leave.
func TestARankThatComesAfterALossBlamesTheLostRank(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newTestJob(t, 4)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		var work sync.WaitGroup
		var after [4]time.Duration
		start := func(i int) {
			began := time.Now()
			work.Go(func() {
				r.start(ctx, []int{i}, func(_ int, cfg *Config) { cfg.EndOnLoss = true })
				after[i] = time.Since(began)
			})
		}
		start(0)
		start(1)
		// Reason: ranks 0 and 1 wait for the others by then. The bubble's clock passes it at once.
		time.Sleep(time.Second)
		r.kill(1)
		// Reason: rank 2 comes after the other ranks have the loss, and rank 3 even later. The
		// bubble's clock passes these times at once.
		time.Sleep(100 * time.Millisecond)
		start(2)
		// Reason: rank 3 comes later than rank 2. No real time passes.
		time.Sleep(abortTimeout / 2)
		start(3)
		work.Wait()
		for i, limit := range map[int]time.Duration{0: time.Second + abortTimeout, 2: 0, 3: 0} {
			var f *fault.Error
			errors.As(r.errs[i], &f)
			if !blames(f, fault.PeerLost, 1) || after[i] > limit+100*time.Millisecond {
				t.Errorf("rank %d got %v after %v, want %v of rank 1 after at most %v", i, r.errs[i], after[i], fault.PeerLost, limit)
			}
		}
	})
}

// A rank dials again, and its first connection fails only later, as after a NAT has dropped that
// connection. The rank's record must stay.
func TestARankThatJoinsAgainKeepsItsRecord(t *testing.T) {
	g := newJoinServer(3)
	first, second := new(handshakeConn), new(handshakeConn)
	add := func(rank int, addr string, c *handshakeConn) *refusal {
		return g.add(rank, record{addr: addr, instance: uint64(rank) + 1}, c)
	}
	add(0, "a", nil)
	add(1, "b", first)
	if no := add(1, "c", second); no != nil {
		t.Fatal(no)
	}
	broken := errors.New("broken")
	if left := g.remove(1, first, broken); left != nil {
		t.Errorf("the first connection breaks: got %v, want that rank 1 stays", left)
	}
	if left := g.remove(1, second, broken); left == nil || left.rank != 1 {
		t.Errorf("the second connection breaks: got %v, want that rank 1 has left", left)
	}
	add(1, "c", second)
	add(2, "d", new(handshakeConn))
	table, no := g.outcome()
	if no != nil || table[1].addr != "c" {
		t.Fatalf("got %v, %v, want a table with the last address of rank 1", table, no)
	}
	if no := add(1, "c", first); no != nil {
		t.Errorf("the same record again: %v", no)
	}
	if no := add(1, "e", second); no == nil || !no.permanent(0) || !strings.Contains(no.text, "has joined as c") {
		t.Errorf("another record after the table is complete: got %v, want a refusal", no)
	}
	table[1].addr = "x"
	if again, _ := g.outcome(); again[1].addr != "c" {
		t.Errorf("a change of the caller's table changes the server's record to %q", again[1].addr)
	}
}

// A peer that has proven the secret and sends no record must not delay the end of a start.
func TestAJoiningPeerWithoutARecordDoesNotDelayTheEnd(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newTestJob(t, 2)
		const deadline = 3 * time.Second
		ctx, cancel := context.WithTimeout(t.Context(), deadline)
		defer cancel()
		start := time.Now()
		root := make(chan time.Duration)
		go func() {
			r.start(ctx, []int{0}, nil)
			root <- time.Since(start)
		}()
		// Reason: the peer connects shortly before the start ends. No real time passes.
		time.Sleep(deadline - time.Second)
		id := newIdentity(r.config(1))
		defer r.wires[1].Close()
		c, err := r.wires[1].Dial(t.Context(), r.hub.Addr(0))
		if err != nil {
			t.Fatal(err)
		}
		first, end := context.WithTimeout(t.Context(), time.Second/2)
		defer end()
		if _, err := id.dial(first, newHandshakeConn(c), 0, channelJoin, position{}, nil); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("got %v, want no answer before the record", err)
		}
		if elapsed := <-root; elapsed > deadline+refusalTimeout {
			t.Errorf("rank 0 gives up after %v, want at most %v", elapsed, deadline+refusalTimeout)
		}
	})
}
