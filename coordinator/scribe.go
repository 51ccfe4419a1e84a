package coordinator

import (
	"context"
	"fmt"
	"io"
	"log/slog"
)

// A scribe writes what autotune has to say, on a goroutine of its own: a log is the
// program's and may block, and so may a disk, but those who have the turn may not,
// which are the program's goroutines as well. A nil one writes nothing.
type scribe struct {
	jobs chan func() error // has room for all that one search says
	gone chan struct{}     // closed when all has been written
}

// mostWords bounds what waits to be written: twice what a search says.
const mostWords = 64

// newScribe starts one. end ends it.
func newScribe(warn *slog.Logger) *scribe {
	s := &scribe{make(chan func() error, mostWords), make(chan struct{})}
	go func() {
		defer close(s.gone)
		for job := range s.jobs {
			if err := job(); err != nil {
				warn.Warn("tutti: the coordinator's autotune: " + err.Error())
			}
		}
	}()
	return s
}

// do has something written after all that was told before, or not at all when far too
// much waits already.
func (s *scribe) do(job func() error) {
	if s == nil {
		return
	}
	select {
	case s.jobs <- job:
	default:
	}
}

// line has a line of text written.
func (s *scribe) line(to io.Writer, format string, args ...any) {
	if to == nil {
		return
	}
	text := fmt.Sprintf(format+"\n", args...)
	s.do(func() error {
		_, err := io.WriteString(to, text)
		return err
	})
}

// end says that nothing more comes.
func (s *scribe) end() {
	if s != nil {
		close(s.jobs)
	}
}

// wait returns when all has been written, or ctx has ended.
func (s *scribe) wait(ctx context.Context) {
	if s == nil {
		return
	}
	select {
	case <-s.gone:
	case <-ctx.Done():
	}
}
