package main

import (
	"slices"
	"strings"
	"testing"
)

func TestPairsFileHasTwentyPairsOfDifferentWords(t *testing.T) {
	all, err := pairs(pairsFile)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, p := range all {
		seen[p[0]], seen[p[1]] = true, true
	}
	if len(all) != 20 || len(seen) != 40 {
		t.Errorf("got %d pairs of %d words, want 20 of 40", len(all), len(seen))
	}
	if _, err := pairs("a b\nc d e # f\n"); err == nil || !strings.Contains(err.Error(), "c d e") {
		t.Errorf("three words: got %v, want an error with the line", err)
	}
}

func TestFoundNeedsBothDirections(t *testing.T) {
	// Eleven words stand close together, and the outlier nearer to them than to anything else.
	c := &corpus{number: map[string]int{}}
	rows := make([]float32, 0, 13*dim)
	for i := range 13 {
		c.number[string(rune('a'+i))] = i
		c.words = append(c.words, string(rune('a'+i)))
		r := make([]float32, dim)
		r[0], r[1] = float32(2+i), 0.1*float32((2+i)*i) // the angle grows with i, at any length
		if i == 11 {
			r[1] = 10 * r[0]
		}
		rows = append(rows, r...)
	}
	s := newSpace(c, rows[:12*dim])
	if got, want := s.near("l"), strings.Split("kjihgfedcb", ""); !slices.Equal(got, want) {
		t.Errorf("near l: got %q, want %q", got, want)
	}
	if got := s.near("m"); got != nil {
		t.Errorf("near a word without a direction: got %q, want none", got)
	}
	got := s.found([][2]string{{"a", "b"}, {"k", "l"}, {"b", "l"}, {"l", "b"}, {"a", "m"}, {"a", "unknown"}})
	if want := [][2]string{{"a", "b"}, {"k", "l"}}; !slices.Equal(got, want) {
		t.Errorf("found: got %q, want %q", got, want)
	}
}
