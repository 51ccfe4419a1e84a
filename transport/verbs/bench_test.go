package verbs

import (
	"fmt"
	"testing"

	"github.com/tutti-go/tutti/transport"
	"github.com/tutti-go/tutti/transport/verbs/softdevice"
)

// A fixedSink receives all bodies in one buffer.
type fixedSink struct {
	n    int
	body []byte
}

func (s *fixedSink) Buffer(h transport.Header) []byte { return s.body[:h.Size] }

func (s *fixedSink) Arrived(h transport.Header, n int) {
	if n == h.Size {
		s.n++
	}
}

// Copy implements transport.CopySink.
func (s *fixedSink) Copy(_ transport.Header, body []byte) {
	copy(s.body, body)
	s.n++
}

// A sender sends frames of one size from end 0 to end 1, by one path: in a message, through the
// ring, into a requested buffer, or into exposed memory.
type sender struct {
	*connPair
	frame   transport.Frame
	sink    fixedSink
	done    int
	exposed bool
}

func newSender(t testing.TB, f *softdevice.Fabric, size int, shown bool) *sender {
	return newSenderWith(t, f, Options{}, size, shown)
}

func newSenderWith(t testing.TB, f *softdevice.Fabric, o Options, size int, shown bool) *sender {
	l := &sender{connPair: newConnPair(t, f, o), sink: fixedSink{body: make([]byte, size)}, exposed: shown}
	l.frame = transport.Frame{Head: []byte("head"), Body: make([]byte, size), Done: func(err error) {
		if err != nil {
			t.Error(err)
		}
		l.done++
	}}
	return l
}

// transfer sends one frame and waits until it has arrived and is Done.
func (l *sender) transfer(t testing.TB) {
	release := func() {}
	if l.exposed {
		to, hide, err := l.ends[1].Expose(1, l.sink.body)
		if err != nil {
			t.Fatal(err)
		}
		l.frame.To, release = to, hide
	}
	got, done := l.sink.n+1, l.done+1
	l.ends[0].Send(&l.frame)
	for l.sink.n < got || l.done < done {
		l.ends[0].Progress(&l.sink, 1)
		if _, err := l.ends[1].Progress(&l.sink, 1); err != nil {
			t.Fatal(err)
		}
	}
	release()
}

// paths has a frame for each path.
var paths = []struct {
	name  string
	size  int
	shown bool
}{
	{"inline", 64, false}, {"message", 4096, false}, {"ring", 240 << 10, false},
	{"asked for", 1 << 20, false}, {"exposed", 1 << 20, true},
}

func TestFrameInSteadyStateAllocatesNothing(t *testing.T) {
	for _, p := range paths {
		t.Run(p.name, func(t *testing.T) {
			l := newSender(t, softdevice.NewFabric(), p.size, p.shown)
			if n := testing.AllocsPerRun(100, func() { l.transfer(t) }); n >= 1 {
				t.Errorf("%v allocations per frame", n)
			}
		})
	}
	t.Run("at once", func(t *testing.T) {
		l := newSender(t, softdevice.NewFabric(), 64, false)
		if n := testing.AllocsPerRun(100, func() { l.transferInline(t) }); n >= 1 {
			t.Errorf("%v allocations per frame", n)
		}
	})
}

// transferInline sends one frame with TrySend and waits until it has arrived.
func (l *sender) transferInline(t testing.TB) {
	got := l.sink.n + 1
	for !l.ends[0].TrySend(l.frame.Head, l.frame.Body) {
		l.ends[0].Progress(&l.sink, 1)
	}
	for l.sink.n < got {
		if _, err := l.ends[1].Progress(&l.sink, 16); err != nil {
			t.Fatal(err)
		}
	}
	l.ends[0].Progress(&l.sink, 1)
}

func BenchmarkFrame(b *testing.B) { benchFrames(b, softdevice.NewFabric()) }

