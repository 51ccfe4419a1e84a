package rendezvous

import "testing"

// The pool must serve recurring lengths from free pieces, whatever the order in which the pieces
// are returned.
func TestBufferPoolReusesRecurringLengths(t *testing.T) {
	st := newBufferPool(2, DefaultCredit)
	var held [][]byte
	turn := func() {
		for i := range 90 {
			n := 64 << 10
			if i%7 == 6 {
				n = 6784
			}
			held = append(held, st.get(n))
		}
		for i := range held {
			st.put(held[i*37%len(held)])
		}
		held = held[:0]
	}
	turn()
	if got := testing.AllocsPerRun(20, turn); got != 0 {
		t.Errorf("90 pieces make %v pieces of garbage, want none", got)
	}
}

func TestBufferPoolIsBounded(t *testing.T) {
	for _, tc := range []struct{ peers, credit, want int }{
		{0, DefaultCredit, DefaultCredit}, {1, DefaultCredit, DefaultCredit}, {2, 1 << 20, 2 << 20}, {1000, DefaultCredit, maxPooled}, {3, 1 << 40, maxPooled},
	} {
		st := newBufferPool(tc.peers, tc.credit)
		for range 10 {
			for n := 1; n <= 8<<20; n *= 2 {
				st.put(make([]byte, n))
			}
		}
		sum := 0
		for _, free := range st.free {
			for _, b := range free {
				sum += cap(b)
			}
		}
		if sum > tc.want || sum != st.size || sum < tc.want/2 {
			t.Errorf("%d peers with %d bytes of credit: %d bytes are free (%d counted), want at most %d", tc.peers, tc.credit, sum, st.size, tc.want)
		}
	}
}

// When a program changes to other lengths, the pool must free the pieces of the old lengths and
// keep pieces of the new ones.
func TestBufferPoolEvictsUnusedSizes(t *testing.T) {
	st := newBufferPool(1, 1<<20)
	for range 16 {
		st.put(make([]byte, 64<<10))
	}
	st.put(make([]byte, 299_968, 300_032))
	if b := st.get(300_000); cap(b) != 300_032 || st.size > 1<<20-300_000 {
		t.Errorf("got a piece of %d bytes, and %d are free", cap(b), st.size)
	}
	small := make([]byte, 1024)
	st.put(small)
	if b := st.get(500); &b[0] != &small[0] || len(b) != 500 {
		t.Error("a piece of less than twice the length is not used")
	}
	st.put(small)
	if b := st.get(300); &b[0] == &small[0] {
		t.Error("a piece of more than twice the length is used")
	}
	if b := st.get(0); len(b) != 0 {
		t.Errorf("got %d bytes, want none", len(b))
	}
}
