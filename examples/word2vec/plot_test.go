package main

import (
	"encoding/xml"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestDrawAllWritesCurvesAndTheWords(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	c := &corpus{number: map[string]int{}}
	var rows []float32
	for i, word := range strings.Fields("little big frequent words stand here beside others") {
		c.number[word] = i
		c.words = append(c.words, word)
		for range dim {
			rows = append(rows, float32(rng.NormFloat64()))
		}
	}
	losses := [][]float64{make([]float64, 50), make([]float64, 50)}
	dir := filepath.Join(t.TempDir(), "new")
	paths, err := drawAll(dir, losses, newSpace(c, rows), [][2]string{{"big", "little"}, {"big", "missing"}})
	if err != nil || len(paths) != 2 {
		t.Fatalf("got %q, %v, want two pictures", paths, err)
	}
	for i, wants := range [][]string{{"seed 1", "seed 2", "step"}, {"little", "frequent", "others", "first principal component"}} {
		text := svgText(t, paths[i])
		for _, want := range wants {
			if !strings.Contains(text, want) {
				t.Errorf("%s: got the text %q, want %q in it", paths[i], text, want)
			}
		}
	}
}

// svgText returns the text of a picture, which must be well-formed.
func svgText(t *testing.T, path string) string {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	var text strings.Builder
	for d := xml.NewDecoder(file); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return text.String()
		}
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		if chars, ok := token.(xml.CharData); ok {
			text.Write(chars)
		}
	}
}
