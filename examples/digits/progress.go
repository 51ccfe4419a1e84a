package main

import (
	"fmt"
	"io"

	"github.com/schollz/progressbar/v3"
)

// A progress shows how training goes: a bar on a terminal, and a line for every fifth epoch
// elsewhere, as in logs.
type progress struct {
	bar    *progressbar.ProgressBar // nil if there is no terminal
	lines  io.Writer
	epochs int
	done   int
}

// newProgress returns a progress over the given number of epochs. The bar, if any, goes to screen.
// The lines go to lines.
func newProgress(epochs int, bar bool, screen, lines io.Writer) *progress {
	p := &progress{lines: lines, epochs: epochs}
	if bar {
		p.bar = progressbar.NewOptions(epochs,
			progressbar.OptionSetWriter(screen),
			progressbar.OptionSetWidth(30),
			progressbar.OptionShowCount(),
			progressbar.OptionSetPredictTime(false),
			progressbar.OptionOnCompletion(func() { fmt.Fprintln(screen) }),
		)
	}
	return p
}

// epoch reports one more epoch.
func (p *progress) epoch(at point) error {
	p.done++
	state := fmt.Sprintf("loss %.4f  accuracy %5.1f %%", at.train.Loss, 100*at.test.Correct)
	if p.bar != nil {
		p.bar.Describe(state)
		return p.bar.Add(1)
	}
	if p.done%5 != 0 && p.done != p.epochs {
		return nil
	}
	_, err := fmt.Fprintf(p.lines, "epoch %2d of %d  %s\n", p.done, p.epochs, state)
	return err
}
