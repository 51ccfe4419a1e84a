package reduce

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/tutti-go/tutti/reduce/internal/vector"
	"github.com/tutti-go/tutti/tensor"
)

// lenient replaces every NaN in results of sums and products by the same NaN, because the
// payloads of such NaNs depend on the processor. It leaves short floats alone, because package
// reduce defines their NaNs.
func lenient(b []byte, k Kernel) []byte {
	if !slices.Contains([]string{"sum", "prod", "mean"}, k.Op().Name()) {
		return significant(b, k.DType())
	}
	b = bytes.Clone(b)
	switch k.DType() {
	case tensor.Float32, tensor.Complex64:
		all := aligned(len(b), 0)
		copy(all, b)
		oneNaNOf(tensor.Elements[float32](all))
		return all
	case tensor.Float64, tensor.Complex128:
		all := aligned(len(b), 0)
		copy(all, b)
		oneNaNOf(tensor.Elements[float64](all))
		return all
	}
	return b
}

func oneNaNOf[T float](values []T) {
	for i, v := range values {
		values[i] = canonical(v)
	}
}

// Each level must give the results of plain Go for random bits. Many random elements are NaNs,
// infinities and subnormals.
func TestVectorLoopsGiveTheBitsOfPlainGo(t *testing.T) {
	plain := newTable(vector.None)
	atEachLevel(t, func(t *testing.T, tab *table) {
		rng := rand.New(rand.NewPCG(30, 31))
		for _, k := range kernelsOf(tab) {
			want, err := k.Op().kernel(plain, k.DType())
			if err != nil {
				t.Fatal(err)
			}
			const most = 16 << 10
			a, b := randomBits(rng, most), randomBits(rng, most)
			for range 4 {
				n := rng.IntN(most) / k.DType().Size() * k.DType().Size()
				compareFolds(t, k, want, a[:n], b[most-n:])
			}
		}
	})
}

// randomBits returns n random bytes in which every kind of number is likely. Many bytes are 0x00 or
// 0xff, so in some exponents all bits are 0, and in others all bits are 1.
func randomBits(rng *rand.Rand, n int) []byte {
	b := aligned(n, 0)
	for i := range b {
		switch rng.IntN(6) {
		case 0:
			b[i] = 0
		case 1:
			b[i] = 0xff
		case 2:
			b[i] = 0x80
		case 3:
			b[i] = 0x7f
		default:
			b[i] = byte(rng.Uint32())
		}
	}
	return b
}

// compareFolds checks that two kernels give the same results for folds into separate memory, for
// folds into either operand, and for the finished result.
func compareFolds(t *testing.T, k, plain Kernel, earlier, later []byte) {
	t.Helper()
	want := aligned(len(earlier), 0)
	plain.Fold(want, earlier, later)
	got, intoEarlier, intoLater := aligned(len(earlier), 0), bytes.Clone(earlier), bytes.Clone(later)
	k.Fold(got, earlier, later)
	k.Fold(intoEarlier, intoEarlier, later)
	k.Fold(intoLater, earlier, intoLater)
	for i, r := range [][]byte{got, intoEarlier, intoLater} {
		if at := firstDifference(k, r, want); at >= 0 {
			from := at / k.DType().Size() * k.DType().Size()
			to := from + k.DType().Size()
			t.Fatalf("%s, %d bytes, sharing %d, at byte %d: %x and %x give %x, want %x", name(k), len(got), i, at,
				earlier[from:to], later[from:to], r[from:to], want[from:to])
		}
	}
	k.Finish(got, 3)
	plain.Finish(want, 3)
	if at := firstDifference(k, got, want); at >= 0 {
		t.Fatalf("%s, %d bytes: finishing differs at byte %d", name(k), len(got), at)
	}
}

// firstDifference returns the offset of the first byte in which two results differ and must not
// differ, or -1.
func firstDifference(k Kernel, got, want []byte) int {
	if bytes.Equal(got, want) {
		return -1
	}
	got, want = lenient(got, k), lenient(want, k)
	for i := range got {
		if got[i] != want[i] {
			return i
		}
	}
	return -1
}

// Long memory is folded in blocks. The results must be correct for every length of the last
// block.
func TestPiecesOfLongFoldsFitTogether(t *testing.T) {
	plain := newTable(vector.None)
	rng := rand.New(rand.NewPCG(32, 33))
	a, b := randomBits(rng, 4*vectorBlock), randomBits(rng, 4*vectorBlock)
	atEachLevel(t, func(t *testing.T, tab *table) {
		for _, d := range []tensor.DType{tensor.Int8, tensor.Float32, tensor.F16, tensor.Complex128} {
			op := Sum
			if d != tensor.Int8 {
				op = Mean // Mean, because it has a Finish
			}
			for _, n := range []int{2*vectorBlock - d.Size(), 2 * vectorBlock, 3*vectorBlock + 7*d.Size()} {
				k, err := op.kernel(tab, d)
				if err != nil {
					t.Fatal(err)
				}
				want, err := op.kernel(plain, d)
				if err != nil {
					t.Fatal(err)
				}
				compareFolds(t, k, want, a[:n], b[:n])
			}
		}
	})
}

