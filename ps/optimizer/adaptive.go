package optimizer

import (
	"cmp"
	"math"
)

// Adagrad divides the rate by the root of the sum of a value's squared gradients: J. Duchi,
// E. Hazan and Y. Singer, "Adaptive subgradient methods for online learning and stochastic
// optimization", JMLR 12, 2011 (figure 1, diagonal matrices).
type Adagrad struct {
	Rate    float64 // η; no default
	Initial float64 // n before the first update; default 0
	Epsilon float64 // ε; default 1e-10
}

const standardAdagradEpsilon = 1e-10

// String returns text such as "adagrad(rate=0.1,initial=0,epsilon=1e-10)".
func (o Adagrad) String() string { return format("adagrad", o.list()) }

// State returns the slot n.
func (o Adagrad) State() State { return State{Slots: []float64{o.Initial}} }

// Update32 implements Optimizer.
func (o Adagrad) Update32(values, gradient []float32, slots [][]float32, _ int64) {
	adagrad(values, gradient, slots[0], o)
}

// Update64 implements Optimizer.
func (o Adagrad) Update64(values, gradient []float64, slots [][]float64, _ int64) {
	adagrad(values, gradient, slots[0], o)
}

func (o *Adagrad) list() []parameter {
	return []parameter{
		{"rate", &o.Rate, 0, tiny, huge},
		{"initial", &o.Initial, 0, tiny, huge},
		{"epsilon", &o.Epsilon, standardAdagradEpsilon, tiny, huge},
	}
}

func (o Adagrad) parameters() []parameter { return o.list() }

func adagrad[T float32 | float64](values, gradient, n []T, o Adagrad) {
	rate, epsilon := T(o.Rate), T(cmp.Or(o.Epsilon, standardAdagradEpsilon))
	gradient, n = gradient[:len(values)], n[:len(values)]
	for i, w := range values {
		g := gradient[i]
		ni := n[i] + T(g*g)
		n[i] = ni
		values[i] = w - T(rate*g)/(sqrt(ni)+epsilon)
	}
}

// Adam is D. P. Kingma and J. Ba, "Adam: A method for stochastic optimization", ICLR 2015
// (algorithm 1). Each row of a table has its own step t, which counts the updates of that row.
type Adam struct {
	Rate    float64 // η, the paper's α; no default
	Beta1   float64 // β₁, below 1; default 0.9
	Beta2   float64 // β₂, below 1; default 0.999
	Epsilon float64 // ε; default 1e-8
}

const (
	standardBeta1       = 0.9
	standardBeta2       = 0.999
	standardAdamEpsilon = 1e-8
)

// String returns text such as "adam(rate=0.001,beta1=0.9,beta2=0.999,epsilon=1e-08)".
func (o Adam) String() string { return format("adam", o.list()) }

// State returns the slots m and v, and that Adam needs the step.
func (Adam) State() State { return State{Slots: []float64{0, 0}, Steps: true} }

// Update32 implements Optimizer.
func (o Adam) Update32(values, gradient []float32, slots [][]float32, step int64) {
	adam(values, gradient, slots[0], slots[1], o, step)
}

// Update64 implements Optimizer.
func (o Adam) Update64(values, gradient []float64, slots [][]float64, step int64) {
	adam(values, gradient, slots[0], slots[1], o, step)
}

func (o *Adam) list() []parameter {
	return []parameter{
		{"rate", &o.Rate, 0, tiny, huge},
		{"beta1", &o.Beta1, standardBeta1, tiny, almostOne},
		{"beta2", &o.Beta2, standardBeta2, tiny, almostOne},
		{"epsilon", &o.Epsilon, standardAdamEpsilon, tiny, huge},
	}
}

func (o Adam) parameters() []parameter { return o.list() }

