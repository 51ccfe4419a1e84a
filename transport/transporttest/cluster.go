package transporttest

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/test/leak"
	"github.com/tutti-go/tutti/transport"
)

// WaitLimitVar names the environment variable that bounds every wait of the suite, as a
// time.Duration; the default is 20 s. The waits of a correct transport are far shorter, so the
// suite does not fail on a slow machine.
const WaitLimitVar = "TRANSPORTTEST_WAIT_LIMIT"

func waitLimit() time.Duration {
	d, err := time.ParseDuration(os.Getenv(WaitLimitVar))
	if err != nil || d <= 0 {
		return 20 * time.Second
	}
	return d
}

// DivisorVar names the environment variable that shortens the suite for emulated machines: the
// numbers of repetitions are divided by its value. The default is 1.
const DivisorVar = "TRANSPORTTEST_DIVISOR"

// scaled returns n divided by the value of DivisorVar, but at least 10.
func scaled(n int) int {
	if share, err := strconv.Atoi(os.Getenv(DivisorVar)); err == nil && share > 1 {
		return max(n/share, 10)
	}
	return n
}

// A cluster holds the Nodes of one test, and the ends of the links between them. All Nodes serve.
type cluster struct {
	tb       testing.TB
	nodes    []Node
	addrs    []string
	accepted []chan transport.Conn
	ends     []*endpoint
	over     atomic.Bool // the test has ended, so errors are not reported any more
}

// newCluster makes n Nodes and calls Serve on each. At the test's end it closes all of them. Then
// the leak check fails the test if a goroutine or descriptor remains.
func newCluster(tb testing.TB, mk Maker, n int) *cluster {
	tb.Helper()
	leak.Check(tb)
	w := &cluster{tb: tb, nodes: mk(tb, n)}
	if len(w.nodes) != n {
		tb.Fatalf("the maker made %d nodes, want %d", len(w.nodes), n)
	}
	tb.Cleanup(w.close)
	for i, node := range w.nodes {
		conns := make(chan transport.Conn, 1024)
		addr, err := node.Transport.Serve(node.Listener, func(c transport.Conn) { conns <- c })
		if err != nil {
			tb.Fatalf("Serve of node %d: %v", i, err)
		}
		w.accepted = append(w.accepted, conns)
		w.addrs = append(w.addrs, addr)
	}
	return w
}

// close closes all Nodes. It fails the test if a Close does not return.
func (w *cluster) close() {
	defer w.over.Store(true)
	for i := range w.nodes {
		w.within("Close of a Transport", func() { w.closeNode(i) })
	}
}

func (w *cluster) closeNode(i int) {
	if err := w.nodes[i].Transport.Close(); err != nil {
		w.errorf("Close of node %d: %v", i, err)
	}
}

// errorf reports an error unless the test has ended. Any goroutine may call it.
func (w *cluster) errorf(format string, args ...any) {
	if !w.over.Load() {
		w.tb.Errorf(format, args...)
	}
}

// within runs a function that must not block. If the function blocks, within fails and ends the
// test.
func (w *cluster) within(what string, do func()) {
	w.tb.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		do()
	}()
	w.await(what, done)
}

// await waits until done is closed or delivers a value.
func (w *cluster) await(what string, done <-chan struct{}) {
	w.tb.Helper()
	timer := time.NewTimer(waitLimit())
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
		w.tb.Fatalf("%s: still missing after %v", what, waitLimit())
	}
}

// dial opens a Conn and returns both its ends. Admit has not been called on the accepting end.
func (w *cluster) dial(from, to int) (near, far transport.Conn) {
	w.tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), waitLimit())
	defer cancel()
	near, err := w.nodes[from].Transport.Dial(ctx, w.addrs[to])
	if err != nil {
		w.tb.Fatalf("Dial from node %d to %q: %v", from, w.addrs[to], err)
	}
	select {
	case far = <-w.accepted[to]:
	case <-ctx.Done():
		w.tb.Fatalf("node %d has not accepted the Conn that node %d opened", to, from)
	}
	return near, far
}

