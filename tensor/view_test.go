package tensor

import (
	"errors"
	"math"
	"slices"
	"testing"

	"gonum.org/v1/gonum/mat"

	"github.com/tutti-go/tutti/fault"
)

// count returns 1, 2, … n.
func count[T ~int | ~float64](n int) []T {
	s := make([]T, n)
	for i := range s {
		s[i] = T(i + 1)
	}
	return s
}

func TestViewsShowTheElementsRowByRow(t *testing.T) {
	strided, err := Strided(count[float64](11), 3, 2, 4)
	if err != nil {
		t.Fatal(err)
	}
	whole := mat.NewDense(3, 4, count[float64](12))
	vec := mat.NewVecDense(4, count[float64](4))
	for _, c := range []struct {
		name       string
		view       View[float64]
		rows, cols int
		want       []float64
		contiguous bool
	}{
		{"zero", View[float64]{}, 0, 0, nil, true},
		{"nil slice", Slice[float64](nil), 1, 0, nil, true},
		{"slice", Slice(count[float64](3)), 1, 3, []float64{1, 2, 3}, true},
		{"strided", strided, 3, 2, []float64{1, 2, 5, 6, 9, 10}, false},
		{"dense", Dense(whole), 3, 4, count[float64](12), true},
		{"empty dense", Dense(new(mat.Dense)), 0, 0, nil, true},
		{"part of a dense", Dense(whole.Slice(1, 3, 1, 3).(*mat.Dense)), 2, 2, []float64{6, 7, 10, 11}, false},
		{"rows of a dense", Dense(whole.Slice(1, 3, 0, 4).(*mat.Dense)), 2, 4, []float64{5, 6, 7, 8, 9, 10, 11, 12}, true},
		{"part of a row", Dense(whole.Slice(1, 2, 1, 3).(*mat.Dense)), 1, 2, []float64{6, 7}, true},
		{"vector", Vec(vec), 4, 1, []float64{1, 2, 3, 4}, true},
		{"empty vector", Vec(new(mat.VecDense)), 0, 1, nil, true},
		{"part of a vector", Vec(vec.SliceVec(1, 3).(*mat.VecDense)), 2, 1, []float64{2, 3}, true},
		{"column", Vec(whole.ColView(2).(*mat.VecDense)), 3, 1, []float64{3, 7, 11}, false},
		{"row", Vec(whole.RowView(1).(*mat.VecDense)), 4, 1, []float64{5, 6, 7, 8}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.view.Rows() != c.rows || c.view.Cols() != c.cols || c.view.Len() != len(c.want) {
				t.Errorf("%d × %d, %d elements, want %d × %d", c.view.Rows(), c.view.Cols(), c.view.Len(), c.rows, c.cols)
			}
			got := make([]float64, len(c.want)+2)
			if n := c.view.Read(got, 0); n != len(c.want) || !slices.Equal(got[:n], c.want) {
				t.Errorf("read %v, want %v", got[:n], c.want)
			}
			part, ok := c.view.Contiguous()
			if ok != c.contiguous {
				t.Errorf("contiguous is %v, want %v", ok, c.contiguous)
			}
			if ok && !slices.Equal(part, c.want) {
				t.Errorf("contiguous part is %v, want %v", part, c.want)
			}
			if cap(part) != len(part) {
				t.Errorf("the contiguous part can grow over its neighbours")
			}
		})
	}
}

