package digits

import (
	"math"
	"math/rand/v2"
	"testing"

	"gonum.org/v1/gonum/mat"
)

// randomSet returns images of any width with random ink and digits below k.
func randomSet(rows, width, k int) Images {
	draw := rand.New(rand.NewPCG(1, 2))
	s := Images{mat.NewDense(rows, width, nil), make([]int, rows)}
	s.images.Apply(func(_, _ int, _ float64) float64 { return draw.Float64() }, s.images)
	for i := range s.Digits {
		s.Digits[i] = draw.IntN(k)
	}
	return s
}

// The test compares every partial derivative with the central difference of the loss. The error of
// the central difference is about h² plus the rounding of the loss over h.
func TestGradientAgreesWithFiniteDifferences(t *testing.T) {
	n := NewNetwork(5, 4, 4, 3)
	n.Randomize(1)
	s := randomSet(6, 5, 3)
	grad := n.Like()
	n.Learn(s, grad, nil)

	const h, tolerance = 1e-5, 1e-8
	for i, before := range n.Params {
		n.Params[i] = before + h
		above := n.Test(s).Loss
		n.Params[i] = before - h
		below := n.Test(s).Loss
		n.Params[i] = before
		want := (above - below) / (2 * h)
		if got := grad.Params[i]; math.Abs(got-want) > tolerance {
			t.Errorf("parameter %d: got a derivative of %v, want %v", i, got, want)
		}
	}
}

func TestLearnAndTestCountAlike(t *testing.T) {
	n := NewNetwork(5, 4, 3)
	n.Randomize(1)
	s := randomSet(6, 5, 3)
	if got, want := n.Learn(s, n.Like(), nil), n.Test(s); got != want {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestUntrainedNetworkGuesses(t *testing.T) {
	s := randomSet(6, 5, 3)
	got := NewNetwork(5, 3).Test(s).Over(s.Len()).Loss
	if want := math.Log(3); math.Abs(got-want) > 1e-12 {
		t.Errorf("a network of zeros has a loss of %v, want %v", got, want)
	}
}

func TestLayersAreViewsOfAllParameters(t *testing.T) {
	n := NewNetwork(5, 4, 3)
	if got, want := len(n.Params), 5*4+4+4*3+3; got != want {
		t.Fatalf("got %d parameters, want %d", got, want)
	}
	for _, l := range n.layers {
		rows, cols := l.weights.Dims()
		for i := range rows {
			for j := range cols {
				l.weights.Set(i, j, 1)
			}
		}
		for j := range l.bias {
			l.bias[j] = 1
		}
	}
	for i, v := range n.Params {
		if v != 1 {
			t.Errorf("parameter %d belongs to no layer", i)
		}
	}
}
