package mesh

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"
)

// A startProgress holds what a starting rank knows about the ranks for which it waits. Start writes
// it, and the warning reads it.
//
//	joining  rootAnswered  missing  lastErr   the rank
//	yes      no            nil      nil       dials rank 0
//	yes      no            nil      set       failed to reach rank 0, and retries
//	yes      yes           nil      any       waits for rank 0's first WAIT
//	yes      any           set      any       has rank 0's list of missing ranks
//	no       any           any      any       has all addresses, and opens control links
type startProgress struct {
	mu           sync.Mutex // guards the rest
	joining      bool       // this rank exchanges addresses through rank 0
	rootAnswered bool       // rank 0 has answered, and will send the missing ranks
	missing      []int      // the ranks in rank 0's last report; nil: no report has come yet
	lastErr      error      // why the last attempt to reach rank 0 failed

	endJoin context.CancelCauseFunc // ends join with an error; nil: this rank does not join
}

// update changes the progress under its lock.
func (a *startProgress) update(change func(*startProgress)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	change(a)
}

// missingRanks returns the ranks in rank 0's last report of missing ranks.
func (a *startProgress) missingRanks() []int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.missing
}

// warnIfSlow logs one line that names the missing ranks, once Start has waited for the given time.
// Without this line, a job that cannot start would log nothing until its deadline, minutes later.
// The caller calls done when Start has ended.
func (m *Mesh) warnIfSlow(after time.Duration) (done func()) {
	ctx, cancel := context.WithCancel(m.ctx)
	if after > 0 {
		m.spawn(func() {
			select {
			case <-time.After(after):
			case <-ctx.Done():
				return
			}
			if who := m.describeMissing(); who != "" && ctx.Err() == nil {
				m.log.Warn(fmt.Sprintf("tutti: rank %d waits in init for %v; missing: %s", m.cfg.Rank, after, who))
			}
		})
	}
	return cancel
}

// describeMissing returns a text that names the missing ranks that this rank knows, or "" if it
// knows none. The source of that knowledge depends on the phase of Start:
//
//	phase                          source
//	addresses known                the membership machine
//	joining, rank 0                the joinServer
//	joining, any other rank        rank 0's last WAIT frame; without one, rank 0 itself is missing
func (m *Mesh) describeMissing() string {
	m.progress.mu.Lock()
	joining, rootAnswered, ranks, trouble := m.progress.joining, m.progress.rootAnswered, m.progress.missing, m.progress.lastErr
	m.progress.mu.Unlock()
	switch {
	case !joining:
		ranks = m.control.missing()
	case m.joinServer != nil:
		ranks = m.joinServer.absentRanks()
	case ranks == nil && rootAnswered:
		return "ranks that rank 0 has not named yet"
	case ranks == nil && trouble != nil:
		return fmt.Sprintf("rank 0, which could not be reached at %s: %v", m.cfg.Root, trouble)
	case ranks == nil:
		return fmt.Sprintf("rank 0, which does not answer at %s", m.cfg.Root)
	}
	var names []string
	for _, r := range ranks[:min(len(ranks), maxNamedRanks)] {
		names = append(names, fmt.Sprintf("rank %d", r))
	}
	if more := len(ranks) - len(names); more > 0 {
		names = append(names, fmt.Sprintf("%d more", more))
	}
	return strings.Join(names, ", ")
}
