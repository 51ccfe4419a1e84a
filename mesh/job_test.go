package mesh

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/transport/memory"
)

// An eventRecorder implements Events for tests. It records all events.
type eventRecorder struct {
	rank int

	mu       sync.Mutex // guards the rest
	verdicts []*fault.Error
	when     []time.Time // of the failures
	goodbyes []int
	floods   []string
	reply    func(from int, q []byte) []byte
	call     string
}

func (l *eventRecorder) Failed(e *fault.Error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.verdicts, l.when = append(l.verdicts, e), append(l.when, time.Now())
}

func (l *eventRecorder) Goodbye(rank int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.goodbyes = append(l.goodbyes, rank)
}

func (l *eventRecorder) Flooded(from int, kind byte, body []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.floods = append(l.floods, fmt.Sprintf("%d/%d/%s", from, kind, body))
}

func (l *eventRecorder) Question(from int, q []byte) []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.reply == nil {
		return nil
	}
	return l.reply(from, q)
}

func (l *eventRecorder) LastCall(b []byte) []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append(b, l.call...)
}

// first returns the first failure and the time at which it arrived. Without a failure it returns
// nil.
func (l *eventRecorder) first() (*fault.Error, time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.verdicts) == 0 {
		return nil, time.Time{}
	}
	return l.verdicts[0], l.when[0]
}

func (l *eventRecorder) left() []int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.goodbyes)
}

func (l *eventRecorder) floodsSeen() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.floods)
}

// A logBuffer is a log that tests read.
type logBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logBuffer) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(b)
}

func (l *logBuffer) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{Level: slog.LevelWarn}))
}

// all returns the lines so far.
func (l *logBuffer) all() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.FieldsFunc(l.buf.String(), func(r rune) bool { return r == '\n' })
}

// A testJob holds the ranks of one job, all in this process.
type testJob struct {
	t      testing.TB
	hub    *memory.Hub
	meshes []*Mesh
	errs   []error
	events []*eventRecorder
	wires  []*memory.Transport
	logs   logBuffer
}

// newTestJob makes n ranks over the memory transport. They are not started.
func newTestJob(t testing.TB, n int) *testJob {
	r := &testJob{t: t, hub: memory.New(), meshes: make([]*Mesh, n), errs: make([]error, n)}
	for i := range n {
		r.events = append(r.events, &eventRecorder{rank: i})
		r.wires = append(r.wires, r.hub.Transport())
	}
	return r
}

// config returns the configuration of rank i, with addresses exchanged through rank 0.
func (r *testJob) config(i int) Config {
	return Config{
		Rank: i, Size: len(r.meshes), Job: "test", Secret: []byte("sesame"),
		Transport: r.wires[i], Root: r.hub.Addr(0), Host: fmt.Sprintf("host-%d", i),
		InProcess: true, Log: r.logs.logger(), Events: r.events[i],
	}
}

// static makes cfg use a list of all addresses in place of the address exchange.
func (r *testJob) static(cfg *Config) {
	cfg.Root = ""
	for i := range r.meshes {
		cfg.Peers = append(cfg.Peers, r.hub.Addr(i))
	}
}

// start starts the given ranks, and waits for all of them.
func (r *testJob) start(ctx context.Context, ranks []int, tweak func(i int, cfg *Config)) {
	var work sync.WaitGroup
	for _, i := range ranks {
		cfg := r.config(i)
		if tweak != nil {
			tweak(i, &cfg)
		}
		work.Go(func() { r.meshes[i], r.errs[i] = Start(ctx, cfg) })
	}
	work.Wait()
}

// started returns a testJob whose n ranks have all started.
func started(t testing.TB, n int, tweak func(i int, cfg *Config)) *testJob {
	t.Helper()
	r := newTestJob(t, n)
	r.start(t.Context(), upTo(n), tweak)
	for i, err := range r.errs {
		if err != nil {
			t.Fatalf("rank %d of %d: %v", i, n, err)
		}
	}
	return r
}

func upTo(n int) (ranks []int) {
	for i := range n {
		ranks = append(ranks, i)
	}
	return ranks
}

func without(n, rank int) []int {
	return slices.DeleteFunc(upTo(n), func(r int) bool { return r == rank })
}

// kill ends a rank. The other ranks notice the same as after a SIGKILL.
func (r *testJob) kill(rank int) { r.wires[rank].Close() }

// close shuts the remaining ranks down, without goodbyes.
func (r *testJob) close() {
	for _, m := range r.meshes {
		if m != nil {
			m.once.Do(func() { m.shutDown(fault.Closed) })
		}
	}
}

// freeze suspends a rank's control goroutine, as SIGSTOP does, until the test calls the returned
// function. The goroutine has stopped when freeze returns. So no unfinished turn handles messages
// that come later.
func (r *testJob) freeze(rank int) (thaw func()) {
	frozen, release := make(chan struct{}), make(chan struct{})
	r.meshes[rank].control.post(func(*control) {
		close(frozen)
		<-release
	})
	<-frozen
	return func() { close(release) }
}

// bubble runs a test in a synctest bubble. In the bubble, time passes only when all goroutines
// wait. All goroutines must have ended when the test ends.
func bubble(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	synctest.Test(t, f)
}

// blames reports whether the error e has kind k and blames exactly the given ranks.
func blames(e *fault.Error, k fault.Kind, ranks ...int) bool {
	if e == nil || e.Kind != k || len(e.Peers) != len(ranks) {
		return false
	}
	for i, p := range e.Peers {
		if p.Rank != ranks[i] {
			return false
		}
	}
	return true
}
