package membership

import (
	"bytes"
	"fmt"
	"slices"

	"github.com/tutti-go/tutti/fault"
)

// A suspicion is what one rank has flooded about its connection to another. Floods may arrive in
// any order, so it holds the newest number of each kind instead of a state; the state follows:
//
//	suspectSeq > retractSeq   refuteSeq >= suspectSeq   state
//	no                        -                         none, or retracted
//	yes                       no                        unanswered
//	yes                       yes                       refuted: the rank is alive, the connection is not
type suspicion struct {
	by         int    // the rank that suspects
	data       bool   // a data connection; it cannot be retracted
	code       byte   // of the last Suspected
	suspectSeq uint32 // the last Suspected
	retractSeq uint32 // the last Retracted
	refuteSeq  uint32 // the last Suspected that the suspected rank has refuted
	since      Time   // when the Suspected arrived here
	wait       Span   // how long the suspected rank has from then to refute
	call       string // the last call that by had received
	cause      string // what broke, when by is this rank; else empty
	redialBy   Time   // the link must be up again by then; 0: not redialled yet
	confirmed  bool   // a failure has been proposed for it
}

// stands reports whether the suspicion has not been retracted.
func (d *suspicion) stands() bool { return d.suspectSeq > d.retractSeq }

// unanswered reports whether the suspicion stands and has not been refuted.
func (d *suspicion) unanswered() bool { return d.stands() && d.refuteSeq < d.suspectSeq }

// suspicionOf returns what by has flooded about a rank; it adds an empty suspicion if there is
// none.
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

// suspected reports whether a suspicion of r is unanswered.
func (s *Machine) suspected(r int) bool {
	return slices.ContainsFunc(s.ranks[r].suspicions, func(d suspicion) bool { return d.unanswered() })
}

// suspect floods that this rank suspects a peer, unless it has done so already. The message carries
// the peer's last call, so that the failure can name the call although the peer is dead. A rank
// that is closing, or is being evicted itself, suspects nobody: its links break for its own
// reasons.
func (s *Machine) suspect(about int, code byte, cause string) {
	k := &s.ranks[about]
	if s.closing || s.beingEvicted() || k.gone() || k.exiting || about == s.cfg.Me {
		return
	}
	if d := s.suspicionOf(s.cfg.Me, about, code == brokenData); !d.stands() {
		s.floodSuspicion(about, code, cause)
	}
}

// floodSuspicion floods a suspicion of this rank, in place of an earlier one.
func (s *Machine) floodSuspicion(about int, code byte, cause string) {
	d := s.suspicionOf(s.cfg.Me, about, code == brokenData)
	call, wait := s.ranks[about].link.lastCall, s.refuteWait(about, code)
	m := s.flood(Message{Kind: Suspected, About: about, Code: code, Age: wait, Body: bytes.Clone(call)})
	*d = suspicion{by: s.cfg.Me, data: d.data, code: code, suspectSeq: m.Seq, retractSeq: d.retractSeq,
		since: s.now, wait: wait, call: string(call), cause: cause}
	s.overlayAt = s.now
	s.changed = true
}

// refuteWait returns how long a suspected rank has to refute:
//
//	suspicion               wait            because
//	a link broke            the limit       the rank may be alive and busy: only silence shows that it is not
//	a link is silent,       RefuteTimeout,  a limit has passed already; a rank that runs late
//	or stalled              and its delays  answers late, too
//	no process listens      RefuteTimeout   the process is known to be dead
func (s *Machine) refuteWait(about int, code byte) Span {
	switch code {
	case noProcess:
		return RefuteTimeout
	case silentLink, stalledLink:
		return RefuteTimeout + s.limit(about) - s.cfg.Silence
	}
	return s.limit(about)
}

// apply suspects the peer because of a data connection.
func (in DataLinkDown) apply(s *Machine) { s.suspect(in.Rank, brokenData, in.Cause) }

// retract takes back this rank's suspicion about the control link to a rank.
func (s *Machine) retract(about int) {
	d := s.suspicionOf(s.cfg.Me, about, false)
	if !d.stands() {
		return
	}
	d.retractSeq = s.flood(Message{Kind: Retracted, About: about}).Seq
	d.redialBy = 0
}

