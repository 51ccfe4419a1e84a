package membership

// A lateness measures how late a process runs. The delay of a Step is the time since the last Step,
// less the time that Next has returned. On a busy host the process waits for a core, and its
// heartbeats are late by this delay.
//
// It holds the largest delay of the current window and of the previous window, so that a delay is
// remembered for one to two windows.
type lateness struct {
	current, before Span
	end             Time // of the current window
}

// add records the delay of one Step. Delays below the threshold are normal for a timer and do not
// count. A window ends at the first Step after its length has passed.
func (l *lateness) add(now Time, delay, threshold, window Span) {
	if now >= l.end {
		l.before, l.current = l.current, 0
		l.end = now + Time(window)
	}
	if delay >= threshold {
		l.current = max(l.current, delay)
	}
}

// max returns the larger of the two delays.
func (l *lateness) max() Span { return max(l.before, l.current) }

// Limit returns how long rank r may be silent. This is Config.Silence, or longer, up to maxSilence,
// if the heartbeats of r say that it runs late. Config.Silence is the time for some number of
// heartbeats, and each of these may be late. For a rank that has sent no heartbeat yet, Limit uses
// this rank's own lateness as the best guess.
//
// The time in which this rank itself did not run is not counted; see advance.
func (s *Machine) Limit(r int) Span {
	delay := s.ranks[r].link.delay
	if !s.ranks[r].link.everUp {
		delay = s.late.max()
	}
	return s.cfg.Silence + s.allowance(delay)
}

// allowance returns how much longer than Config.Silence a rank may be silent that runs late by the
// given delay.
func (s *Machine) allowance(delay Span) Span {
	beats := s.cfg.Silence / s.cfg.Heartbeat
	return min(beats*min(delay, maxSilence), max(0, maxSilence-s.cfg.Silence))
}