// Every element holds its index. The test compares Write and Read with a double loop over rows and
// columns.
func TestReadAndWriteTouchTheirElementsOnly(t *testing.T) {
	const untouched = -1
	for _, shape := range []struct{ rows, cols, stride int }{
		{1, 1, 1}, {1, 7, 7}, {7, 1, 1}, {7, 1, 3}, {3, 4, 4}, {3, 4, 5}, {4, 3, 10}, {2, 5, 6}, {1, 5, -3}, {0, 5, 5}, {5, 0, 1}, {0, 0, 0},
	} {
		size := 2 + 40
		length := shape.rows * shape.cols
		for from := -1; from <= length+1; from++ {
			for n := 0; n <= length+2; n++ {
				s := count[int](size)
				v, err := Strided(s[1:size-1], shape.rows, shape.cols, shape.stride)
				if err != nil {
					t.Fatal(err)
				}
				want, places := slices.Clone(s), []int(nil)
				for r := range shape.rows {
					for c := range shape.cols {
						places = append(places, 1+r*shape.stride+c)
					}
				}
				if from >= 0 && from < length {
					places = places[from:min(from+n, length)]
				} else {
					places = nil
				}

				dst := slices.Repeat([]int{untouched}, n)
				if got := v.Read(dst, from); got != len(places) {
					t.Fatalf("%v: Read(%d, from %d) copied %d, want %d", shape, n, from, got, len(places))
				}
				for i, got := range dst {
					w := untouched
					if i < len(places) {
						w = s[places[i]]
					}
					if got != w {
						t.Fatalf("%v: Read(%d, from %d)[%d] is %d, want %d", shape, n, from, i, got, w)
					}
				}
				if !slices.Equal(s, want) {
					t.Fatalf("%v: Read changed the slice", shape)
				}

				src := count[int](n)
				for i, p := range places {
					want[p] = src[i] + 1000
				}
				for i := range src {
					src[i] += 1000
				}
				if got := v.Write(src, from); got != len(places) {
					t.Fatalf("%v: Write(%d, from %d) copied %d, want %d", shape, n, from, got, len(places))
				}
				if !slices.Equal(s, want) {
					t.Fatalf("%v: Write(%d, from %d) left %v, want %v", shape, n, from, s, want)
				}
			}
		}
	}
}

func TestWriteReachesTheMatrix(t *testing.T) {
	m := mat.NewDense(3, 3, nil)
	col := Vec(m.ColView(1).(*mat.VecDense))
	if n := col.Write([]float64{1, 2, 3}, 0); n != 3 {
		t.Fatalf("wrote %d", n)
	}
	if want := mat.NewDense(3, 3, []float64{0, 1, 0, 0, 2, 0, 0, 3, 0}); !mat.Equal(m, want) {
		t.Errorf("got %v", mat.Formatted(m))
	}
}

func TestStridedRefusesWhatDoesNotFit(t *testing.T) {
	s := make([]int8, 10)
	for _, c := range []struct {
		rows, cols, stride int
		ok                 bool
	}{
		{2, 5, 5, true}, {2, 4, 6, true}, {1, 10, 0, true}, {10, 1, 1, true}, {0, math.MaxInt, -1, true}, {math.MaxInt, 0, 0, true},
		{2, 5, 6, false}, {3, 4, 4, false}, {1, 11, 11, false}, {11, 1, 1, false},
		{2, 4, 3, false}, {2, 4, -4, false}, {2, 4, 0, false}, {-1, 4, 4, false}, {2, -4, 4, false}, {-1, -1, 1, false}, {-1, 0, 1, false},
		{math.MaxInt, 1, 1, false}, {2, math.MaxInt, math.MaxInt, false}, {math.MaxInt, 2, math.MaxInt, false}, {2, 1, math.MaxInt, false},
	} {
		v, err := Strided(s, c.rows, c.cols, c.stride)
		if (err == nil) != c.ok || err != nil && !errors.Is(err, fault.Misuse) {
			t.Errorf("%+v: got %v", c, err)
		}
		if err == nil && v.Len() != c.rows*c.cols {
			t.Errorf("%+v: %d elements", c, v.Len())
		}
	}
}

func TestReadAndWriteAllocateNothing(t *testing.T) {
	v, err := Strided(make([]float32, 1000), 10, 7, 50)
	if err != nil {
		t.Fatal(err)
	}
	staging := make([]float32, 16)
	if got := testing.AllocsPerRun(100, func() {
		for from := 0; from < v.Len(); from += len(staging) {
			v.Write(staging[:v.Read(staging, from)], from)
		}
	}); got != 0 {
		t.Errorf("%v allocations", got)
	}
}
