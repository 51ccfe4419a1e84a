package mesh

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/tutti-go/tutti/fault"
)

// Rank 3 of four is late, and a rank that has joined leaves meanwhile. The other ranks must log
// this at once. With EndOnLoss, their starts must end at once. Without it, they end only at their
// deadline.
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
				time.Sleep(2 * time.Second) // the bubble's clock
				// The victim ends without a goodbye, like a killed process.
				r.wires[victim].Close()
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
