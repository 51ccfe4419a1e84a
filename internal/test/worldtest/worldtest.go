// Package worldtest contains the calls that tests make on all ranks of a job: each collective, in
// place and out of place, and each way to send a message. The calls check their results. Tests run
// them over every transport and several numbers of ranks, with and without injected faults.
//
// The package does not know which faults are injected or which outcomes a test allows. A Call only
// distinguishes a wrong result, which is never allowed, from an error.
package worldtest

import (
	"context"
	"errors"
	"fmt"

	"github.com/tutti-go/tutti/comm"
)

// A Call is one use of the library on every rank of a communicator.
type Call struct {
	Name string
	Verb string // the collective whose algorithms can run it; "" for messages
	// Chunks says that the vector has a chunk for each rank, so that a message has
	// about Count/ranks elements rather than Count.
	Chunks bool
	// Run makes the call for vectors of count elements and checks the result.
	// It records in bt which memory it gives to the library.
	Run func(ctx context.Context, c *comm.Comm, count int, bt *BufferTracker) error
}

// Wrong is the error of a call that reported success and left a wrong result.
type Wrong struct{ text string }

// Error says what is wrong.
func (w *Wrong) Error() string { return "wrong result: " + w.text }

// IsWrong reports whether err is a wrong result, rather than a failure.
func IsWrong(err error) bool {
	var w *Wrong
	return errors.As(err, &w)
}

func wrong(format string, args ...any) error { return &Wrong{fmt.Sprintf(format, args...)} }

// number is the element type of the tests' vectors.
type number interface{ int32 | float32 }

// value returns the element of rank r at index i. It is small, so that sums stay exact even in
// float32.
func value(r, i int) int { return (r*31+i*7)%period - 300 }

// period is the number of elements after which all vectors repeat. It is not a power of two, so
// that a segment in the wrong position changes the result.
const period = 1000

// repeating returns a vector whose first period is given by the function at, and which repeats that
// period.
func repeating[T number](count int, at func(i int) int) []T {
	v := make([]T, count)
	for i := range min(period, count) {
		v[i] = T(at(i))
	}
	for n := period; n < count; n *= 2 {
		copy(v[n:], v[:n])
	}
	return v
}

func vector[T number](r, count int) []T {
	return repeating[T](count, func(i int) int { return value(r, i) })
}

// sums returns the sum of n ranks' vectors.
func sums[T number](n, count int) []T {
	return repeating[T](count, func(i int) int {
		s := 0
		for r := range n {
			s += value(r, i)
		}
		return s
	})
}

// concatenated returns the vectors of n ranks, one after the other.
func concatenated[T number](n, count int) []T {
	var v []T
	for r := range n {
		v = append(v, vector[T](r, count)...)
	}
	return v
}

func same[T comparable](what string, got, want []T) error {
	if len(got) != len(want) {
		return wrong("%s has %d elements, want %d", what, len(got), len(want))
	}
	for i := range got {
		if got[i] != want[i] {
			return wrong("element %d of %d of %s is %v, want %v", i, len(got), what, got[i], want[i])
		}
	}
	return nil
}

// unequal returns counts that differ from rank to rank. One of them is 0.
func unequal(n, count int) (counts []int, total int) {
	counts = make([]int, n)
	for r := range counts {
		counts[r] = (count + r*r) % (count/2 + 3)
		if r == n/2 {
			counts[r] = 0
		}
		total += counts[r]
	}
	return counts, total
}

func offset(counts []int, r int) (lo, hi int) {
	for _, n := range counts[:r] {
		lo += n
	}
	return lo, lo + counts[r]
}
