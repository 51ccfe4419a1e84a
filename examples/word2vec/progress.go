package main

import (
	"fmt"
	"io"
	"time"

	"github.com/schollz/progressbar/v3"
)

// A progress shows how training goes: a bar for each epoch on a terminal, and a line for each epoch
// elsewhere, as in logs.
type progress struct {
	screen io.Writer // nil if there is no terminal
	lines  io.Writer
	bar    *progressbar.ProgressBar

	name  string
	begun time.Time
	words int
	steps int
	loss  float64 // sum over the steps
}

// newProgress returns a progress. The bars, if any, go to screen. The lines go to lines.
func newProgress(bar bool, screen, lines io.Writer) *progress {
	p := &progress{lines: lines}
	if bar {
		p.screen = screen
	}
	return p
}

// start begins an epoch with a number of words.
func (p *progress) start(name string, words int) {
	*p = progress{screen: p.screen, lines: p.lines, name: name, begun: time.Now()}
	if p.screen != nil {
		p.bar = progressbar.NewOptions(words,
			progressbar.OptionSetWriter(p.screen),
			progressbar.OptionSetWidth(30),
			progressbar.OptionShowIts(),
			progressbar.OptionSetItsString("words"),
			progressbar.OptionThrottle(100*time.Millisecond),
			progressbar.OptionSetDescription(name),
			progressbar.OptionOnCompletion(func() { fmt.Fprintln(p.screen) }),
		)
	}
}

// step reports one more step.
func (p *progress) step(words int, loss float64) {
	p.words += words
	p.steps++
	p.loss += loss
	if p.bar != nil {
		p.bar.Describe(fmt.Sprintf("%s: loss %.3f", p.name, p.loss/float64(p.steps)))
		p.bar.Add(words)
	}
}

// end ends the epoch.
func (p *progress) end() {
	if p.screen == nil {
		rate := float64(p.words) / time.Since(p.begun).Seconds()
		fmt.Fprintf(p.lines, "%s: loss %.3f, %.0f words/s\n", p.name, p.loss/float64(p.steps), rate)
	}
}
