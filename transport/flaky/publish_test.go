package flaky

import (
	"fmt"
	"testing"

	"github.com/tutti-go/tutti/transport"
)

// A flag at which a node dies is set or not, as the moment says, and none after it.
func TestADeadNodePublishesNothing(t *testing.T) {
	for m, want := range map[Moment]int{Before: 1, Within: 2, After: 2} {
		w := newCluster(t, 2, Options{Rules: []Rule{Die(m, 2).From(0).To(Unknown)}})
		near, far := w.link(0, 1)
		flags := 0
		for range 4 {
			w.nodes[0].(transport.Witness).Publish(func() { flags++ })
		}
		if flags != want || !w.script.Fired(0) {
			t.Errorf("%v: got %d flags set, want %d; fired: %v", m, flags, want, w.script.Fired(0))
		}
		poll(near, far)
		if near.err == nil || far.err == nil {
			t.Errorf("%v: the Conns live on: %v, %v", m, near.err, far.err)
		}
		others := 0
		w.nodes[1].(transport.Witness).Publish(func() { others++ })
		if others != 1 {
			t.Errorf("%v: the other node's flag was not set", m)
		}
	}
}

// A cut has no link to fall on, so it falls on the node.
func TestACutAtAFlagIsADeath(t *testing.T) {
	w := newCluster(t, 2, Options{Rules: []Rule{Cut(Before, 1).To(Unknown)}})
	near, far := w.link(0, 1)
	w.nodes[0].(transport.Witness).Publish(func() { t.Error("the flag was set") })
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
			steps, whole = 2, 0 // nothing passes behind the cut
		}
		if w.script.Steps() != steps || w.script.Fired(0) != asked || far.whole != whole {
			t.Errorf("asked: %v: got %d steps and %d frames, fired: %v; want %d and %d", asked, w.script.Steps(), far.whole, w.script.Fired(0), steps, whole)
		}
	}
}

func TestHiddenAbilitiesSeemNotToBeThere(t *testing.T) {
	kinds := []Kind{Expose, Parts, Share}
	for i := range 1 << len(kinds) {
		var hide []Kind
		for bit, k := range kinds {
			if i&(1<<bit) > 0 {
				hide = append(hide, k)
			}
		}
		t.Run(fmt.Sprint(hide), func(t *testing.T) {
			w := newCluster(t, 2, Options{Hide: hide})
			near, _ := w.link(0, 1)
			conn, node := has(near.Conn), has(w.nodes[0])
			for bit, there := range []bool{conn[0], conn[1], node[3]} {
				if hidden := i&(1<<bit) > 0; there == hidden {
					t.Errorf("ability %v is there: %v, hidden: %v", kinds[bit], there, hidden)
				}
			}
		})
	}
}
