package optimizer

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/test/arm64"
	"github.com/tutti-go/tutti/tensor"
)

// tests lists every built-in Optimizer, with the defaults and without them.
var tests = []Optimizer{
	SGD{Rate: 0.1},
	Momentum{Rate: 0.05}, Momentum{Rate: 0.05, Factor: 0.5},
	Momentum{Rate: 0.05, Nesterov: true},
	Adagrad{Rate: 0.3}, Adagrad{Rate: 0.3, Initial: 0.1, Epsilon: 1e-7},
	Adam{Rate: 0.01}, Adam{Rate: 0.01, Beta1: 0.5, Beta2: 0.75, Epsilon: 1e-3},
	FTRL{Rate: 0.2}, FTRL{Rate: 0.2, Beta: 0.5, L1: 0.3, L2: 0.125},
}

// A reference updates one value. It is the serial code that the loops must equal bit for bit.
type reference[T float32 | float64] func(w, g T, slots []T, step int64) T

// product returns a*b. Because it is not inlined, the compiler cannot fuse the product with a sum.
//
//go:noinline
func product[T float32 | float64](a, b T) T { return a * b }

func root[T float32 | float64](x T) T { return T(math.Sqrt(float64(x))) }

func or(x, standard float64) float64 {
	if x == 0 {
		return standard
	}
	return x
}

func referenceOf[T float32 | float64](o Optimizer) reference[T] {
	switch o := o.(type) {
	case SGD:
		return func(w, g T, _ []T, _ int64) T { return w - product(T(o.Rate), g) }
	case Momentum:
		factor := T(or(o.Factor, 0.9))
		return func(w, g T, slots []T, _ int64) T {
			slots[0] = product(factor, slots[0]) + g
			if o.Nesterov {
				return w - product(T(o.Rate), g+product(factor, slots[0]))
			}
			return w - product(T(o.Rate), slots[0])
		}
	case Adagrad:
		return func(w, g T, slots []T, _ int64) T {
			slots[0] += product(g, g)
			return w - product(T(o.Rate), g)/(root(slots[0])+T(or(o.Epsilon, 1e-10)))
		}
	case Adam:
		beta1, beta2 := or(o.Beta1, 0.9), or(o.Beta2, 0.999)
		return func(w, g T, slots []T, step int64) T {
			slots[0] = product(T(beta1), slots[0]) + product(T(1-beta1), g)
			slots[1] = product(T(beta2), slots[1]) + product(T(1-beta2), product(g, g))
			rate := T(o.Rate / (1 - power(beta1, step)))
			correction := T(1 / math.Sqrt(1-power(beta2, step)))
			return w - product(rate, slots[0])/(product(root(slots[1]), correction)+T(or(o.Epsilon, 1e-8)))
		}
	case FTRL:
		return func(w, g T, slots []T, _ int64) T {
			z, n := slots[0], slots[1]
			sigma := (root(n+product(g, g)) - root(n)) / T(o.Rate)
			n += product(g, g)
			z += g - product(sigma, w)
			slots[0], slots[1] = z, n
			switch {
			case z > T(o.L1):
				return -(z - T(o.L1)) / ((T(or(o.Beta, 1))+root(n))/T(o.Rate) + T(o.L2))
			case z < -T(o.L1):
				return -(z + T(o.L1)) / ((T(or(o.Beta, 1))+root(n))/T(o.Rate) + T(o.L2))
			}
			return 0
		}
	}
	panic(fmt.Sprintf("no reference for %T", o))
}

// vectors returns values, gradients of several steps, and slots before the first step.
func vectors[T float32 | float64](o Optimizer, n, steps int) (values []T, gradients, slots [][]T) {
	random := rand.New(rand.NewPCG(7, uint64(n)))
	values = make([]T, n)
	for i := range values {
		values[i] = T(random.NormFloat64())
	}
	for range steps {
		g := make([]T, n)
		for i := range g {
			g[i] = T(random.NormFloat64() * math.Pow(10, float64(random.IntN(7)-4)))
			if random.IntN(10) == 0 {
				g[i] = 0
			}
		}
		gradients = append(gradients, g)
	}
	for _, x := range o.State().Slots {
		slots = append(slots, slices.Repeat([]T{T(x)}, n))
	}
	return values, gradients, slots
}

