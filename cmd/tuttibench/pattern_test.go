package main

import (
	"testing"

	"github.com/tutti-go/tutti/tensor"
)

func TestPatternsFindEveryElementThatIsWrong(t *testing.T) {
	p := addend(integer[int32], 1)
	for _, length := range []int{0, 1, period - 1, period, period + 1, 3*period + 7} {
		for _, first := range []int{0, 1, period - 1, period, 1000} {
			v := make([]int32, length)
			p.fill(v, first)
			if got := p.wrong(v, first); got != 0 {
				t.Fatalf("%d elements from %d: %d are wrong as they were filled", length, first, got)
			}
			for i := range v {
				v[i]++
				if got := p.wrong(v, first); got != 1 {
					t.Fatalf("%d elements from %d: got %d wrong with element %d spoilt, want 1", length, first, got, i)
				}
				v[i]--
			}
		}
	}
}

func TestPatternsDifferByRankAndOffset(t *testing.T) {
	v := make([]float32, 4*period)
	for rank := range 8 {
		p := moved(integer[float32], rank)
		p.fill(v, 0)
		for _, shift := range []int{1, 2, 4, 1024, 4096, 16384} {
			if p.wrong(v, shift) == 0 {
				t.Errorf("rank %d: a shift of %d goes unnoticed", rank, shift)
			}
		}
		for other := range rank {
			if q := moved(integer[float32], other); q.wrong(v, 0) == 0 {
				t.Errorf("ranks %d and %d send the same", rank, other)
			}
		}
	}
}

func TestSumsAreExactUpToTheLimitOfTheirType(t *testing.T) {
	for _, d := range []tensor.DType{tensor.F16, tensor.BF16} {
		most := float32(exactUpTo(d))
		for v := range exactUpTo(d) + 1 {
			got := tensor.Float16From(float32(v)).Float32()
			if d == tensor.BF16 {
				got = tensor.BFloat16From(float32(v)).Float32()
			}
			if got != float32(v) {
				t.Fatalf("%v: %d becomes %v below the limit of %v", d, v, got, most)
			}
		}
	}
}
