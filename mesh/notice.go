package mesh

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"
)

// An awaited is what a rank that is starting knows of whom it waits for. Start
// writes it, and the notice reads it.
type awaited struct {
	mu      sync.Mutex // guards the rest
	joining bool       // this rank exchanges addresses through rank 0
	heard   bool       // rank 0 has answered, and will say who is missing
	ranks   []int      // as rank 0 last said; nil: it has said nothing yet
	trouble error      // why rank 0 was not reached the last time
}

func (a *awaited) set(change func(*awaited)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	change(a)
}

// said are the ranks that have not come, as rank 0 last said.
func (a *awaited) said() []int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.ranks
}

// notice has one line say whom Start waits for, once it has waited for so long. A
// job that never comes about would be silent until its deadline otherwise, which
// is minutes away. The result ends it.
func (m *Mesh) notice(after time.Duration) (done func()) {
	ctx, cancel := context.WithCancel(m.ctx)
	if after > 0 {
		m.spawn(func() {
			select {
			case <-time.After(after):
			case <-ctx.Done():
				return
			}
			if who := m.whoIsMissing(); who != "" && ctx.Err() == nil {
				m.log.Warn(fmt.Sprintf("tutti: rank %d waits in init for %v; missing: %s", m.cfg.Rank, after, who))
			}
		})
	}
	return cancel
}

// whoIsMissing names the ranks that have not come, as far as this rank knows; "" when
// it knows of none.
func (m *Mesh) whoIsMissing() string {
	m.awaited.mu.Lock()
	joining, heard, ranks, trouble := m.awaited.joining, m.awaited.heard, m.awaited.ranks, m.awaited.trouble
	m.awaited.mu.Unlock()
	switch {
	case !joining:
		ranks = m.control.missing()
	case m.gathering != nil:
		ranks = m.gathering.absent()
	case ranks == nil && heard:
		return "ranks that rank 0 has not named yet"
	case ranks == nil && trouble != nil:
		return fmt.Sprintf("rank 0, which could not be reached at %s: %v", m.cfg.Root, trouble)
	case ranks == nil:
		return fmt.Sprintf("rank 0, which does not answer at %s", m.cfg.Root)
	}
	var names []string
	for _, r := range ranks[:min(len(ranks), maxNamed)] {
		names = append(names, fmt.Sprintf("rank %d", r))
	}
	if more := len(ranks) - len(names); more > 0 {
		names = append(names, fmt.Sprintf("%d more", more))
	}
	return strings.Join(names, ", ")
}
