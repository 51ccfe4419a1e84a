package main

import (
	"bytes"
	"context"
	"encoding/xml"
	"errors"
	"image/png"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tutti-go/tutti/examples/internal/digits"
)

func TestRunOnFourRanksLearnsDrawsAndProves(t *testing.T) {
	out := filepath.Join(t.TempDir(), "new", "folder")
	var screen, lines bytes.Buffer // the output of rank 0
	errs := together(t, 4, func(ctx context.Context, tm team) error {
		o := defaults
		o.epochs, o.out = 15, out
		if tm.rank == 0 {
			return run(ctx, tm, o, &screen, &lines)
		}
		return run(ctx, tm, o, io.Discard, unexpected{t})
	})
	for rank, err := range errs {
		if err != nil {
			t.Fatalf("rank %d: %v", rank, err)
		}
	}
	for _, want := range []string{
		"1438 images to train on, 359 to test with, ranks: 4\n",
		"accuracy on the test images: 9",
		"all 4 ranks hold identical parameters",
		"relative L2 distance to a single process",
	} {
		if !strings.Contains(lines.String(), want) {
			t.Errorf("the output lacks %q:\n%s", want, &lines)
		}
	}
	if screen.Len() > 0 {
		t.Errorf("got %q on the screen, want no bar", &screen)
	}
	checkPNG(t, filepath.Join(out, "digits.png"))
	checkSVG(t, filepath.Join(out, "digits.svg"))
}

// An unexpected is the writer of a rank that should print nothing. It fails the test if the rank
// prints.
type unexpected struct{ t *testing.T }

func (u unexpected) Write(p []byte) (int, error) {
	u.t.Errorf("a rank other than 0 printed %q", p)
	return len(p), nil
}

// checkPNG expects a picture in more than one color.
func checkPNG(t *testing.T, path string) {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	picture, err := png.Decode(file)
	if err != nil {
		t.Fatal(err)
	}
	colors := map[any]bool{}
	for y := range picture.Bounds().Dy() {
		for x := range picture.Bounds().Dx() {
			colors[picture.At(x, y)] = true
		}
	}
	if len(colors) < 4 {
		t.Errorf("%s has %d colors, want curves", path, len(colors))
	}
}

// checkSVG expects well-formed XML with paths in it.
func checkSVG(t *testing.T, path string) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(text, []byte("<path")) {
		t.Errorf("%s draws nothing", path)
	}
	for d := xml.NewDecoder(bytes.NewReader(text)); ; {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
	}
}

func TestRunFailsBelowThePassingAccuracy(t *testing.T) {
	o := defaults
	o.epochs, o.rate, o.out = 1, 1e-6, t.TempDir()
	err := run(t.Context(), trainAlone(), o, io.Discard, io.Discard)
	if err == nil || !strings.Contains(err.Error(), "accuracy") {
		t.Errorf("got %v, want the accuracy to be refused", err)
	}
}

func TestARankThatFailsEndsTheRun(t *testing.T) {
	broken := errors.New("the wire is cut")
	errs := together(t, 3, func(ctx context.Context, tm team) error {
		if tm.rank == 1 {
			tm.average = func(context.Context, []float64) error { return broken }
		}
		o := defaults
		o.out = t.TempDir()
		return run(ctx, tm, o, io.Discard, io.Discard)
	})
	if !errors.Is(errs[1], broken) || errs[0] == nil || errs[2] == nil {
		t.Errorf("got %v, want errors on all ranks", errs)
	}
}

func TestProgressShowsABarOrSomeLines(t *testing.T) {
	for _, bar := range []bool{true, false} {
		var screen, lines bytes.Buffer
		p := newProgress(12, bar, &screen, &lines)
		for range 12 {
			if err := p.epoch(point{train: digits.Tally{Loss: 0.5}, test: digits.Tally{Correct: 0.25}}); err != nil {
				t.Fatal(err)
			}
		}
		shown, silent := &lines, &screen
		if bar {
			shown, silent = silent, shown
		} else if got, want := strings.Count(lines.String(), "\n"), 3; got != want {
			t.Errorf("got %d lines for 12 epochs, want %d", got, want)
		}
		if silent.Len() > 0 {
			t.Errorf("bar %v: got %q in the wrong place", bar, silent)
		}
		if got := shown.String(); !strings.Contains(got, "loss 0.5000  accuracy  25.0 %") {
			t.Errorf("bar %v: got %q, want loss and accuracy", bar, got)
		}
	}
}
