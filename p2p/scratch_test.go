package p2p

import "testing"

func TestRoundReusesOneStage(t *testing.T) {
	r := &Round{operation: &operation{g: &Group{}}}
	for _, n := range []int{1000, 0, 1, 1000, 999} {
		if got := len(r.stagingBuffer(&r.recvStage, n)); got != n {
			t.Errorf("got %d bytes, want %d", got, n)
		}
	}
	if len(r.scratch) != 1 {
		t.Errorf("%d pieces are held, want 1", len(r.scratch))
	}
	if got := len(r.stagingBuffer(&r.recvStage, 5000)); got != 5000 {
		t.Errorf("got %d bytes, want 5000", got)
	}
}

func TestScratchPoolIsBounded(t *testing.T) {
	var p scratchPool
	const words = maxPoolWords / 4
	for range 6 {
		p.put(make(scratch, words))
	}
	if p.size > maxPoolWords {
		t.Errorf("%d words are kept, of at most %d", p.size, maxPoolWords)
	}
	for range 4 {
		if got := len(p.get(words)); got != words {
			t.Errorf("got %d words, want %d", got, words)
		}
	}
	if p.size != 0 {
		t.Errorf("%d words are kept of none", p.size)
	}
}
