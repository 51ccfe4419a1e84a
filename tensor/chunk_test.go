package tensor

import "testing"

func TestChunksCoverTheVectorAndDifferByOneElementAtMost(t *testing.T) {
	for n := 1; n <= 9; n++ {
		for count := range 40 {
			at := 0
			for i := range n {
				lo, hi := Chunk(count, n, i)
				if size := hi - lo; lo != at || size != count/n && size != count/n+1 {
					t.Errorf("chunk %d of %d, %d elements: %d to %d", i, n, count, lo, hi)
				}
				if longer := hi-lo > count/n; longer != (i < count%n) {
					t.Errorf("chunk %d of %d, %d elements: longer is %v", i, n, count, longer)
				}
				at = hi
			}
			if at != count {
				t.Errorf("%d chunks of %d elements end at %d", n, count, at)
			}
		}
	}
}
