package main

import (
	"fmt"
	"image/color"
	"os"
	"path/filepath"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
)

// The size of the picture.
const width, height = 18 * vg.Centimeter, 9 * vg.Centimeter

// The colors of the picture.
var (
	blue  = color.RGBA{R: 0x1f, G: 0x77, B: 0xb4, A: 0xff}
	red   = color.RGBA{R: 0xd6, G: 0x27, B: 0x28, A: 0xff}
	green = color.RGBA{R: 0x2c, G: 0xa0, B: 0x2c, A: 0xff}
)

// draw writes elastic.svg and elastic.png into the folder for the curve, which it creates if
// missing, and returns their paths. The pictures show the accuracy after each epoch, and a vertical
// line for each loss and each join.
func (t *training) draw() ([]string, error) {
	p := plot.New()
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = "training with losses and joins", "step", "test images recognized, in %"
	p.Legend.XOffs = -width / 4
	var curve plotter.XYs
	low := 100.0
	for epoch, accuracy := range t.accuracy {
		curve = append(curve, plotter.XY{X: float64((epoch + 1) * t.stepsPerEpoch), Y: 100 * accuracy})
		low = min(low, 100*accuracy)
	}
	p.Add(plotter.NewGrid())
	if err := addLine(p, "accuracy", curve, blue, 0); err != nil {
		return nil, err
	}
	for _, of := range []struct {
		name   string
		counts []float64
		color  color.Color
		shift  float64 // keeps the lines apart if ranks are lost and join at the same step
	}{{"rank lost", t.losses, red, 0}, {"rank joined", t.joins, green, t.margin()}} {
		name := of.name
		for step, n := range of.counts {
			if n == 0 {
				continue
			}
			x := float64(step) + of.shift
			if err := addLine(p, name, plotter.XYs{{X: x, Y: low}, {X: x, Y: 100}}, of.color, vg.Points(3)); err != nil {
				return nil, err
			}
			name = "" // one entry of the legend for all
		}
	}
	p.X.Min, p.X.Max, p.Y.Max = 0, float64(t.steps)+t.margin(), 100
	if err := os.MkdirAll(t.out, 0o777); err != nil {
		return nil, err
	}
	var paths []string
	for _, format := range []string{"svg", "png"} {
		path := filepath.Join(t.out, "elastic."+format)
		if err := p.Save(width, height, path); err != nil {
			return nil, fmt.Errorf("drawing %s: %w", path, err)
		}
		paths = append(paths, path)
	}
	return paths, nil
}

// margin returns a small distance on the axis of steps.
func (t *training) margin() float64 { return float64(t.steps) / 200 }

// addLine adds a line to the picture, and to its legend if the line has a name. A line with a dash
// is dashed.
func addLine(p *plot.Plot, name string, xys plotter.XYs, c color.Color, dash vg.Length) error {
	line, err := plotter.NewLine(xys)
	if err != nil {
		return err
	}
	line.Color, line.Width = c, vg.Points(1.5)
	if dash > 0 {
		line.Dashes = []vg.Length{dash, dash}
	}
	p.Add(line)
	if name != "" {
		p.Legend.Add(name, line)
	}
	return nil
}
