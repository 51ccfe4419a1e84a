package autotune

import (
	"math"

	"gonum.org/v1/gonum/mat"
)

// A process is a Gaussian process that has seen some samples, whose scores are
// shifted and scaled to a mean of 0 and a deviation of 1.
type process struct {
	points [][]float64
	shift  float64
	scale  float64
	length float64 // over which scores are alike
	factor mat.Cholesky
	weight *mat.VecDense // the inverse of the kernel's matrix, times the scores
	likely float64       // the logarithm of the samples' likelihood, and the length's, but for a constant
}

// What a process may take for the length over which scores are alike, in units of
// an axis, and for the share of noise in them: the likeliest counts, where a length
// is the less likely beforehand the further it is from usual. A few samples that
// happen to be alike would otherwise seem to say all.
var (
	lengths = [...]float64{0.1, 0.2, 0.35, 0.6, 1}
	noises  = [...]float64{1e-5, 1e-2, 2e-1}
)

const usual = 0.35

// learn is the likeliest process for some samples, of which there is at least one.
func learn(points [][]float64, scores []float64) *process {
	var best *process
	for _, length := range lengths {
		for _, noise := range noises {
			if p := fit(points, scores, length, noise); p != nil && (best == nil || p.likely > best.likely) {
				best = p
			}
		}
	}
	return best
}

// fit is Rasmussen and Williams' algorithm 2.1; nil when the kernel's matrix is
// none that can be factored.
func fit(points [][]float64, scores []float64, length, noise float64) *process {
	n := len(points)
	p := &process{points: points, length: length, scale: 1}
	for _, s := range scores {
		p.shift += s / float64(n)
	}
	var square float64
	for _, s := range scores {
		square += (s - p.shift) * (s - p.shift) / float64(n)
	}
	if square > 0 && !math.IsInf(square, 0) {
		p.scale = math.Sqrt(square)
	}
	k, y := mat.NewSymDense(n, nil), mat.NewVecDense(n, nil)
	for i := range n {
		y.SetVec(i, (scores[i]-p.shift)/p.scale)
		for j := i; j < n; j++ {
			k.SetSym(i, j, p.kernel(points[i], points[j]))
		}
		k.SetSym(i, i, 1+noise+1e-9)
	}
	if !p.factor.Factorize(k) {
		return nil
	}
	p.weight = mat.NewVecDense(n, nil)
	if err := p.factor.SolveVecTo(p.weight, y); err != nil {
		return nil
	}
	unusual := math.Log(length/usual) / 0.5
	p.likely = -0.5*mat.Dot(y, p.weight) - 0.5*p.factor.LogDet() - 0.5*unusual*unusual
	return p
}

// kernel is Matérn's, of 5/2: how alike the scores of two points are, from 0 to 1.
func (p *process) kernel(a, b []float64) float64 {
	var square float64
	for i := range a {
		square += (a[i] - b[i]) * (a[i] - b[i])
	}
	d := math.Sqrt(5*square) / p.length
	return (1 + d + d*d/3) * math.Exp(-d)
}

// predict is the score that is expected at a point, and its deviation, both in
// units of scale around shift.
func (p *process) predict(at []float64) (mean, deviation float64) {
	n := len(p.points)
	k, v := mat.NewVecDense(n, nil), mat.NewVecDense(n, nil)
	for i := range n {
		k.SetVec(i, p.kernel(at, p.points[i]))
	}
	mean = mat.Dot(k, p.weight)
	if err := p.factor.SolveVecTo(v, k); err != nil {
		return mean, 0
	}
	return mean, math.Sqrt(max(0, 1-mat.Dot(k, v)))
}

// improvement is by how much a point is expected to exceed best, in units of scale.
func (p *process) improvement(at []float64, best float64) float64 {
	mean, deviation := p.predict(at)
	if deviation < 1e-9 {
		return max(0, mean-best)
	}
	z := (mean - best) / deviation
	density := math.Exp(-z*z/2) / math.Sqrt(2*math.Pi)
	return (mean-best)*math.Erfc(-z/math.Sqrt2)/2 + deviation*density
}
