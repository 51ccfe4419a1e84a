package reduce

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/reduce/internal/vector"
	"github.com/tutti-go/tutti/tensor"
)

func builtins() []Op {
	return []Op{Sum, Prod, Min, Max, Mean, MinLoc, MaxLoc, LogicalAnd, LogicalOr, LogicalXor, BitAnd, BitOr, BitXor}
}

// allKernels lists every kernel of the package, at this machine's level.
func allKernels() []Kernel { return kernelsOf(kernels) }

func kernelsOf(tab *table) []Kernel {
	var all []Kernel
	for _, op := range builtins() {
		for _, d := range tensor.DTypes() {
			if k, err := op.kernel(tab, d); err == nil {
				all = append(all, k)
			}
		}
	}
	return all
}

func name(k Kernel) string { return fmt.Sprintf("%s/%v", k.Op().Name(), k.DType()) }

// atEachLevel runs a test with the kernels of each level of this machine, and with the kernels of
// plain Go.
func atEachLevel(t *testing.T, test func(t *testing.T, tab *table)) {
	for _, level := range vector.Available() {
		t.Run(level.String(), func(t *testing.T) { test(t, newTable(level)) })
	}
}

func TestKernelsAgreeWithTheReference(t *testing.T) {
	atEachLevel(t, checkReference)
}

func checkReference(t *testing.T, tab *table) {
	tried := map[string]bool{}
	for _, c := range referenceCases() {
		k, err := c.op.kernel(tab, c.dtype)
		if err != nil {
			t.Error(err)
			continue
		}
		tried[name(k)] = true
		t.Run(name(k), func(t *testing.T) {
			got := make([]byte, len(c.want))
			k.Fold(got, c.earlier, c.later)
			if wrong := c.wrong(got); wrong != "" {
				t.Errorf("into other memory: %s", wrong)
			}
			got = bytes.Clone(c.earlier)
			k.Fold(got, got, c.later)
			if wrong := c.wrong(got); wrong != "" {
				t.Errorf("into the earlier: %s", wrong)
			}
			got = bytes.Clone(c.later)
			k.Fold(got, c.earlier, got)
			if wrong := c.wrong(got); wrong != "" {
				t.Errorf("into the later: %s", wrong)
			}
		})
	}
	for _, k := range kernelsOf(tab) {
		if !tried[name(k)] {
			t.Errorf("%s was compared with nothing", name(k))
		}
	}
}

// aligned returns a slice of n bytes that begins on a 64-byte boundary. Its capacity is n+more
// bytes.
func aligned(n, more int) []byte {
	return tensor.Bytes(make([]complex128, (n+more)/16+8))[: n+more : n+more]
}

// fill writes operands without NaN or infinity. Each float is below 2, so that results have the
// same bits for either order of the operands.
func fill(rng *rand.Rand, b []byte, d tensor.DType) {
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	part := map[tensor.DType]int{tensor.F16: 2, tensor.BF16: 2, tensor.Float32: 4, tensor.Float64: 8, tensor.Complex64: 4, tensor.Complex128: 8}[d.Base()]
	if part == 0 {
		return
	}
	for i := part - 1; i < len(b); i += part {
		b[i] &^= 0x40
	}
}

// significant returns b without the bytes that a comparison must ignore: if d is a Loc, it returns
// a copy of b whose padding is 0, and otherwise b itself.
func significant(b []byte, d tensor.DType) []byte {
	if !d.IsLoc() {
		return b
	}
	b = bytes.Clone(b)
	for i := 0; i < len(b); i += d.Size() {
		clear(b[i+d.Base().Size() : i+d.Size()-8])
	}
	return b
}

// For every length, every alignment, and every way in which dst shares memory with the operands,
// a fold must equal plain Go's fold of each element, and must not change bytes outside dst.
func TestFoldAtEveryLengthAndAlignment(t *testing.T) {
	// Vector loops take up to four vectors at a time, of up to 64 bytes.
	const most = 7 * 64
	plain := newTable(vector.None)
	atEachLevel(t, func(t *testing.T, tab *table) {
		for _, k := range kernelsOf(tab) {
			t.Run(name(k), func(t *testing.T) {
				t.Parallel()
				one, err := k.Op().kernel(plain, k.DType())
				if err != nil {
					t.Fatal(err)
				}
				d, size := k.DType(), k.DType().Size()
				rng := rand.New(rand.NewPCG(10, 11))
				earlier, later, want := aligned(most, 0), aligned(most, 0), aligned(most, 0)
				fill(rng, earlier, d)
				fill(rng, later, d)
				for i := 0; i+size <= len(want); i += size {
					one.Fold(want[i:i+size], earlier[i:i+size], later[i:i+size])
				}
				for n := 0; n <= most; n += size {
					for _, shift := range []int{0, 1, n / size % 16, 4 * (n / size) % 16} {
						checkFold(t, k, earlier[:n], later[:n], want[:n], shift)
					}
				}
			})
		}
	})
}

