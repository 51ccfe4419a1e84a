package optimizer

import "cmp"

// SGD is stochastic gradient descent with a constant rate: H. Robbins and S. Monro, "A stochastic
// approximation method", Annals of Mathematical Statistics 22(3), 1951.
type SGD struct {
	Rate float64 // η; no default
}

// String returns text such as "sgd(rate=0.1)".
func (o SGD) String() string { return format("sgd", o.list()) }

// State returns that SGD remembers nothing.
func (SGD) State() State { return State{} }

// Update32 implements Optimizer.
func (o SGD) Update32(values, gradient []float32, _ [][]float32, _ int64) {
	sgd(values, gradient, float32(o.Rate))
}

// Update64 implements Optimizer.
func (o SGD) Update64(values, gradient []float64, _ [][]float64, _ int64) {
	sgd(values, gradient, o.Rate)
}

func (o *SGD) list() []parameter {
	return []parameter{{"rate", &o.Rate, 0, tiny, huge}}
}

func (o SGD) parameters() []parameter { return o.list() }

// sgd updates values. The conversion of the product rounds it, so that the compiler does not fuse
// it with the difference. The same holds for all conversions to T in this package.
func sgd[T float32 | float64](values, gradient []T, rate T) {
	gradient = gradient[:len(values)]
	for i, w := range values {
		values[i] = w - T(rate*gradient[i])
	}
}

// Momentum is gradient descent with momentum: B. T. Polyak, "Some methods of speeding up the
// convergence of iteration methods", USSR Computational Mathematics and Mathematical Physics 4(5),
// 1964. The accelerated form is that of I. Sutskever et al., "On the importance of initialization
// and momentum in deep learning", ICML 2013, with the values and slots that TensorFlow has.
type Momentum struct {
	Rate     float64 // η; no default
	Factor   float64 // μ, below 1; default 0.9
	Nesterov bool    // whether the gradient counts as if taken after the next step
}

const standardFactor = 0.9

// String returns text such as "momentum(rate=0.1,factor=0.9)", or with Nesterov
// "nesterov(rate=0.1,factor=0.9)".
func (o Momentum) String() string {
	if o.Nesterov {
		return format("nesterov", o.list())
	}
	return format("momentum", o.list())
}

// State returns the slot m.
func (Momentum) State() State { return State{Slots: []float64{0}} }

// Update32 implements Optimizer.
func (o Momentum) Update32(values, gradient []float32, slots [][]float32, _ int64) {
	momentum(values, gradient, slots[0], o)
}

// Update64 implements Optimizer.
func (o Momentum) Update64(values, gradient []float64, slots [][]float64, _ int64) {
	momentum(values, gradient, slots[0], o)
}

func (o *Momentum) list() []parameter {
	return []parameter{{"rate", &o.Rate, 0, tiny, huge}, {"factor", &o.Factor, standardFactor, tiny, almostOne}}
}

func (o Momentum) parameters() []parameter { return o.list() }

func momentum[T float32 | float64](values, gradient, m []T, o Momentum) {
	rate, factor := T(o.Rate), T(cmp.Or(o.Factor, standardFactor))
	gradient, m = gradient[:len(values)], m[:len(values)]
	if o.Nesterov {
		for i, w := range values {
			g := gradient[i]
			mi := T(factor*m[i]) + g
			m[i] = mi
			values[i] = w - T(rate*(g+T(factor*mi)))
		}
		return
	}
	for i, w := range values {
		mi := T(factor*m[i]) + gradient[i]
		m[i] = mi
		values[i] = w - T(rate*mi)
	}
}
