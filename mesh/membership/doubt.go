package membership

import (
	"bytes"
	"fmt"
	"slices"

	"github.com/tutti-go/tutti/fault"
)

// A doubt is what one rank has said about its connection to another. Down, up
// and vouch are numbers of floods of by, so that floods may arrive in any order.
type doubt struct {
	by    int
	data  bool   // a data connection; no Up takes that back
	down  uint32 // the last Down
	up    uint32 // the last Up
	vouch uint32 // the last Down that the rank in doubt answered
	since Time   // when down came
	call  string // the last call that by had heard
	cause string // what broke, when by is this rank
	limit Time   // when a link that is dialled again must be there; 0: not dialled yet
	tried bool   // a verdict came of it
}

// stands reports whether the Down has not been taken back.
func (d *doubt) stands() bool { return d.down > d.up }

// open reports whether the Down stands and nobody has answered it.
func (d *doubt) open() bool { return d.stands() && d.vouch < d.down }

// entry finds what by has said about a rank, or makes it.
func (s *State) entry(by, about int, data bool) *doubt {
	k := &s.ranks[about]
	for i := range k.doubts {
		if d := &k.doubts[i]; d.by == by && d.data == data {
			return d
		}
	}
	k.doubts = append(k.doubts, doubt{by: by, data: data})
	return &k.doubts[len(k.doubts)-1]
}

// doubted reports whether somebody's Down about r is without an answer.
func (s *State) doubted(r int) bool {
	return slices.ContainsFunc(s.ranks[r].doubts, func(d doubt) bool { return d.open() })
}

// doubt floods this rank's own Down, unless one stands.
func (s *State) doubt(about int, why byte, cause string) {
	k := &s.ranks[about]
	if s.leaving || s.accused() || k.gone() || k.leaving || about == s.cfg.Me {
		return
	}
	d := s.entry(s.cfg.Me, about, why == brokenData)
	if d.stands() {
		return
	}
	m := s.flood(Message{Kind: Down, About: about, Code: why, Body: bytes.Clone(k.link.call)})
	*d = doubt{by: s.cfg.Me, data: d.data, down: m.Seq, up: d.up, since: s.now, call: string(k.link.call), cause: cause}
	s.knitFrom = s.now
	s.changed = true
}

func (in Suspect) apply(s *State) { s.doubt(in.Rank, brokenData, in.Cause) }

// recant takes back this rank's Down about the control link to a rank.
func (s *State) recant(about int) {
	d := s.entry(s.cfg.Me, about, false)
	if !d.stands() {
		return
	}
	d.up = s.flood(Message{Kind: Up, About: about}).Seq
	d.limit = 0
}

// hearDown notes another rank's Down. When it is about this rank, this rank is
// alive, and says so; a link that broke over there is then useless here, too.
func (s *State) hearDown(m Message) {
	by := &s.ranks[m.Origin]
	if by.gone() || s.ranks[m.About].gone() {
		return
	}
	if m.About != s.cfg.Me {
		d := s.entry(m.Origin, m.About, m.Code == brokenData)
		if m.Seq > d.down {
			d.down, d.since, d.call = m.Seq, s.now, string(m.Body)
			s.knitFrom = s.now
			s.changed = true
		}
		return
	}
	if s.leaving {
		return // nobody vouches for a rank that is about to go
	}
	s.flood(Message{Kind: Vouch, About: m.Origin, Ref: m.Seq})
	if l := &by.link; m.Code == brokenLink && l.open && s.now-l.since > Time(settledLag) {
		s.cut(m.Origin)
		s.broken(m.Origin, brokenLink, "the peer reports the link as broken")
	}
}

func (s *State) hearUp(m Message) {
	if m.About == s.cfg.Me || s.ranks[m.About].gone() {
		return
	}
	d := s.entry(m.Origin, m.About, false)
	d.up = max(d.up, m.Seq)
	s.changed = true
}

// hearVouch notes that a rank in doubt lives. Whether the Down was about data is
// not told, and the numbers tell them apart.
func (s *State) hearVouch(m Message) {
	if s.ranks[m.Origin].gone() {
		return
	}
	for _, data := range []bool{false, true} {
		d := s.entry(m.About, m.Origin, data)
		d.vouch = max(d.vouch, m.Ref)
	}
	s.changed = true
}

