package tcp

import (
	"errors"
	"fmt"
	"net"
	"syscall"
	"testing"

	"github.com/tutti-go/tutti/transport"
)

// rawSockets returns a pair of connected descriptors. They measure the lowest cost that Go can
// reach with the operating system's sockets.
func rawSockets(tb testing.TB) (a, b int) {
	l := listen(tb)
	near, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		tb.Fatal(err)
	}
	far, err := l.Accept()
	if err != nil {
		tb.Fatal(err)
	}
	return ownedDescriptor(tb, near), ownedDescriptor(tb, far)
}

func ownedDescriptor(tb testing.TB, nc net.Conn) int {
	fd, err := ownDescriptor(nc.(*net.TCPConn))
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { syscall.Close(fd) })
	setReceiveBuffer(fd, 0)
	return fd
}

var errStopped = errors.New("the other side has ended")

// A yielder yields the core now and then. A loop that only polls would measure the scheduler's time
// slices.
type yielder int

func (c *yielder) yield() {
	if *c++; *c%16 == 0 {
		syscall.RawSyscall(syscall.SYS_SCHED_YIELD, 0, 0, 0)
	}
}

func readFull(fd int, p []byte) error {
	var idle yielder
	for len(p) > 0 {
		n, errno := readVector(fd, p, nil)
		switch {
		case errno == syscall.EAGAIN:
			idle.yield()
		case errno != 0:
			return errno
		case n == 0:
			return errStopped
		}
		p = p[n:]
	}
	return nil
}

func writeFull(fd int, p []byte) error {
	var idle yielder
	var iov [2 * batchFrames]syscall.Iovec
	for len(p) > 0 {
		n, errno := writeVector(fd, [][]byte{p}, len(p), &iov)
		switch {
		case errno == syscall.EAGAIN:
			idle.yield()
		case errno != 0:
			return errno
		}
		p = p[n:]
	}
	return nil
}

// A sleeper waits by Arm. A stream must not be polled, because a polling goroutine keeps the
// runtime from polling the network, and then the stream's reader does not run.
type sleeper struct {
	doorbell chan struct{}
	ring     func()
}

func newSleeper() *sleeper {
	s := &sleeper{doorbell: make(chan struct{}, 1)}
	s.ring = func() { s.doorbell <- struct{}{} }
	return s
}

// until sleeps, and moves the Conn when it is woken, until the sink has received the given number
// of frames in all.
func (s *sleeper) until(c transport.Conn, in *bufferSink, frames int) error {
	for in.frames < frames {
		state, err := c.Progress(in, 1)
		switch {
		case err != nil:
			return err
		case state == transport.Idle:
			c.Arm(s.ring)
			<-s.doorbell
		}
	}
	return nil
}

// until polls the Conn until the sink has received the given number of frames in all.
func until(c transport.Conn, in *bufferSink, frames int) error {
	var idle yielder
	for in.frames < frames {
		state, err := c.Progress(in, 1)
		switch {
		case err != nil:
			return err
		case state == transport.Idle:
			idle.yield()
		}
	}
	return nil
}

var benchSizes = []int{8, 1 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20}

// BenchmarkTurn measures one round trip within one goroutine, which is the processor time of a
// message without waiting.
func BenchmarkTurn(b *testing.B) {
	for _, size := range []int{8, 1 << 10, 16 << 10, 64 << 10} {
		b.Run(fmt.Sprint("bare/", size), func(b *testing.B) { rawTurns(b, size) })
		b.Run(fmt.Sprint("tcp/", size), func(b *testing.B) { progressTurns(b, size) })
	}
}

func rawTurns(b *testing.B, size int) {
	near, far := rawSockets(b)
	out, in := make([]byte, size+40), make([]byte, size+40)
	for b.Loop() {
		for _, to := range []struct{ from, to int }{{near, far}, {far, near}} {
			if err := errors.Join(writeFull(to.from, out), readFull(to.to, in)); err != nil {
				b.Fatal(err)
			}
		}
	}
}