// handleSuspected records a suspicion that another rank has flooded. If the suspicion names this
// rank, this rank floods a Refute, which reaches the suspecting rank over other links.
//
// A link that broke on the other side is useless on this side, too, so handleSuspected cuts it. It
// does not cut a link that has just come up, since the suspicion may be about the previous link.
func (s *Machine) handleSuspected(m Message) {
	by := &s.ranks[m.Origin]
	if by.gone() || s.ranks[m.About].gone() {
		return
	}
	if m.About != s.cfg.Me {
		d := s.suspicionOf(m.Origin, m.About, m.Code == brokenData)
		if m.Seq > d.suspectSeq {
			d.suspectSeq, d.since, d.call, d.code = m.Seq, s.now, string(m.Body), m.Code
			d.wait = max(RefuteTimeout, min(m.Age, maxSilence))
			s.overlayAt = s.now
			s.changed = true
		}
		return
	}
	if s.closing {
		return // a rank that closes does not claim to stay alive
	}
	s.flood(Message{Kind: Refute, About: m.Origin, Ref: m.Seq})
	if l := &by.link; (m.Code == brokenLink || m.Code == stalledLink) && l.open && s.now-l.upSince > Time(freshLinkTime) {
		s.cut(m.Origin)
		s.linkBroken(m.Origin, brokenLink, "the peer reported the link as broken")
	}
}

// handleRetracted records that a suspicion was taken back.
func (s *Machine) handleRetracted(m Message) {
	if m.About == s.cfg.Me || s.ranks[m.About].gone() {
		return
	}
	d := s.suspicionOf(m.Origin, m.About, false)
	d.retractSeq = max(d.retractSeq, m.Seq)
	s.changed = true
}

// handleRefute records that a suspected rank is alive. The message does not say whether the
// suspicion was about data, so it answers both kinds; the sequence numbers keep it from answering a
// later suspicion.
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

// confirmSuspicions proposes the failures that follow from the suspicions:
//
//	suspicion of r                                   proposed
//	unanswered by r, confirmed by peerConfirmedDead  r is lost
//	this rank's own, refuted, about data             the link to r is lost, at once
//	this rank's own, refuted, about a control link   the link is lost, unless it comes up again
//
// It waits while failures compete: the suspicion may be gone once their epoch is resolved.
func (s *Machine) confirmSuspicions() {
	if s.closing || s.evicted || len(s.failures.candidates) > 0 {
		return
	}
	for r := range s.ranks {
		k := &s.ranks[r]
		if r == s.cfg.Me || k.gone() || k.exiting {
			continue
		}
		if dead, waited := s.peerConfirmedDead(r); dead {
			s.propose(s.peerLost(r, waited), s.now)
			continue
		}
		for i := range k.suspicions {
			if d := &k.suspicions[i]; d.by == s.cfg.Me && d.stands() && !d.unanswered() {
				s.confirmLink(r, d)
			}
		}
	}
}

// peerConfirmedDead reports whether r is lost: all its neighbours suspect it, or it has not refuted
// in time, which is then how long it had. The first happens within milliseconds of a process's
// death, because its system closes all its connections; the second covers a host that is gone
// without a sign. A rank that does not suspect r itself waits secondhandDelay longer, so that a rank
// with first-hand knowledge announces the failure, with its cause.
//
// While ranks start, a closed connection shows little: links are dialled from both ends, and one of
// the two connections is closed. Until all ranks are ready, only the limit counts.
func (s *Machine) peerConfirmedDead(r int) (dead bool, waited Span) {
	deadline, firsthand := never, false
	for i := range s.ranks[r].suspicions {
		d := &s.ranks[r].suspicions[i]
		if !d.unanswered() {
			continue
		}
		wait := d.wait
		if !s.complete {
			wait = max(wait, s.limit(r))
		}
		if at := d.since + Time(wait); at < deadline {
			deadline, waited = at, wait
		}
		firsthand = firsthand || d.by == s.cfg.Me
	}
	switch {
	case deadline == never:
		return false, 0
	case !firsthand:
		return s.reached(deadline + Time(secondhandDelay)), waited
	case s.complete && s.suspectedByAll(r):
		return true, 0
	}
	return s.reached(deadline), waited
}

