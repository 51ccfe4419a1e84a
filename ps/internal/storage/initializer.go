package storage

import (
	"fmt"
	"hash/fnv"
	"math"
	"strconv"
	"strings"

	"github.com/tutti-go/tutti/tensor"
)

// An Initializer computes the first value of each element. The value depends only on the
// Initializer, the tensor's name, the row's index and the column. It has the same bits on every
// processor. A vector counts as row 0. Initializers may be compared with ==.
type Initializer struct {
	kind kind
	a, b float64
	seed uint64
}

type kind uint8

const (
	zeros kind = iota
	constant
	uniform
	normal
)

// Zeros returns the Initializer of values 0. It is the zero Initializer.
func Zeros() Initializer { return Initializer{} }

// Constant returns the Initializer of values x, of an integer or floating-point type.
func Constant(x float64) Initializer { return Initializer{kind: constant, a: x} }

// Uniform returns the Initializer of values that are uniformly distributed from lo to hi, of a
// floating-point type.
func Uniform(lo, hi float64, seed uint64) Initializer {
	return Initializer{kind: uniform, a: lo, b: hi, seed: seed}
}

// Normal returns the Initializer of values that are normally distributed around 0, with a standard
// deviation of std and a magnitude of at most 6.3·std, of a floating-point type.
func Normal(std float64, seed uint64) Initializer {
	return Initializer{kind: normal, a: std, seed: seed}
}

// String returns the text that ParseInitializer parses, such as "uniform(-0.5,0.5,7)".
func (z Initializer) String() string {
	number := func(x float64) string { return strconv.FormatFloat(x, 'g', -1, 64) }
	switch z.kind {
	case constant:
		return "constant(" + number(z.a) + ")"
	case uniform:
		return fmt.Sprintf("uniform(%s,%s,%d)", number(z.a), number(z.b), z.seed)
	case normal:
		return fmt.Sprintf("normal(%s,%d)", number(z.a), z.seed)
	}
	return "zeros()"
}

// ParseInitializer returns the Initializer whose String is text, or fault.Misuse.
func ParseInitializer(text string) (Initializer, error) {
	name, rest, _ := strings.Cut(text, "(")
	args := strings.Split(strings.TrimSuffix(rest, ")"), ",")
	float := func(i int) float64 {
		if i >= len(args) {
			return math.NaN()
		}
		x, err := strconv.ParseFloat(args[i], 64)
		if err != nil {
			return math.NaN()
		}
		return x
	}
	var z Initializer
	switch name {
	case "constant":
		z = Constant(float(0))
	case "uniform":
		z = Uniform(float(0), float(1), 0)
	case "normal":
		z = Normal(float(0), 0)
	}
	if z.kind >= uniform {
		z.seed, _ = strconv.ParseUint(args[len(args)-1], 10, 64)
	}
	if z.String() != text {
		return Initializer{}, misuse("initializer: got %.40q, want zeros(), constant(x), uniform(lo,hi,seed) or normal(std,seed)", text)
	}
	return z, nil
}

// check returns fault.Misuse if z has no values of type d.
func (z Initializer) check(d tensor.DType) error {
	bad := false
	switch d {
	case tensor.F16, tensor.BF16, tensor.Float32, tensor.Float64:
	case tensor.Int8, tensor.Int16, tensor.Int32, tensor.Int64, tensor.Uint8, tensor.Uint16, tensor.Uint32, tensor.Uint64:
		bad = z.kind > constant
	default:
		bad = z.kind > zeros
	}
	if bad {
		return misuse("initializer %v: got elements of type %v, want a floating-point type, or an integer type and a constant", z, d)
	}
	if math.IsNaN(z.a-z.b) || math.IsInf(z.a-z.b, 0) || z.kind == uniform && z.a > z.b || z.kind == normal && z.a < 0 {
		return misuse("initializer: got %v, want finite numbers, and lo ≤ hi or std ≥ 0", z)
	}
	if z.kind == constant && bad64(z.a, d) {
		return misuse("initializer: got %v, want a value of type %v", z, d)
	}
	return nil
}

// bad64 reports whether x is not a value of the integer type d.
func bad64(x float64, d tensor.DType) bool {
	bits := float64(8 * d.Size())
	switch d {
	case tensor.Int8, tensor.Int16, tensor.Int32, tensor.Int64:
		return x != math.Trunc(x) || x < -math.Exp2(bits-1) || x >= math.Exp2(bits-1)
	case tensor.Uint8, tensor.Uint16, tensor.Uint32, tensor.Uint64:
		return x != math.Trunc(x) || x < 0 || x >= math.Exp2(bits)
	}
	return false
}

// A filler writes the first values of the tensor that it was made for.
type filler struct {
	Initializer
	dtype tensor.DType
	key   uint64
}

