package membership

import (
	"bytes"
	"fmt"
	"slices"

	"github.com/tutti-go/tutti/fault"
)

// A suspicion is what one rank has said about its connection to another. Down, up
// and vouch are numbers of floods of by, so that floods may arrive in any order.
type suspicion struct {
	by         int
	data       bool   // a data connection; no Up takes that back
	suspectSeq uint32 // the last Down
	retractSeq uint32 // the last Up
	refuteSeq  uint32 // the last Down that the rank in doubt answered
	since      Time   // when down came
	call       string // the last call that by had heard
	cause      string // what broke, when by is this rank
	redialBy   Time   // when a link that is dialled again must be there; 0: not dialled yet
	confirmed  bool   // a verdict came of it
}

// stands reports whether the Down has not been taken back.
func (d *suspicion) stands() bool { return d.suspectSeq > d.retractSeq }

// unanswered reports whether the Down stands and nobody has answered it.
func (d *suspicion) unanswered() bool { return d.stands() && d.refuteSeq < d.suspectSeq }

// suspicionOf finds what by has said about a rank, or makes it.
func (s *Machine) suspicionOf(by, about int, data bool) *suspicion {
	k := &s.ranks[about]
	for i := range k.suspicions {
		if d := &k.suspicions[i]; d.by == by && d.data == data {
			return d
		}
	}
	k.suspicions = append(k.suspicions, suspicion{by: by, data: data})
	return &k.suspicions[len(k.suspicions)-1]
}

// suspected reports whether somebody's Down about r is without an answer.
func (s *Machine) suspected(r int) bool {
	return slices.ContainsFunc(s.ranks[r].suspicions, func(d suspicion) bool { return d.unanswered() })
}

// suspect floods this rank's own Down, unless one stands.
func (s *Machine) suspect(about int, code byte, cause string) {
	k := &s.ranks[about]
	if s.closing || s.beingEvicted() || k.gone() || k.exiting || about == s.cfg.Me {
		return
	}
	d := s.suspicionOf(s.cfg.Me, about, code == brokenData)
	if d.stands() {
		return
	}
	m := s.flood(Message{Kind: Suspected, About: about, Code: code, Body: bytes.Clone(k.link.lastCall)})
	*d = suspicion{by: s.cfg.Me, data: d.data, suspectSeq: m.Seq, retractSeq: d.retractSeq, since: s.now, call: string(k.link.lastCall), cause: cause}
	s.overlayAt = s.now
	s.changed = true
}

func (in DataLinkDown) apply(s *Machine) { s.suspect(in.Rank, brokenData, in.Cause) }

// retract takes back this rank's Down about the control link to a rank.
func (s *Machine) retract(about int) {
	d := s.suspicionOf(s.cfg.Me, about, false)
	if !d.stands() {
		return
	}
	d.retractSeq = s.flood(Message{Kind: Retracted, About: about}).Seq
	d.redialBy = 0
}

// handleSuspected notes another rank's Down. When it is about this rank, this rank is
// alive, and says so; a link that broke over there is then useless here, too.
func (s *Machine) handleSuspected(m Message) {
	by := &s.ranks[m.Origin]
	if by.gone() || s.ranks[m.About].gone() {
		return
	}
	if m.About != s.cfg.Me {
		d := s.suspicionOf(m.Origin, m.About, m.Code == brokenData)
		if m.Seq > d.suspectSeq {
			d.suspectSeq, d.since, d.call = m.Seq, s.now, string(m.Body)
			s.overlayAt = s.now
			s.changed = true
		}
		return
	}
	if s.closing {
		return // nobody vouches for a rank that is about to go
	}
	s.flood(Message{Kind: Refute, About: m.Origin, Ref: m.Seq})
	if l := &by.link; m.Code == brokenLink && l.open && s.now-l.upSince > Time(freshLinkTime) {
		s.cut(m.Origin)
		s.linkBroken(m.Origin, brokenLink, "the peer reported the link as broken")
	}
}

func (s *Machine) handleRetracted(m Message) {
	if m.About == s.cfg.Me || s.ranks[m.About].gone() {
		return
	}
	d := s.suspicionOf(m.Origin, m.About, false)
	d.retractSeq = max(d.retractSeq, m.Seq)
	s.changed = true
}

// handleRefute notes that a rank in doubt lives. Whether the Down was about data is
// not told, and the numbers tell them apart.
func (s *Machine) handleRefute(m Message) {
	if s.ranks[m.Origin].gone() {
		return
	}
	for _, data := range []bool{false, true} {
		d := s.suspicionOf(m.About, m.Origin, data)
		d.refuteSeq = max(d.refuteSeq, m.Ref)
	}
	s.changed = true
}

