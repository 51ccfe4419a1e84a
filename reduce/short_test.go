package reduce

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"github.com/tutti-go/tutti/reduce/internal/vector"
	"github.com/tutti-go/tutti/tensor"
)

// A vector loop over short floats has a fast path for vectors without NaNs, and a slow path for all
// other vectors. This test folds all 65536 numbers, in order, with one number at a time. The NaNs
// lie side by side, so most vectors have no NaN, and both paths run.
func TestEveryShortFloatMeetsOthersAsInPlainGo(t *testing.T) {
	every := make([]byte, 2<<16)
	for i := range 1 << 16 {
		binary.LittleEndian.PutUint16(every[2*i:], uint16(i))
	}
	eachShortKernel(t, func(t *testing.T, k, plain Kernel) {
		rng := rand.New(rand.NewPCG(40, 41))
		others := []uint16{0, 0x8000, 1, 0x8001, 0x03ff, 0x0400, 0x007f, 0x0080, 0x3c00, 0x3c01, 0xbc00, 0x3f80, 0x3f81, 0xbf80,
			0x7bff, 0x7c00, 0xfc00, 0x7f7f, 0x7f80, 0xff80, 0x7e00, 0xffff}
		for range 8 {
			others = append(others, uint16(rng.Uint32()))
		}
		later := make([]byte, len(every))
		for _, x := range others {
			for i := 0; i < len(later); i += 2 {
				binary.LittleEndian.PutUint16(later[i:], x)
			}
			compareFolds(t, k, plain, every, later)
		}
	})
}

// A vector with a NaN at any position must take the slow path, and the NaN must not change other
// elements.
func TestOneNaNAmongShortFloatsIsFoundEverywhere(t *testing.T) {
	const most = 2*4*64 + 64 // main loops take four vectors of up to 64 bytes
	eachShortKernel(t, func(t *testing.T, k, plain Kernel) {
		rng := rand.New(rand.NewPCG(42, 43))
		earlier, later := aligned(most, 0), aligned(most, 0)
		for at := 0; at < most; at += 2 {
			fill(rng, earlier, k.DType())
			fill(rng, later, k.DType())
			// All numbers from 0xff81 are NaNs of both types. 0xff80 is an infinity as a bfloat16.
			binary.LittleEndian.PutUint16(earlier[at:], 0xffff-uint16(rng.IntN(0x7f)))
			compareFolds(t, k, plain, earlier, later)
			compareFolds(t, k, plain, later, earlier)
		}
	})
}

// eachShortKernel runs a test for every kernel that computes with short floats, at each level. It
// also passes the kernel of plain Go to the test.
func eachShortKernel(t *testing.T, test func(t *testing.T, k, plain Kernel)) {
	none := newTable(vector.None)
	atEachLevel(t, func(t *testing.T, tab *table) {
		for _, op := range []Op{Sum, Prod, Mean} {
			for _, d := range []tensor.DType{tensor.F16, tensor.BF16} {
				k, err := op.kernel(tab, d)
				if err != nil {
					t.Fatal(err)
				}
				plain, err := op.kernel(none, d)
				if err != nil {
					t.Fatal(err)
				}
				t.Run(name(k), func(t *testing.T) { test(t, k, plain) })
			}
		}
	})
}
