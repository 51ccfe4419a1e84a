package transporttest

import (
	"encoding/binary"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/tutti-go/tutti/transport"
)

func doneTests() []testCase {
	return []testCase{
		{"FrameMayBeUsedAgainAfterDone", frameUsedAgain},
		{"DoneMaySendItsFrameAgain", doneSendsAgain},
		{"DoneMaySendOnAnyConn", doneSendsElsewhere},
		{"SendingLeavesTheFrameUnchanged", sendingKeepsFrame},
	}
}

// frameUsedAgain overwrites the head and the body of a frame as soon as its Done has run. Frames
// that have arrived, or are in flight, must not change.
func frameUsedAgain(t *testing.T, mk Maker) {
	w, near, far := pair(t, mk)
	for _, size := range []int{8, 3000, 200_000, 1 << 20} {
		head, body := make([]byte, 16), make([]byte, size)
		for round := range uint64(12) {
			fresh := pattern(size, round)
			copy(body, fresh)
			binary.LittleEndian.PutUint64(head, round)
			wantHead := append([]byte(nil), head...)
			before := len(far.sink.got)
			s := w.frame(head, body, func(error) { clear(head); clear(body) })
			s.want = arrival{head: wantHead, body: fresh}
			near.Send(&s.Frame)
			w.until("Done", func() bool { return s.done() && len(far.sink.got) > before })
			w.compare([]*sentFrame{s}, far.sink.got[before:])
		}
	}
}

// doneSendsAgain keeps two frames in flight. The Done of each frame sends the same frame again,
// like a pipeline of segments. Every round must arrive.
func doneSendsAgain(t *testing.T, mk Maker) {
	w, near, far := pair(t, mk)
	rounds := scaled(300)
	type resender struct {
		s    *sentFrame
		left atomic.Int64
	}
	body := pattern(9000, 1)
	resenders := make([]*resender, 2)
	for i := range resenders {
		l := new(resender)
		l.left.Store(int64(rounds))
		l.s = w.frame([]byte{byte(i)}, body, nil)
		l.s.Done = func(err error) {
			if err != nil {
				w.errorf("Done: %v", err)
				return
			}
			if l.left.Add(-1) > 0 {
				near.Send(&l.s.Frame)
			}
		}
		resenders[i] = l
		near.Send(&l.s.Frame)
	}
	// The last Done of each frame may run after the frame has arrived.
	w.until("all rounds", func() bool {
		return len(far.sink.got) == rounds*len(resenders) && resenders[0].left.Load()+resenders[1].left.Load() == 0
	})
	var heads [2]int
	for _, got := range far.sink.got {
		if err := (arrival{head: got.head, body: body}).differs(got); err != nil {
			t.Fatal(err)
		}
		heads[got.head[0]]++
	}
	if heads != [2]int{rounds, rounds} {
		t.Errorf("the two frames arrived %v times, want %d each", heads, rounds)
	}
}

// doneSendsElsewhere sends from Done on the same Conn, on its peer and on a third Conn. This must
// not deadlock, because a Conn holds no lock while Done runs. Goroutines poll, so that the test
// notices a deadlock.
func doneSendsElsewhere(t *testing.T, mk Maker) {
	w := newCluster(t, mk, 3)
	near, far := w.link(0, 1)
	other, third := w.link(0, 2)
	var same, back, onward *sentFrame
	first := w.frame([]byte("first"), pattern(100_000, 1), func(error) {
		same = near.send([]byte("same"), nil)
		back = far.send([]byte("back"), nil)
		onward = other.send([]byte("onward"), nil)
	})
	var left sync.WaitGroup
	left.Add(4)
	var stops []func()
	for _, e := range w.ends {
		e.sink.partly = func(h transport.Header, n int) {
			if n == h.Size {
				left.Done()
			}
		}
		stops = append(stops, e.keepPolling())
	}
	near.Send(&first.Frame)
	w.within("the arrival of what Done sent", left.Wait)
	for _, stop := range stops {
		stop()
	}
	w.compare([]*sentFrame{first, same}, far.sink.got)
	w.compare([]*sentFrame{back}, near.sink.got)
	w.compare([]*sentFrame{onward}, third.sink.got)
}

func sendingKeepsFrame(t *testing.T, mk Maker) {
	w, near, far := pair(t, mk)
	head, body := pattern(60, 1), pattern(500_000, 2)
	s := near.send(pattern(60, 1), pattern(500_000, 2))
	w.exchange([]*sentFrame{s}, far)
	if err := (arrival{head: head, body: body}).differs(arrival{head: s.Head, body: s.Body, id: s.ID}); err != nil {
		t.Errorf("Send changed the frame: %v", err)
	}
}
