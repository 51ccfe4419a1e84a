package transporttest

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/transport"
)

func closeTests() []testCase {
	return []testCase{
		{"CloseFailsWhatIsQueued", closeFailsQueued},
		{"ClosedConnStaysClosed", closedStaysClosed},
		{"PeersCloseIsAFailure", peersCloseFails},
		{"FirstErrorIsFinal", firstErrorIsFinal},
		{"DoneFramesOutliveClose", doneFramesOutliveClose},
		{"WholeFramesComeBeforeTheError", wholeFramesBeforeError},
		{"BodyCutShortNeverCompletes", cutBodyNeverCompletes},
		{"CloseFromTheSink", closeFromSink},
		{"CloseFromDone", closeFromDone},
		{"CloseBesideEverything", closeBesideEverything},
		{"MemoryIsFreeAfterTheError", memoryFreeAfterError},
	}
}

// isClosed checks that err is of kind fault.Closed.
func (w *cluster) isClosed(what string, err error) {
	w.tb.Helper()
	if !errors.Is(err, fault.Closed) {
		w.tb.Errorf("%s: got %v, want %v", what, err, fault.Closed)
	}
}

// closeFailsQueued closes a Conn with more queued bytes than any buffer holds, so that some frames
// must fail. Frames sent before the first failed frame may have succeeded. All later frames must
// fail.
func closeFailsQueued(t *testing.T, mk Maker) {
	w, near, _ := pair(t, mk)
	body := make([]byte, 1<<20)
	var frames []*sentFrame
	for range 64 {
		frames = append(frames, near.send(nil, body))
	}
	near.Close()
	w.poll("Done of all frames", nil, func() bool { return allDone(frames) })
	failed := false
	for i, s := range frames {
		if s.err == nil && failed {
			t.Errorf("frame %d is done without an error, after a frame that failed", i)
		}
		if s.err != nil {
			failed = true
			w.isClosed(fmt.Sprint("frame ", i), s.err)
		}
	}
	if !failed {
		t.Error("64 MiB are done that nobody received")
	}
}

func closedStaysClosed(t *testing.T, mk Maker) {
	w, near, far := pair(t, mk)
	w.exchange([]*sentFrame{near.send(nil, []byte("x"))}, far)
	for range 2 {
		if err := near.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	}
	for range 3 {
		_, err := near.progress()
		w.isClosed("Progress", err)
		s := near.send(nil, []byte("late"))
		w.poll("Done on a closed Conn", nil, s.done)
		w.isClosed("Done", s.err)
	}
}

func peersCloseFails(t *testing.T, mk Maker) {
	for _, closer := range []string{"the dialling end", "the accepting end"} {
		t.Run("by "+closer, func(t *testing.T) {
			w, gone, left := pair(t, mk)
			if closer == "the accepting end" {
				gone, left = left, gone
			}
			w.exchange([]*sentFrame{gone.send(nil, []byte("x"))}, left)
			gone.Close()
			w.poll("the error", []*endpoint{left}, func() bool { return left.err != nil })
			s := left.send(nil, []byte("late"))
			w.poll("Done on a failed Conn", []*endpoint{left}, s.done)
			if s.err == nil {
				t.Error("a frame sent on a failed Conn is done without an error")
			}
			if err := left.Close(); err != nil {
				t.Errorf("Close of a failed Conn: %v", err)
			}
		})
	}
}

// firstErrorIsFinal checks that a Conn that its peer has failed reports the same error before and
// after its own Close.
func firstErrorIsFinal(t *testing.T, mk Maker) {
	w, near, far := pair(t, mk)
	near.Close()
	w.poll("the error", []*endpoint{far}, func() bool { return far.err != nil })
	for range 5 {
		far.progress() // progress compares the errors
	}
	far.Close()
	for range 5 {
		far.progress()
	}
}

// doneFramesOutliveClose closes a Conn after some frames are done, while the peer has received
// nothing. The peer must still receive the frames that were done, and then get the error.
func doneFramesOutliveClose(t *testing.T, mk Maker) {
	w, near, far := pair(t, mk)
	var frames []*sentFrame
	for i := range 50 {
		frames = append(frames, near.send([]byte{byte(i)}, pattern(i*100, uint64(i))))
	}
	for range 100 {
		near.progress()
	}
	near.Close()
	w.poll("Done of all frames", nil, func() bool { return allDone(frames) })
	w.poll("the error", []*endpoint{far}, func() bool { return far.err != nil })
	w.arePrefix(frames, far.sink.got)
}

// arePrefix checks that the received frames are a prefix of the sent frames, and include all frames
// whose Done had no error.
func (w *cluster) arePrefix(frames []*sentFrame, got []arrival) {
	w.tb.Helper()
	if len(got) > len(frames) {
		w.tb.Fatalf("%d frames arrived, of %d", len(got), len(frames))
	}
	for i, s := range frames {
		switch {
		case i < len(got):
			if err := s.want.differs(got[i]); err != nil {
				w.tb.Errorf("frame %d: %v", i, err)
			}
		case s.err == nil:
			w.tb.Errorf("frame %d was done without an error before the Close, and has not arrived", i)
			return
		}
	}
}

// wholeFramesBeforeError closes the sending Conn when the receiver has 7 of 20 frames. The receiver
// must get the error, and before it a prefix of the frames, each whole.
func wholeFramesBeforeError(t *testing.T, mk Maker) {
	w, near, far := pair(t, mk)
	var frames []*sentFrame
	for i := range 20 {
		frames = append(frames, near.send([]byte{byte(i)}, pattern(2000, uint64(i))))
	}
	w.until("some of the frames", func() bool { return len(far.sink.got) >= 7 })
	near.Close()
	w.poll("the error", []*endpoint{far}, func() bool { return far.err != nil })
	w.poll("Done of all frames", nil, func() bool { return allDone(frames) })
	w.arePrefix(frames, far.sink.got)
}

