package membership

import "fmt"

// A link is the control link to one rank.
type link struct {
	open   bool   // there is a connection
	silent bool   // but nothing came on it for Silence
	owes   bool   // this rank's goodbye has not been taken yet
	heard  Time   // when something came last
	since  Time   // when it came up
	call   []byte // the peer's last call, by its heartbeats; the next one overwrites it

	// While it is wanted and not up.
	wanted  bool
	from    Time // when to begin dialling
	dialing bool
	retry   Time // when to dial again
	backoff Span
	was     bool // it has been up before
	severed bool // given up for good, by a verdict
}

// up reports whether the link works, as far as is known.
func (l *link) up() bool { return l.open && !l.silent }

// The pauses between two dials of one link.
const (
	firstBackoff = 20 * Millisecond
	lastBackoff  = Second
)

func (in LinkUp) apply(s *State) {
	r := &s.ranks[in.Rank]
	if r.gone() || in.Rank == s.cfg.Me {
		s.out(Cut(in))
		return
	}
	l := &r.link
	call := l.call
	*l = link{open: true, heard: s.now, since: s.now, call: call, was: true, severed: l.severed, owes: s.leaving}
	s.changed = true
	s.sync(in.Rank)
	s.out(Send{in.Rank, Message{Kind: Heartbeat, Origin: s.cfg.Me}})
	s.recant(in.Rank)
	s.revive(in.Rank)
}

func (in LinkDown) apply(s *State) {
	if l := &s.ranks[in.Rank].link; l.open {
		l.open, l.owes = false, false
		s.broken(in.Rank, brokenLink, in.Cause)
	}
}

func (in DialFailed) apply(s *State) {
	l := &s.ranks[in.Rank].link
	l.dialing = false
	l.backoff = max(firstBackoff, min(2*l.backoff, lastBackoff))
	l.retry = s.now + Time(l.backoff)
	if in.Disowned {
		s.disown(in.Rank, in.Cause)
	}
}

// broken deals with a link that works no longer.
func (s *State) broken(r int, why byte, cause string) {
	k := &s.ranks[r]
	l := &k.link
	l.dialing, l.retry, l.backoff = false, s.now, 0
	l.wanted = false
	s.changed = true
	switch {
	case k.gone():
	case k.leaving:
		s.bury(r) // its verdict has said all there is to say
	default:
		s.doubt(r, why, cause)
	}
}

// hear notes a sign of life.
func (s *State) hear(from int) {
	l := &s.ranks[from].link
	l.heard = s.now
	if l.silent {
		l.silent = false
		s.changed = true
		s.recant(from)
	}
}

// findSilent breaks links on which nothing came for too long. The connection
// stays: a peer that wakes up finds its verdict there, or takes it up again. One
// to a rank that said goodbye should have been closed by then.
func (s *State) findSilent() {
	for r := range s.ranks {
		k := &s.ranks[r]
		l := &k.link
		if !l.up() || !s.due(l.heard+Time(s.cfg.Silence)) {
			continue
		}
		if k.gone() {
			s.cut(r)
			continue
		}
		l.silent, l.owes = true, false
		s.broken(r, silentLink, fmt.Sprintf("nothing was heard of it for %v", s.cfg.Silence))
	}
}

// beat sends signs of life.
func (s *State) beat() {
	if !s.due(s.beatAt) {
		return
	}
	s.beatAt = s.now + Time(s.cfg.Heartbeat)
	for r := range s.ranks {
		if s.ranks[r].link.open {
			if s.beats[r] == nil {
				s.beats[r] = Send{r, Message{Kind: Heartbeat, Origin: s.cfg.Me}}
			}
			s.out(s.beats[r])
		}
	}
}

// cut closes the link to a rank that is gone.
func (s *State) cut(r int) {
	if l := &s.ranks[r].link; l.open {
		l.open, l.owes = false, false
		s.out(Cut{r})
	}
}
