package membership

import "fmt"

// A link is the control link to one rank.
//
//	open  silent  dialing  meaning
//	no    -       no       not wanted, or waits for dialAt or retryAt
//	no    -       yes      a Dial was emitted, and has not been answered
//	yes   no      -        up: heartbeats arrive
//	yes   yes     -        nothing received for the limit; kept, because the rank may resume
//
// If givenUp is set, this rank does not dial the link any more, but the peer may still open it.
type link struct {
	open       bool   // there is a connection
	silent     bool   // nothing was received for the limit
	byePending bool   // this rank's goodbye has not been acknowledged yet
	receivedAt Time   // when a message was received last
	upSince    Time   // when the link came up
	lastCall   []byte // the peer's last call, from its heartbeats; the next heartbeat overwrites it
	delay      Span   // how late the peer runs, from its last heartbeat

	// These fields are for a link that is wanted and not up.
	wanted    bool
	dialAt    Time // no dial before this time
	dialing   bool
	dialledAt Time // when the last dial began
	retryAt   Time // no further dial before this time
	backoff   Span
	everUp    bool // the link was up at some time
	givenUp   bool // a LinkLost has been reported
}

// up reports whether the link works, as far as this rank knows.
func (l *link) up() bool { return l.open && !l.silent }

// The pause after a failed dial of a link doubles from the first constant up to the second
// constant.
const (
	minBackoff = 20 * Millisecond
	maxBackoff = Second
)

// apply resets the state of the link. The peer may have missed messages while there was no link. So
// apply sends it all remembered messages, and a heartbeat that shows that the link works. If this
// rank suspected the peer, it retracts the suspicion.
func (in LinkUp) apply(s *Machine) {
	r := &s.ranks[in.Rank]
	if r.gone() || in.Rank == s.cfg.Me {
		s.emit(Cut(in))
		return
	}
	l := &r.link
	*l = link{open: true, receivedAt: s.now, upSince: s.now, lastCall: l.lastCall, delay: l.delay,
		everUp: true, givenUp: l.givenUp, byePending: s.closing}
	s.changed = true
	s.sync(in.Rank)
	s.emit(Send{in.Rank, s.heartbeat()})
	s.retract(in.Rank)
	s.markAlive(in.Rank)
}

// apply suspects the peer, unless the peer is expected to be gone.
func (in LinkDown) apply(s *Machine) {
	k := &s.ranks[in.Rank]
	if l := &k.link; l.open {
		code := byte(brokenLink)
		if in.Stalled {
			code = stalledLink
		}
		l.open, l.byePending = false, l.byePending && s.cfg.Redial && !in.Stalled && !k.gone()
		s.linkBroken(in.Rank, code, in.Cause)
	}
}

// apply schedules the next dial. The method dial decides whether to suspect the rank, from the time
// since the first attempt. If this rank already suspects the peer, and no process listens at the
// peer's address, the process is known to be dead, and apply floods a Suspected that says so.
func (in DialFailed) apply(s *Machine) {
	l := &s.ranks[in.Rank].link
	l.dialing = false
	l.backoff = max(minBackoff, min(2*l.backoff, maxBackoff))
	l.retryAt = s.now + Time(l.backoff)
	if s.DialTimeout(in.Rank) > 0 {
		l.backoff = min(l.backoff, s.cfg.Silence/32)
		l.retryAt = l.dialledAt + Time(l.backoff)
	}
	if in.Evicted {
		s.evict(in.Rank, in.Cause)
	}
	if !l.open && (in.Evicted || in.Gone || in.NoProcess) {
		l.byePending = false // the peer has the goodbye, or needs none
	}
	if d := s.suspicionOf(s.cfg.Me, in.Rank, false); in.NoProcess && d.unanswered() && d.code != noProcess {
		s.floodSuspicion(in.Rank, noProcess, d.cause+"; no process listens at its address")
	}
}

// linkBroken handles a link that broke or fell silent. If the rank is gone, linkBroken does nothing
// more. If the rank announced its exit, it is dead now. Otherwise this rank suspects it. linkBroken
// dials a broken link again at once, because the result may show that the rank is alive, or that
// its process is gone.
func (s *Machine) linkBroken(r int, code byte, cause string) {
	k := &s.ranks[r]
	l := &k.link
	l.dialing, l.retryAt, l.backoff = false, s.now, 0
	l.wanted = false
	s.changed = true
	switch {
	case k.gone():
	case k.exiting:
		s.markDead(r) // the rank has announced the reason
	default:
		s.suspect(r, code, cause)
		if code == brokenLink && s.mayDial() {
			s.startDial(r)
		}
	}
}

// markReceived records a sign of life. A silent link that carries messages again is up, and the
// suspicion is retracted.
func (s *Machine) markReceived(from int) {
	l := &s.ranks[from].link
	l.receivedAt = s.now
	if l.silent {
		l.silent = false
		s.changed = true
		s.retract(from)
	}
}

// findSilent breaks links on which nothing was received for the peer's limit. The connection stays
// open, so that a rank that resumes can use it again, or learns over it that it was marked dead.
// findSilent cuts the link to a rank that has said goodbye, since that rank should have closed it.
func (s *Machine) findSilent() {
	for r := range s.ranks {
		k := &s.ranks[r]
		l := &k.link
		limit := s.Limit(r)
		if !l.up() || !s.reached(l.receivedAt+Time(limit)) {
			continue
		}
		if k.gone() {
			s.cut(r)
			continue
		}
		l.silent, l.byePending = true, false
		cause := fmt.Sprintf("no message received for %v", limit)
		if limit > s.cfg.Silence {
			cause += fmt.Sprintf(", the limit for a rank that runs %v late", l.delay)
		}
		s.linkBroken(r, silentLink, cause)
	}
}

// heartbeat returns the current heartbeat, which says how late this rank runs.
func (s *Machine) heartbeat() Message {
	return Message{Kind: Heartbeat, Origin: s.cfg.Me, Age: s.late.max()}
}

// sendHeartbeats sends a heartbeat on every open link once per Config.Heartbeat. The Sends are
// reused while the heartbeat is the same, so that an idle job allocates nothing.
func (s *Machine) sendHeartbeats() {
	if !s.reached(s.heartbeatAt) {
		return
	}
	s.heartbeatAt = s.now + Time(s.cfg.Heartbeat)
	if m := s.heartbeat(); m.Age != s.heartbeatAge {
		s.heartbeatAge = m.Age
		clear(s.heartbeats)
	}
	for r := range s.ranks {
		if s.ranks[r].link.open {
			if s.heartbeats[r] == nil {
				s.heartbeats[r] = Send{r, s.heartbeat()}
			}
			s.emit(s.heartbeats[r])
		}
	}
}

// cut closes the link to a rank because the rank is gone or the link is useless.
func (s *Machine) cut(r int) {
	if l := &s.ranks[r].link; l.open {
		l.open, l.byePending = false, false
		s.emit(Cut{r})
	}
}
