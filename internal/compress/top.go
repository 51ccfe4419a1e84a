package compress

import (
	"encoding/binary"
	"math"

	"github.com/tutti-go/tutti/tensor"
)

// TopSize returns the size of the message of EncodeTop.
func TopSize[T float32 | float64](keep int) int { return keep * (4 + tensor.TypeOf[T]().Size()) }

// EncodeTop writes the elements of the largest magnitude to msg: keep indices of 4 bytes, and then
// keep elements, in the order of the indices. Of elements with equal magnitudes it writes the first
// ones. In sum it replaces them by 0. keep is at least 1 and at most the length of sum.
func EncodeTop[T float32 | float64](msg []byte, sum []T, keep int) {
	limit, ties := kthLargest(sum, keep)
	indices, values := msg[:4*keep], msg[4*keep:]
	size := len(values) / keep
	for i, v := range sum {
		m := magnitude(v)
		if m < limit || m == limit && ties == 0 {
			continue
		}
		if m == limit {
			ties--
		}
		binary.LittleEndian.PutUint32(indices, uint32(i))
		PutFloat(values, v)
		indices, values = indices[4:], values[size:]
		sum[i] = 0
	}
}

// AddTop adds the elements of a message of EncodeTop to dst. It returns false if an index is beyond
// dst.
func AddTop[T float32 | float64](dst []T, msg []byte, keep int) bool {
	size := tensor.TypeOf[T]().Size()
	for k := range keep {
		at := binary.LittleEndian.Uint32(msg[4*k:])
		if int64(at) >= int64(len(dst)) {
			return false
		}
		dst[at] += Float[T](msg[4*keep+k*size:])
	}
	return true
}

// magnitude returns a number that orders elements by their absolute value. A NaN has the largest
// magnitude.
func magnitude[T float32 | float64](v T) uint64 { return math.Float64bits(math.Abs(float64(v))) }

// kthLargest returns the k-th largest magnitude, and the number of elements with exactly that
// magnitude among the k largest elements. It is a radix selection that starts at the highest byte.
// Each pass looks only at the elements whose higher bytes equal the bytes found so far. It counts
// the values of their next byte, and finds the next byte of the k-th largest magnitude. There are 8
// passes, or 5 for float32. The only memory is the counters.
func kthLargest[T float32 | float64](v []T, k int) (limit uint64, ties int) {
	var known uint64 // the bits of limit that are known so far
	last := 0
	if tensor.TypeOf[T]() == tensor.Float32 {
		last = 24 // the lower bits of a float32's magnitude are all zero
	}
	for shift := 56; shift >= last; shift -= 8 {
		var counts [256]int
		for _, e := range v {
			if m := magnitude(e); m&known == limit {
				counts[m>>shift&255]++
			}
		}
		digit := 255
		for ; counts[digit] < k; digit-- {
			k -= counts[digit]
		}
		limit |= uint64(digit) << shift
		known |= 255 << shift
	}
	return limit, k
}

// PutFloat writes v to the beginning of b.
func PutFloat[T float32 | float64](b []byte, v T) {
	if tensor.TypeOf[T]() == tensor.Float32 {
		binary.LittleEndian.PutUint32(b, math.Float32bits(float32(v)))
		return
	}
	binary.LittleEndian.PutUint64(b, math.Float64bits(float64(v)))
}

// Float returns the number at the beginning of b.
func Float[T float32 | float64](b []byte) T {
	if tensor.TypeOf[T]() == tensor.Float32 {
		return T(math.Float32frombits(binary.LittleEndian.Uint32(b)))
	}
	return T(math.Float64frombits(binary.LittleEndian.Uint64(b)))
}