// cutBodyNeverCompletes closes the Conn after the first bytes of a body have arrived. The frame
// must not complete.
func cutBodyNeverCompletes(t *testing.T, mk Maker) {
	w, near, far := pair(t, mk)
	whole := near.send([]byte("whole"), pattern(1000, 1))
	cut := near.send([]byte("cut"), make([]byte, 32<<20))
	behind := near.send([]byte("behind"), nil)
	partly := false
	far.sink.partly = func(h transport.Header, n int) { partly = partly || h.Size > 1000 }
	w.until("the first bytes of the long body", func() bool { return partly })
	near.Close()
	w.poll("the error", []*endpoint{far}, func() bool { return far.err != nil })
	w.poll("Done", nil, func() bool { return cut.done() && behind.done() })
	w.compare([]*sentFrame{whole}, far.sink.got)
	w.isClosed("Done of the frame cut short", cut.err)
	w.isClosed("Done of the next frame", behind.err)
}

// closeFromSink closes the receiving Conn in a call of its Sink, so from inside its own Progress.
// Progress must return fault.Closed, and the frame must not complete.
func closeFromSink(t *testing.T, mk Maker) {
	for _, where := range []string{"Buffer", "Arrived"} {
		t.Run(where, func(t *testing.T) {
			w, near, far := pair(t, mk)
			s := near.send(nil, make([]byte, 64<<20))
			far.sink.buffer = func(h transport.Header) []byte {
				if where == "Buffer" {
					far.Close()
				}
				return make([]byte, h.Size)
			}
			far.sink.partly = func(transport.Header, int) { far.Close() }
			w.until("the errors", func() bool { return near.err != nil && far.err != nil && s.done() })
			w.isClosed("Progress", far.err)
			if len(far.sink.got) > 0 || s.err == nil {
				t.Errorf("the body arrived %d times, Done got %v", len(far.sink.got), s.err)
			}
		})
	}
}

// closeFromDone closes the sending Conn from inside a Done. The Done of the next frame must still
// run once. That Done calls Close again.
func closeFromDone(t *testing.T, mk Maker) {
	w, near, far := pair(t, mk)
	first := w.frame(nil, []byte("first"), func(error) { near.Close() })
	second := w.frame(nil, make([]byte, 32<<20), func(error) { near.Close() })
	near.Send(&first.Frame)
	near.Send(&second.Frame)
	w.until("the end", func() bool { return first.done() && second.done() && far.err != nil })
	if first.err != nil && !errors.Is(first.err, fault.Closed) {
		t.Errorf("Done of the first frame: %v", first.err)
	}
	w.isClosed("Done of the second frame", second.err)
}

// closeBesideEverything closes an endpoint while goroutines send on both ends, poll both ends and
// arm both ends. Every Done must run once, and nothing may hang or race.
func closeBesideEverything(t *testing.T, mk Maker) {
	w := newCluster(t, mk, 2)
	for round := range int32(16) {
		near, far := w.link(0, 1)
		var arrived atomic.Int32
		count := func(transport.Header, int) { arrived.Add(1) }
		near.sink.partly, far.sink.partly = count, count
		stopNear, stopFar := near.keepPolling(), far.keepPolling()
		var frames [4][]*sentFrame
		var senders sync.WaitGroup
		for i := range frames {
			senders.Go(func() { frames[i] = []*endpoint{near, far}[i%2].burst(150, pattern(3000*i, 1)) })
		}
		w.poll("some traffic", nil, func() bool { return arrived.Load() >= 10*(round%4) })
		near.Close()
		if round%3 == 0 {
			far.Close()
		}
		w.within("the end of all senders", senders.Wait)
		stopNear()
		stopFar()
		all := slices.Concat(frames[:]...)
		w.until("Done of all frames", func() bool { return allDone(all) })
		far.Close()
		w.ends = nil
	}
}

// burst sends n frames and arms the Conn after each frame.
func (e *endpoint) burst(n int, body []byte) (frames []*sentFrame) {
	for i := range n {
		frames = append(frames, e.send([]byte{byte(i)}, body))
		e.Arm(func() {})
	}
	return frames
}

// memoryFreeAfterError writes into the buffer of the arriving body once Progress has returned the
// error. Nothing else may write into it from then on. The race detector finds another writer, too.
func memoryFreeAfterError(t *testing.T, mk Maker) {
	for _, closer := range []string{"sender", "receiver"} {
		t.Run("closed by the "+closer, func(t *testing.T) {
			w, near, far := pair(t, mk)
			buf, partly := make([]byte, 16<<20), false
			far.sink.buffer = func(transport.Header) []byte { return buf }
			far.sink.partly = func(transport.Header, int) { partly = true }
			s := near.send(nil, make([]byte, len(buf)))
			w.until("the first bytes", func() bool { return partly })
			map[string]*endpoint{"sender": near, "receiver": far}[closer].Close()
			w.poll("the error", []*endpoint{far}, func() bool { return far.err != nil })
			mine := bytes.Repeat([]byte{0x5A}, len(buf))
			copy(buf, mine)
			w.until("Done", s.done)
			if !bytes.Equal(buf, mine) {
				t.Errorf("byte %d was written after the error", firstDifference(buf, mine))
			}
		})
	}
}
