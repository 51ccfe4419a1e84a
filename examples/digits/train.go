package main

import (
	"context"
	"fmt"
	"time"

	"gonum.org/v1/gonum/floats"

	"github.com/tutti-go/tutti/examples/internal/digits"
)

// A team holds what training needs from the other ranks. The function main makes a team from a
// communicator; the comparison and the tests make other teams. Every rank makes the same calls in
// the same order.
type team struct {
	rank, size int

	// average replaces v by its mean over the ranks, with equal bits on all.
	average func(ctx context.Context, v []float64) error
	// copyFirst replaces v by rank 0's v.
	copyFirst func(ctx context.Context, v []float64) error
	// gather returns the bytes of all ranks, one after the other in rank order. All ranks pass
	// the same number of bytes.
	gather func(ctx context.Context, mine []byte) ([]byte, error)

	// If declare is nil, a step averages all its numbers by one call of average. Otherwise declare
	// names each part of these numbers once. A step then calls begin for a part as soon as it has
	// computed the part, and begin starts to average the part in the background. finish returns
	// when all parts are averaged. The ranks need not begin the parts in the same order.
	declare func(name string, part []float64)
	begin   func(name string)
	finish  func(ctx context.Context) error
	// overlap, if not nil, returns how much of the averaging time was hidden behind the
	// computation.
	overlap func() (steps int, inFlight, hidden time.Duration)
}

// trainAlone is a team of one rank.
func trainAlone() team {
	return team{
		size:      1,
		average:   func(context.Context, []float64) error { return nil },
		copyFirst: func(context.Context, []float64) error { return nil },
		gather:    func(_ context.Context, mine []byte) ([]byte, error) { return mine, nil },
	}
}

// settings are the parameters of a training.
type settings struct {
	epochs   int
	batch    int     // images per step, over all ranks together
	rate     float64 // the rate of the first step; it decreases linearly towards 0
	momentum float64
	seed     uint64
}

// train trains a network on the team and returns it, equal on each rank. If watch is not nil, train
// calls it after every epoch with the mean loss and accuracy of the epoch's batches over all ranks.
//
// The training is data-parallel. Each rank computes the gradient of its share of a step's batch.
// The mean of these gradients changes every rank's parameters by the same amount, so the ranks stay
// equal. Up to the rounding of sums they also equal a single process that computes whole batches.
func train(ctx context.Context, t team, s settings, data digits.Images, watch func(*digits.Network, digits.Tally)) (*digits.Network, error) {
	n := digits.NewNetwork(digits.Pixels, 128, 32, digits.Classes)
	if t.rank == 0 {
		n.Randomize(s.seed)
	}
	if err := t.copyFirst(ctx, n.Params); err != nil {
		return nil, err
	}
	steps := newStepper(t, n)
	total := s.epochs * len(digits.Batches(data.Len(), s.batch, s.seed, 0))
	done := 0
	for epoch := range s.epochs {
		var sum digits.Tally
		for _, batch := range digits.Batches(data.Len(), s.batch, s.seed, epoch) {
			got, err := steps.gradient(ctx, data, batch)
			if err != nil {
				return nil, err
			}
			sum.Loss += got.Loss * float64(len(batch))
			sum.Correct += got.Correct * float64(len(batch))
			steps.descend(s.rate*float64(total-done)/float64(total), s.momentum)
			done++
		}
		if watch != nil {
			watch(n, sum.Over(data.Len()))
		}
	}
	return n, nil
}

// A stepper trains a network step by step.
type stepper struct {
	team     team
	net      *digits.Network
	grad     *digits.Network
	velocity []float64
	message  []float64 // the gradient, followed by the tally: the numbers that are averaged
}

// newStepper returns a stepper that has made no step.
func newStepper(t team, n *digits.Network) *stepper {
	s := &stepper{t, n, n.Like(), make([]float64, len(n.Params)), make([]float64, len(n.Params)+2)}
	if t.declare != nil {
		for i := range n.Depth() {
			t.declare(layerName(i), n.Part(i, s.message))
		}
		t.declare("tally", s.message[len(n.Params):])
	}
	return s
}

func layerName(layer int) string { return fmt.Sprintf("layer%d", layer) }

// gradient computes the gradient of the batch's mean loss, equal on every rank, and returns the
// batch's mean loss and accuracy.
//
// Shares may differ in size, so a mean of the ranks' own means would give the images of smaller
// shares too much weight. Each rank scales its sums by size/batch instead. The mean over the ranks
// is then the batch's sum divided by the batch's length.
func (s *stepper) gradient(ctx context.Context, data digits.Images, batch []int) (digits.Tally, error) {
	weight := float64(s.team.size) / float64(len(batch))
	hand := func(name string, part []float64) {
		floats.Scale(weight, part)
		if s.team.begin != nil {
			s.team.begin(name)
		}
	}
	ready := func(layer int) {
		part := s.net.Part(layer, s.message)
		copy(part, s.net.Part(layer, s.grad.Params))
		hand(layerName(layer), part)
	}
	mine := s.learn(data, digits.Share(batch, s.team.rank, s.team.size), ready)
	end := len(s.grad.Params)
	counts := s.message[end:]
	counts[0], counts[1] = mine.Loss, mine.Correct
	hand("tally", counts)

	if err := s.await(ctx); err != nil {
		return digits.Tally{}, err
	}
	return digits.Tally{Loss: counts[0], Correct: counts[1]}, nil
}

// learn calls the network's Learn. It also handles a rank that has no images in this step.
func (s *stepper) learn(data digits.Images, rows []int, ready func(layer int)) digits.Tally {
	if len(rows) > 0 {
		return s.net.Learn(data.Pick(rows), s.grad, ready)
	}
	clear(s.grad.Params)
	for i := s.net.Depth() - 1; i >= 0; i-- {
		ready(i)
	}
	return digits.Tally{}
}

// await returns when the message is averaged. If the team has begin and finish, the average is
// already under way, and await only waits for it.
func (s *stepper) await(ctx context.Context) error {
	if s.team.begin != nil {
		return s.team.finish(ctx)
	}
	return s.team.average(ctx, s.message)
}

// descend makes one step of gradient descent with momentum (Polyak, 1964).
func (s *stepper) descend(rate, momentum float64) {
	floats.Scale(momentum, s.velocity)
	floats.AddScaled(s.velocity, -rate, s.message[:len(s.velocity)])
	floats.Add(s.net.Params, s.velocity)
}
