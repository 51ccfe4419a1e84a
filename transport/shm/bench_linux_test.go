package shm

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// pinThread keeps the caller's thread on one core, so that a benchmark of two processes does
// not measure the scheduler.
func pinThread(core int) {
	runtime.LockOSThread()
	var set unix.CPUSet
	set.Set(core)
	unix.SchedSetaffinity(0, &set) // an error is ignored: the benchmark then runs unpinned
}

var benchSizes = []int{8, 1 << 10, 8 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 16 << 20}

// A bestTime is the time of the shortest of many runs of a few operations each. It shows the cost
// of the code even on a busy machine.
type bestTime struct {
	ops   int // operations in one run
	n     int
	start time.Time
	least time.Duration
}

// op records the end of one operation.
func (m *bestTime) op() {
	if m.n++; m.n%m.ops != 0 {
		return
	}
	now := time.Now()
	if elapsed := now.Sub(m.start); m.n > m.ops && (m.least == 0 || elapsed < m.least) {
		m.least = elapsed
	}
	m.start = now
}

func (m *bestTime) report(b *testing.B, bytes int) {
	elapsed := float64(m.least) / float64(m.ops)
	if elapsed > 0 {
		b.ReportMetric(elapsed, "best-ns/op")
		b.ReportMetric(float64(bytes)/elapsed, "best-GB/s")
	}
}

// opsPerRun returns how many operations of the given size make a run of about 100 µs.
func opsPerRun(size int) int { return max(4, 100_000/(200+size/10)) }

// BenchmarkPingPong measures a round trip between two processes that poll.
func BenchmarkPingPong(b *testing.B) {
	for _, size := range benchSizes {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			c := dialPeer(b, startPeer(b, "echo").addr)
			pinThread(0)
			in, out := new(bufferSink), newFrame(size)
			b.ReportAllocs()
			m := bestTime{ops: opsPerRun(size)}
			for b.Loop() {
				c.Send(out)
				if err := pollUntil(c, in, in.frames+1); err != nil {
					b.Fatal(err)
				}
				m.op()
			}
			m.report(b, 2*size)
		})
	}
}

// BenchmarkBandwidth measures a stream of bodies in one direction, between two processes that
// poll.
func BenchmarkBandwidth(b *testing.B) {
	for _, size := range benchSizes {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			c := dialPeer(b, startPeer(b, "feed").addr)
			pinThread(0)
			in := new(bufferSink)
			c.Send(newFrame(size))
			pollUntil(c, in, 8)
			// The number of operations is many times the number that a full ring holds.
			m := bestTime{ops: max(opsPerRun(size), min(4096, 16<<20/size))}
			for b.Loop() {
				if err := pollUntil(c, in, in.frames+1); err != nil {
					b.Fatal(err)
				}
				m.op()
			}
			m.report(b, size)
		})
	}
}

// BenchmarkIdle measures a poll that finds nothing.
func BenchmarkIdle(b *testing.B) {
	c := dialPeer(b, startPeer(b, "nothing").addr)
	for b.Loop() {
		c.Progress(nil, 1)
	}
}

// BenchmarkWake measures a round trip between two processes, of which one or both sleep.
func BenchmarkWake(b *testing.B) {
	c := dialPeer(b, startPeer(b, "answer").addr)
	for _, who := range []string{"one", "both"} {
		b.Run(who, func(b *testing.B) {
			in, out := new(bufferSink), newFrame(8)
			b.ReportAllocs()
			for b.Loop() {
				c.Send(out)
				n := in.frames
				var err error
				if who == "one" {
					err = pollUntil(c, in, n+1)
				} else {
					err = sleepUntil(c, in, func() bool { return in.frames > n })
				}
				if err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