// suspectedByAll reports whether all neighbours of r suspect it because of their control links.
// Neighbours that are suspected themselves, or dead, do not count: ranks that die together must not
// keep each other alive. But dead ranks keep their places in the ring, since the ranks that take
// their places may have no link to r. If no neighbour is left there, those in the ring of the
// present ranks count.
func (s *Machine) suspectedByAll(r int) bool {
	counts := func(j int) bool { return s.ranks[j].present() && (j == s.cfg.Me || !s.suspected(j)) }
	started := s.ranksThat(func(j int) bool { return s.ranks[j].status != departed && !s.ranks[j].exiting })
	neighbours := slices.DeleteFunc(Neighbours(started, slices.Index(started, r)), func(j int) bool { return !counts(j) })
	if len(neighbours) == 0 {
		present := s.ringMembers(func(int) bool { return true })
		neighbours = slices.DeleteFunc(Neighbours(present, slices.Index(present, r)), func(j int) bool { return !counts(j) })
	}
	return !slices.ContainsFunc(neighbours, func(j int) bool {
		return !slices.ContainsFunc(s.ranks[r].suspicions, func(d suspicion) bool { return d.by == j && !d.data && d.stands() })
	})
}

// confirmLink handles a suspicion by this rank that the suspected rank has refuted. A data
// connection is lost at once, since messages may be lost with it. A control link may come up again,
// because its messages are repeated: until it has been silent for the limit, and for RedialTimeout
// at least. A link that was never up has the limit, since it may be slow rather than cut.
func (s *Machine) confirmLink(r int, d *suspicion) {
	l := &s.ranks[r].link
	switch {
	case d.confirmed:
	case d.data:
		d.confirmed = true
		s.propose(s.linkLost(r, d.cause), s.now)
	case d.redialBy == 0:
		limit := s.limit(r)
		d.redialBy = s.now + Time(limit)
		if l.everUp {
			d.redialBy = max(l.receivedAt+Time(limit), s.now+Time(RedialTimeout+limit-s.cfg.Silence))
		}
		s.cut(r) // a silent link is still open
		l.retryAt, l.backoff = s.now, 0
		s.reached(d.redialBy)
		s.changed = true
	case s.reached(d.redialBy):
		d.confirmed = true
		s.propose(s.linkLost(r, d.cause), s.now)
	}
}

// peerLost returns the failure of a rank. The last call comes from the heartbeats of the lost rank
// or, without a link to that rank, from a suspecting rank. The cause is set if this rank itself
// suspects the lost rank. waited is how long the lost rank had to refute; 0 if all its neighbours
// suspect it.
func (s *Machine) peerLost(r int, waited Span) *fault.Error {
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
	if waited > RefuteTimeout {
		cause += fmt.Sprintf("; it did not answer within %v", waited)
	}
	if s.isolated() {
		cause += "; no other rank can be reached either, so it may be this one that is cut off"
	}
	e := fault.New(fault.PeerLost, "mesh", s.cfg.Me, "%s", cause)
	e.Peers = []fault.Peer{{Rank: r, Host: k.host, Call: call}}
	return e
}

// isolated reports whether this rank had links to several ranks and none is up. Then this rank
// itself may be cut off.
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

// linkLost returns the failure of the connection between this rank and r.
func (s *Machine) linkLost(r int, cause string) *fault.Error {
	low, high := min(r, s.cfg.Me), max(r, s.cfg.Me)
	e := fault.New(fault.LinkLost, "mesh", s.cfg.Me, "%s", fmt.Sprintf("both ranks are alive, but the link between them is broken: %s", cause))
	for _, p := range []int{low, high} {
		e.Peers = append(e.Peers, fault.Peer{Rank: p, Host: s.ranks[p].host, Call: string(s.ranks[p].link.lastCall)})
	}
	return e
}

// clearSuspicions removes the suspicions of a rank that is gone, and those it has flooded.
func (s *Machine) clearSuspicions(gone int) {
	s.ranks[gone].suspicions = nil
	for r := range s.ranks {
		s.ranks[r].suspicions = slices.DeleteFunc(s.ranks[r].suspicions, func(d suspicion) bool { return d.by == gone })
	}
}
