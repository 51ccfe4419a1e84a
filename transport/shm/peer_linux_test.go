package shm

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tutti-go/tutti/transport"
)

// testTimeout bounds the waits of these tests. A passing test waits far less.
const testTimeout = 20 * time.Second

// peerVar names the environment variable that makes the test binary run as a peer in a role.
const peerVar = "TUTTI_SHM_PEER"

func TestMain(m *testing.M) {
	if role := os.Getenv(peerVar); role != "" {
		runPeer(strings.Fields(role))
		return
	}
	os.Exit(m.Run())
}

// runPeer runs this process as a peer. The parameter role holds the role's name and arguments. A
// peer with a role of the map roles serves, prints its address, and runs the role's function on
// every Conn, until its standard input has a byte or ends. The other roles serve nothing.
func runPeer(role []string) {
	if role[0] == "forbidden" {
		runForbidden(role[1])
		return
	}
	t := New(Options{})
	if role[0] == "full" {
		unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{})
		fmt.Println(noDescriptor())
		return
	}
	if role[0] == "inputless" {
		runWithoutStdin()
		return
	}
	if role[0] == "share" {
		runSharePeer(t, role[1:])
		return
	}
	addr, err := t.Serve(nil, func(c transport.Conn) {
		c.(transport.Pending).Admit()
		go roles[role[0]](c)
	})
	if err != nil {
		fmt.Println("error:", err)
		return
	}
	fmt.Println(addr)
	bufio.NewReader(os.Stdin).ReadByte()
	if len(role) > 1 && role[1] == "close" {
		t.Close()
	}
}

// roles maps the name of a role to the function that the peer calls for each Conn.
var roles = map[string]func(transport.Conn){
	"echo":    func(c transport.Conn) { pinThread(1); echo(c) },
	"feed":    func(c transport.Conn) { pinThread(1); feed(c) },
	"answer":  echoAsleep,
	"flood":   func(c transport.Conn) { flood(c, nil) },
	"nothing": func(transport.Conn) {},
	"write":   writeExposed,
}

// A peerProcess is a process that runs a role.
type peerProcess struct {
	*exec.Cmd
	addr string // the first line that the peer has printed, usually its address
	in   io.Closer
	end  sync.Once
}

// startPeer starts a peer. It is killed at the test's end.
func startPeer(tb testing.TB, role string, env ...string) *peerProcess {
	tb.Helper()
	p := &peerProcess{Cmd: exec.Command(os.Args[0])}
	p.Env = append(append(os.Environ(), peerVar+"="+role), env...)
	p.Stderr = os.Stderr
	in, err := p.StdinPipe()
	if err != nil {
		tb.Fatal(err)
	}
	p.in = in
	out, err := p.StdoutPipe()
	if err != nil {
		tb.Fatal(err)
	}
	if err := p.Start(); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(p.kill)
	output, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		tb.Fatalf("the peer %q: %v", role, err)
	}
	p.addr = strings.TrimSpace(output)
	return p
}

// kill ends the peer like kill -9, and returns when the peer is gone.
func (p *peerProcess) kill() {
	p.end.Do(func() {
		p.Process.Kill()
		p.Wait()
		p.in.Close()
	})
}

// shut makes the peer exit normally.
func (p *peerProcess) shut() {
	p.end.Do(func() {
		p.in.Close()
		p.Wait()
	})
}

// dialPeer dials a peer.
func dialPeer(tb testing.TB, addr string) transport.Conn {
	tb.Helper()
	t := New(Options{})
	tb.Cleanup(func() { t.Close() })
	c, err := t.Dial(testContext(tb), addr)
	if err != nil {
		tb.Fatal(err)
	}
	return c
}

// testContext returns a context that ends with the test, or after testTimeout.
func testContext(tb testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	tb.Cleanup(cancel)
	return ctx
}

// pair returns both ends of a Conn within this process. The accepted end is not admitted yet.
func pair(tb testing.TB) (dialled, accepted *conn) {
	tb.Helper()
	near, far := New(Options{}), New(Options{})
	tb.Cleanup(func() { near.Close(); far.Close() })
	conns := make(chan transport.Conn, 1)
	addr, err := far.Serve(nil, func(c transport.Conn) { conns <- c })
	if err != nil {
		tb.Fatal(err)
	}
	c, err := near.Dial(testContext(tb), addr)
	if err != nil {
		tb.Fatal(err)
	}
	return c.(*conn), receive(tb, conns).(*conn)
}

// receive waits for a value.
func receive[T any](tb testing.TB, from <-chan T) T {
	tb.Helper()
	select {
	case v := <-from:
		return v
	case <-time.After(testTimeout):
		tb.Fatalf("nothing came within %v", testTimeout)
		panic("not reached")
	}
}