// cuts returns the parts of the slots from lo to hi.
func cuts[T any](slots [][]T, lo, hi int) (parts [][]T) {
	for _, s := range slots {
		parts = append(parts, s[lo:hi:hi])
	}
	return parts
}

func testBits[T float32 | float64](t *testing.T, o Optimizer) {
	const steps = 40
	for _, n := range []int{0, 1, 2, 7, 64, 1000} {
		want, gradients, wantSlots := vectors[T](o, n, steps)
		whole, cut := slices.Clone(want), slices.Clone(want)
		_, _, slots := vectors[T](o, n, 0)
		_, _, cutSlots := vectors[T](o, n, 0)
		one, update := referenceOf[T](o), Update[T](o)
		state := make([]T, len(slots))
		for step, g := range gradients {
			before := slices.Clone(g)
			for i := range want {
				for s := range state {
					state[s] = wantSlots[s][i]
				}
				want[i] = one(want[i], g[i], state, int64(step+1))
				for s := range state {
					wantSlots[s][i] = state[s]
				}
			}
			update(whole, g, slots, int64(step+1))
			third := n / 3
			update(cut[third:], g[third:], cuts(cutSlots, third, n), int64(step+1))
			update(cut[:third], g[:third], cuts(cutSlots, 0, third), int64(step+1))
			if !slices.Equal(g, before) {
				t.Fatalf("n = %d, step %d: the gradient has changed", n, step+1)
			}
		}
		for what, got := range map[string][][]T{"whole": append(slots, whole), "cut": append(cutSlots, cut)} {
			for s, v := range append(wantSlots, want) {
				if !slices.Equal(tensor.Bytes(got[s]), tensor.Bytes(v)) {
					t.Errorf("n = %d, %s, vector %d: got %v, want %v", n, what, s, got[s], v)
				}
			}
		}
	}
}

func TestUpdatesEqualTheSerialReferenceBitForBit(t *testing.T) {
	for _, o := range tests {
		t.Run(o.String()+"/float32", func(t *testing.T) { testBits[float32](t, o) })
		t.Run(o.String()+"/float64", func(t *testing.T) { testBits[float64](t, o) })
	}
}

// published returns the value after each of the gradients, by the formulas as the papers print
// them, in float64.
func published(o Optimizer, w float64, gradients []float64) []float64 {
	var path []float64
	switch o := o.(type) {
	case SGD:
		for _, g := range gradients {
			w -= o.Rate * g
			path = append(path, w)
		}
	case Momentum:
		// Sutskever et al., equations 1 to 4, with v = -η·m. The accelerated form takes the
		// gradient at w + μ·v, so it is w + μ·v that is compared.
		v, mu := 0.0, or(o.Factor, 0.9)
		for _, g := range gradients {
			v = mu*v - o.Rate*g
			w += v
			if o.Nesterov {
				path = append(path, w+mu*v)
			} else {
				path = append(path, w)
			}
		}
	case Adagrad:
		sum := o.Initial
		for _, g := range gradients {
			sum += g * g
			w -= o.Rate / (or(o.Epsilon, 1e-10) + math.Sqrt(sum)) * g
			path = append(path, w)
		}
	case Adam:
		b1, b2 := or(o.Beta1, 0.9), or(o.Beta2, 0.999)
		m, v := 0.0, 0.0
		for i, g := range gradients {
			t := float64(i + 1)
			m = b1*m + (1-b1)*g
			v = b2*v + (1-b2)*g*g
			w -= o.Rate * (m / (1 - math.Pow(b1, t))) / (math.Sqrt(v/(1-math.Pow(b2, t))) + or(o.Epsilon, 1e-8))
			path = append(path, w)
		}
	case FTRL:
		// Algorithm 1 computes w from z and n when it is needed. The first w is given.
		z, n := 0.0, 0.0
		for _, g := range gradients {
			sigma := (math.Sqrt(n+g*g) - math.Sqrt(n)) / o.Rate
			z += g - sigma*w
			n += g * g
			w = 0
			if math.Abs(z) > o.L1 {
				w = -1 / ((or(o.Beta, 1)+math.Sqrt(n))/o.Rate + o.L2) * (z - math.Copysign(o.L1, z))
			}
			path = append(path, w)
		}
	}
	return path
}

