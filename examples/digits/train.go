package main

import (
	"context"

	"gonum.org/v1/gonum/floats"
)

// A team is what training needs from the ranks around it. main makes one of a
// communicator; the proof and the tests make their own. Every rank must make
// the same calls in the same order.
type team struct {
	rank, size int

	// average replaces v by its mean over the ranks, with equal bits on all.
	average func(ctx context.Context, v []float64) error
	// copyFirst replaces v by rank 0's.
	copyFirst func(ctx context.Context, v []float64) error
	// gather returns the bytes of all ranks one after the other, by rank. All
	// ranks give equally many.
	gather func(ctx context.Context, mine []byte) ([]byte, error)
}

// alone is a team of one.
func alone() team {
	return team{
		size:      1,
		average:   func(context.Context, []float64) error { return nil },
		copyFirst: func(context.Context, []float64) error { return nil },
		gather:    func(_ context.Context, mine []byte) ([]byte, error) { return mine, nil },
	}
}

// settings say how to train.
type settings struct {
	epochs   int
	batch    int     // images per step, over all ranks together
	rate     float64 // the first step's; it falls in a straight line towards 0
	momentum float64
	seed     uint64
}

// train trains a network on the team and returns it; each rank ends with the
// same. After every epoch it calls watch, unless nil, with the mean loss and
// accuracy of the epoch's batches as they came, over all ranks.
//
// Data-parallel: a step's batch is dealt out over the ranks, each computes the
// gradient of its share, and the mean of these moves every rank's parameters in
// the same way. Thus the ranks stay equal, and equal to a single process that
// computes whole batches, but for the rounding of sums.
func train(ctx context.Context, t team, s settings, data set, watch func(*network, tally)) (*network, error) {
	n := newNetwork(pixels, 128, 32, classes)
	if t.rank == 0 {
		n.randomize(s.seed)
	}
	if err := t.copyFirst(ctx, n.params); err != nil {
		return nil, err
	}
	steps := newStepper(t, n)
	total := s.epochs * len(batches(data.len(), s.batch, s.seed, 0))
	done := 0
	for epoch := range s.epochs {
		var sum tally
		for _, batch := range batches(data.len(), s.batch, s.seed, epoch) {
			got, err := steps.gradient(ctx, data, batch)
			if err != nil {
				return nil, err
			}
			sum.loss += got.loss * float64(len(batch))
			sum.correct += got.correct * float64(len(batch))
			steps.descend(s.rate*float64(total-done)/float64(total), s.momentum)
			done++
		}
		if watch != nil {
			watch(n, sum.over(data.len()))
		}
	}
	return n, nil
}

// over divides sums by the number of images.
func (t tally) over(images int) tally {
	return tally{t.loss / float64(images), t.correct / float64(images)}
}

// A stepper moves a network, step by step.
type stepper struct {
	team     team
	net      *network
	grad     *network
	velocity []float64
	message  []float64 // the gradient, and the tally behind it: what travels
}

// newStepper returns a stepper at rest.
func newStepper(t team, n *network) *stepper {
	return &stepper{t, n, n.like(), make([]float64, len(n.params)), make([]float64, len(n.params)+2)}
}

// gradient computes the gradient of the batch's mean loss, the same on every
// rank, and returns the batch's mean loss and accuracy.
//
// The shares may differ in size, so a mean of the ranks' own means would give
// the images of smaller shares too much weight. Each rank scales its sums by
// size/batch instead; the mean over the ranks is then the batch's sum divided
// by the batch's length, whoever computed which part.
func (s *stepper) gradient(ctx context.Context, data set, batch []int) (tally, error) {
	var mine tally
	rows := share(batch, s.team.rank, s.team.size)
	if len(rows) == 0 {
		clear(s.grad.params)
	} else {
		mine = s.net.learn(data.pick(rows), s.grad)
	}
	end := copy(s.message, s.grad.params)
	s.message[end], s.message[end+1] = mine.loss, mine.correct
	floats.Scale(float64(s.team.size)/float64(len(batch)), s.message)

	if err := s.team.average(ctx, s.message); err != nil {
		return tally{}, err
	}
	return tally{s.message[end], s.message[end+1]}, nil
}

// descend takes one step of gradient descent with momentum (Polyak, 1964).
func (s *stepper) descend(rate, momentum float64) {
	floats.Scale(momentum, s.velocity)
	floats.AddScaled(s.velocity, -rate, s.message[:len(s.velocity)])
	floats.Add(s.net.params, s.velocity)
}
