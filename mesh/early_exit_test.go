package mesh

import (
	"context"
	"errors"
	"strings"
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
				// Reason: all three ranks wait for the fourth rank by then. The bubble's clock
				// passes it at once.
				time.Sleep(2 * time.Second)
				// The victim ends without a goodbye, like a killed process.
				r.wires[victim].Close()
				// Reason: the other ranks must log the victim's end within this time. The bubble's
				// clock passes it at once.
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
		// Reason: the peer connects shortly before the start ends. The bubble's clock passes this
		// time at once.
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