func benchFrames(b *testing.B, f *softdevice.Fabric) {
	for _, p := range paths {
		b.Run(fmt.Sprintf("%s/%d", p.name, p.size), func(b *testing.B) {
			l := newSender(b, f, p.size, p.shown)
			b.SetBytes(int64(p.size))
			b.ReportAllocs()
			for b.Loop() {
				l.transfer(b)
			}
		})
	}
	b.Run("at once/64", func(b *testing.B) {
		l := newSender(b, f, 64, false)
		b.ReportAllocs()
		for b.Loop() {
			l.transferInline(b)
		}
	})
	// Four are in flight, because ib_write_bw also has several writes in flight.
	b.Run("exposed/1048576, 4 at a time", func(b *testing.B) {
		const tensors, size = 4, 1 << 20
		l := newSender(b, f, size, true)
		b.SetBytes(tensors * size)
		var out, in [tensors][]byte
		for i := range in {
			out[i], in[i] = make([]byte, size), make([]byte, size)
		}
		for b.Loop() {
			l.step(b, out[:], in[:])
		}
	})
	for _, p := range paths[1:3] {
		b.Run(fmt.Sprintf("%s/%d in a stream", p.name, p.size), func(b *testing.B) {
			l := newSender(b, f, p.size, false)
			b.SetBytes(int64(p.size))
			b.ReportAllocs()
			l.stream(b, 8)
		})
	}
}

// stream transfers b.N frames. The argument flying is the number of frames in flight.
func (l *sender) stream(b *testing.B, flying int) {
	frames := make([]transport.Frame, flying)
	sent := 0
	for i := range frames {
		f := &frames[i]
		*f = transport.Frame{Head: l.frame.Head, Body: l.frame.Body}
		f.Done = func(err error) {
			if l.done++; err != nil {
				b.Error(err)
			} else if sent < b.N {
				sent++
				l.ends[0].Send(f)
			}
		}
	}
	b.ResetTimer()
	for i := range frames {
		if sent < b.N {
			sent++
			l.ends[0].Send(&frames[i])
		}
	}
	for l.sink.n < b.N || l.done < b.N {
		l.ends[0].Progress(&l.sink, 1)
		if _, err := l.ends[1].Progress(&l.sink, 1); err != nil {
			b.Fatal(err)
		}
	}
}

// basicOptions are TensorFlow's six messages without any optimization: every body is requested
// and registered for one use, and one message is in flight at a time (two more buffers are for
// credits).
var basicOptions = Options{Depth: minDepth, Buffer: 256, Ring: -1, CacheBytes: -1, Fresh: true}

// protocols are compared with each other. Each protocol adds one optimization to the previous
// protocol.
var protocols = []struct {
	name string
	o    Options
}{
	{"six messages, one at a time", basicOptions},
	{"and several in flight", Options{Buffer: 256, Ring: -1, CacheBytes: -1, Fresh: true}},
	{"and longer message buffers", Options{Ring: -1, CacheBytes: -1, Fresh: true}},
	{"and the ring", Options{CacheBytes: -1, Fresh: true}},
	{"and registrations that stay", Options{}},
	{"and twice the messages in flight", Options{Depth: 64}},
}

func BenchmarkImprovements(b *testing.B) { benchImprovements(b, softdevice.NewFabric()) }

// benchImprovements transfers 64 bodies of 4 KiB and of 64 KiB at a time, and runs steps with
// 100 tensors of 64 KiB in the same memory.
func benchImprovements(b *testing.B, f *softdevice.Fabric) {
	for _, p := range protocols {
		for _, size := range []int{4 << 10, 64 << 10} {
			b.Run(fmt.Sprintf("%d KiB, 64 in flight/%s", size>>10, p.name), func(b *testing.B) {
				l := newSenderWith(b, f, p.o, size, false)
				b.SetBytes(int64(size))
				l.stream(b, 64)
			})
		}
		b.Run("steps of 100 tensors/"+p.name, func(b *testing.B) {
			const tensors, size = 100, 64 << 10
			l := newSenderWith(b, f, p.o, size, false)
			b.SetBytes(tensors * size)
			out, in := make([][]byte, tensors), make([][]byte, tensors)
			for i := range in {
				out[i], in[i] = make([]byte, size), make([]byte, size)
			}
			for b.Loop() {
				l.step(b, out, in)
			}
		})
	}
}

// step exposes memory of end 1 for all tensors, and writes them from end 0.
func (l *sender) step(b *testing.B, out, in [][]byte) {
	var releases []func()
	got, done := l.sink.n+len(in), l.done+len(in)
	for i := range in {
		to, release, err := l.ends[1].Expose(uint32(i), in[i])
		if err != nil {
			b.Fatal(err)
		}
		releases = append(releases, release)
		l.ends[0].Send(&transport.Frame{To: to, ID: uint32(i), Body: out[i], Done: l.frame.Done})
	}
	for l.sink.n < got || l.done < done {
		l.ends[0].Progress(&l.sink, 1)
		if _, err := l.ends[1].Progress(&l.sink, 1); err != nil {
			b.Fatal(err)
		}
	}
	for _, release := range releases {
		release()
	}
}
