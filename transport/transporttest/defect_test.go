package transporttest

import (
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/transport"
	"github.com/tutti-go/tutti/transport/memory"
)

// defects returns the defects by which the tests check that the suite can fail. Each defect breaks
// one promise of a correct transport. Its key is the subtest that must fail.
func defects() map[string]defect {
	return map[string]defect{
		"FramesArriveInOrder":                {conn: func(c transport.Conn) transport.Conn { return &reorders{Conn: c} }},
		"BodiesOfEverySizeArriveWhole":       {sink: func(in transport.Sink) transport.Sink { return corrupts{in} }},
		"HeadsOfEveryLengthArriveWhole":      {sink: func(in transport.Sink) transport.Sink { return shortensHeads{in} }},
		"HeadThatIsTooLongIsMisuse":          {conn: func(c transport.Conn) transport.Conn { return cutsHeads{c} }},
		"SendNeverWaitsForTheReceiver":       {conn: func(c transport.Conn) transport.Conn { return waitsInSend{c} }},
		"FrameMayBeUsedAgainAfterDone":       {conn: func(c transport.Conn) transport.Conn { return doneTooSoon{c} }},
		"CloseFailsWhatIsQueued":             {conn: func(c transport.Conn) transport.Conn { return doneTwice{c} }},
		"DoneMaySendOnAnyConn":               {conn: func(c transport.Conn) transport.Conn { return &locksInDone{Conn: c} }},
		"SendingLeavesTheFrameUnchanged":     {conn: func(c transport.Conn) transport.Conn { return modifiesBody{c} }},
		"SecondProgressIsBusy":               {conn: func(c transport.Conn) transport.Conn { return &waitsForRole{Conn: c} }},
		"SinkMayChangeBetweenFrames":         {conn: func(c transport.Conn) transport.Conn { return progressesTwice{c} }},
		"ClosedConnStaysClosed":              {conn: func(c transport.Conn) transport.Conn { return replacesError{c} }},
		"FirstErrorIsFinal":                  {conn: func(c transport.Conn) transport.Conn { return replacesError{c} }},
		"NilBufferDropsTheBody":              {sink: func(in transport.Sink) transport.Sink { return skipsEmpty{in} }},
		"BytesBeyondTheBodyStayUntouched":    {sink: func(in transport.Sink) transport.Sink { return overruns{in} }},
		"ArmNeverLosesAWakeUp":               {conn: func(c transport.Conn) transport.Conn { return &losesWakeUps{Conn: c} }},
		"ArmFiresOnClose":                    {conn: func(c transport.Conn) transport.Conn { return &losesWakeUps{Conn: c, every: 1} }},
		"ArmDoesNotSpin":                     {conn: func(c transport.Conn) transport.Conn { return spins{c} }},
		"ReadyRunsOnce":                      {conn: func(c transport.Conn) transport.Conn { return firesTwice{c} }},
		"ReadyMayUseTheConn":                 {conn: func(c transport.Conn) transport.Conn { return &locksInDone{Conn: c, ready: true} }},
		"DialEndsWithItsContext":             {node: func(t transport.Transport) transport.Transport { return ignoresContext{t} }},
		"AddressIsShort":                     {node: func(t transport.Transport) transport.Transport { return longAddress{t} }},
		"TransportCloseEndsItsConns":         {node: func(t transport.Transport) transport.Transport { return neverCloses{t} }},
		"ConnsThatCloseLeaveNothing":         {node: func(t transport.Transport) transport.Transport { return leaks{t} }},
		"BodyCutShortNeverCompletes":         {sink: func(in transport.Sink) transport.Sink { return &completes{Sink: in} }},
		"Exposer/FramesComeStraightIn":       {conn: func(c transport.Conn) transport.Conn { return ignoresTokens{c, c.(transport.Exposer)} }},
		"Exposer/ReleasedMemoryIsNotWritten": {conn: func(c transport.Conn) transport.Conn { return keepsExposed{c, c.(transport.Exposer)} }},
		"Unsent/AStalledPeerIsReported":      {conn: func(c transport.Conn) transport.Conn { return reportsNothing{c} }},
		"Unsent/CloseEndsTheReport":          {conn: func(c transport.Conn) transport.Conn { return &keepsReport{Conn: c} }},
		"Parts/PartsArriveAsOneBody":         {conn: func(c transport.Conn) transport.Conn { return firstPartOnly{c} }},

		"Exposer/NoNotifyMemoryIsNotWrittenAfterRelease": {conn: func(c transport.Conn) transport.Conn { return keepsExposed{c, c.(transport.Exposer)} }},
	}
}

// defectVar names the environment variable that tells the child process which defect to test.
const defectVar = "TRANSPORTTEST_DEFECT"

