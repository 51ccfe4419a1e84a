package flaky

import (
	"fmt"
	"testing"
)

// Steps of a device must be counted by kind and by ends. The device must learn when a cut is due.
func TestADeviceLearnsWhereItsQueuePairBreaks(t *testing.T) {
	for m := Before; m <= After; m++ {
		w := newCluster(t, 2, Options{Rules: []Rule{Cut(m, 2).From(0).To(1)}, Counts: func(s Step) bool { return s.Kind == Post }})
		var got []Moment
		for range 3 {
			got = append(got, w.script.Device(Completion, 0, 1, nil), w.script.Device(Post, 1, 0, nil), w.script.Device(Post, 0, 1, nil))
		}
		if want := []Moment{0, 0, 0, 0, 0, m, 0, 0, 0}; fmt.Sprint(got) != fmt.Sprint(want) || w.script.Steps() != 6 || !w.script.Fired(0) {
			t.Errorf("got %v and %d steps, fired: %v; want %v and 6", got, w.script.Steps(), w.script.Fired(0), want)
		}
	}
}

// After a death, the node's Conns must report only the death, although the caller may hold their
// locks when the death happens.
func TestANodeDiesByWhatItsDeviceDoes(t *testing.T) {
	w := newCluster(t, 3, Options{Rules: []Rule{Die(After, 1).From(1)}})
	near, far := w.link(0, 1)
	other, _ := w.link(0, 2)
	if at := w.script.Device(Completion, 1, 0, nil); at != After {
		t.Fatalf("got %v, want %v", at, After)
	}
	if poll(far); far.err == nil {
		t.Error("the dead node's Conn does not say so at once")
	}
	w.script.awaitKills()
	if poll(near, other); near.err == nil || other.err != nil {
		t.Errorf("the peer got %v, and want an error; a bystander %v, and want none", near.err, other.err)
	}
}
