package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"gonum.org/v1/gonum/floats"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/elastic"
	"github.com/tutti-go/tutti/examples/internal/digits"
)

const (
	batch     = 50   // images per step, over all ranks together
	firstRate = 0.2  // the learning rate; it decreases linearly towards 0
	momentum  = 0.9  // the part of the last change that the next one keeps
	passing   = 0.95 // the accuracy on the test images below which the run fails

	// tolerance bounds the relative distance between the parameters and those of a training without
	// losses. Sums over other numbers of ranks differ in their last bits.
	tolerance = 1e-9
)

// A training is one rank's training. Its state has everything that is needed to continue: the
// network, the step, and the curve.
type training struct {
	options
	training, testing digits.Images
	stepsPerEpoch     int
	steps             int  // the number of steps of the whole training
	isNew             bool // this process has not made a step yet

	grad  *digits.Network
	state elastic.State

	// The state.
	net          *digits.Network
	velocity     []float64
	accuracy     []float64 // on the test images, after each epoch
	losses       []float64 // the number of ranks that were lost before each step
	joins        []float64 // the number of ranks that joined before each step
	data         *elastic.Sampler
	step         int
	size         int // the number of ranks at the last step
	lost, joined int
}

// newTraining returns a training at its start, which is equal on all ranks.
func newTraining(o options) (*training, error) {
	all, err := digits.Load()
	if err != nil {
		return nil, err
	}
	train, test := digits.Split(all.Digits, o.seed)
	t := &training{options: o, training: all.Pick(train), testing: all.Pick(test), isNew: true}
	t.stepsPerEpoch = (len(train) + batch - 1) / batch
	t.steps = o.epochs * t.stepsPerEpoch
	t.net = digits.NewNetwork(digits.Pixels, 128, 32, digits.Classes)
	t.net.Randomize(o.seed)
	t.grad = t.net.Like()
	t.velocity = make([]float64, len(t.net.Params))
	t.accuracy = make([]float64, o.epochs)
	t.losses, t.joins = make([]float64, t.steps+1), make([]float64, t.steps+1)
	t.data = elastic.NewSampler(len(train), o.seed)
	t.state = elastic.States(
		elastic.Tensors(t.net.Params, t.velocity, t.accuracy, t.losses, t.joins),
		elastic.Values(&t.step, &t.size, &t.lost, &t.joined),
		t.data,
	)
	return t, nil
}

// dieIfScheduled kills this process if the training has reached the step of the next kill, and this
// process has the rank of that kill, modulo the number of ranks. The number of counted losses says
// which kill is next. So no kill happens before the previous one has been counted as a loss.
func (t *training) dieIfScheduled(c *comm.Comm) {
	if t.lost >= len(t.kills) {
		return
	}
	if k := t.kills[t.lost]; t.step >= k.step && c.Rank() == k.rank%c.Size() {
		self, err := os.FindProcess(os.Getpid())
		if err == nil {
			self.Kill()
		}
		select {} // until the signal arrives
	}
}

