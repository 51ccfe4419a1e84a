package main

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/tutti-go/tutti/examples/internal/digits"
)

// options are the settings of the command line.
type options struct {
	settings
	out   string // the folder for the curves
	bar   bool   // show a progress bar on the screen
	named bool   // gradients are averaged layer by layer, while the next layer's is computed
}

// defaults holds the values of options that the command line does not set.
var defaults = options{
	settings: settings{epochs: 40, batch: 50, rate: 0.2, momentum: 0.9, seed: 1},
	out:      "out",
}

// passing is the accuracy on the test images below which the run fails.
const passing = 0.95

// run trains on the team, draws the curves, and compares the result with the result of a single
// process. Rank 0 prints. All ranks fail or succeed together.
func run(ctx context.Context, t team, o options, screen, lines io.Writer) error {
	all, err := digits.Load()
	if err != nil {
		return err
	}
	trainRows, testRows := digits.Split(all.Digits, o.seed)
	training, testing := all.Pick(trainRows), all.Pick(testRows)
	if t.rank > 0 {
		lines = io.Discard
	}
	fmt.Fprintf(lines, "%d images to train on, %d to test with, ranks: %d\n", training.Len(), testing.Len(), t.size)

	var curves []point
	shown := newProgress(o.epochs, o.bar && t.rank == 0, screen, lines)
	n, err := train(ctx, t, o.settings, training, func(n *digits.Network, sum digits.Tally) {
		if t.rank == 0 {
			curves = append(curves, point{sum, n.Test(testing).Over(testing.Len())})
			shown.epoch(curves[len(curves)-1])
		}
	})
	if err != nil {
		return err
	}
	accuracy := n.Test(testing).Over(testing.Len()).Correct
	fmt.Fprintf(lines, "accuracy on the test images: %.1f %%\n", 100*accuracy)
	if t.overlap != nil {
		steps, inFlight, hidden := t.overlap()
		fmt.Fprintf(lines, "gradients were in flight for %.1f us per step, %.0f %% of it while others were computed\n",
			1e6*inFlight.Seconds()/float64(steps), 100*hidden.Seconds()/inFlight.Seconds())
	}
	if t.rank == 0 {
		paths, err := drawCurves(o.out, curves)
		if err != nil {
			return err
		}
		fmt.Fprintf(lines, "curves: %s\n", strings.Join(paths, ", "))
	}
	if err := compareWithSingle(ctx, t, o.settings, training, n.Params, lines); err != nil {
		return err
	}
	if !(accuracy >= passing) {
		return fmt.Errorf("accuracy: got %.3g, want at least %g", accuracy, passing)
	}
	return nil
}

// compareWithSingle checks both promises of data-parallel training and prints the figures.
func compareWithSingle(ctx context.Context, t team, s settings, data digits.Images, params []float64, lines io.Writer) error {
	if err := identical(ctx, t, params); err != nil {
		return err
	}
	fmt.Fprintf(lines, "all %d ranks hold identical parameters (%d float64s, compared bit for bit)\n", t.size, len(params))
	far, err := matchesSingle(ctx, t, s, data, params)
	if err != nil {
		return err
	}
	fmt.Fprintf(lines, "relative L2 distance to a single process on the same batches: %.2g (at most %g)\n", far, tolerance)
	return nil
}