func adam[T float32 | float64](values, gradient, m, v []T, o Adam, step int64) {
	beta1, beta2 := cmp.Or(o.Beta1, standardBeta1), cmp.Or(o.Beta2, standardBeta2)
	rate := T(o.Rate / (1 - power(beta1, step)))
	correction := T(1 / math.Sqrt(1-power(beta2, step)))
	epsilon := T(cmp.Or(o.Epsilon, standardAdamEpsilon))
	b1, c1, b2, c2 := T(beta1), T(1-beta1), T(beta2), T(1-beta2)
	gradient, m, v = gradient[:len(values)], m[:len(values)], v[:len(values)]
	for i, w := range values {
		g := gradient[i]
		mi := T(b1*m[i]) + T(c1*g)
		vi := T(b2*v[i]) + T(c2*T(g*g))
		m[i], v[i] = mi, vi
		values[i] = w - T(rate*mi)/(T(sqrt(vi)*correction)+epsilon)
	}
}

// power returns x to the nth power, n at least 0. Its bits are the same on every processor, unlike
// those of math.Pow. The conversions keep a product from being fused with the caller's difference.
func power(x float64, n int64) float64 {
	y := 1.0
	for ; n > 0 && x > 0; n >>= 1 {
		if n&1 != 0 {
			y = float64(y * x)
		}
		x = float64(x * x)
	}
	if n > 0 {
		return 0
	}
	return y
}

// FTRL is FTRL-Proximal: H. B. McMahan et al., "Ad click prediction: a view from the trenches", KDD
// 2013 (algorithm 1). L1 makes values zero that matter little.
type FTRL struct {
	Rate float64 // η, the paper's α; no default
	Beta float64 // β; default 1
	L1   float64 // λ₁; default 0
	L2   float64 // λ₂; default 0
}

const standardBeta = 1

// String returns text such as "ftrl(rate=0.1,beta=1,l1=0.5,l2=0)".
func (o FTRL) String() string { return format("ftrl", o.list()) }

// State returns the slots z and n.
func (FTRL) State() State { return State{Slots: []float64{0, 0}} }

// Update32 implements Optimizer.
func (o FTRL) Update32(values, gradient []float32, slots [][]float32, _ int64) {
	ftrl(values, gradient, slots[0], slots[1], o)
}

// Update64 implements Optimizer.
func (o FTRL) Update64(values, gradient []float64, slots [][]float64, _ int64) {
	ftrl(values, gradient, slots[0], slots[1], o)
}

func (o *FTRL) list() []parameter {
	return []parameter{
		{"rate", &o.Rate, 0, tiny, huge},
		{"beta", &o.Beta, standardBeta, tiny, huge},
		{"l1", &o.L1, 0, tiny, huge},
		{"l2", &o.L2, 0, tiny, huge},
	}
}

func (o FTRL) parameters() []parameter { return o.list() }

func ftrl[T float32 | float64](values, gradient, z, n []T, o FTRL) {
	rate, beta := T(o.Rate), T(cmp.Or(o.Beta, standardBeta))
	l1, l2 := T(o.L1), T(o.L2)
	gradient, z, n = gradient[:len(values)], z[:len(values)], n[:len(values)]
	for i, w := range values {
		g := gradient[i]
		ni := n[i] + T(g*g)
		root := sqrt(ni)
		zi := z[i] + (g - T((root-sqrt(n[i]))/rate*w))
		z[i], n[i] = zi, ni
		// The magnitude and the sign take no branches, which would be hard to predict. The sum
		// turns -0 into 0.
		beyond := math.Copysign(float64(max(abs(zi)-l1, 0)), float64(-zi))
		values[i] = T(beyond)/((beta+root)/rate+l2) + 0
	}
}

// sqrt returns the root of x, correctly rounded: the root of a float32 that was rounded as a float64
// before is the nearest float32, too.
func sqrt[T float32 | float64](x T) T { return T(math.Sqrt(float64(x))) }

// abs returns the magnitude of x.
func abs[T float32 | float64](x T) T { return T(math.Abs(float64(x))) }
