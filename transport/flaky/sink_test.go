package flaky

import (
	"testing"

	"github.com/tutti-go/tutti/transport"
)

// A transport may still deliver frames after the frame at which a node died. These frames must get
// no buffer, because they never complete.
func TestFramesAfterADeathGetNoBuffer(t *testing.T) {
	w := newCluster(t, 2, Options{Rules: []Rule{Die(Within, 1).From(1)}})
	_, far := w.link(1, 0)
	c := (&node{script: w.script, death: new(death)}).newConn(far.Conn, 1)
	c.expect(1, 0)
	s := &sink{c: c, in: far}
	for i := range 3 {
		h := transport.Header{Size: 10}
		if given := s.Buffer(h) != nil; given != (i == 0) {
			t.Errorf("frame %d has a buffer: %v", i, given)
		}
		s.Arrived(h, 10)
	}
	if far.whole != 0 || !w.script.Fired(0) {
		t.Errorf("%d frames arrived whole, fired: %v", far.whole, w.script.Fired(0))
	}
}
