package tcp

import (
	"errors"
	"io"
	"net"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/test/leak"
	"github.com/tutti-go/tutti/transport"
)

// A silent connection must cost little memory until its Conn is closed.
func TestPendingConnCostsLittleMemory(t *testing.T) {
	const pending = 200
	tr := New(Options{})
	defer tr.Close()
	conns := make(chan transport.Conn, pending)
	addr, err := tr.Serve(listen(t), func(c transport.Conn) { conns <- c })
	if err != nil {
		t.Fatal(err)
	}
	plain := listen(t)
	defer plain.Close()
	var dialled []net.Conn
	dial := func(addr string) net.Conn {
		nc, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		dialled = append(dialled, nc)
		return nc
	}
	dialOnly := func() { dial(plain.Addr().String()) } // the cost of the dialling end is subtracted
	open := func() {
		// The peer sends a part of a frame, so that the Conn must hold it.
		io.WriteString(dial(addr), magic+string(encode(0, "head", strings.Repeat("x", pendingBody))[:300]))
		c := receive(t, conns)
		move(t, c, dropper{}, func() bool { return c.(*raw).dec.inBody })
		c.Send(&transport.Frame{Head: make([]byte, 100), Done: func(error) {}})
	}
	cost := func(open func()) int64 {
		open() // allocations that happen once
		before := heap()
		for range pending {
			open()
		}
		return (heap() - before) / pending
	}
	per := cost(open) - cost(dialOnly)
	for _, nc := range dialled {
		nc.Close()
	}
	if per > 4<<10 {
		t.Errorf("a guest costs %d bytes, want at most 4096", per)
	}
}

// dropper drops every body.
type dropper struct{}

func (dropper) Buffer(transport.Header) []byte { return nil }
func (dropper) Arrived(transport.Header, int)  {}

// heap returns the bytes on the heap. The second collection frees what waited for a finalizer.
func heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// In the steady state, frames must not allocate.
func TestFramesAllocateNothing(t *testing.T) {
	near, far := pair(t, Options{})
	far.(transport.Pending).Admit()
	in := new(bufferSink)
	parts := [][]byte{make([]byte, 100), make([]byte, 3000), make([]byte, 5)}
	exchange := func(send func()) func() {
		return func() {
			send()
			want := in.frames + 1
			for in.frames < want {
				if _, err := far.Progress(in, 1); err != nil {
					t.Fatal(err)
				}
				near.Progress(in, 1)
			}
		}
	}
	small, large, gathered := newFrame(8), newFrame(3<<20), newFrame(0)
	gathered.Parts = parts
	var burst [3 * batchFrames]*transport.Frame
	for i := range burst {
		burst[i] = newFrame(50 * i)
	}
	for name, f := range map[string]func(){
		"small":  exchange(func() { near.Send(small) }),
		"large":  exchange(func() { near.Send(large) }),
		"gather": exchange(func() { near.Send(gathered) }),
		"burst": func() {
			for _, f := range burst {
				near.Send(f)
			}
			for want := in.frames + len(burst); in.frames < want; {
				near.Progress(in, 1)
				far.Progress(in, 1)
			}
		},
		"idle": func() { near.Progress(in, 1) },
	} {
		f() // buffers grow once
		if got := testing.AllocsPerRun(50, f); got > 0 {
			t.Errorf("%s: %v allocations, want none", name, got)
		}
	}
}

func TestWakeUpsAllocateNothing(t *testing.T) {
	near, far := pair(t, Options{})
	in, out := new(bufferSink), newFrame(8)
	woken := make(chan struct{}, 1)
	ready := func() { woken <- struct{}{} }
	turn := func(frames int) func() {
		return func() {
			want := in.frames + frames
			for range frames {
				near.Send(out)
			}
			for in.frames < want {
				far.Arm(ready) // woken by the epoll, and by the bytes in the buffer
				<-woken
				far.Progress(in, 1)
			}
		}
	}
	for _, frames := range []int{1, 3} {
		f := turn(frames)
		f()
		if got := testing.AllocsPerRun(50, f); got > 0 {
			t.Errorf("%d frames: %v allocations, want none", frames, got)
		}
	}
}

