package grpc

import (
	"context"
	"fmt"
	"io"
	"math"
	"slices"
	"testing"
	"time"

	rpc "google.golang.org/grpc"
	"google.golang.org/grpc/mem"

	"github.com/tutti-go/tutti/transport"
)

// benchSizes are the bodies' sizes.
var benchSizes = []int{1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20}

// A subject is one way to move bytes between two goroutines over loopback.
type subject interface {
	// oneWay moves n bodies of the given size, and returns when the last body has arrived.
	oneWay(n, size int)
	// echo moves n bodies there and back, one at a time.
	echo(n, size int)
}

// BenchmarkBare moves the same bytes alternately over a Conn and over a bare gRPC stream. The
// stream has the same codec and settings. It reports the speed of the Conn divided by the speed of
// the bare stream as "of-bare". A value of 1 means equal speed. A larger value means that the Conn
// is faster.
//
//	go test -run '^$' -bench Bare -benchtime 1x ./transport/grpc
func BenchmarkBare(b *testing.B) {
	conn, bare := newConnSubject(b), newBareSubject(b)
	for _, way := range []string{"OneWay", "Echo"} {
		for _, size := range benchSizes {
			b.Run(fmt.Sprintf("%s/%d", way, size), func(b *testing.B) {
				run := subject.oneWay
				if way == "Echo" {
					run = subject.echo
				}
				compare(b, func(s subject, n int) { run(s, n, size) }, roundBytes/size, conn, bare)
			})
		}
	}
}

// A benchmark runs a fixed number of rounds with a fixed number of bytes for each subject. It
// ignores b.N.
const (
	rounds     = 51
	roundBytes = 8 << 20
)

// compare runs both subjects in short alternating rounds of n bodies each, and compares the
// medians. Other load on the machine then affects both subjects equally.
func compare(b *testing.B, run func(s subject, n int), n int, conn, bare subject) {
	n = min(n, 500)
	var times [2][]float64
	for i := range rounds + 1 {
		for k, s := range []subject{conn, bare} {
			start := time.Now()
			run(s, n)
			if i > 0 { // the first round warms up
				times[k] = append(times[k], float64(time.Since(start).Nanoseconds())/float64(n))
			}
		}
	}
	slices.Sort(times[0])
	slices.Sort(times[1])
	mine, theirs := times[0][rounds/2], times[1][rounds/2]
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(mine/1e3, "conn-µs")
	b.ReportMetric(theirs/1e3, "bare-µs")
	b.ReportMetric(theirs/mine, "of-bare")
}

// A connSubject moves bytes over a Conn of this package.
type connSubject struct {
	tb        testing.TB
	near, far *waiter
}

func newConnSubject(tb testing.TB) *connSubject {
	near, far := connect(tb, Options{})
	return &connSubject{tb: tb, near: newWaiter(tb, near), far: newWaiter(tb, far)}
}

// window is the number of frames that a sender keeps queued.
const window = 16

func (s *connSubject) oneWay(n, size int) {
	body := make([]byte, size)
	slots := make(chan *transport.Frame, window)
	for range window {
		f := &transport.Frame{Head: []byte("head"), Body: body}
		f.Done = func(error) { slots <- f }
		slots <- f
	}
	go func() {
		for range n {
			s.near.Send(<-slots)
		}
	}()
	s.far.buf = grow(s.far.buf, size)
	for range n {
		s.far.next()
	}
	for range window {
		<-slots
	}
}

func (s *connSubject) echo(n, size int) {
	s.near.buf, s.far.buf = grow(s.near.buf, size), grow(s.far.buf, size)
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.far.echo(n, size)
	}()
	ended := make(chan error, 1)
	f := &transport.Frame{Head: []byte("head"), Body: make([]byte, size), Done: func(err error) { ended <- err }}
	for range n {
		s.near.Send(f)
		s.near.next()
		<-ended
	}
	<-done
}

// A waiter is a Conn whose owner sleeps until a frame arrives.
type waiter struct {
	transport.Conn
	tb    testing.TB
	buf   []byte
	whole bool
	woken chan struct{}
	ready func()
}

func newWaiter(tb testing.TB, c transport.Conn) *waiter {
	w := &waiter{Conn: c, tb: tb, woken: make(chan struct{}, 1)}
	w.ready = func() { w.woken <- struct{}{} }
	return w
}

