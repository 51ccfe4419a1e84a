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

// patience bounds the waits of these tests; none should come near it.
const patience = 20 * time.Second

// peerVar makes the test binary play a peer in a part.
const peerVar = "TUTTI_SHM_PEER"

// dirVar makes a peer share memory by the names of files there.
const dirVar = "TUTTI_SHM_DIR"

func TestMain(m *testing.M) {
	if part := os.Getenv(peerVar); part != "" {
		play(strings.Fields(part))
		return
	}
	os.Exit(m.Run())
}

// play is a peer process: it serves, tells its address on standard output, and
// plays its part on every Conn until its standard input ends.
func play(part []string) {
	t := New(Options{})
	if dir := os.Getenv(dirVar); dir != "" {
		t.ways.dirs, t.ways.pass = []string{dir}, passNothing
	}
	if part[0] == "name" {
		playNames(t, len(part) > 1)
		return
	}
	if part[0] == "full" {
		unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{})
		fmt.Println(notCome())
		return
	}
	if part[0] == "inputless" {
		playInputless()
		return
	}
	if part[0] == "share" {
		playShare(t, part[1:])
		return
	}
	addr, err := t.Serve(nil, func(c transport.Conn) {
		c.(transport.Pending).Admit()
		go parts[part[0]](c)
	})
	if err != nil {
		fmt.Println("error:", err)
		return
	}
	fmt.Println(addr)
	bufio.NewReader(os.Stdin).ReadByte()
	if len(part) > 1 && part[1] == "close" {
		t.Close()
	}
}

// parts are what a peer can do with a Conn.
var parts = map[string]func(transport.Conn){
	"echo":    func(c transport.Conn) { pin(1); echo(c) },
	"feed":    func(c transport.Conn) { pin(1); feed(c) },
	"answer":  answer,
	"flood":   func(c transport.Conn) { flood(c, nil) },
	"nothing": func(transport.Conn) {},
	"write":   writer,
}

// A peer is a process that plays a part.
type peer struct {
	*exec.Cmd
	addr string // or whatever it said first
	in   io.Closer
	end  sync.Once
}

// process starts a peer. It is killed at the test's end.
func process(tb testing.TB, part string, env ...string) *peer {
	tb.Helper()
	p := &peer{Cmd: exec.Command(os.Args[0])}
	p.Env = append(append(os.Environ(), peerVar+"="+part), env...)
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
	said, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		tb.Fatalf("the peer %q: %v", part, err)
	}
	p.addr = strings.TrimSpace(said)
	return p
}

// kill ends the peer as kill -9 does, and returns when it is gone.
func (p *peer) kill() {
	p.end.Do(func() {
		p.Process.Kill()
		p.Wait()
		p.in.Close()
	})
}

// shut ends the peer in order.
func (p *peer) shut() {
	p.end.Do(func() {
		p.in.Close()
		p.Wait()
	})
}

// reach dials a peer.
func reach(tb testing.TB, addr string) transport.Conn {
	tb.Helper()
	t := New(Options{})
	tb.Cleanup(func() { t.Close() })
	c, err := t.Dial(soon(tb), addr)
	if err != nil {
		tb.Fatal(err)
	}
	return c
}

// soon is a context that ends with the test, or with patience.
func soon(tb testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	tb.Cleanup(cancel)
	return ctx
}

// pair is two Conns of this process that are joined; the second was accepted, and
// is not admitted.
func pair(tb testing.TB) (dialled, accepted *conn) {
	tb.Helper()
	near, far := New(Options{}), New(Options{})
	tb.Cleanup(func() { near.Close(); far.Close() })
	conns := make(chan transport.Conn, 1)
	addr, err := far.Serve(nil, func(c transport.Conn) { conns <- c })
	if err != nil {
		tb.Fatal(err)
	}
	c, err := near.Dial(soon(tb), addr)
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
	case <-time.After(patience):
		tb.Fatalf("nothing came within %v", patience)
		panic("not reached")
	}
}

