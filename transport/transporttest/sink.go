package transporttest

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/tutti-go/tutti/transport"
)

func sinkTests() []testCase {
	return []testCase{
		{"NilBufferDropsTheBody", nilBufferDrops},
		{"BytesBeyondTheBodyStayUntouched", bytesBeyondStay},
		{"ArrivedBytesAreIn", arrivedBytesAreIn},
		{"SinkMayChangeBetweenFrames", sinkMayChange},
		{"SinkMaySend", sinkMaySend},
		{"SecondProgressIsBusy", secondProgressIsBusy},
	}
}

// nilBufferDrops drops every second body. A frame whose body is dropped must still complete, and
// the next frame must arrive whole.
func nilBufferDrops(t *testing.T, mk Maker) {
	w, near, far := pair(t, mk)
	far.sink.buffer = func(h transport.Header) []byte {
		if h.Head[0] == 'd' {
			return nil
		}
		return make([]byte, h.Size)
	}
	var frames []*sentFrame
	for i, size := range []int{0, 0, 1, 1, 5000, 5000, 1 << 20, 1 << 20, 3} {
		body := pattern(size, uint64(i))
		s := near.send([]byte{"kd"[i%2], byte(i)}, body)
		if i%2 == 1 {
			s.want.body = nil
		}
		frames = append(frames, s)
	}
	w.exchange(frames, far)
}

func bytesBeyondStay(t *testing.T, mk Maker) {
	w, near, far := pair(t, mk)
	const room = 1 << 20
	buf := bytes.Repeat([]byte{0xA5}, room)
	far.sink.buffer = func(transport.Header) []byte { return buf }
	for _, size := range []int{0, 1, 63, 4097, 300_001} {
		w.exchange([]*sentFrame{near.send(nil, pattern(size, 3))}, far)
		for i, b := range buf[size:] {
			if b != 0xA5 {
				t.Fatalf("byte %d after a body of %d bytes has changed; want only the body written", i, size)
			}
		}
		for i := range size {
			buf[i] = 0xA5
		}
	}
}

// arrivedBytesAreIn checks, at each Arrived, that the reported bytes are in the buffer.
func arrivedBytesAreIn(t *testing.T, mk Maker) {
	w, near, far := pair(t, mk)
	body := pattern(5<<20+3, 4)
	buf, seen := make([]byte, len(body)), 0
	far.sink.buffer = func(transport.Header) []byte { return buf }
	far.sink.partly = func(_ transport.Header, n int) {
		if !bytes.Equal(buf[seen:n], body[seen:n]) {
			t.Errorf("Arrived reported the bytes %d to %d, which are not in the buffer", seen, n)
		}
		seen = n
	}
	w.exchange([]*sentFrame{near.send([]byte("head"), body)}, far)
}

func sinkMayChange(t *testing.T, mk Maker) {
	w, near, far := pair(t, mk)
	sinks := [2]*recorder{{w: w, name: "even"}, {w: w, name: "odd"}}
	var frames [2][]*sentFrame
	for i := range 40 {
		frames[i%2] = append(frames[i%2], near.send([]byte{byte(i)}, pattern(i*100, uint64(i))))
	}
	total := func() int { return len(sinks[0].got) + len(sinks[1].got) }
	w.until("the arrival at two Sinks in turn", func() bool {
		far.sink = sinks[total()%2]
		return total() == 40
	})
	w.compare(frames[0], sinks[0].got)
	w.compare(frames[1], sinks[1].got)
}

// sinkMaySend sends from inside Buffer and Arrived, on the same Conn and on another Conn of the
// same node. All of these frames must arrive.
func sinkMaySend(t *testing.T, mk Maker) {
	w := newCluster(t, mk, 3)
	near, far := w.link(0, 1)
	other, third := w.link(1, 2)
	var buffered, partly, onward []*sentFrame
	far.sink.buffer = func(h transport.Header) []byte {
		buffered = append(buffered, far.send([]byte("placed"), bytes.Clone(h.Head)))
		return make([]byte, h.Size)
	}
	far.sink.partly = func(h transport.Header, n int) {
		if n == h.Size {
			partly = append(partly, far.send([]byte("arrived"), pattern(n, 5)))
			onward = append(onward, other.send([]byte("onward"), pattern(n, 6)))
		}
	}
	for i := range 30 {
		near.send([]byte(fmt.Sprint(i)), pattern(i*997, uint64(i)))
	}
	w.until("the answers", func() bool { return len(near.sink.got) == 60 && len(third.sink.got) == 30 })
	var answers []*sentFrame
	for i := range buffered {
		answers = append(answers, buffered[i], partly[i])
	}
	w.compare(answers, near.sink.got)
	w.compare(onward, third.sink.got)
}

// secondProgressIsBusy calls Progress inside Progress, on the same goroutine and on another
// goroutine. Neither call may wait.
func secondProgressIsBusy(t *testing.T, mk Maker) {
	w, near, far := pair(t, mk)
	calls := 0
	again := func(where string) {
		calls++
		for _, call := range []func(string, func()){
			w.within, // this one is first because it detects a call that waits
			func(_ string, do func()) { do() },
		} {
			call("Progress inside "+where, func() {
				state, err := far.Conn.Progress(far.sink, 1)
				if state != transport.Busy || err != nil {
					t.Errorf("Progress inside %s: got %v, %v, want Busy", where, state, err)
				}
			})
		}
	}
	far.sink.buffer = func(h transport.Header) []byte { again("Buffer"); return make([]byte, h.Size) }
	far.sink.partly = func(transport.Header, int) { again("Arrived") }
	w.exchange([]*sentFrame{near.send(nil, []byte("body"))}, far)
	if calls != 2 {
		t.Errorf("the Sink was called %d times, want 2", calls)
	}
}