// await waits at the end of each epoch until the folder of the option -hold has a file that is
// named by the number of epochs so far. Meanwhile the user can change the members of the job. It is
// enough if one rank sees the file, so the folder may be on one host only.
func (t *training) await(ctx context.Context, job *elastic.Job) error {
	if t.hold == "" || t.step == 0 || t.step%t.stepsPerEpoch != 0 {
		return nil
	}
	for {
		n := []int{0}
		if _, err := os.Stat(filepath.Join(t.hold, fmt.Sprint(t.data.Epoch()))); err == nil {
			n[0] = 1
		}
		if err := comm.AllReduce(ctx, job.Comm(), n, comm.Sum); err != nil || n[0] > 0 {
			return err
		}
		if err := job.Commit(ctx); err != nil { // fails also if the members are about to change
			return err
		}
		select {
		case <-job.Comm().Changed():
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// gradient computes the gradient of the batch's mean loss, and returns the size of the batch. It
// does not change the state.
func (t *training) gradient(ctx context.Context, c *comm.Comm) (total int, err error) {
	mine, total := t.data.Batch(c, batch)
	if len(mine) > 0 {
		t.net.Learn(t.training.Pick(mine), t.grad, nil)
	} else {
		clear(t.grad.Params)
	}
	floats.Scale(1/float64(total), t.grad.Params)
	return total, comm.AllReduce(ctx, c, t.grad.Params, comm.Sum)
}

// descend makes a step of gradient descent with momentum. The parameter total is the size of the
// batch, and size is the number of ranks that have computed it.
func (t *training) descend(total, size int) {
	rate := firstRate * float64(t.steps-t.step) / float64(t.steps)
	floats.Scale(momentum, t.velocity)
	floats.AddScaled(t.velocity, -rate, t.grad.Params)
	floats.Add(t.net.Params, t.velocity)
	epoch := t.data.Epoch()
	t.data.Advance(total)
	if t.data.Epoch() > epoch {
		t.accuracy[epoch] = t.net.Test(t.testing).Over(t.testing.Len()).Correct
	}
	t.step++
	t.size, t.isNew = size, false
}

// count counts the ranks that were lost and that joined since the last step.
func (t *training) count(ctx context.Context, c *comm.Comm) (lost, joined int, err error) {
	n := []int{0}
	if t.isNew {
		n[0] = 1
	}
	if err := comm.AllReduce(ctx, c, n, comm.Sum); err != nil {
		return 0, 0, err
	}
	joined = n[0]
	lost = t.size + joined - c.Size()
	t.losses[t.step] += float64(lost)
	t.joins[t.step] += float64(joined)
	t.size, t.lost, t.joined = c.Size(), t.lost+lost, t.joined+joined
	return lost, joined, nil
}

// report prints the result, draws the curve, and compares the result with that of a training
// without losses.
func (t *training) report(ctx context.Context, c *comm.Comm, lines io.Writer) error {
	fmt.Fprintf(lines, "%d ranks are left; %d lost, %d joined\n", t.size, t.lost, t.joined)
	accuracy := t.accuracy[t.epochs-1]
	fmt.Fprintf(lines, "accuracy on the test images: %.1f %%\n", 100*accuracy)
	if t.out != "" {
		paths, err := t.draw()
		if err != nil {
			return err
		}
		fmt.Fprintf(lines, "curve: %s\n", strings.Join(paths, ", "))
	}
	alone, err := t.undisturbed(ctx, c)
	if err != nil {
		return err
	}
	far := floats.Distance(t.net.Params, alone.net.Params, 2) / floats.Norm(alone.net.Params, 2)
	same := alone.accuracy[t.epochs-1]
	fmt.Fprintf(lines, "without losses it is %.1f %%; relative L2 distance of the parameters: %.2g (at most %g)\n", 100*same, far, tolerance)
	switch {
	case !(far <= tolerance):
		return fmt.Errorf("distance: got %.3g, want at most %g", far, tolerance)
	case !(accuracy >= passing):
		return fmt.Errorf("accuracy: got %.3g, want at least %g", accuracy, passing)
	case t.lost != len(t.kills) && t.hold == "":
		return fmt.Errorf("lost ranks: got %d, want %d", t.lost, len(t.kills))
	}
	return nil
}

// undisturbed returns the training that this process makes alone, on the same batches.
func (t *training) undisturbed(ctx context.Context, c *comm.Comm) (*training, error) {
	self, err := c.Sub(ctx, c.Rank())
	if err != nil {
		return nil, err
	}
	defer self.Close(ctx)
	alone, err := newTraining(t.options)
	if err != nil {
		return nil, err
	}
	for alone.step < alone.steps {
		total, err := alone.gradient(ctx, self)
		if err != nil {
			return nil, err
		}
		alone.descend(total, 1)
	}
	return alone, nil
}