// confirmSuspicions looks for doubts that have ripened into a verdict. It waits while verdicts
// compete: the doubt may be gone by the time they have settled.
func (s *Machine) confirmSuspicions() {
	if s.closing || s.evicted || len(s.failures.candidates) > 0 {
		return
	}
	for r := range s.ranks {
		k := &s.ranks[r]
		if r == s.cfg.Me || k.gone() || k.exiting {
			continue
		}
		if s.peerConfirmedDead(r) {
			s.propose(s.peerLost(r), s.now)
			continue
		}
		for i := range k.suspicions {
			if d := &k.suspicions[i]; d.by == s.cfg.Me && d.stands() && !d.unanswered() {
				s.confirmLink(r, d)
			}
		}
	}
}

// peerConfirmedDead reports whether r is lost: all who could know say so, or nobody vouched
// in time. Who has not seen it himself leaves it a little longer to those who have.
func (s *Machine) peerConfirmedDead(r int) bool {
	since, firsthand := never, false
	for i := range s.ranks[r].suspicions {
		if d := &s.ranks[r].suspicions[i]; d.unanswered() {
			since = min(since, d.since)
			firsthand = firsthand || d.by == s.cfg.Me
		}
	}
	if since == never {
		return false
	}
	if !firsthand {
		return s.reached(since + Time(RefuteTimeout+secondhandDelay))
	}
	return s.suspectedByAll(r) || s.reached(since+Time(RefuteTimeout))
}

// suspectedByAll reports whether all neighbours of r that are not in doubt themselves
// have said Down about their control links to it.
func (s *Machine) suspectedByAll(r int) bool {
	members := s.ringMembers(func(int) bool { return true })
	for _, j := range Neighbours(members, slices.Index(members, r)) {
		suspected := slices.ContainsFunc(s.ranks[r].suspicions, func(d suspicion) bool { return d.by == j && !d.data && d.stands() })
		if !suspected && (j == s.cfg.Me || !s.suspected(j)) {
			return false
		}
	}
	return true
}

// confirmLink deals with this rank's own Down about a rank that lives: a data
// connection is lost, a control link has RedialWait to come back.
func (s *Machine) confirmLink(r int, d *suspicion) {
	l := &s.ranks[r].link
	switch {
	case d.confirmed:
	case d.data:
		d.confirmed = true
		s.propose(s.linkLost(r, d.cause), s.now)
	case d.redialBy == 0:
		wait := RedialTimeout
		if !l.everUp {
			wait = s.cfg.Silence // it was tried for as long already, and may be slow rather than cut
		}
		d.redialBy = s.now + Time(wait)
		s.cut(r) // a silent one
		l.retryAt, l.backoff = s.now, 0
		s.reached(d.redialBy)
		s.changed = true
	case s.reached(d.redialBy):
		d.confirmed = true
		s.propose(s.linkLost(r, d.cause), s.now)
	}
}

// peerLost is the verdict on a rank, in the words of those who saw it.
func (s *Machine) peerLost(r int) *fault.Error {
	k := &s.ranks[r]
	call, cause := string(k.link.lastCall), ""
	for i := range k.suspicions {
		d := &k.suspicions[i]
		if call == "" {
			call = d.call
		}
		if d.by == s.cfg.Me && cause == "" {
			cause = d.cause
		}
	}
	if cause == "" {
		cause = "no neighbour can reach it"
	}
	if s.isolated() {
		cause += "; no other rank can be reached either, so it may be this one that is cut off"
	}
	e := fault.New(fault.PeerLost, "mesh", s.cfg.Me, "%s", cause)
	e.Peers = []fault.Peer{{Rank: r, Host: k.host, Call: call}}
	return e
}

// isolated reports whether this rank had links to several others, and none is up.
func (s *Machine) isolated() bool {
	had := 0
	for r := range s.ranks {
		switch l := &s.ranks[r].link; {
		case l.up():
			return false
		case l.everUp && !s.ranks[r].gone():
			had++
		}
	}
	return had > 1
}

// linkLost is the verdict on the connection between this rank and r.
func (s *Machine) linkLost(r int, cause string) *fault.Error {
	low, high := min(r, s.cfg.Me), max(r, s.cfg.Me)
	e := fault.New(fault.LinkLost, "mesh", s.cfg.Me, "%s", fmt.Sprintf("both ranks are alive, but the link between them is broken: %s", cause))
	for _, p := range []int{low, high} {
		e.Peers = append(e.Peers, fault.Peer{Rank: p, Host: s.ranks[p].host, Call: string(s.ranks[p].link.lastCall)})
	}
	return e
}

// clearSuspicions forgets what was said about a rank that is gone, and what it said.
func (s *Machine) clearSuspicions(gone int) {
	s.ranks[gone].suspicions = nil
	for r := range s.ranks {
		s.ranks[r].suspicions = slices.DeleteFunc(s.ranks[r].suspicions, func(d suspicion) bool { return d.by == gone })
	}
}
