package mesh

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tutti-go/tutti/fault"
)

// Each rank that has started must log the missing ranks, long before the deadline.
func TestASlowStartLogsOnceWhoIsMissing(t *testing.T) {
	for _, list := range []bool{false, true} {
		for _, gone := range []int{0, 2, 4} {
			bubble(t, func(t *testing.T) {
				r := newTestJob(t, 5)
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				r.start(ctx, without(5, gone), func(_ int, cfg *Config) {
					cfg.StartWarning = 20 * time.Second
					if list {
						r.static(cfg)
					}
				})
				for _, i := range without(5, gone) {
					if e, _ := r.errs[i].(*fault.Error); !blames(e, fault.Timeout, gone) {
						t.Errorf("list %v: rank %d: %v", list, i, r.errs[i])
					}
				}
				want := "waits in init for 20s; missing: rank " + string(rune('0'+gone))
				naming := 0
				for _, line := range r.logs.all() {
					if strings.Contains(line, want) {
						naming++
					} else if strings.Contains(line, "missing") {
						t.Errorf("list %v, without %d: a line says otherwise: %s", list, gone, line)
					}
				}
				if naming != 4 {
					t.Errorf("list %v, without %d: %d ranks say %q, want 4: %q", list, gone, naming, want, r.logs.all())
				}
			})
		}
	}
}

func TestAStartInTimeLogsNothing(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := started(t, 4, func(_ int, cfg *Config) { cfg.StartWarning = 20 * time.Second })
		// Reason: no line must be logged within this time. No real time passes.
		time.Sleep(time.Minute)
		if got := r.logs.all(); len(got) != 0 {
			t.Errorf("it says %q", got)
		}
		r.close()
	})
}

// Rank 0 reports the missing ranks once a second. A warning before the first report must not blame
// rank 0.
func TestAJoinedRankIsNotMissing(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newTestJob(t, 3)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		r.start(ctx, []int{0, 2}, func(_ int, cfg *Config) { cfg.StartWarning = waitInterval / 2 })
		lines := slices.DeleteFunc(r.logs.all(), func(line string) bool {
			return strings.Contains(line, "has left before") // at the end, both ranks leave at once
		})
		if len(lines) != 2 {
			t.Fatalf("got %d lines, want one of each rank: %q", len(lines), lines)
		}
		for _, line := range lines {
			if strings.Contains(line, "missing: rank 0") {
				t.Errorf("a rank misses rank 0, which has answered: %s", line)
			}
		}
	})
}
