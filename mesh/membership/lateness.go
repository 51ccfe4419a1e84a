package membership

// A lateness measures how late a process runs: by how much the time between two Steps exceeds what
// Next has asked for. On a busy host the process waits for a core, and its heartbeats are that late.
//
// It holds the largest delay of the current window and of the one before, so that a delay is
// remembered for one to two windows.
type lateness struct {
	current, before Span
	end             Time // of the current window
}

// add records the delay of one Step. Delays below the threshold are those of any timer, and count as
// none. A window ends at the first Step after its length.
func (l *lateness) add(now Time, delay, threshold, window Span) {
	if now >= l.end {
		l.before, l.current = l.current, 0
		l.end = now + Time(window)
	}
	if delay >= threshold {
		l.current = max(l.current, delay)
	}
}

// max returns the largest delay that is remembered.
func (l *lateness) max() Span { return max(l.before, l.current) }

// limit returns how long rank r may be silent: Config.Silence, and longer if its heartbeats say that
// it runs late, up to maxSilence. Silence is a number of heartbeats; each may be as late as the peer
// runs. For a rank that has sent no heartbeat yet, this rank's own lateness is the best guess.
//
// Time in which this rank itself did not run is not counted at all; see advance.
func (s *Machine) limit(r int) Span {
	delay := s.ranks[r].link.delay
	if !s.ranks[r].link.everUp {
		delay = s.late.max()
	}
	beats := s.cfg.Silence / s.cfg.Heartbeat
	return s.cfg.Silence + min(beats*min(delay, maxSilence), max(0, maxSilence-s.cfg.Silence))
}
