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

// A logWriter writes what a coordinator has to say on a goroutine of its own, which exists while
// something waits to be written. The program's log may block, and so may a disk, but the goroutines
// that step the state machines may not: some of them are the program's. Any number of goroutines
// may use it.
//
//	state    waiting entries  idle  enqueue                leaves by
//	idle     none             nil   starts the goroutine   an entry
//	writing  below capacity   open  adds                   run has written all, and returns
//	full     capacity         open  drops and counts;      run has written one
//	                                enqueueAlways adds
type logWriter struct {
	capacity int          // entries that may wait
	log      *slog.Logger // for warn
	// onError gets what could not be written, and how much was dropped. run calls it.
	onError func(text string)

	mu      sync.Mutex // guards the rest
	jobs    []func() error
	dropped int           // entries since onError was last called for them
	idle    chan struct{} // closed when all is written; nil while nothing waits
}

// logCapacity bounds the entries of the log that wait: lines, or reports of up to 16 stalls each.
const logCapacity = 64

// newLogWriter writes to the coordinator's log.
func newLogWriter(log *slog.Logger) *logWriter {
	return &logWriter{capacity: logCapacity, log: log, onError: func(text string) { log.Warn("tutti: coordinator: log: " + text) }}
}

// newTuneLogWriter writes what a search has to say: a header and one line for each sample. Its
// errors go to the log.
func newTuneLogWriter(samples int, log *logWriter) *logWriter {
	return &logWriter{capacity: samples + 1, onError: func(text string) { log.warn("tutti: coordinator: autotune: " + text) }}
}

// enqueue has an entry written after all others, or drops it when too many wait.
func (s *logWriter) enqueue(job func() error) { s.add(s.capacity, job) }

// enqueueAlways is enqueue for entries that must not be dropped. The caller bounds their number.
func (s *logWriter) enqueueAlways(job func() error) { s.add(math.MaxInt, job) }

// add queues an entry unless too many wait, and starts the goroutine if there is none.
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

// next returns the next entry, and how many were dropped before it. It is nil when nothing waits;
// then run returns.
func (s *logWriter) next() (job func() error, dropped int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	dropped, s.dropped = s.dropped, 0
	switch {
	case len(s.jobs) > 0:
		job, s.jobs = s.jobs[0], s.jobs[1:]
	case dropped > 0:
		job = func() error { return nil } // so that run reports them first
	default:
		s.jobs = nil
		close(s.idle)
		s.idle = nil
	}
	return job, dropped
}

// warn has lines written to the log.
func (s *logWriter) warn(lines ...string) {
	s.enqueue(func() error {
		for _, text := range lines {
			s.log.Warn(text)
		}
		return nil
	})
}

// printf has a line of text written. It does nothing on a nil logWriter or to a nil Writer.
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

// writeLimit bounds how long Close waits for a logWriter. After Close's context has ended it waits
// for writeGrace only, which a log that does not block needs.
const (
	writeLimit = 5 * time.Second
	writeGrace = time.Second
)

// wait returns when all has been written. Its error says that it took longer than writeLimit, or
// than writeGrace after ctx ended.
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
