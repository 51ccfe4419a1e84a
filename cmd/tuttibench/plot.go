package main

import (
	"fmt"
	"image/color"
	"math"
	"os"
	"path/filepath"
	"strconv"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// The size of the picture: two panels side by side.
const width, height = 26 * vg.Centimeter, 11 * vg.Centimeter

// picture draws the rows into an SVG file, whose folder it makes if missing: the
// median time, and the bus bandwidth, over the bytes, all on logarithmic scales.
func picture(path string, rows []row) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		return err
	}
	last := rows[len(rows)-1]
	title := fmt.Sprintf("%s of %s, %d ranks, %s", last.Op, last.DType, last.Ranks, last.Transport)
	panels := []*plot.Plot{
		panel(title, "median time in µs", rows, func(r row) float64 { return r.MedianUs }),
		panel(title, "bus bandwidth in MB/s", rows, func(r row) float64 { return r.BusBW }),
	}
	canvas := vgsvg.New(width, height)
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

// panel draws one quantity. Rows where it is 0, as the bus bandwidth of one rank,
// have no place on a logarithmic scale and are left out.
func panel(title, unit string, rows []row, of func(row) float64) *plot.Plot {
	var points plotter.XYs
	for _, r := range rows {
		if y := of(r); y > 0 && r.Bytes > 0 {
			points = append(points, plotter.XY{X: float64(r.Bytes), Y: y})
		}
	}
	p := plot.New()
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = title, "bytes", unit
	p.X.Scale, p.Y.Scale = plot.LogScale{}, plot.LogScale{}
	p.X.Tick.Marker, p.Y.Tick.Marker = powers{base: 4, label: binary}, powers{base: 10, label: decimal}
	p.X.Min, p.X.Max = span(points, 4, func(xy plotter.XY) float64 { return xy.X })
	p.Y.Min, p.Y.Max = span(points, 10, func(xy plotter.XY) float64 { return xy.Y })
	p.Add(plotter.NewGrid())
	if len(points) == 0 {
		return p
	}
	line, dots, err := plotter.NewLinePoints(points)
	if err != nil {
		return p // only for values that are not finite, and there are none
	}
	line.Color = color.RGBA{R: 0x1f, G: 0x77, B: 0xb4, A: 0xff}
	line.Width = vg.Points(1.5)
	dots.Color, dots.Shape, dots.Radius = line.Color, draw.CircleGlyph{}, vg.Points(2.5)
	p.Add(line, dots)
	return p
}

// span is the range of an axis, from one power of base to another, so that it
// has room on both sides and is never empty.
func span(points plotter.XYs, base float64, of func(plotter.XY) float64) (lo, hi float64) {
	lo, hi = 1, base
	for i, p := range points {
		log := math.Log(of(p)) / math.Log(base)
		below, above := math.Pow(base, math.Floor(log)), math.Pow(base, math.Floor(log)+1)
		if i == 0 {
			lo, hi = below, above
		}
		lo, hi = min(lo, below), max(hi, above)
	}
	return lo, hi
}

// powers ticks a logarithmic axis at the powers of base.
type powers struct {
	base  float64
	label func(float64) string
}

// Ticks implements plot.Ticker. Of many ticks, every second one is labelled.
func (p powers) Ticks(lo, hi float64) []plot.Tick {
	var ticks []plot.Tick
	for e := math.Round(math.Log(lo) / math.Log(p.base)); math.Pow(p.base, e) <= hi*1.001; e++ {
		v := math.Pow(p.base, e)
		ticks = append(ticks, plot.Tick{Value: v, Label: p.label(v)})
	}
	if len(ticks) > 8 {
		for i := 1; i < len(ticks); i += 2 {
			ticks[i].Label = ""
		}
	}
	return ticks
}

// binary writes a power of two: 64, 4Ki, 16Mi.
func binary(v float64) string {
	for _, unit := range []string{"", "Ki", "Mi", "Gi"} {
		if v < 1024 {
			return fmt.Sprintf("%.0f%s", v, unit)
		}
		v /= 1024
	}
	return fmt.Sprintf("%.0fTi", v)
}

// decimal writes a power of ten.
func decimal(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) }
