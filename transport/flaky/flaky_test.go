package flaky

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/test/leak"
	"github.com/tutti-go/tutti/transport"
	"github.com/tutti-go/tutti/transport/memory"
	"github.com/tutti-go/tutti/transport/tcp"
	"github.com/tutti-go/tutti/transport/transporttest"
)

// wrapped returns a Maker of nodes over memory that follow the script.
func wrapped(s *Script) transporttest.Maker {
	return func(_ testing.TB, n int) []transporttest.Node {
		hub := memory.New()
		nodes := make([]transporttest.Node, n)
		for i := range nodes {
			nodes[i].Transport = s.Wrap(hub.Transport(), i)
		}
		return nodes
	}
}

func TestFlakyWithoutARuleKeepsTheContract(t *testing.T) {
	transporttest.Run(t, func(tb testing.TB, n int) []transporttest.Node {
		return wrapped(New(Options{}))(tb, n)
	})
}

// The suite must pass over a wrapped stream transport, too. Unlike the other transports, it has a
// listener and pending Conns.
func TestFlakyOverTCPKeepsTheContract(t *testing.T) {
	transporttest.Run(t, func(tb testing.TB, n int) []transporttest.Node {
		s := New(Options{})
		nodes := make([]transporttest.Node, n)
		for i := range nodes {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				tb.Fatal(err)
			}
			nodes[i] = transporttest.Node{Transport: s.Wrap(tcp.New(tcp.Options{}), i), Listener: l}
		}
		return nodes
	})
}

// A cluster is some nodes under a script, for tests in one goroutine.
type cluster struct {
	t      *testing.T
	script *Script
	nodes  []transport.Transport
	addrs  []string
	came   []chan transport.Conn
}

func newCluster(t *testing.T, n int, o Options) *cluster {
	t.Helper()
	leak.Check(t)
	w := &cluster{t: t, script: New(o)}
	for _, node := range wrapped(w.script)(t, n) {
		came := make(chan transport.Conn, 8)
		addr, err := node.Transport.Serve(nil, func(c transport.Conn) { came <- c })
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { node.Transport.Close() })
		w.nodes, w.addrs, w.came = append(w.nodes, node.Transport), append(w.addrs, addr), append(w.came, came)
	}
	return w
}

func (w *cluster) link(from, to int) (near, far *end) {
	w.t.Helper()
	a, err := w.nodes[from].Dial(context.Background(), w.addrs[to])
	if err != nil {
		w.t.Fatal(err)
	}
	return &end{Conn: a}, &end{Conn: <-w.came[to]}
}

// An end is a Conn with a Sink that counts the frames.
type end struct {
	transport.Conn
	err     error
	whole   int      // frames
	partial int      // bytes of the frame that is arriving
	bodies  [][]byte // of whole frames
	heads   []string
	cur     []byte
}

func (e *end) Buffer(h transport.Header) []byte {
	e.cur = make([]byte, h.Size)
	return e.cur
}

func (e *end) Arrived(h transport.Header, n int) {
	if e.partial = n; n == h.Size {
		e.whole, e.partial = e.whole+1, 0
		e.bodies, e.heads = append(e.bodies, e.cur), append(e.heads, string(h.Head))
	}
}

// poll progresses all ends until none of them can make progress.
func poll(ends ...*end) {
	for moved := true; moved; {
		moved = false
		for _, e := range ends {
			state, err := e.Progress(e, 1)
			if err != nil && e.err == nil {
				e.err = err
			}
			moved = moved || state == transport.Moved
		}
	}
}

// A result is the error of a frame's Done, and the number of its calls.
type result struct {
	times int
	err   error
}

func send(c transport.Conn, head string, body []byte) *result {
	r := new(result)
	c.Send(&transport.Frame{Head: []byte(head), Body: body, Done: func(err error) { r.times++; r.err = err }})
	return r
}

const frames = 4

// sendAll sends a few frames, polls, and returns their results.
func sendAll(near, far *end, size int) (results []*result) {
	for range frames {
		results = append(results, send(near, "head", make([]byte, size)))
	}
	poll(near, far)
	return results
}

// The test cuts at every moment of every step. Frames before the cut must arrive, frames after the
// cut must not arrive, both ends must fail, and each Done must run once.
func TestCutFallsWhereTheRuleNames(t *testing.T) {
	count := newCluster(t, 2, Options{})
	near, far := count.link(0, 1)
	sendAll(near, far, 10)
	steps := count.script.Steps()
	if steps != frames || far.whole != frames {
		t.Fatalf("without a rule: %d steps, %d frames arrived, want %d", steps, far.whole, frames)
	}
	for _, size := range []int{0, 1, 1000, 1 << 20} {
		for m := Before; m <= After; m++ {
			for k := 1; k <= steps; k++ {
				t.Run(fmt.Sprintf("%s,%d bytes", Cut(m, k), size), func(t *testing.T) { checkCut(t, m, k, size) })
			}
		}
	}
}