func TestSuiteDetectsEachDefect(t *testing.T) {
	if name := os.Getenv(defectVar); name != "" {
		Run(t, defects()[name].make)
		return
	}
	for name := range defects() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			child := exec.Command(os.Args[0], "-test.timeout", "20s", "-test.run", "^"+strings.ReplaceAll(t.Name(), "/", "$/^")+"$")
			child.Env = append(os.Environ(), defectVar+"="+name, WaitLimitVar+"=300ms")
			out, err := child.CombinedOutput()
			var exit *exec.ExitError
			if !errors.As(err, &exit) || !strings.Contains(string(out), name) {
				t.Errorf("the suite did not notice (%v):\n%s", err, out)
			}
		})
	}
}

// TestSuitePassesWithoutDefect runs the suite on Transports without a defect. It must pass, so that
// a failure in the other test comes from the defect.
func TestSuitePassesWithoutDefect(t *testing.T) { Run(t, defect{}.make) }

// A defect wraps a Transport, its Conns or their Sinks. If a function is nil, it wraps nothing.
type defect struct {
	node func(transport.Transport) transport.Transport
	conn func(transport.Conn) transport.Conn
	sink func(transport.Sink) transport.Sink
}

func (l defect) make(_ testing.TB, n int) []Node {
	hub := memory.New()
	nodes := make([]Node, n)
	for i := range nodes {
		var t transport.Transport = &defectiveNode{hub.Transport(), l}
		if l.node != nil {
			t = l.node(t)
		}
		nodes[i].Transport = t
	}
	return nodes
}

type defectiveNode struct {
	transport.Transport
	defect
}

func (n *defectiveNode) wrap(c transport.Conn) transport.Conn {
	if n.sink != nil {
		c = defectiveSink{c, n.sink}
	}
	if n.conn != nil {
		c = n.conn(c)
	}
	return c
}

func (n *defectiveNode) Serve(in net.Listener, accept func(transport.Conn)) (string, error) {
	return n.Transport.Serve(in, func(c transport.Conn) { accept(n.wrap(c)) })
}

func (n *defectiveNode) Dial(ctx context.Context, addr string) (transport.Conn, error) {
	c, err := n.Transport.Dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	return n.wrap(c), nil
}

type defectiveSink struct {
	transport.Conn
	sink func(transport.Sink) transport.Sink
}

func (c defectiveSink) Progress(in transport.Sink, spins int) (transport.State, error) {
	return c.Conn.Progress(c.sink(in), spins)
}

// with returns a copy of f that has another Done function.
func with(f *transport.Frame, done func(error)) *transport.Frame {
	return &transport.Frame{Head: f.Head, Body: f.Body, Parts: f.Parts, To: f.To, Offset: f.Offset, ID: f.ID, Done: done}
}

// reorders sends every second frame before the frame that precedes it.
type reorders struct {
	transport.Conn
	mu   sync.Mutex
	kept *transport.Frame
	n    int
}

func (c *reorders) Send(f *transport.Frame) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n++; c.n == 10 {
		c.kept = f
		return
	}
	c.Conn.Send(f)
	if c.kept != nil {
		c.Conn.Send(c.kept)
		c.kept = nil
	}
}

type corrupts struct{ transport.Sink }

func (s corrupts) Buffer(h transport.Header) []byte {
	b := s.Sink.Buffer(h)
	if h.Size == 65537 {
		return append([]byte(nil), b...) // so the bytes go to memory that the caller does not see
	}
	return b
}

type shortensHeads struct{ transport.Sink }

func (s shortensHeads) short(h transport.Header) transport.Header {
	h.Head = h.Head[:min(len(h.Head), transport.MaxHead-1)]
	return h
}
func (s shortensHeads) Buffer(h transport.Header) []byte  { return s.Sink.Buffer(s.short(h)) }
func (s shortensHeads) Arrived(h transport.Header, n int) { s.Sink.Arrived(s.short(h), n) }

type cutsHeads struct{ transport.Conn }

func (c cutsHeads) Send(f *transport.Frame) {
	f.Head = f.Head[:min(len(f.Head), transport.MaxHead)]
	c.Conn.Send(f)
}

type waitsInSend struct{ transport.Conn }

func (c waitsInSend) Send(f *transport.Frame) {
	done := make(chan struct{})
	c.Conn.Send(with(f, func(err error) { f.Done(err); close(done) }))
	<-done
}

type doneTooSoon struct{ transport.Conn }

func (c doneTooSoon) Send(f *transport.Frame) {
	c.Conn.Send(with(f, func(error) {}))
	f.Done(nil)
}

type doneTwice struct{ transport.Conn }

func (c doneTwice) Send(f *transport.Frame) {
	c.Conn.Send(with(f, func(err error) {
		f.Done(err)
		if err != nil {
			f.Done(err)
		}
	}))
}

// locksInDone holds a lock while it calls Done.
type locksInDone struct {
	transport.Conn
	mu    sync.Mutex // guards sends
	sends int
	ready bool // only inside ready
}