// Conns are closed at random moments, while other goroutines use the Conns, and while still other
// goroutines open descriptors that get the same numbers. No byte may be written to or read from a
// descriptor of another owner.
func TestRecycledDescriptorsAreNotTouched(t *testing.T) {
	leak.Check(t)
	a, b := New(Options{}), New(Options{})
	defer a.Close()
	defer b.Close()
	conns := make(chan transport.Conn)
	addr, err := b.Serve(listen(t), func(c transport.Conn) { conns <- c })
	if err != nil {
		t.Fatal(err)
	}
	var over atomic.Bool
	var owners sync.WaitGroup
	for range 2 {
		owners.Go(func() {
			for !over.Load() {
				ownDescriptors(t)
			}
		})
	}
	for range 400 {
		near, err := a.Dial(soon(t), addr)
		if err != nil {
			t.Fatal(err)
		}
		useConcurrently(near, receive(t, conns))
	}
	over.Store(true)
	owners.Wait()
}

// ownDescriptors opens descriptors that belong to no Conn, and checks that no Conn uses them.
func ownDescriptors(t *testing.T) {
	var pairs [8][2]int
	for i := range pairs {
		var err error
		pairs[i], err = syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_NONBLOCK|syscall.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Error(err)
			return
		}
		syscall.Write(pairs[i][0], []byte("mine"))
	}
	runtime.Gosched()
	for _, p := range pairs {
		var buf [64]byte
		if n, err := syscall.Read(p[1], buf[:]); err != nil || string(buf[:n]) != "mine" {
			t.Errorf("somebody used descriptor %d or %d: %q, %v", p[0], p[1], buf[:max(n, 0)], err)
		}
		if n, err := syscall.Read(p[0], buf[:]); err != syscall.EAGAIN {
			t.Errorf("somebody wrote to descriptor %d: %q, %v", p[1], buf[:max(n, 0)], err)
		}
		syscall.Close(p[0])
		syscall.Close(p[1])
	}
}

// useConcurrently calls all methods of both ends at once until both are closed.
func useConcurrently(ends ...transport.Conn) {
	var wg sync.WaitGroup
	for _, c := range ends {
		if g, ok := c.(transport.Pending); ok {
			g.Admit()
		}
		wg.Go(func() {
			in := new(bufferSink)
			for {
				if _, err := c.Progress(in, 1); err != nil {
					return
				}
				runtime.Gosched()
			}
		})
		wg.Go(func() {
			for range 20 {
				var failed atomic.Bool
				c.Send(&transport.Frame{Head: []byte("head"), Body: make([]byte, 3000), Done: func(err error) { failed.Store(err != nil) }})
				if failed.Load() {
					return
				}
			}
		})
		wg.Go(func() {
			for range 20 {
				c.Arm(func() {})
			}
			c.Close()
		})
	}
	wg.Wait()
}

// fill sends until the socket is full, and returns how many frames were accepted whole.
func fill(tb testing.TB, c transport.Conn) (done *atomic.Int32, sent int) {
	done = new(atomic.Int32)
	for ; sent < 1000; sent++ {
		c.Send(&transport.Frame{Body: make([]byte, 1<<20), Done: func(error) { done.Add(1) }})
		if bytes, _ := c.Unsent(); bytes > 0 {
			return done, sent + 1
		}
	}
	tb.Fatal("the socket takes any number of frames")
	return nil, 0
}

func TestUnsentReportsSinceWhenTheSocketIsFull(t *testing.T) {
	near, far := pair(t, Options{})
	far.(transport.Pending).Admit()
	c := near.(*raw)
	if bytes, since := c.Unsent(); bytes != 0 || !since.IsZero() {
		t.Fatalf("got %d bytes since %v before anything was sent", bytes, since)
	}
	start := time.Now()
	_, sent := fill(t, near)
	bytes, first := c.Unsent()
	if bytes <= 0 || bytes > sent*(1<<20+preambleLen) || first.Before(start) || first.After(time.Now()) {
		t.Fatalf("got %d bytes since %v", bytes, first)
	}
	near.Progress(dropper{}, 1) // the socket still refuses, which is no progress
	if _, since := c.Unsent(); !since.Equal(first) {
		t.Errorf("a refused write moved the time from %v to %v", first, since)
	}
	in := new(bufferSink)
	for in.frames < sent {
		if _, err := far.Progress(in, 1); err != nil {
			t.Fatal(err)
		}
		near.Progress(dropper{}, 1)
		if left, since := c.Unsent(); left > 0 && left < bytes && !since.After(first) {
			t.Fatalf("%d bytes of %d are left, but the time is still %v", left, bytes, since)
		}
	}
	if bytes, since := c.Unsent(); bytes != 0 || !since.IsZero() {
		t.Errorf("got %d bytes since %v when all were sent", bytes, since)
	}
}

