package main

import (
	"fmt"
	"image/color"
	"os"
	"path/filepath"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"github.com/tutti-go/tutti/examples/internal/digits"
)

// A point of the curves is the result of one epoch: means per image, on the training batches
// and on the test images.
type point struct{ train, test digits.Tally }

// The size of the picture: two panels side by side.
const width, height = 24 * vg.Centimeter, 10 * vg.Centimeter

// drawCurves writes digits.svg and digits.png into dir, which it creates if missing, and
// returns their paths.
func drawCurves(dir string, curves []point) ([]string, error) {
	loss, err := panel("loss", "cross entropy in nats", curves, func(t digits.Tally) float64 { return t.Loss })
	if err != nil {
		return nil, err
	}
	loss.Y.Min = 0
	accuracy, err := panel("accuracy", "images recognized, in %", curves, func(t digits.Tally) float64 { return 100 * t.Correct })
	if err != nil {
		return nil, err
	}
	accuracy.Y.Max = 100
	accuracy.Legend.Top = false

	if err := os.MkdirAll(dir, 0o777); err != nil {
		return nil, err
	}
	var paths []string
	for _, format := range []string{"svg", "png"} {
		path := filepath.Join(dir, "digits."+format)
		if err := save(path, format, []*plot.Plot{loss, accuracy}); err != nil {
			return nil, fmt.Errorf("drawing %s: %w", path, err)
		}
		paths = append(paths, path)
	}
	return paths, nil
}

// panel draws one quantity over the epochs, in training and in the test.
func panel(title, unit string, curves []point, of func(digits.Tally) float64) (*plot.Plot, error) {
	var training, testing plotter.XYs
	for i, p := range curves {
		epoch := float64(i + 1)
		training = append(training, plotter.XY{X: epoch, Y: of(p.train)})
		testing = append(testing, plotter.XY{X: epoch, Y: of(p.test)})
	}
	p := plot.New()
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = title, "epoch", unit
	p.Legend.Top = true
	p.Add(plotter.NewGrid())
	for _, c := range []struct {
		name  string
		xys   plotter.XYs
		color color.Color
	}{
		{"training", training, color.RGBA{R: 0x1f, G: 0x77, B: 0xb4, A: 0xff}},
		{"test", testing, color.RGBA{R: 0xd6, G: 0x27, B: 0x28, A: 0xff}},
	} {
		line, err := plotter.NewLine(c.xys)
		if err != nil {
			return nil, err
		}
		line.Color, line.Width = c.color, vg.Points(1.5)
		p.Add(line)
		p.Legend.Add(c.name, line)
	}
	return p, nil
}

// save draws the panels side by side into a file of the format.
func save(path, format string, panels []*plot.Plot) error {
	canvas, err := draw.NewFormattedCanvas(width, height, format)
	if err != nil {
		return err
	}
	tiles := draw.Tiles{Rows: 1, Cols: len(panels), PadX: vg.Centimeter, PadRight: vg.Points(12), PadTop: vg.Points(4)}
	for i, cell := range plot.Align([][]*plot.Plot{panels}, tiles, draw.New(canvas))[0] {
		panels[i].Draw(cell)
	}
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	if _, err := canvas.WriteTo(file); err != nil {
		file.Close()
		return err
	}
	return file.Close()
}
