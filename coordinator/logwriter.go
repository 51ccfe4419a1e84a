package coordinator

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"math"
	"sync"
	"time"
)

// A logWriter writes what a coordinator has to say, on a goroutine of its own that is
// there while something waits to be written: a log is the program's and may block, and
// so may a disk, but those who have the turn may not, which are the program's
// goroutines as well. What comes when most words wait already is dropped, and counted.
// Any number of goroutines may use it.
type logWriter struct {
	capacity int               // words that wait
	log      *slog.Logger      // for warn
	onError  func(text string) // hears of what could not be written, and of what was dropped

	mu      sync.Mutex // guards the rest
	jobs    []func() error
	dropped int           // words since the last that was told of
	idle    chan struct{} // closed when all is written; nil while nothing waits
}

// logCapacity bounds the lines of the log that wait, or reports of up to 16 stalls each.
const logCapacity = 64

// newLogWriter writes to the coordinator's log.
func newLogWriter(log *slog.Logger) *logWriter {
	return &logWriter{capacity: logCapacity, log: log, onError: func(text string) { log.Warn("tutti: coordinator: log: " + text) }}
}

// newTuneLogWriter writes what a search of so many samples says: one line for each, and
// one that says what these are. What goes wrong goes to the log.
func newTuneLogWriter(samples int, log *logWriter) *logWriter {
	return &logWriter{capacity: samples + 1, onError: func(text string) { log.warn("tutti: coordinator: autotune: " + text) }}
}

// enqueue has something written after all that was told before, or not at all when too much
// waits already.
func (s *logWriter) enqueue(job func() error) { s.add(s.capacity, job) }

// enqueueAlways is do for what is never dropped, of which there is a bounded number.
func (s *logWriter) enqueueAlways(job func() error) { s.add(math.MaxInt, job) }

func (s *logWriter) add(most int, job func() error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.jobs) >= most {
		s.dropped++
		return
	}
	s.jobs = append(s.jobs, job)
	if s.idle == nil {
		s.idle = make(chan struct{})
		go s.run()
	}
}

// run writes until nothing waits.
func (s *logWriter) run() {
	for {
		job, dropped := s.next()
		if dropped > 0 {
			s.onError(fmt.Sprintf("%d entries were dropped because the writer was blocked", dropped))
		}
		if job == nil {
			return
		}
		if err := job(); err != nil {
			s.onError(err.Error())
		}
	}
}

// next takes what is to be written; nil when there is nothing, and write is over.
func (s *logWriter) next() (job func() error, dropped int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	dropped, s.dropped = s.dropped, 0
	switch {
	case len(s.jobs) > 0:
		job, s.jobs = s.jobs[0], s.jobs[1:]
	case dropped > 0:
		job = func() error { return nil } // to be told of first
	default:
		s.jobs = nil
		close(s.idle)
		s.idle = nil
	}
	return job, dropped
}

// warn has a line of the log written.
func (s *logWriter) warn(lines ...string) {
	s.enqueue(func() error {
		for _, text := range lines {
			s.log.Warn(text)
		}
		return nil
	})
}

// printf has a line of text written.
func (s *logWriter) printf(to io.Writer, format string, args ...any) {
	if s == nil || to == nil {
		return
	}
	text := fmt.Sprintf(format+"\n", args...)
	s.enqueue(func() error {
		_, err := io.WriteString(to, text)
		return err
	})
}

// writeLimit bounds how long Close waits for a scribe, and writeGrace how long it does
// when its context has ended: a log that takes what it gets must have the time to.
const (
	writeLimit = 5 * time.Second
	writeGrace = time.Second
)

// wait returns when all has been written, with an error when it takes longer than
// writeLimit, or has not come to its end writeGrace after ctx has.
func (s *logWriter) wait(ctx context.Context) error {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	idle := s.idle
	s.mu.Unlock()
	if idle == nil {
		return nil
	}
	limit := time.NewTimer(writeLimit)
	defer limit.Stop()
	select {
	case <-idle:
		return nil
	case <-limit.C:
		return context.DeadlineExceeded
	case <-ctx.Done():
	}
	grace := time.NewTimer(writeGrace)
	defer grace.Stop()
	select {
	case <-idle:
		return nil
	case <-limit.C:
	case <-grace.C:
	}
	return ctx.Err()
}