// checkFold checks folds in which dst shares memory with no operand, with one operand or with both
// operands. The offsets of dst and of the operands depend on shift.
func checkFold(t *testing.T, k Kernel, earlier, later, want []byte, shift int) {
	t.Helper()
	n := len(want)
	at := func(content []byte, shift int) (all, part []byte) {
		all = aligned(n, 32)
		for i := range all {
			all[i] = 0xa5
		}
		part = all[shift : shift+n]
		copy(part, content)
		return all, part
	}
	allDst, dst := at(nil, shift)
	allA, a := at(earlier, 3*shift%16)
	allB, b := at(later, 5*shift%16)
	for _, c := range []struct {
		name      string
		all       []byte
		dst, a, b []byte
		shift     int
	}{
		// Keep this order: a case must not overwrite an operand that a later case needs.
		{"dst by itself", allDst, dst, a, b, shift},
		{"dst is earlier", allA, a, a, b, 3 * shift % 16},
		{"dst is later", allB, b, dst, b, 5 * shift % 16},
	} {
		if c.name == "dst is later" {
			copy(dst, earlier)
		}
		k.Fold(c.dst, c.a, c.b)
		if got := significant(c.dst, k.DType()); !bytes.Equal(got, significant(want, k.DType())) {
			t.Fatalf("%d bytes, shift %d, %s:\n got %x\nwant %x", n, shift, c.name, got, want)
		}
		for i, v := range c.all {
			if (i < c.shift || i >= c.shift+n) && v != 0xa5 {
				t.Fatalf("%d bytes, shift %d, %s: byte %d beside dst changed", n, shift, c.name, i-c.shift)
			}
		}
		if c.name == "dst by itself" && (!bytes.Equal(a, earlier) || !bytes.Equal(b, later)) {
			t.Fatalf("%d bytes, shift %d: an operand changed", n, shift)
		}
	}
}

func TestFoldOfMemoryWithItself(t *testing.T) {
	atEachLevel(t, checkFoldWithItself)
}

func checkFoldWithItself(t *testing.T, tab *table) {
	for _, k := range kernelsOf(tab) {
		const elems = 67
		buf := aligned(elems*k.DType().Size(), 0)
		fill(rand.New(rand.NewPCG(12, 13)), buf, k.DType())
		want := aligned(len(buf), 0)
		k.Fold(want, bytes.Clone(buf), bytes.Clone(buf))
		k.Fold(buf, buf, buf)
		if !bytes.Equal(significant(buf, k.DType()), significant(want, k.DType())) {
			t.Errorf("%s: got %x, want %x", name(k), buf, want)
		}
	}
}

// A kernel cuts long operands into blocks. The test folds short parts of the operands one by one,
// and the results must be equal.
func TestLongFoldsAreTheirParts(t *testing.T) {
	atEachLevel(t, checkLongFolds)
}

func checkLongFolds(t *testing.T, tab *table) {
	for _, k := range kernelsOf(tab) {
		for _, elems := range []int{127, 128, 129, 1023, 1024, 1025, 5000} {
			for _, shift := range []int{0, 1} {
				n := elems * k.DType().Size()
				rng := rand.New(rand.NewPCG(14, 15))
				a, b := aligned(n, 0), aligned(n, 0)
				fill(rng, a, k.DType())
				fill(rng, b, k.DType())
				got, want := aligned(n, 16)[shift:shift+n], aligned(n, 0)
				k.Fold(got, a, b)
				step := 7 * k.DType().Size()
				for i := 0; i < n; i += step {
					end := min(i+step, n)
					k.Fold(want[i:end], a[i:end], b[i:end])
				}
				if !bytes.Equal(significant(got, k.DType()), significant(want, k.DType())) {
					t.Errorf("%s: %d elements, shift %d differ from their parts", name(k), elems, shift)
				}
			}
		}
	}
}