func checkCut(t *testing.T, m Moment, k, size int) {
	w := newCluster(t, 2, Options{Rules: []Rule{Cut(m, k)}})
	near, far := w.link(0, 1)
	results := sendAll(near, far, size)
	want := k - 1
	if m == After {
		want = k
	}
	if far.whole != want {
		t.Errorf("%d frames arrived, want %d", far.whole, want)
	}
	if partly := m == Within && size > 1; partly != (far.partial > 0) {
		t.Errorf("%d bytes of a frame arrived that was cut", far.partial)
	}
	if near.err == nil || far.err == nil || !w.script.Fired(0) {
		t.Errorf("got errors %v and %v, fired: %v", near.err, far.err, w.script.Fired(0))
	}
	for i, r := range results {
		cutWithin := m == Within && i == k-1 // its last byte may have left
		if r.times != 1 || (r.err == nil) != (i < want) && !cutWithin {
			t.Errorf("frame %d: Done ran %d times, with %v", i+1, r.times, r.err)
		}
	}
	a, b := w.link(0, 1)
	if sendAll(a, b, 10); b.whole != frames {
		t.Errorf("on a new Conn %d frames arrived, want %d", b.whole, frames)
	}
}

// The other end may or may not see frames with the ID NoNotify. A cut at such a frame, or after it,
// must still happen where the rule says.
func TestCutFallsAtAndAfterFramesWithoutNotification(t *testing.T) {
	for m := Before; m <= After; m++ {
		for k := 2; k <= 5; k++ { // the first step is the Expose
			t.Run(Cut(m, k).String(), func(t *testing.T) { checkNoNotifyCut(t, m, k) })
		}
	}
}

func checkNoNotifyCut(t *testing.T, m Moment, k int) {
	w := newCluster(t, 2, Options{Rules: []Rule{Cut(m, k)}})
	near, far := w.link(0, 1)
	mem := make([]byte, 2)
	to, release, err := far.Conn.(transport.Exposer).Expose(transport.NoNotify, mem)
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	for i := range mem {
		f := &transport.Frame{Body: []byte{1}, To: to, Offset: i, ID: transport.NoNotify, Done: func(error) {}}
		near.Send(f)
		poll(near, far)
	}
	reported := far.whole // package memory reports these frames
	for range 2 {
		send(near, "head", []byte("x"))
		poll(near, far)
	}
	written := max(k-2, 0) // before the step
	if m == After {
		written++
	}
	for i := range mem { // for a short body, half of the step's bytes may be the whole body
		if whole := m == Within && i == k-2; !whole && (mem[i] == 1) != (i < written) {
			t.Errorf("the memory has %v, want the first %d written", mem, written)
		}
	}
	if got := far.whole - reported; got != max(written-2, 0) {
		t.Errorf("%d frames arrived after the cut, want %d", got, max(written-2, 0))
	}
	if near.err == nil || far.err == nil || !w.script.Fired(0) {
		t.Errorf("got errors %v and %v, fired: %v", near.err, far.err, w.script.Fired(0))
	}
}

func TestCutNamesItsRule(t *testing.T) {
	w := newCluster(t, 2, Options{Rules: []Rule{Cut(Before, 2)}})
	near, far := w.link(0, 1)
	results := sendAll(near, far, 1)
	for _, err := range []error{far.err, results[1].err, send(far, "", nil).err} {
		if !errors.Is(err, fault.LinkLost) || !strings.Contains(fmt.Sprint(err), "cut before 2") {
			t.Errorf("got %v, want %v by the rule", err, fault.LinkLost)
		}
	}
}

func TestRuleCountsOnlyItsOwnConn(t *testing.T) {
	w := newCluster(t, 3, Options{Rules: []Rule{Cut(Before, 2).From(2).To(0), Cut(Before, 99).From(1)}})
	a, b := w.link(0, 1)
	c, d := w.link(0, 2) // node 2 sends on the Conn that it accepted
	sendAll(a, b, 1)
	sendAll(c, d, 1)
	sendAll(b, a, 1)
	if w.script.Fired(0) || w.script.Matched(0) != 0 || w.script.Matched(1) != frames {
		t.Errorf("matched %d and %d steps, want 0 and %d", w.script.Matched(0), w.script.Matched(1), frames)
	}
	sendAll(d, c, 1)
	if c.whole != 1 || c.err == nil || d.err == nil || a.err != nil || b.err != nil {
		t.Errorf("%d frames arrived; errors %v, %v on the Conn to be cut, %v, %v on the other",
			c.whole, c.err, d.err, a.err, b.err)
	}
}

