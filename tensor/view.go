package tensor

import (
	"gonum.org/v1/gonum/mat"

	"github.com/tutti-go/tutti/fault"
)

// A View is a matrix within a slice: rows of equal length at equal distances. Its elements are
// numbered row by row. It shares the slice's memory, may be copied, and is as safe for
// concurrent use as the slice is. The zero View has no elements.
type View[T Element] struct {
	data               []T // row i is data[i*stride : i*stride+cols]
	rows, cols, stride int
}

// Slice returns all of s as one row.
func Slice[T Element](s []T) View[T] {
	return View[T]{data: s, rows: 1, cols: len(s), stride: len(s)}
}

// Strided returns rows × cols elements of s, with a distance of stride elements between the
// beginnings of two successive rows. If rows overlap or do not fit, Strided returns fault.Misuse.
// With fewer than two rows, it ignores stride. The checks avoid overflow, so that no arguments give
// a View that reaches outside s.
func Strided[T Element](s []T, rows, cols, stride int) (View[T], error) {
	fits := func() bool {
		switch {
		case rows < 0 || cols < 0:
			return false
		case rows == 0 || cols == 0:
			return true
		case rows == 1:
			return cols <= len(s)
		}
		return cols <= stride && cols <= len(s) && rows-1 <= (len(s)-cols)/stride // never overflows
	}
	if !fits() {
		return View[T]{}, fault.New(fault.Misuse, "tensor.Strided", -1,
			"view: got %d × %d elements with stride %d, want rows that lie in the %d elements of the slice and do not overlap", rows, cols, stride, len(s))
	}
	return View[T]{data: s, rows: rows, cols: cols, stride: stride}, nil
}

// Dense returns all of m. Later changes of m's shape do not affect the View.
func Dense(m *mat.Dense) View[float64] {
	raw := m.RawMatrix()
	return View[float64]{data: raw.Data, rows: raw.Rows, cols: raw.Cols, stride: raw.Stride}
}

// Vec returns all of v, one element per row. Later changes of v's length do not affect the
// View.
func Vec(v *mat.VecDense) View[float64] {
	raw := v.RawVector()
	return View[float64]{data: raw.Data, rows: raw.N, cols: 1, stride: raw.Inc}
}

// Rows returns the number of rows.
func (v View[T]) Rows() int { return v.rows }

// Cols returns the number of elements in each row.
func (v View[T]) Cols() int { return v.cols }

// Len returns the number of elements.
func (v View[T]) Len() int { return v.rows * v.cols }

// Contiguous returns the View's memory as one slice. It returns false if there are gaps between
// rows. comm sends a contiguous View without a copy.
func (v View[T]) Contiguous() ([]T, bool) {
	n := v.Len()
	if n > 0 && v.rows > 1 && v.stride != v.cols {
		return nil, false
	}
	return v.data[:n:n], true
}

// Read copies elements to dst. The parameter from is the number of the first element. Read returns
// the number of copied elements, which is len(dst), or less at the end of the View. If from lies
// outside the View, Read copies no elements.
func (v View[T]) Read(dst []T, from int) int {
	n := v.within(len(dst), from)
	if n == 0 {
		return 0
	}
	row, col := from/v.cols, from%v.cols
	for done := 0; done < n; row, col = row+1, 0 {
		done += copy(dst[done:n], v.row(row)[col:])
	}
	return n
}

// Write copies src into the View. The parameter from is the number of the first element that it
// replaces. Write returns the number of copied elements, which is len(src), or less at the end of
// the View. If from lies outside the View, Write copies no elements.
func (v View[T]) Write(src []T, from int) int {
	n := v.within(len(src), from)
	if n == 0 {
		return 0
	}
	row, col := from/v.cols, from%v.cols
	for done := 0; done < n; row, col = row+1, 0 {
		done += copy(v.row(row)[col:], src[done:n])
	}
	return n
}

// row returns row i.
func (v View[T]) row(i int) []T { return v.data[i*v.stride:][:v.cols] }

// within returns how many of n successive elements exist. The parameter from is the number of the
// first element.
func (v View[T]) within(n, from int) int {
	if from < 0 || from >= v.Len() {
		return 0
	}
	return min(n, v.Len()-from)
}