// Every level must have a loop for every operator and type that it should serve.
func TestEveryLevelServesAll(t *testing.T) {
	for _, level := range vector.Available()[1:] {
		for _, k := range kernelsOf(newTable(level)) {
			if k.loops.vector == nil {
				t.Errorf("%v, %s has no vector loop", level, name(k))
			}
		}
	}
	for _, k := range kernelsOf(newTable(vector.None)) {
		if k.loops.vector != nil {
			t.Errorf("%s has a vector loop without vectors", name(k))
		}
	}
}

func TestBestIsTheHighestLevel(t *testing.T) {
	for _, level := range vector.Available() {
		if level > best() {
			t.Errorf("%v is available, and best is %v", level, best())
		}
	}
}

// FuzzFold compares every level with plain Go. The first bytes choose the operator, the type
// and the alignment; the rest is cut into two operands.
func FuzzFold(f *testing.F) {
	plain := newTable(vector.None)
	var levels [][]Kernel
	for _, level := range vector.Available() {
		levels = append(levels, kernelsOf(newTable(level)))
	}
	rng := rand.New(rand.NewPCG(33, 34))
	for i := range levels[0] {
		f.Add(uint8(i), uint8(i), randomBits(rng, 16*(1+rng.IntN(40))))
	}
	f.Fuzz(func(t *testing.T, which, shift uint8, data []byte) {
		for _, all := range levels {
			k := all[int(which)%len(all)]
			want, err := k.Op().kernel(plain, k.DType())
			if err != nil {
				t.Fatal(err)
			}
			n := len(data) / 2 / k.DType().Size() * k.DType().Size()
			s := int(shift % 32)
			a, b := aligned(n, 32)[s:s+n], aligned(n, 32)[:n]
			copy(a, data[:n])
			copy(b, data[len(data)/2:])
			compareFolds(t, k, want, a, b)
		}
	})
}

// Every level must give the bits of plain Go for operands that tie: equal values, values that
// compare as equal, and NaNs of all kinds, with arbitrary padding.
func TestVectorLoopsBreakTiesAsPlainGoDoes(t *testing.T) {
	special := map[tensor.DType][]uint64{
		tensor.F16:     {0, 0x8000, 1, 0x8001, 0x7c00, 0xfc00, 0x7c01, 0x7e00, 0xfe00, 0xffff, 0x3c00},
		tensor.BF16:    {0, 0x8000, 1, 0x8001, 0x7f80, 0xff80, 0x7f81, 0x7fc0, 0xffc0, 0xffff, 0x3f80},
		tensor.Float32: {0, 1 << 31, 1, 1<<31 | 1, 0x7f800000, 0xff800000, 0x7f800001, 0x7fc00000, 0xffc00000, 0xffffffff, 0x3f800000},
		tensor.Float64: {0, 1 << 63, 1, 1<<63 | 1, 0x7ff0 << 48, 0xfff0 << 48, 0x7ff0<<48 | 1, 0x7ff8 << 48, 0xfff8 << 48, 1<<64 - 1, 0x3ff0 << 48},
	}
	plain := newTable(vector.None)
	atEachLevel(t, func(t *testing.T, tab *table) {
		for _, k := range kernelsOf(tab) {
			d := k.DType()
			if !d.IsLoc() {
				continue
			}
			values := special[d.Base()]
			if values == nil {
				values = []uint64{0, 1, 2, 0x7f, 0x80, 0x7fff, 0x8000, 1<<31 - 1, 1 << 31, 1<<63 - 1, 1 << 63, 1<<64 - 1}
			}
			want, err := k.Op().kernel(plain, d)
			if err != nil {
				t.Fatal(err)
			}
			rng := rand.New(rand.NewPCG(37, 38))
			indices := []uint64{0, 1, 2, 1<<63 - 1, 1 << 63, 1<<64 - 1}
			one := func(value uint64) (loc []byte) {
				loc = binary.NativeEndian.AppendUint64(nil, rng.Uint64())
				// In low, all bits of the value are set. For 64 bits the shift gives 0.
				low := uint64(1)<<(8*d.Base().Size()) - 1
				binary.NativeEndian.PutUint64(loc, binary.NativeEndian.Uint64(loc)&^low|value&low)
				return binary.NativeEndian.AppendUint64(loc, indices[rng.IntN(len(indices))])
			}
			var a, b []byte
			for _, x := range values {
				for _, y := range values {
					for range 12 {
						a, b = append(a, one(x)...), append(b, one(y)...)
					}
				}
			}
			earlier, later := aligned(len(a), 0), aligned(len(b), 0)
			copy(earlier, a)
			copy(later, b)
			compareFolds(t, k, want, earlier, later)
		}
	})
}
