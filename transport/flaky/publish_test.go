package flaky

import (
	"bytes"
	"errors"
	"testing"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/transport"
)

// A node dies at a flag. The moment of the rule decides whether this flag is set. No later flag may
// be set.
func TestADeadNodePublishesNothing(t *testing.T) {
	for m, want := range map[Moment]int{Before: 1, Within: 2, After: 2} {
		w := newCluster(t, 2, Options{Rules: []Rule{Die(m, 2).From(0).To(Unknown)}})
		near, far := w.link(0, 1)
		flags := 0
		for range 4 {
			w.script.Publish(0, func() { flags++ })
		}
		if flags != want || !w.script.Fired(0) {
			t.Errorf("%v: got %d flags set, want %d; fired: %v", m, flags, want, w.script.Fired(0))
		}
		poll(near, far)
		if near.err == nil || far.err == nil {
			t.Errorf("%v: the Conns live on: %v, %v", m, near.err, far.err)
		}
		others := 0
		w.script.Publish(1, func() { others++ })
		if others != 1 {
			t.Errorf("%v: the other node's flag was not set", m)
		}
	}
}

// A flag has no link that could be cut, so a cut must kill the node.
func TestACutAtAFlagIsADeath(t *testing.T) {
	w := newCluster(t, 2, Options{Rules: []Rule{Cut(Before, 1).To(Unknown)}})
	near, far := w.link(0, 1)
	w.script.Publish(0, func() { t.Error("the flag was set") })
	if poll(near, far); near.err == nil {
		t.Error("the node lives on")
	}
}

func TestOnlyThoseWhoAskForChunksGetThem(t *testing.T) {
	for _, asked := range []bool{false, true} {
		o := Options{Rules: []Rule{Cut(After, 2).From(0).To(1)}}
		if asked {
			o.Counts = func(s Step) bool { return s.Kind == Chunk }
		}
		w := newCluster(t, 2, o)
		_, far := w.link(0, 1)
		c := (&node{script: w.script, number: 1, death: new(death)}).newConn(far.Conn, 0)
		s := &sink{c: c, in: far}
		h := transport.Header{Size: 10}
		s.Buffer(h)
		for _, n := range []int{3, 6, 9, 10} {
			s.Arrived(h, n)
		}
		steps, whole := 0, 1
		if asked {
			steps, whole = 2, 0 // nothing passes after the cut
		}
		if w.script.Steps() != steps || w.script.Fired(0) != asked || far.whole != whole {
			t.Errorf("asked: %v: got %d steps and %d frames, fired: %v; want %d and %d", asked, w.script.Steps(), far.whole, w.script.Fired(0), steps, whole)
		}
	}
}

func TestHiddenAbilitiesAreRefused(t *testing.T) {
	w := newCluster(t, 2, Options{Hide: []StepKind{Expose, Parts, Share, TrySend}})
	near, far := w.link(0, 1)
	if _, _, err := near.Conn.(transport.Exposer).Expose(1, make([]byte, 10)); !errors.Is(err, fault.Refused) {
		t.Errorf("Expose: got %v, want %v", err, fault.Refused)
	}
	if w.nodes[0].(transport.Selector).SharerFor(w.addrs) != nil {
		t.Error("SharerFor: got a Sharer, want nil")
	}
	if near.TrySend(nil, nil) {
		t.Error("TrySend has sent")
	}
	if got := w.script.Steps(); got != 0 {
		t.Errorf("what is refused made %d steps, want none", got)
	}
	near.Send(&transport.Frame{Parts: [][]byte{{1}, {2}}, Done: func(error) {}})
	if poll(near, far); far.whole != 1 || !bytes.Equal(far.bodies[0], []byte{1, 2}) {
		t.Errorf("got %d frames, %v; want one of two bytes, in one piece", far.whole, far.bodies)
	}
}
