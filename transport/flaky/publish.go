package flaky

import "slices"

// Publish counts a step of the node, and then calls set, which sets a flag in memory that the
// node shares. It does not call set if the node has died or a rule kills the node before the
// step. Shared memory has no link that could be cut, so a cut here kills the node.
//
// Tests of comm pass Publish to p2p, which calls it for every flag that a rank sets. Publish
// calls set at once on the same goroutine, or not at all.
func (s *Script) Publish(node int, set func()) {
	s.mu.Lock()
	death := s.deathOf(node)
	s.mu.Unlock()
	if death.Load() != nil {
		return
	}
	due := s.count(Step{Kind: Publish, From: node, To: Unknown})
	for _, i := range due {
		if s.rules[i].moment == Before {
			s.applyDeath(i, node)
			return
		}
	}
	set()
	for _, i := range due {
		if m := s.rules[i].moment; m == Within || m == After {
			s.applyDeath(i, node)
		}
	}
}

// chunk counts a part of a body, other than the last part, as a step of the sender. It cuts the
// Conn after the part if a rule is due.
func (s *sink) chunk() {
	script, c := s.c.node.script, s.c
	c.mu.Lock()
	from := c.to
	c.mu.Unlock()
	for _, i := range script.count(Step{Kind: Chunk, From: from, To: c.node.number}) {
		if script.rules[i].moment != 0 {
			s.ended = true
			script.apply(i, from, c)
		}
	}
}

// hides reports whether an ability must be refused.
func (s *Script) hides(ability StepKind) bool { return slices.Contains(s.hidden, ability) }
