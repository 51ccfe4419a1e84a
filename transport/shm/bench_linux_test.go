package shm

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tutti-go/tutti/transport"
)

// peerVar makes the test binary play a peer: "kind address".
const peerVar = "TUTTI_SHM_PEER"

func TestMain(m *testing.M) {
	if role := os.Getenv(peerVar); role != "" {
		play(role)
		return
	}
	os.Exit(m.Run())
}

// play is a peer process: it serves, tells its address on standard output, and
// answers on every Conn until its standard input ends.
func play(role string) {
	t := New(Options{})
	conns := make(chan transport.Conn, 16)
	addr, err := t.Serve(nil, func(c transport.Conn) { conns <- c })
	if err != nil {
		fmt.Println("error:", err)
		return
	}
	fmt.Println(addr)
	go func() {
		bufio.NewReader(os.Stdin).ReadByte()
		os.Exit(0)
	}()
	for c := range conns {
		c.(transport.Guest).Admit()
		switch role {
		case "echo":
			pin(1)
			echo(c)
		case "feed":
			pin(1)
			feed(c)
		case "sleep":
			select {}
		}
	}
}

// process starts a peer in a process of its own, and returns its address.
func process(tb testing.TB, role string) (addr string, cmd *exec.Cmd) {
	tb.Helper()
	cmd = exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), peerVar+"="+role)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		tb.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		tb.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		in.Close()
		cmd.Process.Kill()
		cmd.Wait()
	})
	addr, err = bufio.NewReader(out).ReadString('\n')
	if err != nil {
		tb.Fatal(err)
	}
	return strings.TrimSpace(addr), cmd
}

// reach dials a peer.
func reach(tb testing.TB, addr string) transport.Conn {
	tb.Helper()
	t := New(Options{})
	tb.Cleanup(func() { t.Close() })
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	c, err := t.Dial(ctx, addr)
	if err != nil {
		tb.Fatal(err)
	}
	return c
}

// A store is a Sink with room for one body.
type store struct {
	buf    []byte
	frames int
	last   int
}

func (s *store) Place(h transport.Header) []byte {
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
		for c.(*conn).out.stuck.Load() {
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
	body := make([]byte, in.last)
	over := false
	for range 4 {
		f := newFrame(0)
		f.Body = body
		f.Done = func(err error) {
			if err != nil {
				over = true
				return
			}
			c.Send(f)
		}
		c.Send(f)
	}
	for idle := 0; !over; idle++ {
		if state, _ := c.Progress(in); state == transport.Moved {
			idle = 0
		} else if idle%1024 == 1023 {
			syscall.RawSyscall(syscall.SYS_SCHED_YIELD, 0, 0, 0)
		}
	}
}

// pin keeps the caller's thread on one core, so that two processes measure what
// passes between two, and not the scheduler.
func pin(core int) {
	runtime.LockOSThread()
	var set unix.CPUSet
	set.Set(core)
	unix.SchedSetaffinity(0, &set) // where it is forbidden we measure what there is
}

var benchSizes = []int{8, 1 << 10, 8 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 16 << 20}

// A best is the shortest of many runs of a few operations each: what the code
// costs on a machine that others use as well.
type best struct {
	ops   int // in a run
	n     int
	start time.Time
	least time.Duration
}

// op counts an operation that has just ended.
func (m *best) op() {
	if m.n++; m.n%m.ops != 0 {
		return
	}
	now := time.Now()
	if took := now.Sub(m.start); m.n > m.ops && (m.least == 0 || took < m.least) {
		m.least = took
	}
	m.start = now
}

func (m *best) report(b *testing.B, bytes int) {
	took := float64(m.least) / float64(m.ops)
	if took > 0 {
		b.ReportMetric(took, "best-ns/op")
		b.ReportMetric(float64(bytes)/took, "best-GB/s")
	}
}

// runOf is how many operations of that size make a run of about 100 µs.
func runOf(size int) int { return max(4, 100_000/(200+size/10)) }

// BenchmarkPingPong is one round trip between two processes that poll.
func BenchmarkPingPong(b *testing.B) {
	for _, size := range benchSizes {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			addr, _ := process(b, "echo")
			c := reach(b, addr)
			pin(0)
			in, out := new(store), newFrame(size)
			b.ReportAllocs()
			m := best{ops: runOf(size)}
			for b.Loop() {
				c.Send(out)
				if err := until(c, in, in.frames+1); err != nil {
					b.Fatal(err)
				}
				m.op()
			}
			m.report(b, 2*size)
		})
	}
}

// BenchmarkBandwidth is a stream of bodies one way, between two processes that
// poll.
func BenchmarkBandwidth(b *testing.B) {
	for _, size := range benchSizes {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			addr, _ := process(b, "feed")
			c := reach(b, addr)
			pin(0)
			in := new(store)
			c.Send(newFrame(size))
			until(c, in, 8)
			m := best{ops: runOf(size)}
			for b.Loop() {
				if err := until(c, in, in.frames+1); err != nil {
					b.Fatal(err)
				}
				m.op()
			}
			m.report(b, size)
		})
	}
}

// BenchmarkIdle is a poll that finds nothing.
func BenchmarkIdle(b *testing.B) {
	addr, _ := process(b, "sleep")
	c := reach(b, addr)
	for b.Loop() {
		c.Progress(nil)
	}
}
