package pending

import (
	"context"
	"log/slog"
	"net"
	"sync"
	"time"
)

// The limit on the lines of a Log: Burst lines at once, and on average one line per Interval.
const (
	Burst    = 20
	Interval = time.Second
)

// A Log logs refused connections, failures of Accept, and other lines about connections. It limits
// the rate, so that a flood of connections does not cause a flood of lines. Its methods may be
// called by any goroutine.
type Log struct {
	log *slog.Logger

	mu      sync.Mutex // guards the rest
	full    time.Time  // the time from which Burst lines may be logged at once again
	omitted int        // lines omitted since the last line
}

// NewLog returns a Log that writes to log.
func NewLog(log *slog.Logger) *Log { return &Log{log: log} }

// Refused logs that a connection from an address was refused, and how many lines were omitted
// before this line.
func (s *Log) Refused(from net.Addr, because string) {
	args := []any{"from", "unknown address", "because", because}
	if from != nil {
		args[1] = from
	}
	s.Line(slog.LevelWarn, "a connection refused", args...)
}

// AcceptFailed logs that Accept has failed, and how many lines were omitted before this line.
func (s *Log) AcceptFailed(err error) {
	s.Line(slog.LevelWarn, "accept failed; retrying", "err", err)
}

// Line logs a line if allow permits it.
func (s *Log) Line(level slog.Level, text string, args ...any) {
	if !s.log.Enabled(context.Background(), level) {
		return
	}
	omitted, ok := s.allow(time.Now())
	if !ok {
		return
	}
	if omitted > 0 {
		args = append(args, "lines_omitted_before", omitted)
	}
	s.log.Log(context.Background(), level, text, args...)
}

// allow reports whether a line may be logged now, and how many lines were omitted before it.
func (s *Log) allow(now time.Time) (omitted int, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	next := s.full.Add(Interval)
	if s.full.Before(now) {
		next = now.Add(Interval)
	}
	if next.Sub(now) > Burst*Interval {
		s.omitted++
		return 0, false
	}
	omitted, s.omitted = s.omitted, 0
	s.full = next
	return omitted, true
}
