package digits

import (
	"math"
	"math/rand/v2"

	"gonum.org/v1/gonum/floats"
	"gonum.org/v1/gonum/mat"
)

// A Network is a multi-layer perceptron: tanh between the layers, softmax at the end. All its
// parameters are in one slice. So one broadcast at the start and one all-reduce per step are
// enough, whatever the layers are.
//
// The gradient of a network has the same form, and is a network, too.
type Network struct {
	Params []float64
	layers []layer // views of Params
}

// A layer maps its input x to x·weights + bias.
type layer struct {
	weights *mat.Dense // inputs by outputs
	bias    []float64
}

// NewNetwork returns a network of zeros. The parameter widths holds the width of the input, of each
// hidden layer, and of the output.
func NewNetwork(widths ...int) *Network {
	total := 0
	for i, out := range widths[1:] {
		total += (widths[i] + 1) * out
	}
	n := &Network{Params: make([]float64, total)}
	rest := n.Params
	for i, out := range widths[1:] {
		in := widths[i]
		n.layers = append(n.layers, layer{mat.NewDense(in, out, rest[:in*out]), rest[in*out : (in+1)*out]})
		rest = rest[(in+1)*out:]
	}
	return n
}

// Depth returns the number of layers.
func (n *Network) Depth() int { return len(n.layers) }

// Like returns a network of zeros with n's layers.
func (n *Network) Like() *Network {
	in, _ := n.layers[0].weights.Dims()
	widths := []int{in}
	for _, l := range n.layers {
		widths = append(widths, len(l.bias))
	}
	return NewNetwork(widths...)
}

// Part returns the layer's weights and biases within params, which has the form of n.Params. They
// are adjacent there.
func (n *Network) Part(layer int, params []float64) []float64 {
	begin, end := 0, 0
	for i := range layer + 1 {
		in, out := n.layers[i].weights.Dims()
		begin, end = end, end+(in+1)*out
	}
	return params[begin:end]
}

// Randomize draws the weights after Glorot and Bengio, AISTATS 2010, eq. 16,
// which keeps the scale of signals and of gradients through tanh layers. Biases
// start at zero.
func (n *Network) Randomize(seed uint64) {
	draw := rand.New(rand.NewPCG(seed, math.MaxUint64))
	for _, l := range n.layers {
		in, out := l.weights.Dims()
		limit := math.Sqrt(6 / float64(in+out))
		l.weights.Apply(func(_, _ int, _ float64) float64 { return limit * (2*draw.Float64() - 1) }, l.weights)
	}
}

// forward returns the output of each layer, one row per image. The last output is the scores
// before softmax.
func (n *Network) forward(images *mat.Dense) []*mat.Dense {
	outputs := make([]*mat.Dense, len(n.layers))
	x := images
	for i, l := range n.layers {
		y := new(mat.Dense)
		y.Mul(x, l.weights)
		last := i == len(n.layers)-1
		for row := range y.RawMatrix().Rows {
			values := y.RawRowView(row)
			floats.Add(values, l.bias)
			if !last {
				for j, v := range values {
					values[j] = math.Tanh(v)
				}
			}
		}
		outputs[i], x = y, y
	}
	return outputs
}

// A Tally counts how well a network did on some images. It holds sums, because sums over images can
// be added across ranks, and means cannot.
type Tally struct {
	Loss    float64 // the sum of the cross entropies, in nats
	Correct float64 // images whose digit had the highest score
}

// Over divides the sums by the number of images.
func (t Tally) Over(images int) Tally {
	return Tally{t.Loss / float64(images), t.Correct / float64(images)}
}

// evaluate replaces the scores by the gradient of the loss with respect to them, and returns
// the tally.
func evaluate(scores *mat.Dense, digits []int) Tally {
	var t Tally
	for row, digit := range digits {
		p := scores.RawRowView(row)
		if floats.MaxIdx(p) == digit {
			t.Correct++
		}
		t.Loss -= p[digit]
		norm := floats.LogSumExp(p)
		t.Loss += norm
		for j := range p {
			p[j] = math.Exp(p[j] - norm)
		}
		p[digit]--
	}
	return t
}

// Test returns how well the network does on s.
func (n *Network) Test(s Images) Tally {
	outputs := n.forward(s.images)
	return evaluate(outputs[len(outputs)-1], s.Digits)
}

// Learn sets grad to the gradient of the summed loss over s, by back propagation. Layers are
// computed from the last to the first. If ready is not nil, Learn calls it for each layer as soon
// as the layer's gradient is complete.
func (n *Network) Learn(s Images, grad *Network, ready func(layer int)) Tally {
	outputs := n.forward(s.images)
	delta := outputs[len(outputs)-1]
	t := evaluate(delta, s.Digits)
	for i := len(n.layers) - 1; i >= 0; i-- {
		x := s.images
		if i > 0 {
			x = outputs[i-1]
		}
		grad.layers[i].weights.Mul(x.T(), delta)
		sumRows(grad.layers[i].bias, delta)
		if ready != nil {
			ready(i)
		}
		if i > 0 {
			below := new(mat.Dense)
			below.Mul(delta, n.layers[i].weights.T())
			// The derivative of y = tanh(x) is 1 - y².
			below.Apply(func(r, c int, v float64) float64 {
				y := x.At(r, c)
				return v * (1 - y*y)
			}, below)
			delta = below
		}
	}
	return t
}

// sumRows sets dst to the sum of m's rows.
func sumRows(dst []float64, m *mat.Dense) {
	clear(dst)
	for row := range m.RawMatrix().Rows {
		floats.Add(dst, m.RawRowView(row))
	}
}