func progressTurns(b *testing.B, size int) {
	near, far := pair(b, Options{})
	far.(transport.Pending).Admit()
	out, in := newFrame(size), new(bufferSink)
	b.ReportAllocs()
	for b.Loop() {
		near.Send(out)
		err := until(far, in, in.frames+1)
		far.Send(out)
		if err := errors.Join(err, until(near, in, in.frames+1)); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkIdle measures a poll that finds nothing.
func BenchmarkIdle(b *testing.B) {
	b.Run("bare", func(b *testing.B) {
		near, _ := rawSockets(b)
		buf := make([]byte, 40)
		for b.Loop() {
			readVector(near, buf, nil)
		}
	})
	b.Run("tcp", func(b *testing.B) {
		near, _ := pair(b, Options{})
		for b.Loop() {
			near.Progress(nil, 1)
		}
	})
}

// BenchmarkPingPong measures one round trip between two goroutines that poll.
func BenchmarkPingPong(b *testing.B) {
	for _, size := range benchSizes {
		b.Run(fmt.Sprint("bare/", size), func(b *testing.B) { rawPingPong(b, size) })
		b.Run(fmt.Sprint("tcp/", size), func(b *testing.B) { pingPong(b, size) })
	}
}

func rawPingPong(b *testing.B, size int) {
	near, far := rawSockets(b)
	go func() {
		buf := make([]byte, size+40)
		for readFull(far, buf) == nil && writeFull(far, buf) == nil {
		}
	}()
	buf := make([]byte, size+40)
	b.ReportAllocs()
	for b.Loop() {
		if err := errors.Join(writeFull(near, buf), readFull(near, buf)); err != nil {
			b.Fatal(err)
		}
	}
	syscall.Shutdown(near, syscall.SHUT_RDWR)
}

func pingPong(b *testing.B, size int) {
	near, far := pair(b, Options{})
	far.(transport.Pending).Admit()
	go func() {
		in, out := new(bufferSink), newFrame(size)
		for i := 1; until(far, in, i) == nil; i++ {
			far.Send(out)
		}
	}()
	in, out := new(bufferSink), newFrame(size)
	b.ReportAllocs()
	for b.Loop() {
		near.Send(out)
		if err := until(near, in, in.frames+1); err != nil {
			b.Fatal(err)
		}
		if in.last != size {
			b.Fatalf("got %d bytes, want %d", in.last, size)
		}
	}
	near.Close()
}

// BenchmarkWake measures one round trip between two sides that sleep. The sides are armed Conns, or
// goroutines that block in package net.
func BenchmarkWake(b *testing.B) {
	b.Run("net", netWake)
	b.Run("tcp", func(b *testing.B) { wake(b, Options{}) })
	b.Run("tls", func(b *testing.B) { wake(b, Options{TLS: identity(b)}) })
}

func netWake(b *testing.B) {
	l := listen(b)
	near, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		b.Fatal(err)
	}
	defer near.Close()
	go func() {
		far, err := l.Accept()
		buf := make([]byte, 48)
		for err == nil {
			if _, err = far.Read(buf); err == nil {
				_, err = far.Write(buf)
			}
		}
	}()
	buf := make([]byte, 48)
	for b.Loop() {
		if _, err := near.Write(buf); err != nil {
			b.Fatal(err)
		}
		if _, err := near.Read(buf); err != nil {
			b.Fatal(err)
		}
	}
}

// wake lets the goroutine of the near Conn sleep on a channel, while the far Conn answers from its
// callback.
func wake(b *testing.B, o Options) {
	near, far := pair(b, o)
	answer, in := newFrame(8), new(bufferSink)
	var ready func()
	ready = func() {
		before := in.frames
		if _, err := far.Progress(in, 1); err != nil {
			return
		}
		if in.frames > before {
			far.Send(answer)
		}
		far.Arm(ready)
	}
	far.Arm(ready)
	out, back, s := newFrame(8), new(bufferSink), newSleeper()
	b.ReportAllocs()
	for b.Loop() {
		near.Send(out)
		if err := s.until(near, back, back.frames+1); err != nil {
			b.Fatal(err)
		}
	}
}

func newFrame(size int) *transport.Frame {
	return &transport.Frame{Head: make([]byte, 28), Body: make([]byte, size), Done: func(error) {}}
}

// BenchmarkBandwidth streams bodies one way, as fast as the receiver accepts them.
func BenchmarkBandwidth(b *testing.B) {
	for _, size := range []int{64, 4 << 10, 64 << 10, 1 << 20, 16 << 20} {
		b.Run(fmt.Sprint("bare/", size), func(b *testing.B) { rawBandwidth(b, size) })
		b.Run(fmt.Sprint("tcp/", size), func(b *testing.B) { bandwidth(b, size, Options{}, until) })
	}
	b.Run(fmt.Sprint("tls/", 1<<20), func(b *testing.B) {
		bandwidth(b, 1<<20, Options{TLS: identity(b)}, newSleeper().until)
	})
}

func rawBandwidth(b *testing.B, size int) {
	near, far := rawSockets(b)
	ended := make(chan error, 1)
	go func() {
		buf := make([]byte, size)
		var err error
		for err == nil {
			err = writeFull(far, buf)
		}
		ended <- err
	}()
	buf := make([]byte, size)
	b.SetBytes(int64(size))
	for b.Loop() {
		if err := readFull(near, buf); err != nil {
			b.Fatal(err)
		}
	}
	syscall.Shutdown(near, syscall.SHUT_RDWR)
	<-ended
}

// bandwidth keeps a few frames queued. The Done of each frame sends the frame again.
func bandwidth(b *testing.B, size int, o Options, until func(transport.Conn, *bufferSink, int) error) {
	near, far := pair(b, o)
	far.(transport.Pending).Admit()
	ended := make(chan error, 1)
	go func() {
		body := make([]byte, size)
		for range 4 {
			f := newFrame(0)
			f.Body = body
			f.Done = func(err error) {
				if err == nil {
					far.Send(f)
				}
			}
			far.Send(f)
		}
		wait := until
		if o.TLS != nil {
			wait = newSleeper().until
		}
		ended <- wait(far, new(bufferSink), 1)
	}()
	in := new(bufferSink)
	b.SetBytes(int64(size))
	b.ReportAllocs()
	for b.Loop() {
		if err := until(near, in, in.frames+1); err != nil {
			b.Fatal(err)
		}
	}
	near.Close()
	<-ended
}
