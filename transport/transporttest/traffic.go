package transporttest

import "testing"

func trafficTests() []testCase {
	return []testCase{{"Traffic/BothEndsCountTheSameBytes", bothEndsCountTheSame}}
}

// A meter is a Conn that counts the bytes of its frames. The layer above finds a silent connection by
// the counts of both ends.
type meter interface {
	Traffic() (sent, acked, received, arrived uint64)
}

// traffic returns an end's counts, and skips the test if there are none.
func (e *endpoint) traffic() (sent, acked, received, arrived uint64) {
	e.w.tb.Helper()
	m, ok := e.Conn.(meter)
	if !ok {
		e.w.tb.Skipf("%T counts no bytes", e.Conn)
	}
	return m.Traffic()
}

// bothEndsCountTheSame checks that an end has received what the other one has sent, and that the next
// frame in the other direction acknowledges it. It skips Conns whose frames take a way that is not
// counted, such as a queue pair.
func bothEndsCountTheSame(t *testing.T, mk Maker) {
	w, near, far := pair(t, mk)
	var frames []*sentFrame
	for _, size := range []int{0, 1, 100, 5000, 1 << 20} {
		frames = append(frames, near.send([]byte("head"), pattern(size, 1)))
	}
	w.exchange(frames, far)
	const least = 1<<20 + 5101
	sent, _, _, _ := near.traffic()
	_, _, received, arrived := far.traffic()
	if sent < least && received < least {
		t.Skipf("%T does not count the bytes of these frames", near.Conn)
	}
	if received < least || arrived < received {
		t.Errorf("got %d bytes received and %d arrived, want at least the %d of the bodies", received, arrived, uint64(least))
	}
	w.until("equal counts of bytes sent and received", func() bool {
		sent, _, _, _ := near.traffic()
		_, _, received, _ := far.traffic()
		return sent == received
	})
	w.exchange([]*sentFrame{far.send([]byte("head"), pattern(10, 2))}, near)
	sent, acked, _, _ := near.traffic()
	if acked != sent {
		t.Errorf("a frame acknowledges %d bytes, want the %d that were sent", acked, sent)
	}
}
