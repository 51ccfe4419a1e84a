// Package figure draws benchmark results as curves over the bytes of a vector, on logarithmic
// scales, in panels side by side. It also has the factor by which bus bandwidth is computed, so
// that all programs of this module use the same factor.
//
// It does not know where results come from.
package figure

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

// BusFactor returns the minimum number of bytes that each rank must send for each byte of the
// vector. The factor times the bytes, divided by the time, is the bus bandwidth. The bus bandwidth
// says how well an operation uses a link, independently of the number of ranks.
//
// The factors are those of nccl-tests, doc/PERFORMANCE.md. The vector of a pingpong travels
// twice. Other operations have factor 1.
func BusFactor(op string, ranks int) float64 {
	n := float64(ranks)
	switch op {
	case "allreduce":
		return 2 * (n - 1) / n
	case "allgather", "reduce_scatter", "alltoall":
		return (n - 1) / n
	case "pingpong":
		return 2
	}
	return 1
}

// A Panel is one pair of axes. The horizontal axis is in bytes.
type Panel struct {
	Title  string
	Unit   string // the unit of the vertical axis
	Curves []Curve
}

// A Curve is drawn with a mark at each point. If it has a Name, the legend lists it.
type Curve struct {
	Name   string
	Points []Point
}

// A Point is one result. A point with a number that is not above 0 is omitted, since a logarithmic
// scale cannot show it. The bus bandwidth of a single rank is an example.
type Point struct{ Bytes, Value float64 }

// The size of a panel with its labels.
const width, height = 13 * vg.Centimeter, 11 * vg.Centimeter

// Draw draws rows of panels, the same number in each, into an SVG file. It makes the file's
// folder if needed. All panels of a row have aligned axes.
func Draw(path string, rows [][]Panel) error {
	var all [][]*plot.Plot
	for _, panels := range rows {
		var plots []*plot.Plot
		for _, p := range panels {
			plots = append(plots, p.plot())
		}
		all = append(all, plots)
	}
	if len(all) == 0 || len(all[0]) == 0 {
		return fmt.Errorf("draw %s: there is nothing to draw", path)
	}
	canvas := vgsvg.New(width*vg.Length(len(all[0])), height*vg.Length(len(all)))
	tiles := draw.Tiles{Rows: len(all), Cols: len(all[0]), PadX: vg.Centimeter, PadY: vg.Centimeter / 2, PadRight: vg.Points(12), PadTop: vg.Points(4)}
	for i, cells := range plot.Align(all, tiles, draw.New(canvas)) {
		for j, cell := range cells {
			all[i][j].Draw(cell)
		}
	}
	return write(path, canvas)
}

// write writes the canvas to a file.
func write(path string, canvas *vgsvg.Canvas) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		return err
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

// plot returns the panel as a gonum plot: both axes logarithmic, with a grid, and a legend in the
// corner where curves of times and bandwidths rarely are.
func (panel Panel) plot() *plot.Plot {
	p := plot.New()
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = panel.Title, "bytes", panel.Unit
	p.X.Scale, p.Y.Scale = plot.LogScale{}, plot.LogScale{}
	p.X.Tick.Marker, p.Y.Tick.Marker = powers{base: 4, label: binary}, powers{base: 10, label: decimal}
	p.Add(plotter.NewGrid())
	p.Legend.Top, p.Legend.Left = true, true
	var all plotter.XYs
	for i, c := range panel.Curves {
		points := c.drawable()
		all = append(all, points...)
		if len(points) == 0 {
			continue
		}
		line, dots, err := plotter.NewLinePoints(points)
		if err != nil {
			continue // fails only for values that are not finite, and all values are finite
		}
		style(i, line, dots)
		p.Add(line, dots)
		if c.Name != "" {
			p.Legend.Add(c.Name, line, dots)
		}
	}
	p.X.Min, p.X.Max = span(all, 4, func(xy plotter.XY) float64 { return xy.X })
	p.Y.Min, p.Y.Max = span(all, 10, func(xy plotter.XY) float64 { return xy.Y })
	return p
}

// drawable returns the points that logarithmic scales can show.
func (c Curve) drawable() (points plotter.XYs) {
	for _, p := range c.Points {
		if p.Bytes > 0 && p.Value > 0 && !math.IsInf(p.Value, 1) {
			points = append(points, plotter.XY{X: p.Bytes, Y: p.Value})
		}
	}
	return points
}

// style sets color and mark of the i-th curve, so that curves differ in print, too. The first curve
// has the heaviest line, because it is the subject of the figure.
func style(i int, line *plotter.Line, dots *plotter.Scatter) {
	colours := []color.RGBA{
		{0x1f, 0x77, 0xb4, 0xff}, {0xff, 0x7f, 0x0e, 0xff}, {0x2c, 0xa0, 0x2c, 0xff},
		{0x94, 0x67, 0xbd, 0xff}, {0x8c, 0x56, 0x4b, 0xff}, {0x7f, 0x7f, 0x7f, 0xff},
	}
	marks := []draw.GlyphDrawer{
		draw.CircleGlyph{}, draw.SquareGlyph{}, draw.TriangleGlyph{},
		draw.CrossGlyph{}, draw.RingGlyph{}, draw.PlusGlyph{},
	}
	line.Color, dots.Color = colours[i%len(colours)], colours[i%len(colours)]
	dots.Shape, dots.Radius = marks[i%len(marks)], vg.Points(2.5)
	line.Width = vg.Points(1)
	if i == 0 {
		line.Width = vg.Points(2)
	}
}

// span returns the range of an axis, between powers of base. The range has room above the largest
// value, and is never empty, because a logarithmic axis cannot show a single value.
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

// powers places the ticks of a logarithmic axis at the powers of base. The base is 4 for bytes,
// because benchmarks use such sizes, and 10 for results.
type powers struct {
	base  float64
	label func(float64) string
}

// Ticks implements plot.Ticker. If there are many, only every second tick has a label.
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

// binary formats a power of two: 64, 4Ki, 16Mi.
func binary(v float64) string {
	for _, unit := range []string{"", "Ki", "Mi", "Gi"} {
		if v < 1024 {
			return fmt.Sprintf("%.0f%s", v, unit)
		}
		v /= 1024
	}
	return fmt.Sprintf("%.0fTi", v)
}

// decimal formats a power of ten.
func decimal(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) }
