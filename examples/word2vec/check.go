package main

import (
	"cmp"
	_ "embed"
	"fmt"
	"slices"
	"strings"

	"gonum.org/v1/gonum/blas/blas32"
)

// The check: of the pairs in pairs.txt, at least wantPairs are among each other's nearest words.
// Only words that occur at least wellKnown times are compared.
const (
	wantPairs = 12
	nearest   = 10
	wellKnown = 50
)

//go:embed pairs.txt
var pairsFile string

// pairs returns the pairs of words in a file: two words per line, and comments after #.
func pairs(file string) ([][2]string, error) {
	var all [][2]string
	for line := range strings.Lines(file) {
		line, _, _ = strings.Cut(line, "#")
		switch words := strings.Fields(line); len(words) {
		case 0:
		case 2:
			all = append(all, [2]string{words[0], words[1]})
		default:
			return nil, fmt.Errorf("pairs: got %d words in %q, want 2", len(words), line)
		}
	}
	return all, nil
}

// A space holds the directions of words, as vectors of length 1.
type space struct {
	words  []string
	number map[string]int
	rows   []float32
}

// newSpace returns the directions of the first words of a corpus. It scales rows in place.
func newSpace(c *corpus, rows []float32) *space {
	s := &space{words: c.words[:len(rows)/dim], number: c.number, rows: rows}
	for i := range s.words {
		r := row(s.rows, int32(i))
		if length := blas32.Nrm2(r); length > 0 {
			blas32.Scal(1/length, r)
		}
	}
	return s
}

// index returns the position of a word. It returns false for a word that has no direction.
func (s *space) index(word string) (int, bool) {
	at, ok := s.number[word]
	return at, ok && at < len(s.words)
}

// near returns the words whose directions have the largest cosine with that of a word, the nearest
// one first.
func (s *space) near(word string) []string {
	at, ok := s.index(word)
	if !ok {
		return nil
	}
	others := make([]int, 0, len(s.words))
	cosine := make([]float32, len(s.words))
	for i := range s.words {
		cosine[i] = blas32.Dot(row(s.rows, int32(i)), row(s.rows, int32(at)))
		if i != at {
			others = append(others, i)
		}
	}
	slices.SortFunc(others, func(a, b int) int { return cmp.Compare(cosine[b], cosine[a]) })
	var words []string
	for _, i := range others[:min(nearest, len(others))] {
		words = append(words, s.words[i])
	}
	return words
}

// found returns the pairs that are among each other's nearest words.
func (s *space) found(all [][2]string) [][2]string {
	var found [][2]string
	for _, p := range all {
		if slices.Contains(s.near(p[0]), p[1]) && slices.Contains(s.near(p[1]), p[0]) {
			found = append(found, p)
		}
	}
	return found
}
