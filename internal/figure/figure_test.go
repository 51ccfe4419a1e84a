package figure

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"testing"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
)

func TestThePictureHoldsEveryPanelAndItsLegend(t *testing.T) {
	curve := Curve{Name: "ours", Points: []Point{{4, 1}, {1 << 20, 900}}}
	path := filepath.Join(t.TempDir(), "new", "folder", "x.svg")
	err := Draw(path, [][]Panel{
		{{Title: "first", Unit: "µs", Curves: []Curve{curve, {Name: "theirs", Points: []Point{{4, 2}}}}}, {Title: "second", Unit: "MB/s"}},
		{{Title: "third", Unit: "µs", Curves: []Curve{curve}}, {Title: "fourth", Unit: "MB/s", Curves: []Curve{curve}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"first", "second", "third", "fourth", "ours", "theirs", "µs", "MB/s", "<path"} {
		if !bytes.Contains(text, []byte(part)) {
			t.Errorf("the picture lacks %q", part)
		}
	}
	for d := xml.NewDecoder(bytes.NewReader(text)); ; {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
}

func TestBothScalesAreLogarithmic(t *testing.T) {
	p := Panel{Curves: []Curve{{Points: []Point{{4, 1}, {1 << 20, 900}}}}}.plot()
	for name, axis := range map[string]plot.Axis{"bytes": p.X, "values": p.Y} {
		least, most := axis.Min, axis.Max
		if middle := axis.Scale.Normalize(least, most, math.Sqrt(least*most)); math.Abs(middle-0.5) > 1e-9 {
			t.Errorf("the %s' geometric mean lies at %v of their axis, want 0.5", name, middle)
		}
	}
}

func TestNothingToDrawIsAnError(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.svg")
	for _, rows := range [][][]Panel{nil, {{}}} {
		if err := Draw(path, rows); err == nil {
			t.Errorf("%v: got no error", rows)
		}
	}
}

func TestPointsThatALogarithmicScaleCannotShowAreOmitted(t *testing.T) {
	c := Curve{Points: []Point{{0, 1}, {4, 0}, {4, -1}, {4, math.NaN()}, {4, math.Inf(1)}, {4, 3}}}
	if got := c.drawable(); len(got) != 1 || got[0] != (plotter.XY{X: 4, Y: 3}) {
		t.Errorf("got %v, want the last alone", got)
	}
}

func TestBusFactors(t *testing.T) {
	for op, want := range map[string]float64{
		"allreduce": 1.5, "allgather": 0.75, "reduce_scatter": 0.75, "alltoall": 0.75, "pingpong": 2, "broadcast": 1,
	} {
		if got := BusFactor(op, 4); got != want {
			t.Errorf("%s on 4 ranks: got %v, want %v", op, got, want)
		}
	}
}
