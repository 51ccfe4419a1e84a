package transporttest

import (
	"testing"
	"time"
)

func unsentTests() []testCase {
	return []testCase{
		{"Unsent/AStalledPeerIsReported", stalledPeerIsReported},
		{"Unsent/CloseEndsTheReport", closeEndsUnsent},
	}
}

const (
	stallFrames = 24 // of 1 MiB each: more than any wire buffers
	stallTime   = 100 * time.Millisecond
)

// stall sends stallFrames frames from the endpoint near, whose peer receives nothing, and returns
// these frames. It returns when Unsent reports that near has waited for longer than stallTime.
func (w *cluster) stall(near *endpoint) (frames []*sentFrame) {
	w.tb.Helper()
	began := time.Now()
	body := pattern(1<<20, 1)
	for range stallFrames {
		frames = append(frames, near.send([]byte("head"), body))
	}
	var since time.Time
	w.poll("a report of bytes that the peer does not take", []*endpoint{near}, func() bool {
		var n int
		n, since = near.Unsent()
		return n > 0 && time.Since(since) > stallTime
	})
	if since.Before(began) {
		w.errorf("Unsent reports a stall since %v before the first Send", began.Sub(since))
	}
	return frames
}

// stalledPeerIsReported checks that Unsent reports unsent bytes while the peer receives nothing,
// and none after the peer has received all frames. The layer above has no other way to detect a
// stalled peer.
func stalledPeerIsReported(t *testing.T, mk Maker) {
	w, near, far := pair(t, mk)
	frames := w.stall(near)
	w.exchange(frames, far)
	w.until("an empty report", func() bool {
		n, since := near.Unsent()
		return n == 0 && since.IsZero()
	})
}

func closeEndsUnsent(t *testing.T, mk Maker) {
	w, near, _ := pair(t, mk)
	w.stall(near)
	near.Close()
	if n, _ := near.Unsent(); n != 0 {
		t.Errorf("Unsent on a closed Conn reports %d bytes", n)
	}
}
