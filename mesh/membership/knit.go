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

// circle lists the present ranks that keep approves of. The list is valid until the
// next call.
func (s *State) circle(keep func(r int) bool) []int {
	members := s.members[:0]
	for r := range s.ranks {
		if s.ranks[r].present() && keep(r) {
			members = append(members, r)
		}
	}
	s.members = members
	return members
}

// wanted are the ranks that this one should have links to now. The list is valid
// until the next call.
func (s *State) wanted() []int {
	members := s.circle(func(r int) bool { return r == s.cfg.Me || !s.doubted(r) })
	s.near = appendNeighbours(s.near, members, slices.Index(members, s.cfg.Me))
	return s.near
}

// linked reports whether all wanted links are up.
func (s *State) linked() bool {
	for _, r := range s.wanted() {
		if l := &s.ranks[r].link; !l.up() && !l.severed {
			return false
		}
	}
	return true
}

// knit dials the wanted links that are missing. Of two ranks the lower one dials;
// the other one helps itself when nothing comes.
func (s *State) knit() {
	if s.leaving || s.accused() || !s.due(s.knitFrom) {
		return
	}
	for _, r := range s.wanted() {
		l := &s.ranks[r].link
		if l.open || l.severed {
			continue
		}
		if !l.wanted {
			l.wanted, l.from = true, s.now
			if r < s.cfg.Me {
				l.from += Time(HelpWait)
			}
		}
		if s.due(l.from) {
			s.dial(r)
		}
	}
}

// dial opens a link, and doubts a rank that can not be reached for Silence. One
// that is not known to have started may take its time.
func (s *State) dial(r int) {
	k := &s.ranks[r]
	l := &k.link
	if k.status == live && s.due(l.from+Time(s.cfg.Silence)) {
		s.doubt(r, brokenLink, "no control link could be opened")
	}
	if !l.dialing && s.due(l.retry) {
		l.dialing = true
		s.out(Dial{r})
	}
}

// knitting reports whether a link is missing that may still come before verdicts
// settle, and with it news of verdicts that were not heard.
func (s *State) knitting() bool {
	if s.accused() {
		return false
	}
	for _, r := range s.wanted() {
		l := &s.ranks[r].link
		if l.open || l.severed {
			continue
		}
		if !l.wanted || !s.due(l.from+Time(KnitWait)) {
			return true
		}
	}
	return false
}

// loosen puts off the replacement of links after a goodbye.
func (s *State) loosen() { s.knitFrom = s.now + Time(GoodbyeLag) }
