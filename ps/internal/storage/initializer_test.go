package storage

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/test/arm64"
	"github.com/tutti-go/tutti/tensor"
)

// values returns the first values of part of a row.
func values[T tensor.Element](z Initializer, name string, row, first int64, n int) []T {
	v := make([]T, n)
	Spec{Name: name, DType: tensor.TypeOf[T](), Initial: z}.filler().fill(tensor.Bytes(v), row, first)
	return v
}

// These values must stay, because programs repeat their runs by them, and because all servers of a
// job must agree.
func TestInitialValuesKeepTheirBits(t *testing.T) {
	for _, c := range []struct {
		z    Initializer
		name string
		row  int64
		want []uint64
	}{
		{Uniform(-1, 1, 7), "embedding", 0, []uint64{0x3fede31b0d6e3e8e, 0x3fc61c6d50a55dc0, 0xbfd9363d06e08780}},
		{Uniform(-1, 1, 7), "embedding", -5, []uint64{0xbfdfb8a6d5321654, 0x3fd2a33bba243c5c, 0xbfdeb983e4091130}},
		{Normal(0.5, 7), "embedding", 12345, []uint64{0xbfd3a66e22183d96, 0x3fd62ad20be53836, 0xbfcb80565549cc2b}},
	} {
		var got []uint64
		for _, x := range values[float64](c.z, c.name, c.row, 0, len(c.want)) {
			got = append(got, math.Float64bits(x))
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%v, row %d: got %#x, want %#x", c.z, c.row, got, c.want)
		}
	}
}

func TestInitialValuesDoNotDependOnTheCut(t *testing.T) {
	for _, z := range []Initializer{Zeros(), Constant(3), Uniform(0, 1, 1), Normal(1, 1)} {
		whole := values[float32](z, "w", 4, 0, 100)
		cut := append(values[float32](z, "w", 4, 0, 33), values[float32](z, "w", 4, 33, 67)...)
		if !slices.Equal(whole, cut) {
			t.Errorf("%v: got %v, want %v", z, cut, whole)
		}
	}
}

func TestInitialValuesDependOnNameRowColumnAndSeed(t *testing.T) {
	seen := map[float64]string{}
	for _, name := range []string{"a", "b"} {
		for _, seed := range []uint64{0, 1} {
			for _, row := range []int64{-1, 0, 1, 1 << 40} {
				for _, x := range values[float64](Uniform(0, 1, seed), name, row, 0, 50) {
					if other, ok := seen[x]; ok {
						t.Fatalf("%v occurs in %s and in %s", x, name, other)
					}
					seen[x] = name
				}
			}
		}
	}
}

func TestInitialValuesHaveTheirDistributions(t *testing.T) {
	const n = 200_000
	moments := func(v []float64) (mean, deviation float64) {
		for _, x := range v {
			mean += x / n
		}
		for _, x := range v {
			deviation += (x - mean) * (x - mean) / n
		}
		return mean, math.Sqrt(deviation)
	}
	u := values[float64](Uniform(2, 4, 9), "u", 0, 0, n)
	if mean, dev := moments(u); math.Abs(mean-3) > 0.01 || math.Abs(dev-2/math.Sqrt(12)) > 0.01 {
		t.Errorf("uniform: mean %v, deviation %v", mean, dev)
	}
	if lo, hi := slices.Min(u), slices.Max(u); lo < 2 || lo > 2.01 || hi > 4 || hi < 3.99 {
		t.Errorf("uniform: %v to %v", lo, hi)
	}
	z := values[float64](Normal(2, 9), "z", 0, 0, n)
	if mean, dev := moments(z); math.Abs(mean) > 0.02 || math.Abs(dev-2) > 0.02 {
		t.Errorf("normal: mean %v, deviation %v", mean, dev)
	}
	beyond := 0
	for _, x := range z {
		if math.Abs(x) > 4 {
			beyond++
		}
	}
	if got, want := float64(beyond)/n, 0.0455; math.Abs(got-want) > 0.002 {
		t.Errorf("normal: %v of the values beyond two deviations, want %v", got, want)
	}
}

