package membership

func (in Leave) apply(s *State) {
	if s.leaving {
		return
	}
	s.leaving = true
	s.flood(Message{Kind: Bye})
	for r := range s.ranks {
		s.ranks[r].link.owes = s.ranks[r].link.up()
	}
}

// depart takes a rank's goodbye. While verdicts compete the layer above hears of
// it after theirs: a rank may close because of a verdict that has settled there
// already, and calls here are to fail for that reason and not for the goodbye.
func (s *State) depart(r int) {
	k := &s.ranks[r]
	if k.gone() {
		return
	}
	k.status = bye
	k.link.owes = false
	s.acquit(r)
	s.loosen()
	s.changed = true
	if len(s.verdicts.compete) > 0 {
		s.verdicts.departed = append(s.verdicts.departed, r)
		return
	}
	s.out(Departed{r})
}

// checkLeft reports, once, that every neighbour has taken this rank's goodbye.
func (s *State) checkLeft() {
	if !s.leaving || s.left {
		return
	}
	for r := range s.ranks {
		if s.ranks[r].link.owes {
			return
		}
	}
	s.left = true
	s.out(Left{})
}
