package tcp

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/poll"
	"github.com/tutti-go/tutti/transport"
)

// writeAll sends frames through an outbox and returns the bytes that were written. The socket
// accepts a limited number of bytes at a time.
func writeAll(tb testing.TB, frames []*transport.Frame, most int) []byte {
	tb.Helper()
	o := &outbox{frames: batchFrames}
	var done []*transport.Frame
	write := false
	for i, f := range frames {
		f.Done = func(err error) {
			if err != nil {
				tb.Errorf("Done of frame %d: %v", i, err)
			}
			done = append(done, f)
		}
		write = o.push(f) || write
	}
	var wire []byte
	for write {
		all := bytes.Join(o.batch.parts, nil)
		if len(all) != o.batch.bytes || len(all) == 0 {
			tb.Fatalf("a batch of %d bytes that says it has %d", len(all), o.batch.bytes)
		}
		n := min(most, len(all))
		wire = append(wire, all[:n]...)
		var finished transport.Queue
		o.advance(n, n < len(all), &finished)
		finish(&finished, nil)
		write, _ = o.next(false, &finished)
	}
	for i, f := range frames {
		if i >= len(done) || done[i] != f {
			tb.Fatalf("%d of %d frames are done, or in another order", len(done), len(frames))
		}
	}
	if bytes, since := o.unsent(); bytes != 0 || !since.IsZero() || o.bytes != 0 {
		tb.Errorf("%d bytes (%d) are unsent since %v, want none", bytes, o.bytes, since)
	}
	return wire
}

// gathered returns frames, some of them in parts, and their bytes on the wire.
func gathered() (frames []*transport.Frame, want []byte) {
	for i, body := range [][]string{
		nil, {}, {"one"}, {"", "a", "", "bc"}, nil, {strings.Repeat("x", 50), "y"}, {""},
		strings.Split(strings.Repeat("many,", 3*batchFrames), ","), nil, {"end"},
	} {
		f := &transport.Frame{Head: []byte(fmt.Sprint("head", i)), ID: uint32(i), Body: []byte("whole")}
		text := "whole" + strings.Join(body, "")
		if i%3 == 0 && body != nil {
			f.Body, text = nil, strings.Join(body, "")
		}
		for _, s := range body {
			f.Parts = append(f.Parts, []byte(s))
		}
		frames = append(frames, f)
		want = append(want, encode(f.ID, string(f.Head), text)...)
	}
	return frames, want
}

func TestWritesMayEndAnywhere(t *testing.T) {
	_, want := gathered()
	for most := 1; most <= len(want); most++ {
		frames, _ := gathered()
		if got := writeAll(t, frames, most); !bytes.Equal(got, want) {
			t.Fatalf("writes of %d bytes: got %q, want %q", most, got, want)
		}
	}
}

// More bytes arrive between the writes. A preamble that is written in pieces must still hold
// exactly one of the counts. In this test all bytes of a count are equal, so that a mixture of two
// counts shows.
func TestAcknowledgementsAreWrittenWhole(t *testing.T) {
	for most := 1; most <= 2*preambleLen; most++ {
		o := &outbox{frames: batchFrames}
		const frames = 30
		for i := range frames {
			o.push(&transport.Frame{Body: make([]byte, i), Done: func(error) {}})
		}
		var stream []byte
		for i, more := uint64(0), true; more; i++ {
			o.received.Store(i % 256 * 0x0101010101010101)
			all := bytes.Join(o.batch.parts, nil)
			n := min(most, len(all))
			stream = append(stream, all[:n]...)
			var done transport.Queue
			o.advance(n, n < len(all), &done)
			more, _ = o.next(false, &done)
		}
		d, in := &decoder{limit: admittedBody}, &recordingSink{tb: t, most: frames}
		for len(stream) > 0 {
			n, whole, err := d.decode(stream, in)
			if err != nil {
				t.Fatal(err)
			}
			stream = stream[n:]
			if whole && d.ack%0x0101010101010101 != 0 {
				t.Fatalf("writes of %d bytes: frame %d acknowledges %#x, want equal bytes", most, d.seq-1, d.ack)
			}
		}
		if d.seq != frames {
			t.Errorf("writes of %d bytes: got %d frames, want %d", most, d.seq, frames)
		}
	}
}

func TestManyFramesGoInOneWrite(t *testing.T) {
	o := &outbox{frames: batchFrames}
	o.push(&transport.Frame{Body: []byte("first")}) // the writer is writing this frame
	for range batchFrames {
		o.push(&transport.Frame{Body: []byte("more")})
	}
	var done transport.Queue
	o.advance(o.batch.bytes, false, &done)
	if more, _ := o.next(false, &done); !more || o.batch.frames != batchFrames {
		t.Errorf("got a batch of %d frames, want %d", o.batch.frames, batchFrames)
	}
}

// A queue that never runs empty must not count as a stall, as long as the socket accepts bytes.
func TestUnsentReportsThatAQueueMoves(t *testing.T) {
	o := &outbox{frames: 1}
	for range 3 {
		o.push(&transport.Frame{Body: []byte("body")})
	}
	var done transport.Queue
	o.advance(1, false, &done)
	if _, since := o.unsent(); !since.IsZero() {
		t.Errorf("nothing was refused, and bytes are unsent since %v", since)
	}
	longAgo := time.Now().Add(-time.Minute)
	o.since = longAgo // the socket had refused some bytes
	o.advance(0, true, &done)
	if _, since := o.unsent(); !since.Equal(longAgo) {
		t.Errorf("nothing was taken, and the time is %v after", since.Sub(longAgo))
	}
	for _, whole := range []bool{false, true} {
		o.since = longAgo
		n := o.batch.bytes
		if !whole {
			n = 1
		}
		o.advance(n, false, &done)
		if bytes, since := o.unsent(); bytes == 0 || since.Equal(longAgo) {
			t.Errorf("whole frame %v: %d bytes are left, and the time is what it was", whole, bytes)
		}
	}
}

func TestFramesThatCannotBeSentAreMisuse(t *testing.T) {
	for name, f := range map[string]*transport.Frame{
		"head too long":       {Head: make([]byte, transport.MaxHead+1)},
		"into exposed memory": {To: transport.Token{1}},
	} {
		t.Run(name, func(t *testing.T) {
			var got error
			f.Done = func(err error) { got = err }
			o := &outbox{frames: batchFrames}
			if o.push(f) || !errors.Is(got, fault.Misuse) {
				t.Errorf("Done got %v, want %v", got, fault.Misuse)
			}
			if o.queue.First != nil {
				t.Error("the frame is queued")
			}
		})
	}
}

func TestClosedOutboxFailsWhatWaitsOnce(t *testing.T) {
	o := &outbox{frames: batchFrames}
	failed := make(map[string]int)
	frame := func(name string) *transport.Frame {
		return &transport.Frame{Body: []byte(name), Done: func(err error) {
			if !errors.Is(err, fault.Closed) {
				t.Errorf("Done of %s got %v, want %v", name, err, fault.Closed)
			}
			failed[name]++
		}}
	}
	write := o.push(frame("in the writer's hands"))
	o.push(frame("behind it"))
	var q transport.Queue
	o.close(new(poll.FirstError), errClosed(), &q)
	if !write || q.First != nil {
		t.Fatal("close took frames from the writer")
	}
	o.push(frame("after close"))
	o.advance(3, true, &q)
	more, err := o.next(false, &q)
	finish(&q, err)
	if more || fmt.Sprint(failed) != "map[after close:1 behind it:1 in the writer's hands:1]" {
		t.Errorf("got %v, more %v; want each of three frames failed once", failed, more)
	}
}