// A bufferSink is a Sink with room for one body.
type bufferSink struct {
	buf    []byte
	frames int
	last   int
}

func (s *bufferSink) Buffer(h transport.Header) []byte {
	if len(s.buf) < h.Size {
		s.buf = make([]byte, h.Size)
	}
	return s.buf[:h.Size]
}

func (s *bufferSink) Arrived(h transport.Header, n int) {
	if n == h.Size {
		s.frames++
		s.last = n
	}
}

// pollUntil polls c until the sink has received the given number of frames in total. It sometimes
// yields the core.
func pollUntil(c transport.Conn, in *bufferSink, frames int) error {
	for idle := 0; in.frames < frames; idle++ {
		state, err := c.Progress(in, 1)
		switch {
		case err != nil:
			return err
		case state == transport.Moved:
			idle = 0
		case idle%1024 == 1023:
			runtime.Gosched()
			syscall.RawSyscall(syscall.SYS_SCHED_YIELD, 0, 0, 0)
		}
	}
	return nil
}

func newFrame(size int) *transport.Frame {
	return &transport.Frame{Head: make([]byte, 28), Body: make([]byte, size), Done: func(error) {}}
}

// echo answers each frame with a frame of the same size.
func echo(c transport.Conn) {
	in, out := new(bufferSink), newFrame(0)
	for i := 1; pollUntil(c, in, i) == nil; i++ {
		out.Body = in.buf[:in.last]
		c.Send(out)
		for c.(*conn).outbox.blocked.Load() {
			c.Progress(in, 1)
		}
	}
}

// feed waits for a first frame, and then sends frames of the same size until the Conn fails.
func feed(c transport.Conn) {
	in := new(bufferSink)
	if pollUntil(c, in, 1) != nil {
		return
	}
	var over atomic.Bool
	resendAll(c, &over, make([]byte, in.last), make([]byte, in.last), make([]byte, in.last), make([]byte, in.last))
	for idle := 0; !over.Load(); idle++ {
		if state, _ := c.Progress(in, 1); state == transport.Moved {
			idle = 0
		} else if idle%1024 == 1023 {
			syscall.RawSyscall(syscall.SYS_SCHED_YIELD, 0, 0, 0)
		}
	}
}

// resendAll sends one frame for each body. It sends each frame again when the frame is done, until
// the Conn fails. It then stores true in over.
func resendAll(c transport.Conn, over *atomic.Bool, bodies ...[]byte) {
	for _, body := range bodies {
		f := newFrame(0)
		f.Body = body
		f.Done = func(err error) {
			if err != nil {
				over.Store(true)
				return
			}
			c.Send(f)
		}
		c.Send(f)
	}
}

// sleepUntil polls c, and waits by Arm, until done returns true or the Conn fails.
func sleepUntil(c transport.Conn, in transport.Sink, done func() bool) error {
	woken := make(chan struct{}, 1)
	for !done() {
		state, err := c.Progress(in, 1)
		if err != nil {
			return err
		}
		if state == transport.Idle {
			c.Arm(func() { woken <- struct{}{} })
			<-woken
		}
	}
	return nil
}

// echoAsleep echoes each frame, and sleeps in between.
func echoAsleep(c transport.Conn) {
	in := new(bufferSink)
	for {
		n := in.frames
		if sleepUntil(c, in, func() bool { return in.frames > n }) != nil {
			return
		}
		out := newFrame(0)
		out.Body = bytes.Clone(in.buf[:in.last])
		c.Send(out)
	}
}

// floodSizes are the sizes of the bodies of a flood. Each byte of a body is the index of the body's
// size in this list.
var floodSizes = []int{0, 1, 100, 3000, 20_000, 70_000, 1 << 20}

// flood sends and receives as fast as possible, and sleeps when nothing moves, until the Conn
// fails. It checks every body.
func flood(c transport.Conn, wrong func(string)) error {
	var over atomic.Bool
	var bodies [][]byte
	for i, n := range floodSizes {
		bodies = append(bodies, bytes.Repeat([]byte{byte(i)}, n))
	}
	resendAll(c, &over, bodies...)
	return sleepUntil(c, &floodSink{wrong: wrong}, func() bool { return false })
}

// A floodSink is the Sink of a flood.
type floodSink struct {
	bufferSink
	wrong func(string)
}

func (s *floodSink) Arrived(h transport.Header, n int) {
	s.bufferSink.Arrived(h, n)
	if n < h.Size || s.wrong == nil {
		return
	}
	which := slices.Index(floodSizes, n)
	if which < 0 || n > 0 && (int(s.buf[0]) != which || !bytes.Equal(s.buf[1:n], s.buf[:n-1])) {
		s.wrong(fmt.Sprintf("a body of %d bytes that begins with %x", n, s.buf[:min(n, 8)]))
	}
}
