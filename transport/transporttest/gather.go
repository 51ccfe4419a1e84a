package transporttest

import (
	"bytes"
	"testing"
)

func gatherTests() []testCase {
	return []testCase{
		{"Parts/PartsArriveAsOneBody", partsArriveAsOne},
		{"Parts/PartsKeepTheOrder", partsKeepOrder},
		{"Parts/PartsIntoExposedMemory", partsExposed},
		{"Parts/DoneOnAClosedConn", partsClosed},
	}
}

// sendParts sends a body in parts of the given sizes. The rest of the body is the last part. If the
// number of sizes is odd, the first part is the frame's Body.
func (e *endpoint) sendParts(head, body []byte, sizes ...int) *sentFrame {
	s := e.w.frame(head, body, nil)
	setParts(s, split(body, sizes), len(sizes)%2 == 1)
	e.Send(&s.Frame)
	return s
}

// setParts sets the body of s to the given parts. If first is set, the first part becomes the
// frame's Body, and the others its Parts.
func setParts(s *sentFrame, parts [][]byte, first bool) {
	s.Body, s.Parts = nil, parts
	if first {
		s.Body, s.Parts = parts[0], parts[1:]
	}
}

func split(body []byte, sizes []int) (parts [][]byte) {
	for _, n := range sizes {
		n = min(n, len(body))
		parts = append(parts, body[:n:n])
		body = body[n:]
	}
	return append(parts, body)
}

func partsArriveAsOne(t *testing.T, mk Maker) {
	w, near, far := pair(t, mk)
	many := make([]int, 3000) // more parts than one system call accepts
	for i := range many {
		many[i] = i % 50
	}
	for _, tc := range []struct {
		size  int
		sizes []int
	}{
		{0, nil}, {0, []int{0, 0}}, {1, nil}, {10, []int{0, 3, 0, 0, 7}},
		{100_000, []int{1, 99_998}}, {3 << 20, []int{1 << 20, 5, 1 << 20}}, {80_000, many},
	} {
		w.exchange([]*sentFrame{near.sendParts([]byte("head"), pattern(tc.size, 1), tc.sizes...)}, far)
	}
	s := w.frame(nil, nil, nil)
	s.Parts = [][]byte{}
	near.Send(&s.Frame)
	w.exchange([]*sentFrame{s}, far)
}

func partsKeepOrder(t *testing.T, mk Maker) {
	w, near, far := pair(t, mk)
	var frames []*sentFrame
	for i := range 60 {
		body := pattern(i*1500, uint64(i))
		if i%2 == 0 {
			frames = append(frames, near.send([]byte{byte(i)}, body))
		} else {
			frames = append(frames, near.sendParts([]byte{byte(i)}, body, i, i*100, 0, i*700))
		}
	}
	w.exchange(frames, far)
}

func partsExposed(t *testing.T, mk Maker) {
	w, near, far := pair(t, mk)
	body := pattern(700_000, 1)
	to, release := far.expose(9, make([]byte, len(body)))
	defer release()
	s := w.frame(nil, nil, nil)
	s.To, s.ID, s.want = to, 9, arrival{id: 9, direct: true, body: bytes.Clone(body)}
	setParts(s, split(body, []int{1, 300_000, 2}), false)
	near.Send(&s.Frame)
	w.exchange([]*sentFrame{s}, far)
}

func partsClosed(t *testing.T, mk Maker) {
	w, near, _ := pair(t, mk)
	near.Close()
	s := near.sendParts(nil, []byte("late"), 1)
	w.poll("Done", nil, s.done)
	w.isClosed("Done", s.err)
}