func testFormula[T float32 | float64](t *testing.T, o Optimizer, tolerance float64) {
	random := rand.New(rand.NewPCG(1, 2))
	update := Update[T](o)
	for range 20 {
		w, gradients := random.NormFloat64(), make([]float64, 50)
		for i := range gradients {
			gradients[i] = float64(float32(random.NormFloat64()))
		}
		w = float64(float32(w))
		values, _, slots := []T{T(w)}, 0, [][]T{}
		for _, x := range o.State().Slots {
			slots = append(slots, []T{T(x)})
		}
		for i, want := range published(o, w, gradients) {
			update(values, []T{T(gradients[i])}, slots, int64(i+1))
			if got := float64(values[0]); !(math.Abs(got-want) <= tolerance) {
				t.Fatalf("step %d: got %v, want %v", i+1, got, want)
			}
		}
	}
}

func TestUpdatesFollowThePublishedFormulas(t *testing.T) {
	for _, o := range tests {
		t.Run(o.String()+"/float32", func(t *testing.T) { testFormula[float32](t, o, 2e-5) })
		t.Run(o.String()+"/float64", func(t *testing.T) { testFormula[float64](t, o, 1e-13) })
	}
}

// Adam's first step moves each value by the rate, whatever the size of the gradient.
func TestTheFirstStepOfAdamIsTheRate(t *testing.T) {
	values, slots := []float64{1, 1, 1}, [][]float64{make([]float64, 3), make([]float64, 3)}
	Adam{Rate: 0.25}.Update64(values, []float64{1e-3, -50, 7}, slots, 1)
	for i, want := range []float64{0.75, 1.25, 0.75} {
		if math.Abs(values[i]-want) > 1e-5 {
			t.Errorf("value %d: got %v, want %v", i, values[i], want)
		}
	}
}

func TestPowersEqualThoseOfPackageMath(t *testing.T) {
	for _, x := range []float64{0.9, 0.999, 0.5, 1e-30, almostOne} {
		for _, n := range []int64{0, 1, 2, 3, 10, 1000, 12345, 1 << 20, 1 << 62, math.MaxInt64} {
			got, want := power(x, n), math.Pow(x, float64(n))
			if math.Abs(got-want) > 1e-9*want && got+want > 1e-300 {
				t.Errorf("power(%v, %d) = %v, want %v", x, n, got, want)
			}
		}
	}
}

func TestFTRLReturnsAZeroForLittleGradients(t *testing.T) {
	o := FTRL{Rate: 0.5, L1: 1}
	values, slots := []float32{0, 0}, [][]float32{{0, 0}, {0, 0}}
	o.Update32(values, []float32{0.9, -3}, slots, 1)
	if values[0] != 0 || values[1] <= 0 {
		t.Errorf("got %v, want zero and a positive value", values)
	}
}