// A ring may start a fold at any rank. For these operators the result must not depend on the first
// rank.
func TestOrderDoesNotShowInMinAndMaxAndBits(t *testing.T) {
	for _, c := range referenceCases() {
		if slices.Contains([]string{"sum", "prod", "mean"}, c.op.Name()) {
			continue
		}
		k, err := c.op.Kernel(c.dtype)
		if err != nil {
			t.Fatal(err)
		}
		const enough = 1 << 19 // bytes, whole elements of every size
		n := min(len(c.want), enough)
		a, b := c.earlier[:n], c.later[:n]
		ab, ba := make([]byte, n), make([]byte, n)
		k.Fold(ab, a, b)
		k.Fold(ba, b, a)
		if !bytes.Equal(significant(ab, c.dtype), significant(ba, c.dtype)) {
			t.Errorf("%s: a op b is not b op a", name(k))
		}

		// The third operand is a rotated copy of the second one.
		turn := n / 2 / 16 * 16
		third := slices.Concat(b[turn:], b[:turn])
		left, right := make([]byte, n), make([]byte, n)
		k.Fold(left, ab, third)
		k.Fold(right, b, third)
		k.Fold(right, a, right)
		if !bytes.Equal(significant(left, c.dtype), significant(right, c.dtype)) {
			t.Errorf("%s: (a op b) op c is not a op (b op c)", name(k))
		}
	}
}

func TestBoolBytesOfAnyValueBecomeZeroOrOne(t *testing.T) {
	for _, c := range []struct {
		ops []Op
		ref func(a, b bool) bool
	}{
		{[]Op{LogicalAnd, BitAnd}, func(a, b bool) bool { return a && b }},
		{[]Op{LogicalOr, BitOr}, func(a, b bool) bool { return a || b }},
		{[]Op{LogicalXor, BitXor}, func(a, b bool) bool { return a != b }},
	} {
		for _, op := range c.ops {
			k, err := op.Kernel(tensor.Bool)
			if err != nil {
				t.Fatal(err)
			}
			for pair := range 1 << 16 {
				a, b, got := []byte{byte(pair >> 8)}, []byte{byte(pair)}, []byte{7}
				want := byte(0)
				if c.ref(a[0] != 0, b[0] != 0) {
					want = 1
				}
				if k.Fold(got, a, b); got[0] != want {
					t.Fatalf("%s of bytes %d and %d is %d, want %d", op.Name(), a[0], b[0], got[0], want)
				}
			}
		}
	}
}

func TestFoldAndFinishAllocateNothing(t *testing.T) {
	atEachLevel(t, checkAllocations)
}

func checkAllocations(t *testing.T, tab *table) {
	for _, k := range kernelsOf(tab) {
		n := 100 * k.DType().Size()
		dst, a, b := aligned(n, 0), aligned(n, 0), aligned(n, 0)
		if got := testing.AllocsPerRun(20, func() {
			k.Fold(dst, a, b)
			k.Fold(dst, dst, b)
			k.Fold(dst, a, dst)
			k.Finish(dst, 3)
		}); got != 0 {
			t.Errorf("%s: %v allocations", name(k), got)
		}
		if got := testing.AllocsPerRun(20, func() { _, _ = k.Op().Kernel(k.DType()) }); got != 0 {
			t.Errorf("finding %s: %v allocations", name(k), got)
		}
	}
}

func TestFoldPanicsOnUnequalLengthsAndPartsOfElements(t *testing.T) {
	k, err := Sum.Kernel(tensor.Int32)
	if err != nil {
		t.Fatal(err)
	}
	mem := aligned(64, 0)
	for _, c := range [][3]int{{8, 8, 4}, {8, 4, 8}, {4, 8, 8}, {0, 4, 4}, {6, 6, 6}} {
		func() {
			defer func() {
				if err, ok := recover().(error); !ok || !errors.Is(err, fault.Misuse) {
					t.Errorf("lengths %v: got %v, want fault.Misuse", c, err)
				}
			}()
			k.Fold(mem[:c[0]], mem[:c[1]], mem[:c[2]])
		}()
	}
}

