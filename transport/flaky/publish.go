package flaky

import "slices"

// Publish counts, and has the flag set, unless the node has died or is about to.
// Shared memory has no link of its own that could be cut, so a cut here is the
// death of its node.
func (s shares) Publish(set func()) {
	if s.n.died() {
		return
	}
	script := s.n.script
	due := script.count(Step{Kind: Publish, From: s.n.number, To: Unknown})
	for _, i := range due {
		if r := script.rules[i]; r.moment == Before {
			script.applyDeath(i, s.n.number)
			return
		}
	}
	set()
	for _, i := range due {
		if m := script.rules[i].moment; m == Within || m == After {
			script.applyDeath(i, s.n.number)
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
