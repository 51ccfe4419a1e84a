package membership

import (
	"bytes"
	"fmt"
	"slices"

	"github.com/tutti-go/tutti/fault"
)

// A suspicion records what one rank has flooded about its connection to another rank. Floods may
// arrive in any order, so a suspicion holds the newest number of each kind and no state. The state
// follows from the numbers:
//
//	suspectSeq > retractSeq  refuteSeq >= suspectSeq  state
//	no                       -                        none, or retracted
//	yes                      no                       unanswered
//	yes                      yes                      refuted: the rank is alive, its connection is broken
type suspicion struct {
	by         int    // the rank that suspects
	data       bool   // a data connection; it cannot be retracted
	code       byte   // of the last Suspected
	suspectSeq uint32 // the last Suspected
	retractSeq uint32 // the last Retracted
	refuteSeq  uint32 // the last Suspected that the suspected rank has refuted
	since      Time   // when the Suspected arrived here
	wait       Span   // how much time the suspected rank has to refute, from since
	call       string // the last call that the rank in by had received
	cause      string // what broke, if this rank suspects; else empty
	redialBy   Time   // the link must be up again at this time; 0: not redialled yet
	confirmed  bool   // a failure has been proposed for this suspicion
}

// stands reports whether the suspicion has not been retracted.
func (d *suspicion) stands() bool { return d.suspectSeq > d.retractSeq }

// unanswered reports whether the suspicion stands and has not been refuted.
func (d *suspicion) unanswered() bool { return d.stands() && d.refuteSeq < d.suspectSeq }

// suspicionOf returns the suspicion that one rank has flooded about another. If there is none, it
// adds an empty suspicion.
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
// that is closing or being evicted suspects no rank, because its links break for reasons of its
// own.
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
//	a link broke            the limit and   the rank may be alive and busy: only silence is a proof
//	                        dialGrace
//	a data link broke       the limit       the same
//	a link is silent,       RefuteTimeout,  a limit has passed already; a rank that runs late
//	or stalled              and its delays  answers late, too
//	no process listens      RefuteTimeout   the process is known to be dead
func (s *Machine) refuteWait(about int, code byte) Span {
	switch code {
	case noProcess:
		return RefuteTimeout
	case silentLink, stalledLink:
		return RefuteTimeout + s.Limit(about) - s.cfg.Silence
	case brokenLink:
		return s.Limit(about) + s.dialGrace(about)
	}
	return s.Limit(about)
}

// maxRefuteWait bounds the wait that a Suspected message of another rank may ask for.
func (s *Machine) maxRefuteWait() Span {
	if s.cfg.Redial {
		return maxSilence + maxRedialTimeout
	}
	return maxSilence
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
			d.wait = max(RefuteTimeout, min(m.Age, s.maxRefuteWait()))
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
// suspicion was about a data connection, so it answers both kinds of suspicion. Because of the
// sequence numbers, it does not answer a later suspicion.
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
// It waits while an epoch is open, because the suspicion may be gone once the epoch is resolved.
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

// peerConfirmedDead reports whether rank r is lost, because all its neighbours suspect it or
// because it has not refuted in time. In the second case, it also returns how much time r had. The
// first case happens within milliseconds after a process has died, because its operating system
// closes all its connections. The second case covers a host that is gone without a sign. If this
// rank does not suspect r itself, it waits secondhandDelay longer, so that a rank that knows the
// cause announces the failure.
//
// While ranks start, a closed connection proves little, because both ends may dial a link and then
// one of the two connections is closed. So until all ranks are ready, only the limit counts.
func (s *Machine) peerConfirmedDead(r int) (dead bool, waited Span) {
	deadline, firsthand := never, false
	for i := range s.ranks[r].suspicions {
		d := &s.ranks[r].suspicions[i]
		if !d.unanswered() {
			continue
		}
		wait := d.wait
		if !s.complete {
			wait = max(wait, s.Limit(r))
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
// Neighbours that are suspected themselves, or dead, do not count, so that ranks that die together
// do not delay the failure. Dead ranks keep their positions in the ring, because the ranks that
// take these positions may have no link to r. If no neighbour is left in this ring, the neighbours
// in the ring of the present ranks count. With Config.Redial a link that has only closed does not
// count, because the result of a dial tells whether the process is dead.
func (s *Machine) suspectedByAll(r int) bool {
	counts := func(j int) bool { return s.ranks[j].present() && (j == s.cfg.Me || !s.suspected(j)) }
	started := s.ranksThat(func(j int) bool { return s.ranks[j].status != departed && !s.ranks[j].exiting })
	neighbours := slices.DeleteFunc(Neighbours(started, slices.Index(started, r)), func(j int) bool { return !counts(j) })
	if len(neighbours) == 0 {
		present := s.ringMembers(func(int) bool { return true })
		neighbours = slices.DeleteFunc(Neighbours(present, slices.Index(present, r)), func(j int) bool { return !counts(j) })
	}
	if s.cfg.Redial && len(neighbours) == 0 {
		neighbours = []int{s.cfg.Me}
	}
	return !slices.ContainsFunc(neighbours, func(j int) bool {
		return !slices.ContainsFunc(s.ranks[r].suspicions, func(d suspicion) bool {
			return d.by == j && !d.data && d.stands() && !(s.cfg.Redial && d.code == brokenLink)
		})
	})
}

// confirmLink handles a suspicion by this rank that the suspected rank has refuted. A data
// connection is lost at once, since messages may be lost with it. The messages of a control link
// are repeated, so it may come up again. It is lost when it has been silent for the limit, and not
// before RedialTimeout has passed. With Config.Redial, it is not lost before the time to refute is
// over, either. A link that was never up is lost after the limit, because its dial may be slow.
func (s *Machine) confirmLink(r int, d *suspicion) {
	l := &s.ranks[r].link
	switch {
	case d.confirmed:
	case d.data:
		d.confirmed = true
		s.propose(s.linkLost(r, d.cause), s.now)
	case d.redialBy == 0:
		limit := s.Limit(r)
		d.redialBy = s.now + Time(limit)
		if l.everUp {
			d.redialBy = max(l.receivedAt+Time(limit), s.now+Time(RedialTimeout+limit-s.cfg.Silence))
		}
		if s.cfg.Redial {
			d.redialBy = max(d.redialBy, d.since+Time(d.wait))
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
// suspects the lost rank. The argument waited is how much time the lost rank had to refute. It is 0
// if all neighbours suspect the rank.
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
		cause += "; no other rank can be reached either, so this rank may be the one that is cut off"
	}
	e := fault.New(fault.PeerLost, "mesh", s.cfg.Me, "%s", cause)
	e.Peers = []fault.Peer{{Rank: r, Host: k.host, Call: call}}
	return e
}

// isolated reports whether this rank had links to several ranks, and no link is up on which it has
// received something within Config.Silence. Then this rank itself may be cut off. The link to a
// rank that runs late stays up for longer, but is just as silent.
func (s *Machine) isolated() bool {
	had := 0
	for r := range s.ranks {
		switch l := &s.ranks[r].link; {
		case l.up() && s.now < l.receivedAt+Time(s.cfg.Silence):
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

// clearSuspicions removes the suspicions about a rank that is gone, and the suspicions that the
// gone rank has flooded.
func (s *Machine) clearSuspicions(gone int) {
	s.ranks[gone].suspicions = nil
	for r := range s.ranks {
		s.ranks[r].suspicions = slices.DeleteFunc(s.ranks[r].suspicions, func(d suspicion) bool { return d.by == gone })
	}
}
