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

// A logWriter writes a coordinator's log entries on its own goroutine, which exists while entries
// wait. The program's logger or a disk may block. The goroutines that step the state machines must
// not block, because some of them are the program's. Any number of goroutines may use a logWriter.
//
//	state    waiting entries  idle  enqueue                leaves by
//	idle     none             nil   starts the goroutine   an entry
//	writing  below capacity   open  adds                   run has written all, and returns
//	full     capacity         open  drops and counts;      run has written one
//	                                enqueueAlways adds
type logWriter struct {
	capacity int          // the limit of waiting entries
	log      *slog.Logger // the logger of warn
	// run calls onError with a text when an entry could not be written or entries were dropped.
	onError func(text string)

	mu      sync.Mutex // guards the fields below
	jobs    []func() error
	dropped int           // entries dropped since onError was last called for dropped entries
	idle    chan struct{} // closed when all entries are written; nil while no entry waits
}

// logCapacity bounds the waiting log entries. An entry is a line, or the report of up to 16 stalls.
const logCapacity = 64

// newLogWriter returns a logWriter for the coordinator's log.
func newLogWriter(log *slog.Logger) *logWriter {
	return &logWriter{capacity: logCapacity, log: log, onError: func(text string) { log.Warn("tutti: coordinator: log: " + text) }}
}

// newTuneLogWriter returns a logWriter for Autotune's log, which has a header and one line for each
// sample. Its errors go to the coordinator's log.
func newTuneLogWriter(samples int, log *logWriter) *logWriter {
	return &logWriter{capacity: samples + 1, onError: func(text string) { log.warn("tutti: coordinator: autotune: " + text) }}
}

// enqueue queues an entry to be written after all others. It drops the entry if too many entries
// wait.
func (s *logWriter) enqueue(job func() error) { s.add(s.capacity, job) }

// enqueueAlways queues an entry that must not be dropped. The caller bounds the number of these
// entries.
func (s *logWriter) enqueueAlways(job func() error) { s.add(math.MaxInt, job) }

// add queues an entry, and starts the goroutine if none is running. If the number of waiting
// entries has reached most, add drops the entry and counts it.
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

// run writes entries until no entry waits.
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

// next returns the next entry, and the number of entries dropped since the last call. If no entry
// waits, next returns nil and run returns.
func (s *logWriter) next() (job func() error, dropped int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	dropped, s.dropped = s.dropped, 0
	switch {
	case len(s.jobs) > 0:
		job, s.jobs = s.jobs[0], s.jobs[1:]
	case dropped > 0:
		job = func() error { return nil } // run reports the dropped entries, and calls next again
	default:
		s.jobs = nil
		close(s.idle)
		s.idle = nil
	}
	return job, dropped
}

// warn queues lines as warnings of the log.
func (s *logWriter) warn(lines ...string) {
	s.enqueue(func() error {
		for _, text := range lines {
			s.log.Warn(text)
		}
		return nil
	})
}

// printf queues text to be written to a Writer. It does nothing on a nil logWriter or with a nil
// Writer.
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

// writeLimit bounds how long Close waits for a logWriter. After Close's context has ended, Close
// waits only for writeGrace, which is enough for a log that does not block.
const (
	writeLimit = 5 * time.Second
	writeGrace = time.Second
)

// wait returns when all entries are written. It returns an error if that takes longer than
// writeLimit, or longer than writeGrace after ctx has ended.
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