// An armed Conn with a full socket must wake when there is room, also if the socket was filled
// after Arm. The Conn must not wake for room when nothing waits.
func TestRoomWakesOnlyWhoHasBytesWaiting(t *testing.T) {
	near, far := pair(t, Options{})
	far.(transport.Pending).Admit()
	woken := make(chan struct{}, 1)
	var ran atomic.Int32
	near.Arm(func() { ran.Add(1); woken <- struct{}{} })
	done, sent := fill(t, near)
	if ran.Load() != 0 {
		t.Fatal("woken although nothing can move")
	}
	in := new(bufferSink)
	for int(done.Load()) < sent {
		if _, err := far.Progress(in, 1); err != nil {
			t.Fatal(err)
		}
		select {
		case <-woken:
			near.Progress(in, 1)
			near.Arm(func() { woken <- struct{}{} })
		default:
		}
	}
	if ran.Load() == 0 {
		t.Error("no wake-up for room")
	}
}

// If the writing half fails first, the frames that the peer had sent before must be delivered.
func TestFailedWriteKeepsArrivedFrames(t *testing.T) {
	near, far := pair(t, Options{})
	for range 3 {
		far.Send(&transport.Frame{Head: []byte("last words"), Done: func(error) {}})
	}
	far.Close()
	var failure atomic.Pointer[error]
	deadline := time.Now().Add(waitTime)
	for failure.Load() == nil {
		near.Send(&transport.Frame{Body: make([]byte, 1000), Done: func(err error) {
			if err != nil {
				failure.Store(&err)
			}
		}})
		if time.Now().After(deadline) {
			t.Fatal("writing to a closed peer does not fail")
		}
	}
	in := new(bufferSink)
	err := untilError(t, near, in)
	if in.frames != 3 || string(in.head) != "last words" {
		t.Errorf("got %d frames, the last %q; want 3", in.frames, in.head)
	}
	if err != *failure.Load() || !errors.Is(err, fault.LinkLost) {
		t.Errorf("Progress returned %v, Done got %v; want one link loss", err, *failure.Load())
	}
}

// The listener of an accepted connection may close it at any moment, even while its descriptor is
// being duplicated. No descriptor may leak.
func TestAConnectionClosedWhileItsDescriptorIsDuplicatedLeaksNothing(t *testing.T) {
	leak.Check(t)
	ln := listen(t)
	near, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer near.Close()
	far, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	fd, err := duplicate(far.(*net.TCPConn))
	if err != nil {
		t.Fatal(err)
	}
	far.Close()
	if fd, err := replaceOriginal(far, fd); fd >= 0 || !errors.Is(err, net.ErrClosed) {
		t.Errorf("closed in between: got descriptor %d, %v", fd, err)
	}
	near.SetReadDeadline(time.Now().Add(5 * time.Second))
	if n, err := near.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("the peer read %d bytes, %v, want the end", n, err)
	}

	tr := New(Options{})
	defer tr.Close()
	_, err = tr.newRaw(far.(*net.TCPConn), nil, pendingConn{nc: far, accepted: true})
	if !errors.Is(err, fault.Closed) {
		t.Errorf("closed before: got %v, want fault.Closed", err)
	}
}

// Connections inside a host must avoid BBR, because its pacing only costs time there. For
// connections to other hosts, the choice of the system must stay.
func TestConnectionsInsideAHostAvoidBBR(t *testing.T) {
	ln := listen(t)
	nc, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	fd, err := ownDescriptor(nc.(*net.TCPConn))
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(fd)
	if err := unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION, "bbr"); err != nil {
		// Reason: the system has no BBR, or does not let this user choose BBR, so there is nothing
		// to avoid.
		t.Skip("BBR is not to be had:", err)
	}
	here := &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1)}
	for _, c := range []struct {
		local, remote net.Addr
		want          string
	}{
		{here, &net.TCPAddr{IP: net.IPv4(192, 0, 2, 2)}, "bbr"},
		{here, here, "reno"},
		{nc.LocalAddr(), nc.RemoteAddr(), "reno"},
	} {
		unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION, "bbr")
		avoidBBR(fd, c.local, c.remote)
		if got, err := unix.GetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION); err != nil || got != c.want {
			t.Errorf("%v to %v: %q (%v), want %q", c.local, c.remote, got, err, c.want)
		}
	}
}
