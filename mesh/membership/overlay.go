package membership

import "slices"

// Neighbours are the ranks at distance 1, 2, 4, … on both sides of the i-th of
// members in their circle, in ascending order: a binomial graph. It has
// O(log n) links per rank, and stays connected when any one rank goes.
func Neighbours(members []int, i int) []int { return appendNeighbours(nil, members, i) }

// appendNeighbours is Neighbours in memory that out has; what it holds is lost.
func appendNeighbours(out, members []int, i int) []int {
	n := len(members)
	out = out[:0]
	for d := 1; d < n; d *= 2 {
		out = append(out, members[(i+d)%n], members[(i-d+n)%n])
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// ringMembers lists the present ranks that keep approves of. The list is valid until the
// next call.
func (s *Machine) ringMembers(keep func(r int) bool) []int {
	members := s.ring[:0]
	for r := range s.ranks {
		if s.ranks[r].present() && keep(r) {
			members = append(members, r)
		}
	}
	s.ring = members
	return members
}

// wantedLinks are the ranks that this one should have links to now. The list is valid
// until the next call.
func (s *Machine) wantedLinks() []int {
	members := s.ringMembers(func(r int) bool { return r == s.cfg.Me || !s.suspected(r) })
	s.neighbours = appendNeighbours(s.neighbours, members, slices.Index(members, s.cfg.Me))
	return s.neighbours
}

// fullyLinked reports whether all wanted links are up.
func (s *Machine) fullyLinked() bool {
	for _, r := range s.wantedLinks() {
		if l := &s.ranks[r].link; !l.up() && !l.givenUp {
			return false
		}
	}
	return true
}

// maintainOverlay dials the wanted links that are missing. Of two ranks the lower one dials;
// the other one helps itself when nothing comes.
func (s *Machine) maintainOverlay() {
	if s.closing || s.beingEvicted() || !s.reached(s.overlayAt) {
		return
	}
	for _, r := range s.wantedLinks() {
		l := &s.ranks[r].link
		if l.open || l.givenUp {
			continue
		}
		if !l.wanted {
			l.wanted, l.dialAt = true, s.now
			if r < s.cfg.Me {
				l.dialAt += Time(PeerDialWait)
			}
		}
		if s.reached(l.dialAt) {
			s.dial(r)
		}
	}
}

// dial opens a link, and doubts a rank that can not be reached for Silence. One
// that is not known to have started may take its time.
func (s *Machine) dial(r int) {
	k := &s.ranks[r]
	l := &k.link
	if k.status == alive && s.reached(l.dialAt+Time(s.cfg.Silence)) {
		s.suspect(r, brokenLink, "could not open a control link")
	}
	if !l.dialing && s.reached(l.retryAt) {
		l.dialing = true
		s.emit(Dial{r})
	}
}

// overlayPending reports whether a link is missing that may still come before verdicts
// settle, and with it news of verdicts that were not heard.
func (s *Machine) overlayPending() bool {
	if s.beingEvicted() {
		return false
	}
	for _, r := range s.wantedLinks() {
		l := &s.ranks[r].link
		if l.open || l.givenUp {
			continue
		}
		if !l.wanted || !s.reached(l.dialAt+Time(OverlayWait)) {
			return true
		}
	}
	return false
}

// deferOverlay puts off the replacement of links after a goodbye.
func (s *Machine) deferOverlay() { s.overlayAt = s.now + Time(GoodbyeDelay) }