func TestEmptyFoldsDoNothing(t *testing.T) {
	for _, k := range allKernels() {
		k.Fold(nil, nil, nil)
		k.Fold([]byte{}, nil, []byte{})
		k.Finish(nil, 3)
	}
}

func TestMeanDividesEachValueOnce(t *testing.T) {
	atEachLevel(t, checkMeans)
}

func checkMeans(t *testing.T, tab *table) {
	checkMean(t, tab, floats32(), func(v float32, n int) float32 { return v / float32(n) }, sameNumber)
	checkMean(t, tab, floats64(), func(v float64, n int) float64 { return v / float64(n) }, sameNumber)
	checkMean(t, tab, []complex64{complex(1, -3), complex(0, 7)}, func(v complex64, n int) complex64 {
		return complex(real(v)/float32(n), imag(v)/float32(n))
	}, equal)
	checkMean(t, tab, []complex128{complex(1, -3), complex(0, 7)}, func(v complex128, n int) complex128 {
		return complex(real(v)/float64(n), imag(v)/float64(n))
	}, equal)
	var halves []tensor.Float16
	var brains []tensor.BFloat16
	for u := range 1 << 16 {
		halves = append(halves, tensor.Float16FromBits(uint16(u)))
		brains = append(brains, tensor.BFloat16FromBits(uint16(u)))
	}
	checkMean(t, tab, halves, func(v tensor.Float16, n int) tensor.Float16 { return tensor.Float16From(v.Float32() / float32(n)) }, equal)
	checkMean(t, tab, brains, func(v tensor.BFloat16, n int) tensor.BFloat16 { return tensor.BFloat16From(v.Float32() / float32(n)) }, equal)
}

func checkMean[T tensor.Element](t *testing.T, tab *table, values []T, ref func(v T, n int) T, same func(got, want T) bool) {
	t.Helper()
	k, err := Mean.kernel(tab, tensor.TypeOf[T]())
	if err != nil {
		t.Fatal(err)
	}
	for _, ranks := range []int{2, 3, 5, 8, 1000} {
		for _, shift := range []int{0, 1} { // at offset 1 the memory is not aligned
			mem := tensor.Bytes(make([]T, len(values)+1))
			buf := mem[shift : shift+len(mem)-k.DType().Size()]
			copy(buf, tensor.Bytes(values))
			k.Finish(buf, ranks)
			got := make([]T, len(values))
			copy(tensor.Bytes(got), buf)
			for i, v := range values {
				if want := ref(v, ranks); !same(got[i], want) {
					t.Fatalf("%v: %v over %d is %v, want %v", k.DType(), v, ranks, got[i], want)
				}
			}
		}
	}
}

func TestFinishChangesNothingButMeans(t *testing.T) {
	for _, k := range allKernels() {
		buf := bytes.Repeat([]byte{0x3f, 0x81, 1, 0}, 12) // 48 bytes: whole elements of every size
		want := bytes.Clone(buf)
		for _, ranks := range []int{1, 2, 7} {
			if ranks > 1 && k.Op().Name() == "mean" {
				continue
			}
			if k.Finish(buf, ranks); !bytes.Equal(buf, want) {
				t.Errorf("%s of %d ranks: Finish changed memory", name(k), ranks)
			}
		}
	}
}

// The mean of four shares must be their sum, added in order, divided once by 4.
func TestMeanIsOneSumAndOneDivision(t *testing.T) {
	k, err := Mean.Kernel(tensor.Float64)
	if err != nil {
		t.Fatal(err)
	}
	shares := [][]float64{{0.1, 1e308}, {0.2, 1e308}, {0.3, -1e308}, {0.4, math.Inf(-1)}}
	acc := tensor.Bytes(slices.Clone(shares[0]))
	for _, s := range shares[1:] {
		k.Fold(acc, acc, tensor.Bytes(s))
	}
	k.Finish(acc, len(shares))
	got := tensor.Elements[float64](acc)
	sum := shares[0][0]
	for _, s := range shares[1:] {
		sum += s[0]
	}
	if want := sum / 4; got[0] != want {
		t.Errorf("got %v, want %v", got[0], want)
	}
	// The sum had overflowed before the infinity with the other sign was added.
	if !math.IsNaN(got[1]) {
		t.Errorf("got %v, want NaN", got[1])
	}
}
