package flaky

import "slices"

// Publish counts a step of the node, and sets a flag in memory that the node shares,
// unless the node has died or is about to. Shared memory has no link of its own that
// could be cut, so that a cut here is the death of its node.
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

// chunk counts a piece of a body that has arrived and is not the last, as a step
// of the sender's, and cuts the Conn behind it if a rule says so.
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

// hides reports whether what is wrapped is to look as if it could not do this.
func (s *Script) hides(ability Kind) bool { return slices.Contains(s.hidden, ability) }
