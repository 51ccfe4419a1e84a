package vector

import "testing"

func TestLevelsComeInTheirOrder(t *testing.T) {
	levels := Available()
	if levels[0] != None {
		t.Errorf("the first level is %v, want none", levels[0])
	}
	for i, l := range levels {
		if l != Level(i) {
			t.Errorf("level %d is %v; each has what the ones before it have", i, l)
		}
	}
}

// Other tests would detect a function that is listed twice or for the wrong operator only by its
// results, and would not detect a missing function.
func TestEachOperatorAndTypeIsServedOnce(t *testing.T) {
	type pair struct {
		op string
		d  uint8
	}
	var first map[pair]bool
	for _, l := range Available()[1:] {
		k := l.Kernels()
		served := map[pair]bool{}
		for _, f := range k.Folds {
			p := pair{f.Op, uint8(f.Type)}
			if served[p] || f.Fold == nil {
				t.Errorf("%v serves %s of %v twice, or with nothing", l, f.Op, f.Type)
			}
			served[p] = true
		}
		for _, f := range k.Divisions {
			p := pair{"division", uint8(f.Type)}
			if served[p] || f.Divide == nil {
				t.Errorf("%v divides %v twice, or with nothing", l, f.Type)
			}
			served[p] = true
		}
		if first == nil {
			first = served
		}
		if len(served) != len(first) {
			t.Errorf("%v serves %d pairs, avx2 %d", l, len(served), len(first))
		}
	}
	if k := None.Kernels(); len(k.Folds)+len(k.Divisions) > 0 {
		t.Errorf("no level has %d loops", len(k.Folds)+len(k.Divisions))
	}
}