// judge looks for doubts that have ripened into a verdict. It waits while verdicts
// compete: the doubt may be gone by the time they have settled.
func (s *State) judge() {
	if s.leaving || s.disowned || len(s.verdicts.compete) > 0 {
		return
	}
	for r := range s.ranks {
		k := &s.ranks[r]
		if r == s.cfg.Me || k.gone() || k.leaving {
			continue
		}
		if s.ripe(r) {
			s.hold(s.lossOf(r), s.now)
			continue
		}
		for i := range k.doubts {
			if d := &k.doubts[i]; d.by == s.cfg.Me && d.stands() && !d.open() {
				s.judgeLink(r, d)
			}
		}
	}
}

// ripe reports whether r is lost: all who could know say so, or nobody vouched
// in time. Who has not seen it himself leaves it a little longer to those who have.
func (s *State) ripe(r int) bool {
	since, mine := never, false
	for i := range s.ranks[r].doubts {
		if d := &s.ranks[r].doubts[i]; d.open() {
			since = min(since, d.since)
			mine = mine || d.by == s.cfg.Me
		}
	}
	if since == never {
		return false
	}
	if !mine {
		return s.due(since + Time(VouchWait+witnessLag))
	}
	return s.deserted(r) || s.due(since+Time(VouchWait))
}

// deserted reports whether all neighbours of r that are not in doubt themselves
// have said Down about their control links to it.
func (s *State) deserted(r int) bool {
	members := s.circle(func(int) bool { return true })
	for _, j := range Neighbours(members, slices.Index(members, r)) {
		said := slices.ContainsFunc(s.ranks[r].doubts, func(d doubt) bool { return d.by == j && !d.data && d.stands() })
		if !said && (j == s.cfg.Me || !s.doubted(j)) {
			return false
		}
	}
	return true
}

// judgeLink deals with this rank's own Down about a rank that lives: a data
// connection is lost, a control link has RedialWait to come back.
func (s *State) judgeLink(r int, d *doubt) {
	l := &s.ranks[r].link
	switch {
	case d.tried:
	case d.data:
		d.tried = true
		s.hold(s.lossOfLink(r, d.cause), s.now)
	case d.limit == 0:
		wait := RedialWait
		if !l.was {
			wait = s.cfg.Silence // it was tried for as long already, and may be slow rather than cut
		}
		d.limit = s.now + Time(wait)
		s.cut(r) // a silent one
		l.retry, l.backoff = s.now, 0
		s.due(d.limit)
		s.changed = true
	case s.due(d.limit):
		d.tried = true
		s.hold(s.lossOfLink(r, d.cause), s.now)
	}
}

// lossOf is the verdict on a rank, in the words of those who saw it.
func (s *State) lossOf(r int) *fault.Error {
	k := &s.ranks[r]
	call, cause := string(k.link.call), ""
	for i := range k.doubts {
		d := &k.doubts[i]
		if call == "" {
			call = d.call
		}
		if d.by == s.cfg.Me && cause == "" {
			cause = d.cause
		}
	}
	if cause == "" {
		cause = "its neighbours cannot reach it"
	}
	if s.alone() {
		cause += "; no other rank can be reached either, so it may be this one that is cut off"
	}
	e := fault.New(fault.PeerLost, "mesh", s.cfg.Me, "%s", cause)
	e.Peers = []fault.Peer{{Rank: r, Host: k.host, Call: call}}
	return e
}

// alone reports whether this rank had links to several others, and none is up.
func (s *State) alone() bool {
	had := 0
	for r := range s.ranks {
		switch l := &s.ranks[r].link; {
		case l.up():
			return false
		case l.was && !s.ranks[r].gone():
			had++
		}
	}
	return had > 1
}

// lossOfLink is the verdict on the connection between this rank and r.
func (s *State) lossOfLink(r int, cause string) *fault.Error {
	low, high := min(r, s.cfg.Me), max(r, s.cfg.Me)
	e := fault.New(fault.LinkLost, "mesh", s.cfg.Me, "%s", fmt.Sprintf("both live, but not the link between them: %s", cause))
	for _, p := range []int{low, high} {
		e.Peers = append(e.Peers, fault.Peer{Rank: p, Host: s.ranks[p].host, Call: string(s.ranks[p].link.call)})
	}
	return e
}

// acquit forgets what was said about a rank that is gone, and what it said.
func (s *State) acquit(gone int) {
	s.ranks[gone].doubts = nil
	for r := range s.ranks {
		s.ranks[r].doubts = slices.DeleteFunc(s.ranks[r].doubts, func(d doubt) bool { return d.by == gone })
	}
}
