package main

import (
	"fmt"
	"image/color"
	"os"
	"path/filepath"

	"gonum.org/v1/gonum/mat"
	"gonum.org/v1/gonum/stat"
	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// The sizes of the pictures.
const (
	width, height = 18 * vg.Centimeter, 9 * vg.Centimeter
	mapSide       = 24 * vg.Centimeter
)

// averaged is the number of steps whose mean loss is one point of the curve.
const averaged = 10

// drawnWords is the number of words in the map, in addition to those of the pairs.
const drawnWords = 120

var (
	colors = []color.Color{
		color.RGBA{R: 0x1f, G: 0x77, B: 0xb4, A: 0xff},
		color.RGBA{R: 0xd6, G: 0x27, B: 0x28, A: 0xff},
		color.RGBA{R: 0x2c, G: 0xa0, B: 0x2c, A: 0xff},
	}
	gray = color.Gray{Y: 0x70}
)

// drawAll writes the pictures into dir, which it creates if missing, and returns their paths.
func drawAll(dir string, losses [][]float64, s *space, expected [][2]string) ([]string, error) {
	curves, err := drawLosses(losses)
	if err != nil {
		return nil, err
	}
	words, err := s.drawWords(expected)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return nil, err
	}
	paths := []string{filepath.Join(dir, "word2vec-loss.svg"), filepath.Join(dir, "word2vec-words.svg")}
	if err := curves.Save(width, height, paths[0]); err != nil {
		return nil, fmt.Errorf("drawing %s: %w", paths[0], err)
	}
	if err := words.Save(mapSide, mapSide, paths[1]); err != nil {
		return nil, fmt.Errorf("drawing %s: %w", paths[1], err)
	}
	return paths, nil
}

// drawLosses draws the loss of each training.
func drawLosses(losses [][]float64) (*plot.Plot, error) {
	p := plot.New()
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = "training", "step", "loss per pair of the text, in nats"
	p.Legend.Top = true
	p.Add(plotter.NewGrid())
	for i, of := range losses {
		var curve plotter.XYs
		for step := averaged; step <= len(of); step += averaged {
			curve = append(curve, plotter.XY{X: float64(step), Y: stat.Mean(of[step-averaged:step], nil)})
		}
		line, err := plotter.NewLine(curve)
		if err != nil {
			return nil, err
		}
		line.Color, line.Width = colors[i%len(colors)], vg.Points(1)
		p.Add(line)
		p.Legend.Add(fmt.Sprintf("seed %d", i+1), line)
	}
	return p, nil
}

// drawWords draws a map of the most frequent words and of the words of the pairs. A line joins the
// words of each pair. The axes are the two principal components of all words.
func (s *space) drawWords(expected [][2]string) (*plot.Plot, error) {
	at, err := s.principal()
	if err != nil {
		return nil, err
	}
	p := plot.New()
	p.Title.Text = "words of Go's documentation"
	p.X.Label.Text, p.Y.Label.Text = "first principal component", "second principal component"
	inPair := map[int]bool{}
	for _, pair := range expected {
		a, okA := s.index(pair[0])
		b, okB := s.index(pair[1])
		if !okA || !okB {
			continue
		}
		inPair[a], inPair[b] = true, true
		line, err := plotter.NewLine(plotter.XYs{at[a], at[b]})
		if err != nil {
			return nil, err
		}
		line.Color, line.Width = colors[1], vg.Points(0.5)
		p.Add(line)
	}
	for i, word := range s.words {
		if i >= drawnWords && !inPair[i] {
			continue
		}
		labels, err := plotter.NewLabels(plotter.XYLabels{XYs: plotter.XYs{at[i]}, Labels: []string{word}})
		if err != nil {
			return nil, err
		}
		style := &labels.TextStyle[0]
		style.Font.Size, style.Color = 7, gray
		style.XAlign, style.YAlign = draw.XCenter, draw.YCenter
		if inPair[i] {
			style.Color = colors[1]
		}
		p.Add(labels)
	}
	return p, nil
}

// principal returns the positions of the words along the two directions in which they differ most.
func (s *space) principal() (plotter.XYs, error) {
	rows := mat.NewDense(len(s.words), dim, nil)
	for i := range s.words {
		for j, x := range row(s.rows, int32(i)).Data {
			rows.Set(i, j, float64(x))
		}
	}
	var pc stat.PC
	if !pc.PrincipalComponents(rows, nil) {
		return nil, fmt.Errorf("principal components of %d words: the singular value decomposition failed", len(s.words))
	}
	var directions, at mat.Dense
	pc.VectorsTo(&directions)
	at.Mul(rows, directions.Slice(0, dim, 0, 2))
	positions := make(plotter.XYs, len(s.words))
	for i := range positions {
		positions[i] = plotter.XY{X: at.At(i, 0), Y: at.At(i, 1)}
	}
	return positions, nil
}