func TestDeadNodeLosesEveryConn(t *testing.T) {
	for m := Before; m <= After; m++ {
		w := newCluster(t, 3, Options{Rules: []Rule{Die(m, 2).From(1)}})
		a, b := w.link(0, 1)
		c, d := w.link(1, 2)
		e, f := w.link(0, 2)
		sendAll(e, f, 1)
		sendAll(b, a, 100)
		poll(a, b, c, d, e, f)
		for _, dead := range []*end{a, b, c, d} {
			if dead.err == nil {
				t.Errorf("%v: a Conn of the dead node lives", m)
			}
		}
		if e.err != nil || f.err != nil {
			t.Errorf("%v: a Conn between others failed: %v, %v", m, e.err, f.err)
		}
		for _, way := range [][2]int{{0, 1}, {1, 0}} {
			_, err := w.nodes[way[0]].Dial(context.Background(), w.addrs[way[1]])
			if !errors.Is(err, fault.Refused) {
				t.Errorf("%v: dial from %d to %d: got %v, want %v", m, way[0], way[1], err, fault.Refused)
			}
		}
	}
}

func TestDelayHoldsFramesInTheirOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		script := New(Options{Rules: []Rule{Delay(2, time.Second)}})
		nodes := wrapped(script)(t, 2)
		came := make(chan transport.Conn, 1)
		addr, err := nodes[1].Transport.Serve(nil, func(c transport.Conn) { came <- c })
		if err != nil {
			t.Fatal(err)
		}
		a, err := nodes[0].Transport.Dial(t.Context(), addr)
		if err != nil {
			t.Fatal(err)
		}
		near, far := &end{Conn: a}, &end{Conn: <-came}
		for i := range frames {
			send(near, fmt.Sprint(i), nil)
		}
		// Reason: the delay is not over after this time. No real time passes.
		time.Sleep(time.Second - 1)
		if poll(near, far); far.whole != 1 {
			t.Errorf("%d frames arrived before the delay was over, want 1", far.whole)
		}
		// Reason: the delay ends with this nanosecond. No real time passes.
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		if poll(near, far); !slices.Equal(far.heads, []string{"0", "1", "2", "3"}) {
			t.Errorf("after the delay %q had arrived", far.heads)
		}
		for _, n := range nodes {
			n.Transport.Close()
		}
	})
}

func TestCloseEndsADelay(t *testing.T) {
	w := newCluster(t, 2, Options{Rules: []Rule{Delay(1, time.Hour)}})
	near, far := w.link(0, 1)
	results := sendAll(near, far, 1)
	near.Close()
	for i, r := range results {
		if r.times != 1 || !errors.Is(r.err, fault.Closed) {
			t.Errorf("frame %d: Done ran %d times, with %v", i+1, r.times, r.err)
		}
	}
}

func TestCorruptionFlipsOneBitOfTheCopy(t *testing.T) {
	w := newCluster(t, 2, Options{Rules: []Rule{CorruptHead(1), CorruptBody(2), CorruptBody(3)}})
	near, far := w.link(0, 1)
	body := []byte("a body that stays")
	send(near, "head", body)
	send(near, "head", body)
	near.Send(&transport.Frame{Head: []byte("head"), Parts: [][]byte{nil, body[:5], body[5:]}, Done: func(error) {}})
	send(near, "head", body)
	poll(near, far)
	for i, want := range [][2]int{{1, 0}, {0, 1}, {0, 1}, {0, 0}} {
		got := [2]int{differingBits([]byte(far.heads[i]), []byte("head")), differingBits(far.bodies[i], []byte("a body that stays"))}
		if got != want {
			t.Errorf("frame %d: %v bits of head and body differ, want %v", i+1, got, want)
		}
	}
	if string(body) != "a body that stays" {
		t.Errorf("the sender's own body became %q", body)
	}
}

func differingBits(a, b []byte) (n int) {
	if len(a) != len(b) {
		return -1
	}
	for i := range a {
		n += bits.OnesCount8(a[i] ^ b[i])
	}
	return n
}

func TestCountsChoosesTheSteps(t *testing.T) {
	w := newCluster(t, 2, Options{
		Rules:  []Rule{Cut(Before, 2)},
		Counts: func(s Step) bool { return s.Kind == Frame && string(s.Head) == "data" },
	})
	near, far := w.link(0, 1)
	for _, head := range []string{"data", "beat", "beat", "data", "beat"} {
		send(near, head, nil)
	}
	poll(near, far)
	if got := w.script.Steps(); got != 2 || far.whole != 3 {
		t.Errorf("%d steps were counted, %d frames arrived; want 2 and 3", got, far.whole)
	}
}