// link opens a Conn, admits its accepting end, and returns both ends as endpoints of the cluster,
// which until polls.
func (w *cluster) link(from, to int) (near, far *endpoint) {
	w.tb.Helper()
	a, b := w.dial(from, to)
	admit(b)
	near, far = w.newEndpoint("dialling end", a), w.newEndpoint("accepting end", b)
	near.node, far.node = from, to
	return near, far
}

// admit admits a Conn that is pending.
func admit(c transport.Conn) {
	if g, ok := c.(transport.Pending); ok {
		g.Admit()
	}
}

// pair returns a cluster of two Nodes, and one link between them.
func pair(tb testing.TB, mk Maker) (w *cluster, near, far *endpoint) {
	tb.Helper()
	w = newCluster(tb, mk, 2)
	near, far = w.link(0, 1)
	return w, near, far
}

// until polls all endpoints of the cluster, on this goroutine, until the function done returns
// true.
func (w *cluster) until(what string, done func() bool) {
	w.tb.Helper()
	w.poll(what, w.ends, done)
}

// poll polls the given endpoints until the function done returns true, at most for waitLimit.
func (w *cluster) poll(what string, ends []*endpoint, done func() bool) {
	w.tb.Helper()
	deadline := time.Now().Add(waitLimit())
	for idle := 0; !done(); {
		moved := false
		for _, e := range ends {
			state, _ := e.progress()
			moved = moved || state == transport.Moved
		}
		if moved {
			idle = 0
			continue
		}
		idle++
		backOff(idle)
		if idle%64 == 0 && time.Now().After(deadline) {
			w.tb.Fatalf("%s: still missing after %v", what, waitLimit())
		}
	}
}

// backOff lets other goroutines run. Its argument is the number of consecutive polls that found
// nothing. From 64 such polls on, backOff sleeps.
func backOff(idle int) {
	if idle < 64 {
		runtime.Gosched()
		return
	}
	// Reason: some transports have no event without Arm, and other goroutines need the processor.
	time.Sleep(20 * time.Microsecond)
}

// An endpoint is a Conn with its own Sink. Only one goroutine at a time may call progress. Other
// goroutines may send meanwhile.
type endpoint struct {
	transport.Conn
	w    *cluster
	name string
	node int // index of its Node in the cluster
	sink *recorder
	err  error // the first error of Progress
}

func (w *cluster) newEndpoint(name string, c transport.Conn) *endpoint {
	e := &endpoint{Conn: c, w: w, name: name, sink: &recorder{w: w, name: name}}
	w.ends = append(w.ends, e)
	return e
}

// progress calls Progress. It checks that at most one frame completes, and that all calls after an
// error return the same error.
func (e *endpoint) progress() (transport.State, error) {
	before := len(e.sink.got)
	state, err := e.Progress(e.sink, 1)
	if n := len(e.sink.got) - before; n > 1 {
		e.w.errorf("%s: one call of Progress completed %d frames", e.name, n)
	}
	switch {
	case state != transport.Idle && state != transport.Moved && state != transport.Busy:
		e.w.errorf("%s: Progress returned state %d", e.name, state)
	case e.err == nil && err != nil:
		e.err = err
		e.w.isFault(e.name+": Progress", err)
	case e.err != nil && state != transport.Busy && err != e.err:
		e.w.errorf("%s: Progress returned %v, and then %v", e.name, e.err, err)
	}
	return state, err
}

// isFault checks that err is a *fault.Error.
func (w *cluster) isFault(what string, err error) {
	var f *fault.Error
	if !errors.As(err, &f) {
		w.errorf("%s: got %v (%T), want a *fault.Error", what, err, err)
	}
}

// pattern returns n bytes that depend on the seed.
func pattern(n int, seed uint64) []byte {
	var key [32]byte
	for i := range 8 {
		key[i] = byte(seed >> (8 * i))
	}
	b := make([]byte, n)
	rand.NewChaCha8(key).Read(b)
	return b
}
