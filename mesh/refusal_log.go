package mesh

import (
	"context"
	"log/slog"
	"net"
	"sync"
	"time"
)

// The limit on lines about refused and broken connections: lineBurst lines at once, and on average
// one line per lineInterval.
const (
	lineBurst    = 20
	lineInterval = time.Second
)

// A refusalLog logs refused connections, failures of Accept, and data connections that break or are
// open again. It limits the rate, so that a flood of connections does not cause a flood of lines.
// Its methods may be called by any goroutine.
type refusalLog struct {
	log *slog.Logger

	mu      sync.Mutex // guards the rest
	full    time.Time  // the time from which lineBurst lines may be logged at once again
	omitted int        // lines omitted since the last one
}

// newRefusalLog returns a refusalLog that writes to log.
func newRefusalLog(log *slog.Logger) *refusalLog { return &refusalLog{log: log} }

// refused logs that a connection from an address was refused, and how many lines were omitted
// before this one.
func (s *refusalLog) refused(from net.Addr, because string) {
	args := []any{"from", "unknown address", "because", because}
	if from != nil {
		args[1] = from
	}
	s.line(slog.LevelWarn, "a connection refused", args...)
}

// acceptFailed logs that Accept has failed, and how many lines were omitted before this one.
func (s *refusalLog) acceptFailed(err error) {
	s.line(slog.LevelWarn, "accept failed; retrying", "err", err)
}

// line logs a line if allow permits it.
func (s *refusalLog) line(level slog.Level, text string, args ...any) {
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
func (s *refusalLog) allow(now time.Time) (omitted int, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	next := later(s.full, now).Add(lineInterval)
	if next.Sub(now) > lineBurst*lineInterval {
		s.omitted++
		return 0, false
	}
	omitted, s.omitted = s.omitted, 0
	s.full = next
	return omitted, true
}
