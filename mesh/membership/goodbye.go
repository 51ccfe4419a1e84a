package membership

func (in Goodbye) apply(s *Machine) {
	if s.closing {
		return
	}
	s.closing = true
	s.flood(Message{Kind: Bye})
	for r := range s.ranks {
		s.ranks[r].link.byePending = s.ranks[r].link.up()
	}
}

// handleBye takes a rank's goodbye. While verdicts compete the layer above hears of
// it after theirs: a rank may close because of a verdict that has settled there
// already, and calls here are to fail for that reason and not for the goodbye.
func (s *Machine) handleBye(r int) {
	k := &s.ranks[r]
	if k.gone() {
		return
	}
	k.status = departed
	k.link.byePending = false
	s.clearSuspicions(r)
	s.deferOverlay()
	s.changed = true
	if len(s.failures.candidates) > 0 {
		s.failures.departed = append(s.failures.departed, r)
		return
	}
	s.emit(Departed{r})
}

// checkLeft reports, once, that every neighbour has taken this rank's goodbye.
func (s *Machine) checkLeft() {
	if !s.closing || s.left {
		return
	}
	for r := range s.ranks {
		if s.ranks[r].link.byePending {
			return
		}
	}
	s.left = true
	s.emit(Left{})
}