// A store is a Sink with room for one body.
type store struct {
	buf    []byte
	frames int
	last   int
}

func (s *store) Buffer(h transport.Header) []byte {
	if len(s.buf) < h.Size {
		s.buf = make([]byte, h.Size)
	}
	return s.buf[:h.Size]
}

func (s *store) Arrived(h transport.Header, n int) {
	if n == h.Size {
		s.frames++
		s.last = n
	}
}

// until polls c until it has received frames in all. Now and then it gives the
// core to whoever else wants it.
func until(c transport.Conn, in *store, frames int) error {
	for idle := 0; in.frames < frames; idle++ {
		state, err := c.Progress(in)
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

// echo answers each frame with one of its size.
func echo(c transport.Conn) {
	in, out := new(store), newFrame(0)
	for i := 1; until(c, in, i) == nil; i++ {
		out.Body = in.buf[:in.last]
		c.Send(out)
		for c.(*conn).outbox.blocked.Load() {
			c.Progress(in)
		}
	}
}

// feed sends frames of the size of the one that it gets first, for ever.
func feed(c transport.Conn) {
	in := new(store)
	if until(c, in, 1) != nil {
		return
	}
	var over atomic.Bool
	circle(c, &over, make([]byte, in.last), make([]byte, in.last), make([]byte, in.last), make([]byte, in.last))
	for idle := 0; !over.Load(); idle++ {
		if state, _ := c.Progress(in); state == transport.Moved {
			idle = 0
		} else if idle%1024 == 1023 {
			syscall.RawSyscall(syscall.SYS_SCHED_YIELD, 0, 0, 0)
		}
	}
}

// circle sends a frame with each body, and again when it is done, until the Conn
// fails, which it reports in over.
func circle(c transport.Conn, over *atomic.Bool, bodies ...[]byte) {
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

// sleep moves c, and waits by Arm alone, until done says so or the Conn fails.
func sleep(c transport.Conn, in transport.Sink, done func() bool) error {
	bell := make(chan struct{}, 1)
	for !done() {
		state, err := c.Progress(in)
		if err != nil {
			return err
		}
		if state == transport.Idle {
			c.Arm(func() { bell <- struct{}{} })
			<-bell
		}
	}
	return nil
}

// answer echoes each frame, asleep in between.
func answer(c transport.Conn) {
	in := new(store)
	for {
		n := in.frames
		if sleep(c, in, func() bool { return in.frames > n }) != nil {
			return
		}
		out := newFrame(0)
		out.Body = bytes.Clone(in.buf[:in.last])
		c.Send(out)
	}
}

// floodSizes are the bodies of a flood; all bytes of a body are its place here.
var floodSizes = []int{0, 1, 100, 3000, 20_000, 70_000, 1 << 20}

// flood sends and receives as fast as it goes, asleep when nothing does, until
// the Conn fails. Every body is checked.
func flood(c transport.Conn, wrong func(string)) error {
	var over atomic.Bool
	var bodies [][]byte
	for i, n := range floodSizes {
		bodies = append(bodies, bytes.Repeat([]byte{byte(i)}, n))
	}
	circle(c, &over, bodies...)
	return sleep(c, &flooded{wrong: wrong}, func() bool { return false })
}

// A flooded is the Sink of a flood.
type flooded struct {
	store
	wrong func(string)
}

func (s *flooded) Arrived(h transport.Header, n int) {
	s.store.Arrived(h, n)
	if n < h.Size || s.wrong == nil {
		return
	}
	which := slices.Index(floodSizes, n)
	if which < 0 || n > 0 && (int(s.buf[0]) != which || !bytes.Equal(s.buf[1:n], s.buf[:n-1])) {
		s.wrong(fmt.Sprintf("a body of %d bytes that begins with %x", n, s.buf[:min(n, 8)]))
	}
}