func (c *locksInDone) Send(f *transport.Frame) {
	c.mu.Lock()
	c.sends++
	c.mu.Unlock()
	c.Conn.Send(with(f, func(err error) {
		if !c.ready {
			c.mu.Lock()
			defer c.mu.Unlock()
		}
		f.Done(err)
	}))
}

func (c *locksInDone) Arm(ready func()) {
	c.Conn.Arm(func() {
		if c.ready {
			c.mu.Lock()
			defer c.mu.Unlock()
		}
		ready()
	})
}

type modifiesBody struct{ transport.Conn }

func (c modifiesBody) Send(f *transport.Frame) {
	c.Conn.Send(with(f, func(err error) {
		if len(f.Body) > 0 {
			f.Body[0]++
		}
		f.Done(err)
	}))
}

type waitsForRole struct {
	transport.Conn
	mu sync.Mutex
}

func (c *waitsForRole) Progress(in transport.Sink, spins int) (transport.State, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.Conn.Progress(in, spins)
}

type progressesTwice struct{ transport.Conn }

func (c progressesTwice) Progress(in transport.Sink, spins int) (transport.State, error) {
	c.Conn.Progress(in, spins)
	return c.Conn.Progress(in, spins)
}

type replacesError struct{ transport.Conn }

func (c replacesError) Progress(in transport.Sink, spins int) (transport.State, error) {
	state, err := c.Conn.Progress(in, spins)
	if err != nil {
		err = &fault.Error{Kind: fault.Closed, Op: "again", Rank: -1, Err: err}
	}
	return state, err
}

type skipsEmpty struct{ transport.Sink }

func (s skipsEmpty) Buffer(h transport.Header) []byte {
	if h.Size == 0 {
		return nil
	}
	return s.Sink.Buffer(h)
}

type overruns struct{ transport.Sink }

func (s overruns) Buffer(h transport.Header) []byte {
	b := s.Sink.Buffer(h)
	if len(b) > h.Size {
		b[h.Size]++
	}
	return b
}

type losesWakeUps struct {
	transport.Conn
	every int32 // 0: 500
	n     atomic.Int32
}

func (c *losesWakeUps) Arm(ready func()) {
	every := c.every
	if every == 0 {
		every = 500
	}
	if c.n.Add(1)%every == 0 {
		ready = func() {}
	}
	c.Conn.Arm(ready)
}

type spins struct{ transport.Conn }

func (c spins) Arm(ready func()) { go ready() }

type firesTwice struct{ transport.Conn }

func (c firesTwice) Arm(ready func()) { c.Conn.Arm(func() { ready(); ready() }) }

type ignoresContext struct{ transport.Transport }

func (n ignoresContext) Dial(_ context.Context, addr string) (transport.Conn, error) {
	return n.Transport.Dial(context.Background(), addr)
}

type longAddress struct{ transport.Transport }

func (n longAddress) Serve(in net.Listener, accept func(transport.Conn)) (string, error) {
	_, err := n.Transport.Serve(in, accept)
	return strings.Repeat("x", transport.MaxAddr+1), err
}

type neverCloses struct{ transport.Transport }

func (neverCloses) Close() error { return nil }

type leaks struct{ transport.Transport }

func (n leaks) Dial(ctx context.Context, addr string) (transport.Conn, error) {
	go func() { select {} }()
	return n.Transport.Dial(ctx, addr)
}

// completes reports a body as whole when its first bytes have arrived.
type completes struct{ transport.Sink }

func (s *completes) Arrived(h transport.Header, n int) {
	if n < h.Size {
		n = h.Size
	}
	s.Sink.Arrived(h, n)
}

// ignoresTokens sends frames with a Token as if they had no Token.
type ignoresTokens struct {
	transport.Conn
	transport.Exposer
}

func (c ignoresTokens) Send(f *transport.Frame) {
	g := with(f, f.Done)
	g.To = transport.Token{}
	c.Conn.Send(g)
}

type keepsExposed struct {
	transport.Conn
	transport.Exposer
}

func (c keepsExposed) Expose(id uint32, buf []byte) (transport.Token, func(), error) {
	to, _, err := c.Exposer.Expose(id, buf)
	return to, func() {}, err
}

type firstPartOnly struct{ transport.Conn }

func (c firstPartOnly) Send(f *transport.Frame) {
	g := with(f, f.Done)
	if len(f.Parts) > 1 {
		g.Parts = f.Parts[:1]
	}
	c.Conn.Send(g)
}

// reportsNothing hides the report of the Conn that it wraps.
type reportsNothing struct{ transport.Conn }

func (reportsNothing) Unsent() (int, time.Time) { return 0, time.Time{} }

// keepsReport repeats the last report of a stall, even when the stall is over.
type keepsReport struct {
	transport.Conn
	bytes int
	since time.Time
}

func (c *keepsReport) Unsent() (int, time.Time) {
	if bytes, since := c.Conn.Unsent(); bytes > 0 {
		c.bytes, c.since = bytes, since
	}
	return c.bytes, c.since
}
