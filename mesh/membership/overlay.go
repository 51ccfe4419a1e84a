package membership

import (
	"fmt"
	"slices"
)

// Neighbours returns the neighbours of the i-th element of members, in ascending order. The slice
// members is a ring of ranks. The neighbours are the ranks at distance 1, 2, 4, … on both sides.
// These links form a binomial graph: it has O(log n) links per rank, and stays connected when any
// one rank fails.
func Neighbours(members []int, i int) []int { return appendNeighbours(nil, members, i) }

// appendNeighbours is like Neighbours, but overwrites the slice out and reuses its memory. This
// avoids allocations, because the overlay is computed in every Step.
func appendNeighbours(out, members []int, i int) []int {
	n := len(members)
	out = out[:0]
	for d := 1; d < n; d *= 2 {
		out = append(out, members[(i+d)%n], members[(i-d+n)%n])
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// ringMembers returns the present ranks for which keep is true, in ring order. The slice is valid
// until the next call.
func (s *Machine) ringMembers(keep func(r int) bool) []int {
	return s.ranksThat(func(r int) bool { return s.ranks[r].present() && keep(r) })
}

// ranksThat returns the ranks for which keep is true, in ring order. The slice is valid until the
// next call.
func (s *Machine) ranksThat(keep func(r int) bool) []int {
	members := s.ring[:0]
	for r := range s.ranks {
		if keep(r) {
			members = append(members, r)
		}
	}
	s.ring = members
	return members
}

// wantedLinks returns the ranks to which this rank should have control links now. Suspected ranks
// are left out, so that the overlay closes around them before they are confirmed dead. The slice is
// valid until the next call.
func (s *Machine) wantedLinks() []int {
	members := s.ringMembers(func(r int) bool { return r == s.cfg.Me || !s.suspected(r) })
	s.neighbours = appendNeighbours(s.neighbours, members, slices.Index(members, s.cfg.Me))
	return s.neighbours
}

// fullyLinked reports whether all wanted links are up, or given up for good.
func (s *Machine) fullyLinked() bool {
	for _, r := range s.wantedLinks() {
		if l := &s.ranks[r].link; !l.up() && !l.givenUp {
			return false
		}
	}
	return true
}

// maintainOverlay dials the wanted links that are missing. The lower rank of a pair dials, so that
// not both ranks dial at the same time. If the lower rank has not dialled within PeerDialWait, the
// higher rank dials, because the lower rank may not know yet that the link is wanted. A rank that
// is closing or being evicted dials nobody.
func (s *Machine) maintainOverlay() {
	if !s.mayDial() {
		return
	}
	s.redialSuspected()
	if !s.reached(s.overlayAt) {
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

// redialSuspected dials, with Config.Redial, the ranks that this rank suspects because a link has
// closed. If all links of a rank close at once, no other link brings its Refute.
func (s *Machine) redialSuspected() {
	if !s.cfg.Redial {
		return
	}
	for r := range s.ranks {
		k := &s.ranks[r]
		if l := &k.link; l.open || l.dialing || k.gone() || !slices.ContainsFunc(k.suspicions, func(d suspicion) bool {
			return d.by == s.cfg.Me && d.code == brokenLink && d.unanswered()
		}) || !s.reached(l.retryAt) {
			continue
		}
		k.link.dialing = true
		s.emit(Dial{r})
	}
}

// mayDial reports whether this rank may open links. A rank that is closing or being evicted may
// not.
func (s *Machine) mayDial() bool { return !s.closing && !s.beingEvicted() }

// dial opens a link. It suspects a rank that could not be reached for longer than the limit on that
// rank's silence. A rank that is not known to have started is never suspected, because it may start
// at any time. After a failed dial the machine waits until retryAt.
func (s *Machine) dial(r int) {
	k := &s.ranks[r]
	l := &k.link
	if k.status == alive && s.reached(l.dialAt+Time(s.Limit(r))) {
		s.suspect(r, brokenLink, fmt.Sprintf("could not open a control link for %v", s.Limit(r)))
	}
	if !l.dialing && s.reached(l.retryAt) {
		l.dialing = true
		s.emit(Dial{r})
	}
}

// overlayPending reports whether a wanted link is missing that may still come up within
// OverlayWait. The peer of that link may send failures that this rank has not received, so an epoch
// waits for the link.
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

// deferOverlay postpones the repair of the overlay after a goodbye. Ranks tend to close together,
// and links between closing ranks would be wasted.
func (s *Machine) deferOverlay() { s.overlayAt = s.now + Time(GoodbyeDelay) }