func (s Spec) filler() filler {
	h := fnv.New64a()
	h.Write(tensor.TextBytes(s.Name))
	return filler{s.Initial, s.DType, mix(h.Sum64() ^ mix(s.Initial.seed))}
}

// fill sets dst to the elements of a row from column first on.
func (f filler) fill(dst []byte, row, first int64) {
	if f.kind == zeros {
		clear(dst)
		return
	}
	switch f.dtype {
	case tensor.Float32:
		fill(f, tensor.Elements[float32](dst), row, first)
	case tensor.Float64:
		fill(f, tensor.Elements[float64](dst), row, first)
	case tensor.F16:
		half := tensor.Elements[tensor.Float16](dst)
		for i := range half {
			half[i] = tensor.Float16From(float32(f.at(row, first+int64(i))))
		}
	case tensor.BF16:
		half := tensor.Elements[tensor.BFloat16](dst)
		for i := range half {
			half[i] = tensor.BFloat16From(float32(f.at(row, first+int64(i))))
		}
	case tensor.Int8:
		fill(f, tensor.Elements[int8](dst), row, first)
	case tensor.Int16:
		fill(f, tensor.Elements[int16](dst), row, first)
	case tensor.Int32:
		fill(f, tensor.Elements[int32](dst), row, first)
	case tensor.Int64:
		fill(f, tensor.Elements[int64](dst), row, first)
	case tensor.Uint8:
		fill(f, tensor.Elements[uint8](dst), row, first)
	case tensor.Uint16:
		fill(f, tensor.Elements[uint16](dst), row, first)
	case tensor.Uint32:
		fill(f, tensor.Elements[uint32](dst), row, first)
	case tensor.Uint64:
		fill(f, tensor.Elements[uint64](dst), row, first)
	}
}

func fill[T int8 | int16 | int32 | int64 | uint8 | uint16 | uint32 | uint64 | float32 | float64](f filler, dst []T, row, first int64) {
	for i := range dst {
		dst[i] = T(f.at(row, first+int64(i)))
	}
}

// at returns the value of one element.
func (f filler) at(row, column int64) float64 {
	if f.kind == constant {
		return f.a
	}
	bits := mix(f.key ^ mix(uint64(row)) + 0x9e3779b97f4a7c15*uint64(column))
	if f.kind == uniform {
		// The conversion rounds the product, so that it is not fused with the sum.
		return f.a + float64((f.b-f.a)*(float64(bits>>11)*0x1p-53))
	}
	return float64(f.a * quantile(float64(bits>>32)+0.5))
}

// mix is the finalizer of splitmix64: G. L. Steele, D. Lea and C. H. Flood, "Fast splittable
// pseudorandom number generators", OOPSLA 2014.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// quantile returns the quantile x/2³² of the standard normal distribution, for x from 0.5 to
// 2³²-0.5. It is algorithm AS 241, PPND7, with an error of about 1e-7: M. J. Wichura, "The percentage
// points of the normal distribution", Applied Statistics 37(3), 1988.
func quantile(x float64) float64 {
	p := float64(x * 0x1p-32)
	q := p - 0.5
	if math.Abs(q) <= 0.425 {
		r := 0.180625 - float64(q*q)
		return q * polynomial(r, 3.3871327179, 50.434271938, 159.29113202, 59.109374720) /
			polynomial(r, 1, 17.895169469, 78.757757664, 67.187563600)
	}
	r := math.Sqrt(-logarithm(min(p, 1-p))) - 1.6
	r = polynomial(r, 1.4234372777, 2.7568153900, 1.3067284816, 0.17023821103) /
		polynomial(r, 1, 0.73700164250, 0.12021132975, 0)
	return math.Copysign(r, q)
}

// polynomial returns a + bx + cx² + dx³. The conversions round each product.
func polynomial(x, a, b, c, d float64) float64 {
	return a + float64(x*(b+float64(x*(c+float64(x*d)))))
}

// logarithm returns the natural logarithm of x, 0 < x < 0.5, with an error below 1e-10. Its bits are
// the same on every processor, unlike those of math.Log.
func logarithm(x float64) float64 {
	m, e := math.Frexp(x)
	if m < math.Sqrt2/2 {
		m, e = 2*m, e-1
	}
	// log m = 2·artanh s = 2(s + s³/3 + s⁵/5 + …), |s| < 0.172
	s := (m - 1) / (m + 1)
	square := float64(s * s)
	sum := 0.0
	for k := 13; k >= 1; k -= 2 {
		sum = 1/float64(k) + float64(square*sum)
	}
	return float64(float64(e)*math.Ln2) + float64(2*float64(s*sum))
}