func (w *waiter) Buffer(h transport.Header) []byte  { return w.buf[:h.Size] }
func (w *waiter) Arrived(h transport.Header, n int) { w.whole = n == h.Size }

// next returns when one more frame has arrived.
func (w *waiter) next() {
	for w.whole = false; !w.whole; {
		state, err := w.Progress(w, 1)
		if err != nil {
			w.tb.Errorf("Progress: %v", err)
			return
		}
		if state == transport.Idle {
			w.Arm(w.ready)
			<-w.woken
		}
	}
}

func (w *waiter) echo(n, size int) {
	ended := make(chan error, 1)
	f := &transport.Frame{Head: []byte("head"), Body: make([]byte, size), Done: func(err error) { ended <- err }}
	for i := range n {
		w.next()
		if i > 0 {
			<-ended
		}
		w.Send(f)
	}
	<-ended
}

// A bareSubject moves bytes over gRPC alone. Each body is one message. The receiver copies it once
// into one contiguous buffer, as an application must.
type bareSubject struct {
	tb        testing.TB
	near, far stream
}

func newBareSubject(tb testing.TB) *bareSubject {
	streams := make(chan rpc.ServerStream)
	desc := streamDesc(func(_ any, s rpc.ServerStream) error {
		streams <- s
		<-s.Context().Done()
		return nil
	})
	tune := tuning{}.orDefault()
	server := rpc.NewServer(append(tune.serverOptions(nil), rpc.MaxRecvMsgSize(math.MaxInt32))...)
	server.RegisterService(&rpc.ServiceDesc{ServiceName: serviceName, Streams: []rpc.StreamDesc{desc}}, nil)
	l := listen(tb)
	go server.Serve(l)
	tb.Cleanup(server.Stop)
	raw, err := (&Transport{}).connect(context.Background(), l.Addr().String())
	if err != nil {
		tb.Fatal(err)
	}
	options := append(tune.dialOptions("bare", raw, nil),
		rpc.WithDefaultCallOptions(rpc.MaxCallRecvMsgSize(math.MaxInt32)))
	cc, err := rpc.NewClient("passthrough:///bare", options...)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { cc.Close() })
	near, err := cc.NewStream(context.Background(), &desc, methodName)
	if err != nil {
		tb.Fatal(err)
	}
	return &bareSubject{tb: tb, near: near, far: <-streams}
}

func (s *bareSubject) oneWay(n, size int) {
	go s.send(s.near, n, make([]byte, size))
	buf := make([]byte, size)
	for range n {
		s.recv(s.far, buf)
	}
}

func (s *bareSubject) echo(n, size int) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf, body := make([]byte, size), make([]byte, size)
		for range n {
			s.recv(s.far, buf)
			s.send(s.far, 1, body)
		}
	}()
	buf, body := make([]byte, size), make([]byte, size)
	for range n {
		s.send(s.near, 1, body)
		s.recv(s.near, buf)
	}
	<-done
}

func (s *bareSubject) send(to stream, n int, body []byte) {
	for range n {
		if err := to.SendMsg(&message{bufs: mem.BufferSlice{mem.SliceBuffer(body)}}); err != nil {
			s.tb.Errorf("SendMsg: %v", err)
		}
	}
}

func (s *bareSubject) recv(from stream, buf []byte) {
	var m incoming
	if err := from.RecvMsg(&m); err != nil && err != io.EOF {
		s.tb.Errorf("RecvMsg: %v", err)
	}
	m.bufs.CopyTo(buf)
	m.bufs.Free()
}

// grow returns a buffer of at least n bytes.
func grow(b []byte, n int) []byte {
	if len(b) < n {
		return make([]byte, n)
	}
	return b
}

// connect opens a Conn between two Transports and admits it.
func connect(tb testing.TB, opts Options) (near, far transport.Conn) {
	tb.Helper()
	a, b := New(opts), New(opts)
	tb.Cleanup(func() { a.Close(); b.Close() })
	accepted := make(chan transport.Conn, 1)
	addr, err := b.Serve(listen(tb), func(c transport.Conn) { accepted <- c })
	if err != nil {
		tb.Fatal(err)
	}
	near, err = a.Dial(context.Background(), addr)
	if err != nil {
		tb.Fatal(err)
	}
	far = <-accepted
	far.(transport.Pending).Admit()
	return near, far
}
