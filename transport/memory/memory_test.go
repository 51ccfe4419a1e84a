package memory

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/transport"
)

// pair returns both ends of a new link. It closes their Transports at the test's end.
func pair(t testing.TB) (near, far transport.Conn) {
	t.Helper()
	hub := New()
	a, b := hub.Transport(), hub.Transport()
	t.Cleanup(func() { a.Close(); b.Close() })
	accepted := make(chan transport.Conn, 1)
	addr, err := b.Serve(nil, func(c transport.Conn) { accepted <- c })
	if err != nil {
		t.Fatal(err)
	}
	near, err = a.Dial(context.Background(), addr)
	if err != nil {
		t.Fatal(err)
	}
	return near, <-accepted
}

// A fixedSink receives every body in the same buffer.
type fixedSink struct{ buf []byte }

func (s *fixedSink) Buffer(h transport.Header) []byte { return s.buf[:h.Size] }
func (s *fixedSink) Arrived(transport.Header, int)    {}

func TestFramesAllocateNothingInASteadyState(t *testing.T) {
	near, far := pair(t)
	sink := &fixedSink{make([]byte, 1<<20)}
	body := make([]byte, 1<<20)
	pieces := [][]byte{make([]byte, 10), nil, make([]byte, 300<<10)}
	for _, tc := range []struct {
		name string
		turn func(f *transport.Frame)
	}{
		{"small", func(f *transport.Frame) { f.Body = body[:100]; near.Send(f) }},
		{"large", func(f *transport.Frame) { f.Body = body; near.Send(f) }},
		{"in parts", func(f *transport.Frame) {
			f.Body, f.Parts = nil, pieces
			near.Send(f)
		}},
		{"exposed", func(f *transport.Frame) {
			to, release, err := far.(transport.Exposer).Expose(7, sink.buf)
			if err != nil {
				t.Fatal(err)
			}
			f.To, f.Body = to, body
			near.Send(f)
			for f.To != (transport.Token{}) {
				far.Progress(sink, 1)
			}
			release()
		}},
		{"armed", func(f *transport.Frame) {
			far.Arm(func() {})
			f.Body = nil
			near.Send(f)
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			done := false
			f := &transport.Frame{Head: make([]byte, 64)}
			f.Done = func(err error) {
				if err != nil {
					t.Error(err)
				}
				done, f.To = true, transport.Token{}
			}
			got := testing.AllocsPerRun(100, func() {
				done = false
				tc.turn(f)
				for !done {
					far.Progress(sink, 1)
				}
			})
			if got != 0 {
				t.Errorf("%v allocations per frame, want 0", got)
			}
		})
	}
}

func BenchmarkOneWay(b *testing.B) {
	for _, bc := range []struct {
		name string
		size int
	}{{"4B", 4}, {"64KiB", 64 << 10}, {"1MiB", 1 << 20}} {
		b.Run(bc.name, func(b *testing.B) {
			near, far := pair(b)
			sink := &fixedSink{make([]byte, bc.size)}
			left := b.N
			f := &transport.Frame{Head: make([]byte, 64), Body: make([]byte, bc.size)}
			f.Done = func(error) {
				if left--; left > 0 {
					near.Send(f)
				}
			}
			b.SetBytes(int64(bc.size))
			b.ReportAllocs()
			b.ResetTimer()
			near.Send(f)
			for left > 0 {
				far.Progress(sink, 1)
			}
		})
	}
}

func TestTransportNumbersAreUnique(t *testing.T) {
	hub := New()
	for _, n := range []int{1, 3} {
		if _, err := hub.Number(n); err != nil {
			t.Errorf("Number(%d): %v", n, err)
		}
	}
	for _, want := range []string{"hub/0", "hub/2", "hub/4"} {
		if got := hub.Transport().addr; got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	for n := -1; n < 5; n++ {
		if _, err := hub.Number(n); !errors.Is(err, fault.Misuse) {
			t.Errorf("Number(%d) again: got %v, want %v", n, err, fault.Misuse)
		}
	}
}

// A shortSink returns buffers that are too short.
type shortSink struct{ fixedSink }

func (shortSink) Buffer(h transport.Header) []byte { return make([]byte, h.Size-1) }

func TestShortDestinationFailsTheLink(t *testing.T) {
	near, far := pair(t)
	var done error
	near.Send(&transport.Frame{Body: []byte("body"), Done: func(err error) { done = err }})
	far.Progress(&shortSink{}, 1)
	_, err := far.Progress(&shortSink{}, 1)
	for what, err := range map[string]error{"Done": done, "Progress": err} {
		if !errors.Is(err, fault.Misuse) {
			t.Errorf("%s: got %v, want %v", what, err, fault.Misuse)
		}
	}
}

func TestShareByTheSameRankTwiceIsMisuse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := New().Transport()
		ctx, cancel := context.WithCancel(t.Context())
		first := make(chan error, 1)
		go func() {
			_, _, err := a.Share(ctx, "twice", 2, 10)
			first <- err
		}()
		synctest.Wait() // until the rank waits for the others
		if _, _, err := a.Share(ctx, "twice", 2, 10); !errors.Is(err, fault.Misuse) {
			t.Errorf("got %v, want %v", err, fault.Misuse)
		}
		cancel()
		if err := <-first; !errors.Is(err, fault.Canceled) {
			t.Errorf("the first one: got %v, want %v", err, fault.Canceled)
		}
	})
}

func TestInvalidShareIsMisuse(t *testing.T) {
	for _, tc := range [][2]int{{0, 10}, {-1, 10}, {1, -1}} {
		_, _, err := New().Transport().Share(t.Context(), "name", tc[0], tc[1])
		if !errors.Is(err, fault.Misuse) {
			t.Errorf("%d ranks, %d bytes: got %v, want %v", tc[0], tc[1], err, fault.Misuse)
		}
	}
}