func TestQuantilesAndLogarithmsEqualThoseOfPackageMath(t *testing.T) {
	for _, x := range []float64{0.5, 1.5, 100.5, 1e6 + 0.5, 0x1p28, 0.0749 * 0x1p32, 0.0751 * 0x1p32, 0x1p30, 0x1p31 + 0.5, 0.93 * 0x1p32, 0x1p32 - 0.5} {
		want := math.Sqrt2 * math.Erfinv(2*(x*0x1p-32)-1)
		if got := quantile(x); math.Abs(got-want) > 1e-6*max(1, math.Abs(want)) {
			t.Errorf("quantile(%v) = %v, want %v", x, got, want)
		}
	}
	for x := 0x1p-33; x < 0.5; x *= 1.37 {
		if got, want := logarithm(x), math.Log(x); math.Abs(got-want) > 1e-10*math.Abs(want) {
			t.Errorf("logarithm(%v) = %v, want %v", x, got, want)
		}
	}
}

func TestInitializersServeTheirElementTypes(t *testing.T) {
	if got, want := values[int8](Constant(-128), "i", 1, 0, 2), []int8{-128, -128}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	half, want := values[tensor.Float16](Normal(1, 1), "h", 1, 0, 5), values[float32](Normal(1, 1), "h", 1, 0, 5)
	brain := values[tensor.BFloat16](Normal(1, 1), "h", 1, 0, 5)
	for i, x := range want {
		if half[i] != tensor.Float16From(x) || brain[i] != tensor.BFloat16From(x) {
			t.Errorf("element %d: got %v and %v, want %v", i, half[i].Float32(), brain[i].Float32(), x)
		}
	}
	for _, c := range []struct {
		z    Initializer
		d    tensor.DType
		good bool
	}{
		{Zeros(), tensor.Bool, true}, {Zeros(), tensor.LocOf(tensor.Int8), true}, {Zeros(), tensor.Complex64, true},
		{Constant(1), tensor.Complex64, false}, {Constant(1), tensor.Bool, false},
		{Constant(255), tensor.Uint8, true}, {Constant(256), tensor.Uint8, false}, {Constant(-1), tensor.Uint8, false},
		{Constant(128), tensor.Int8, false}, {Constant(0.5), tensor.Int8, false}, {Constant(math.NaN()), tensor.Float32, false},
		{Uniform(0, 1, 1), tensor.Int32, false}, {Uniform(1, 0, 1), tensor.Float32, false}, {Uniform(0, math.Inf(1), 1), tensor.Float32, false},
		{Normal(-1, 1), tensor.Float32, false}, {Normal(1, 1), tensor.BF16, true},
	} {
		if err := c.z.check(c.d); (err == nil) != c.good || err != nil && !errors.Is(err, fault.Misuse) {
			t.Errorf("%v of %v: got %v", c.z, c.d, err)
		}
	}
}

func TestParseInitializerReadsWhatStringWrites(t *testing.T) {
	for _, z := range []Initializer{Zeros(), Constant(-1.5e-7), Uniform(-0.5, 0.5, math.MaxUint64), Normal(0.02, 3)} {
		if got, err := ParseInitializer(z.String()); got != z || err != nil {
			t.Errorf("%v: got %v, %v", z, got, err)
		}
	}
	for _, text := range []string{"", "zeros", "zeros(1)", "constant()", "constant(x)", "uniform(1,2)", "uniform(1,2,3,4)",
		"uniform(1,2,-3)", "normal(1)", "normal(1,2", "other(1)", strings.Repeat("x", 1000)} {
		if z, err := ParseInitializer(text); !errors.Is(err, fault.Misuse) || len(err.Error()) > 250 {
			t.Errorf("%q: got %v, %v", text, z, err)
		}
	}
}

// On arm64 the compiler may fuse products and sums, so this test reads the compiler's listing.
func TestInitializersDoNotFuseOnARM64(t *testing.T) {
	arm64.FusesNothing(t, "FMULD")
}
