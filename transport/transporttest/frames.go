package transporttest

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/transport"
)

func frameTests() []testCase {
	return []testCase{
		{"BodiesOfEverySizeArriveWhole", bodiesOfEverySize},
		{"HeadsOfEveryLengthArriveWhole", headsOfEveryLength},
		{"FramesArriveInOrder", framesArriveInOrder},
		{"HeadThatIsTooLongIsMisuse", headTooLong},
		{"LargeBodiesCrossInOneGoroutine", largeBodiesCross},
		{"SendNeverWaitsForTheReceiver", sendNeverWaits},
		{"ConnsDoNotMix", connsDoNotMix},
		{"QuietConnIsIdle", quietConnIsIdle},
	}
}

// sizes returns sizes just below, at and above powers of two, where buffers and segments often end.
func sizes() []int {
	all := []int{0, 1, 2, 3, 5, 100, 1000, 100_003, 1_000_003, 3<<20 + 5}
	for _, n := range []int{8, 64, 256, 4 << 10, 16 << 10, 32 << 10, 64 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20} {
		all = append(all, n-1, n, n+1)
	}
	return all
}

func bodiesOfEverySize(t *testing.T, mk Maker) {
	w, near, far := pair(t, mk)
	for i, size := range sizes() {
		for _, headLen := range []int{0, 1, transport.MaxHead} {
			s := near.send(pattern(headLen, uint64(i)), pattern(size, uint64(i)))
			w.exchange([]*sentFrame{s}, far)
		}
	}
}

func headsOfEveryLength(t *testing.T, mk Maker) {
	w, near, far := pair(t, mk)
	var frames []*sentFrame
	for n := range transport.MaxHead + 1 {
		s := w.frame(pattern(n, uint64(n)), pattern(n%7, 1), nil)
		s.ID, s.want.id = uint32(n)<<24|uint32(n), uint32(n)<<24|uint32(n)
		near.Send(&s.Frame)
		frames = append(frames, s)
	}
	w.exchange(frames, far)
}

// framesArriveInOrder queues many frames of mixed sizes, in both directions, before any frame is
// received. All of them must arrive in order.
func framesArriveInOrder(t *testing.T, mk Maker) {
	w, near, far := pair(t, mk)
	var out, back []*sentFrame
	for i := range scaled(600) {
		size := []int{0, 1, 40, 700, 5000, 70_000}[i*7%6]
		out = append(out, near.send([]byte(fmt.Sprint("out", i)), pattern(size, uint64(i))))
		back = append(back, far.send([]byte(fmt.Sprint("back", i)), pattern(size/2, uint64(i))))
	}
	w.exchange(out, far)
	w.until("the frames back", func() bool { return len(near.sink.got) == len(back) && allDone(back) })
	w.compare(back, near.sink.got)
}

func headTooLong(t *testing.T, mk Maker) {
	w, near, far := pair(t, mk)
	bad := near.send(make([]byte, transport.MaxHead+1), []byte("body"))
	w.until("Done of a frame with too long a head", bad.done)
	if !errors.Is(bad.err, fault.Misuse) {
		t.Errorf("Done got %v, want %v", bad.err, fault.Misuse)
	}
	w.exchange([]*sentFrame{near.send([]byte("good"), []byte("body"))}, far)
}

// largeBodiesCross makes two ends, polled by one goroutine, send each other more bytes than any
// buffer holds. A Send that blocks would deadlock.
func largeBodiesCross(t *testing.T, mk Maker) {
	w, near, far := pair(t, mk)
	const size = 12<<20 + 1
	out, back := near.send([]byte("out"), pattern(size, 1)), far.send([]byte("back"), pattern(size, 2))
	w.exchange([]*sentFrame{out}, far)
	w.until("the body back", func() bool { return len(near.sink.got) == 1 && back.done() })
	w.compare([]*sentFrame{back}, near.sink.got)
}

func sendNeverWaits(t *testing.T, mk Maker) {
	w, near, far := pair(t, mk)
	body := pattern(1<<20, 9)
	var frames []*sentFrame
	w.within("Send to a peer that does not receive", func() {
		for range 48 {
			frames = append(frames, near.send(nil, body))
		}
	})
	buf := make([]byte, len(body))
	far.sink.buffer = func(transport.Header) []byte { return buf }
	far.sink.partly = func(h transport.Header, n int) {
		if n == h.Size && !bytes.Equal(buf, body) {
			t.Error("a body arrived changed")
		}
	}
	w.exchange(frames, far)
}

func connsDoNotMix(t *testing.T, mk Maker) {
	w := newCluster(t, mk, 3)
	type stream struct {
		far    *endpoint
		frames []*sentFrame
	}
	var streams []stream
	for _, l := range [][2]int{{0, 1}, {0, 1}, {0, 2}, {1, 2}, {2, 0}} {
		near, far := w.link(l[0], l[1])
		var frames []*sentFrame
		for i := range 20 {
			frames = append(frames, near.send([]byte(fmt.Sprint(l, len(streams), i)), pattern(i*1000, uint64(len(streams)))))
		}
		streams = append(streams, stream{far, frames})
	}
	w.until("the frames of all Conns", func() bool {
		for _, l := range streams {
			if len(l.far.sink.got) < len(l.frames) || !allDone(l.frames) {
				return false
			}
		}
		return true
	})
	for _, l := range streams {
		w.compare(l.frames, l.far.sink.got)
	}
}

func quietConnIsIdle(t *testing.T, mk Maker) {
	w, near, far := pair(t, mk)
	w.exchange([]*sentFrame{near.send(nil, []byte("once"))}, far)
	// Messages of the transport itself may still be moving, so Idle need not come at once.
	for _, e := range []*endpoint{near, far} {
		w.poll("an idle Progress", nil, func() bool {
			state, err := e.progress()
			if err != nil {
				t.Fatal(err)
			}
			return state == transport.Idle
		})
	}
}
