package p2p

import "testing"

func TestARoundHasOneStageForAllItsMessages(t *testing.T) {
	r := &Round{operation: &operation{g: &Group{}}}
	for _, n := range []int{1000, 0, 1, 1000, 999} {
		if got := len(r.staging(&r.stage, n)); got != n {
			t.Errorf("got %d bytes, want %d", got, n)
		}
	}
	if len(r.scratch) != 1 {
		t.Errorf("%d pieces are held, want 1", len(r.scratch))
	}
	if got := len(r.staging(&r.stage, 5000)); got != 5000 {
		t.Errorf("got %d bytes, want 5000", got)
	}
}

func TestWhatAScratchPoolKeepsIsBounded(t *testing.T) {
	var p scratchPool
	const words = keepWords / 4
	for range 6 {
		p.put(make(scratch, words))
	}
	if p.kept > keepWords {
		t.Errorf("%d words are kept, of at most %d", p.kept, keepWords)
	}
	for range 4 {
		if got := len(p.get(words)); got != words {
			t.Errorf("got %d words, want %d", got, words)
		}
	}
	if p.kept != 0 {
		t.Errorf("%d words are kept of none", p.kept)
	}
}