func TestParseReadsWhatStringWrites(t *testing.T) {
	for _, o := range tests {
		got, err := Parse(o.String())
		if err != nil || got.String() != o.String() || fmt.Sprintf("%T", got) != fmt.Sprintf("%T", o) {
			t.Errorf("%v: got %v, %v", o, got, err)
		}
	}
	if got, err := Parse("adam(rate=0.5)"); got != (Adam{Rate: 0.5}) || err != nil {
		t.Errorf("got %#v, %v", got, err)
	}
	if got, want := (Adam{Rate: 0.001}).String(), "adam(rate=0.001,beta1=0.9,beta2=0.999,epsilon=1e-08)"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestParseFindsTheProgramsFunctions(t *testing.T) {
	clip := Func{Name: "clip", Float32: func(values, _ []float32, _ [][]float32, _ int64) { clear(values) }}
	got, err := Parse("func(clip)", SGD{Rate: 1}, clip)
	if err != nil || got.String() != "func(clip)" {
		t.Fatalf("got %v, %v", got, err)
	}
	values := []float32{1}
	got.Update32(values, nil, nil, 1)
	if values[0] != 0 {
		t.Error("the function was not called")
	}
}

var refused = []string{
	"", "sgd", "sgd()", "sgd(", "sgd(rate)", "sgd(rate=)", "sgd(rate=x)", "sgd(rate=0)", "sgd(rate=-1)", "sgd(rate=NaN)",
	"sgd(rate=Inf)", "sgd(rate=1,rate=2)", "sgd(rate=1,factor=0.5)", "sgd(rate=1) ", "sgd(rate=1", "SGD(rate=1)", "lamb(rate=1)",
	"adam(rate=1,beta1=1)", "adam(rate=1,beta2=-0.1)", "adam(beta1=0.5)", "momentum(rate=1,factor=2)", "ftrl(rate=1,l1=-1)",
	"func(clip)", strings.Repeat("x", 1000),
}

func TestParseRefusesOtherTexts(t *testing.T) {
	for _, text := range refused {
		if o, err := Parse(text); o != nil || !errors.Is(err, fault.Misuse) || len(err.Error()) > 300 {
			t.Errorf("%q: got %v, %v", text, o, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, o := range tests {
		f.Add(o.String())
	}
	for _, text := range refused {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		o, err := Parse(text)
		if err != nil {
			return
		}
		if again, err := Parse(o.String()); err != nil || again != o {
			// A parameter that is given as its default, or as 0, reads as the default.
			if err != nil || again.String() != o.String() {
				t.Errorf("%q: read as %v, and then as %v, %v", text, o, again, err)
			}
		}
		if err := Check(o, tensor.Float32); err != nil {
			t.Errorf("%q: Check returns %v", text, err)
		}
	})
}

func TestCheckFindsWhatCannotUpdate(t *testing.T) {
	f32 := func([]float32, []float32, [][]float32, int64) {}
	for _, c := range []struct {
		o    Optimizer
		d    tensor.DType
		want string // part of the error; "" if there is none
	}{
		{SGD{Rate: 0.1}, tensor.Float32, ""},
		{Adam{Rate: 0.1}, tensor.Float64, ""},
		{SGD{Rate: 0.1}, tensor.Int32, "int32"},
		{SGD{Rate: 0.1}, tensor.BF16, "bfloat16"},
		{SGD{}, tensor.Float32, "rate: got 0"},
		{Momentum{Rate: 1, Factor: 1}, tensor.Float32, "factor: got 1"},
		{Adagrad{Rate: 1, Initial: -1}, tensor.Float32, "initial: got -1"},
		{Adam{Rate: math.NaN()}, tensor.Float32, "rate: got NaN"},
		{FTRL{Rate: 1, L2: math.Inf(1)}, tensor.Float32, "l2: got +Inf"},
		{Func{Name: "f", Float32: f32}, tensor.Float32, ""},
		{Func{Name: "f", Float32: f32}, tensor.Float64, "no function"},
		{Func{Name: "", Float32: f32}, tensor.Float32, "name"},
		{Func{Name: "a)", Float32: f32}, tensor.Float32, "name"},
	} {
		err := Check(c.o, c.d)
		if c.want == "" && err != nil || c.want != "" && (!errors.Is(err, fault.Misuse) || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%#v, %v: got %v, want %q", c.o, c.d, err, c.want)
		}
	}
}

func TestUpdatesAllocateNothing(t *testing.T) {
	for _, o := range tests {
		values, gradients, slots := vectors[float32](o, 100, 1)
		update := Update[float32](o)
		if got := testing.AllocsPerRun(100, func() { update(values, gradients[0], slots, 3) }); got != 0 {
			t.Errorf("%v: %v allocations", o, got)
		}
	}
}

// On arm64 the compiler may fuse products and sums, so this test reads the compiler's listing.
func TestNoLoopFusesOnARM64(t *testing.T) {
	arm64.FusesNothing(t, "FMULS", "FMULD")
}

func BenchmarkUpdate(b *testing.B) {
	for _, o := range []Optimizer{tests[0], tests[1], tests[3], tests[4], tests[6], tests[8]} {
		name, _, _ := strings.Cut(o.String(), "(")
		for _, n := range []int{64, 1 << 20} {
			b.Run(fmt.Sprintf("%s/float32/%d", name, n), func(b *testing.B) {
				values, gradients, slots := vectors[float32](o, n, 1)
				update := Update[float32](o)
				b.SetBytes(int64(4 * n))
				step := int64(0)
				for b.Loop() {
					step++
					update(values, gradients[0], slots, step)
				}
			})
		}
	}
}
