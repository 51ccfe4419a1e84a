package membership

import "fmt"

// A link is the control link to one rank.
type link struct {
	open       bool   // there is a connection
	silent     bool   // but nothing came on it for Silence
	byePending bool   // this rank's goodbye has not been taken yet
	receivedAt Time   // when something came last
	upSince    Time   // when it came up
	lastCall   []byte // the peer's last call, by its heartbeats; the next one overwrites it

	// While it is wanted and not up.
	wanted  bool
	dialAt  Time // when to begin dialling
	dialing bool
	retryAt Time // when to dial again
	backoff Span
	everUp  bool // it has been up before
	givenUp bool // given up for good, by a verdict
}

// up reports whether the link works, as far as is known.
func (l *link) up() bool { return l.open && !l.silent }

// The pauses between two dials of one link.
const (
	minBackoff = 20 * Millisecond
	maxBackoff = Second
)

func (in LinkUp) apply(s *Machine) {
	r := &s.ranks[in.Rank]
	if r.gone() || in.Rank == s.cfg.Me {
		s.emit(Cut(in))
		return
	}
	l := &r.link
	call := l.lastCall
	*l = link{open: true, receivedAt: s.now, upSince: s.now, lastCall: call, everUp: true, givenUp: l.givenUp, byePending: s.closing}
	s.changed = true
	s.sync(in.Rank)
	s.emit(Send{in.Rank, Message{Kind: Heartbeat, Origin: s.cfg.Me}})
	s.retract(in.Rank)
	s.markAlive(in.Rank)
}

func (in LinkDown) apply(s *Machine) {
	if l := &s.ranks[in.Rank].link; l.open {
		l.open, l.byePending = false, false
		s.linkBroken(in.Rank, brokenLink, in.Cause)
	}
}

func (in DialFailed) apply(s *Machine) {
	l := &s.ranks[in.Rank].link
	l.dialing = false
	l.backoff = max(minBackoff, min(2*l.backoff, maxBackoff))
	l.retryAt = s.now + Time(l.backoff)
	if in.Evicted {
		s.evict(in.Rank, in.Cause)
	}
}

// linkBroken deals with a link that works no longer.
func (s *Machine) linkBroken(r int, code byte, cause string) {
	k := &s.ranks[r]
	l := &k.link
	l.dialing, l.retryAt, l.backoff = false, s.now, 0
	l.wanted = false
	s.changed = true
	switch {
	case k.gone():
	case k.exiting:
		s.markDead(r) // its verdict has said all there is to say
	default:
		s.suspect(r, code, cause)
	}
}

// markReceived notes a sign of life.
func (s *Machine) markReceived(from int) {
	l := &s.ranks[from].link
	l.receivedAt = s.now
	if l.silent {
		l.silent = false
		s.changed = true
		s.retract(from)
	}
}

// findSilent breaks links on which nothing came for too long. The connection
// stays: a peer that wakes up finds its verdict there, or takes it up again. One
// to a rank that said goodbye should have been closed by then.
func (s *Machine) findSilent() {
	for r := range s.ranks {
		k := &s.ranks[r]
		l := &k.link
		if !l.up() || !s.reached(l.receivedAt+Time(s.cfg.Silence)) {
			continue
		}
		if k.gone() {
			s.cut(r)
			continue
		}
		l.silent, l.byePending = true, false
		s.linkBroken(r, silentLink, fmt.Sprintf("no message received for %v", s.cfg.Silence))
	}
}

// sendHeartbeats sends signs of life.
func (s *Machine) sendHeartbeats() {
	if !s.reached(s.heartbeatAt) {
		return
	}
	s.heartbeatAt = s.now + Time(s.cfg.Heartbeat)
	for r := range s.ranks {
		if s.ranks[r].link.open {
			if s.heartbeats[r] == nil {
				s.heartbeats[r] = Send{r, Message{Kind: Heartbeat, Origin: s.cfg.Me}}
			}
			s.emit(s.heartbeats[r])
		}
	}
}

// cut closes the link to a rank that is gone.
func (s *Machine) cut(r int) {
	if l := &s.ranks[r].link; l.open {
		l.open, l.byePending = false, false
		s.emit(Cut{r})
	}
}
