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
// is closing or being evicted opens no new links. With Config.Redial, a rank that is closing dials
// links that have closed; see redialClosed.
func (s *Machine) maintainOverlay() {
	s.redialClosed()
	if !s.mayDial() || !s.reached(s.overlayAt) {
		return
	}
	wanted := s.wantedLinks()
	for r := range s.ranks { // a link that is wanted again gets its full time again
		if _, is := slices.BinarySearch(wanted, r); !is {
			s.ranks[r].link.wanted = false
		}
	}
	for _, r := range wanted {
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

// redialClosed dials, with Config.Redial, the ranks to which a link has closed; see redials.
func (s *Machine) redialClosed() {
	for r := range s.ranks {
		if l := &s.ranks[r].link; s.redials(r) && !l.dialing && s.reached(l.retryAt) {
			s.startDial(r)
		}
	}
}

// redials reports whether, with Config.Redial, the closed link to rank r must be dialled again.
// There are two reasons. Either r has not acknowledged the goodbye, or this rank suspects r because
// the link closed. If all links of r closed at once, r can refute the suspicion only over a new
// link.
func (s *Machine) redials(r int) bool {
	k := &s.ranks[r]
	if !s.cfg.Redial || s.beingEvicted() || k.link.open || k.gone() {
		return false
	}
	return k.link.byePending || slices.ContainsFunc(k.suspicions, func(d suspicion) bool {
		return d.by == s.cfg.Me && d.code == brokenLink && d.unanswered()
	})
}

// mayDial reports whether this rank may open new links. A rank that is closing or being evicted may
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
		s.startDial(r)
	}
}

// startDial begins a dial.
func (s *Machine) startDial(r int) {
	l := &s.ranks[r].link
	l.dialing, l.dialledAt = true, s.now
	s.emit(Dial{r})
}

// DialTimeout returns how long a dial of rank r that begins now may take. If it returns 0, the
// caller's own limit counts. With Config.Redial, it bounds the dials of a rank that this rank
// suspects, or that has not acknowledged the goodbye, because an operating system waits longer and
// longer between its own attempts. The last of these dials begins at the limit on silence, and has
// dialGrace before the suspicion is confirmed, or before this rank leaves. DialTimeout ends the
// earlier dials at that limit. If they fail early, they are repeated at least every
// Config.Silence/32. So a network outage that ends before the limit loses nothing.
func (s *Machine) DialTimeout(r int) Span {
	l, d := &s.ranks[r].link, s.suspicionOf(s.cfg.Me, r, false)
	if !s.cfg.Redial || !s.complete || !d.stands() && !l.byePending {
		return 0
	}
	last := l.receivedAt + Time(s.Limit(r)) // see checkLeft
	if d.stands() {
		last = max(d.since+Time(d.wait), d.redialBy) - Time(s.dialGrace(r))
	}
	if s.now < last {
		return min(s.redialTimeout(r), Span(last-s.now))
	}
	return s.redialTimeout(r)
}

// dialGrace returns, with Config.Redial, how much later than the limit on silence a suspicion is
// confirmed. This is the time of the dial that begins at the limit, and at most the time that a
// silent rank has to refute. Without Config.Redial it returns 0.
func (s *Machine) dialGrace(r int) Span {
	if !s.cfg.Redial {
		return 0
	}
	return min(s.redialTimeout(r), s.refuteWait(r, silentLink))
}

// redialTimeout returns the limit of one dial that DialTimeout bounds. In the handshakes of a dial,
// each end waits for the other several times. So the limit grows with the limit on silence if the
// other end runs late, and also if this rank does: a load that begins with the outage is not in the
// last heartbeat of the other end.
func (s *Machine) redialTimeout(r int) Span {
	late := s.allowance(max(s.ranks[r].link.delay, s.late.max()))
	return min(max(minRedialTimeout, s.cfg.Silence/4)+late/4, maxRedialTimeout)
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
