package main

import (
	"math"
	"math/rand/v2"

	"gonum.org/v1/gonum/blas"
	"gonum.org/v1/gonum/blas/blas32"
)

// The model is skip-gram with negative sampling (Mikolov et al., NIPS 2013), with a projection P. A
// word w has a row v[w] in the table of centers, and a row u[w] in the table of contexts. In the
// model, word c stands near word w with the probability
//
//	sigmoid(u[c] · P v[w])
const (
	dim       = 64  // numbers in a row; P is a dim x dim matrix
	window    = 5   // words on each side of a center, at most
	negatives = 5   // random words per pair of the text
	drawn     = 256 // different random words per batch; few, so that a batch needs few rows
)

// An example is a center and another word. If near is set, the text has them near each other;
// otherwise the other word was drawn at random. The words are positions in the batch's lists.
type example struct {
	center, context int32
	near            bool
}

// A batch is the examples of one worker in one step, and the rows that they need.
type batch struct {
	centers, contexts wordList
	examples          []example
}

// A wordList lists different words.
type wordList struct {
	words    []int64         // in the order of their first use; indices of a table
	position map[int32]int32 // the index in words of each row
}

// add returns the position of a word, which it appends at its first use.
func (l *wordList) add(word int32) int32 {
	at, ok := l.position[word]
	if !ok {
		at = int32(len(l.words))
		l.position[word] = at
		l.words = append(l.words, int64(word))
	}
	return at
}

func (l *wordList) clear() {
	l.words = l.words[:0]
	if l.position == nil {
		l.position = map[int32]int32{}
	}
	clear(l.position)
}

// separator stands after each comment in an epoch's text.
const separator = -1

// epochText returns the comments in a new random order, with a separator after each. It drops
// occurrences of frequent words: if a word is the fraction f of the text, each occurrence is kept
// with probability sqrt(often/f).
func (c *corpus) epochText(rng *rand.Rand) []int32 {
	keep := make([]float64, len(c.words))
	for i, n := range c.counts {
		keep[i] = math.Sqrt(often * float64(c.total) / float64(n))
	}
	text := make([]int32, 0, c.total)
	for _, i := range rng.Perm(len(c.comments)) {
		for _, word := range c.comments[i] {
			if rng.Float64() < keep[word] {
				text = append(text, word)
			}
		}
		text = append(text, separator)
	}
	return text
}

// often is the fraction of the text above which occurrences of a word are dropped.
const often = 1e-3

// A sampler draws words with probabilities that grow with the power 3/4 of their counts.
type sampler []int32

func newSampler(c *corpus) sampler {
	sum := 0.0
	for _, n := range c.counts {
		sum += math.Pow(float64(n), 0.75)
	}
	const size = 1 << 17
	s := make(sampler, 0, size)
	reached := 0.0
	for word, n := range c.counts {
		reached += math.Pow(float64(n), 0.75)
		for float64(len(s)) < reached/sum*size {
			s = append(s, int32(word))
		}
	}
	return s
}

// fill makes the examples for the centers at the positions lo to hi-1 of an epoch's text.
func (b *batch) fill(text []int32, lo, hi int, s sampler, rng *rand.Rand) {
	b.centers.clear()
	b.contexts.clear()
	b.examples = b.examples[:0]
	var pool [drawn]int32
	for i := range pool {
		pool[i] = b.contexts.add(s[rng.IntN(len(s))])
	}
	for i := lo; i < hi; i++ {
		if text[i] == separator {
			continue
		}
		center := b.centers.add(text[i])
		reach := 1 + rng.IntN(window)
		for j := i - 1; j >= max(0, i-reach) && text[j] != separator; j-- {
			b.pair(center, b.contexts.add(text[j]), &pool, rng)
		}
		for j := i + 1; j <= min(len(text)-1, i+reach) && text[j] != separator; j++ {
			b.pair(center, b.contexts.add(text[j]), &pool, rng)
		}
	}
}

// pair appends a pair of the text, and pairs of the same center with random words.
func (b *batch) pair(center, context int32, pool *[drawn]int32, rng *rand.Rand) {
	b.examples = append(b.examples, example{center, context, true})
	for range negatives {
		if other := pool[rng.IntN(drawn)]; other != context {
			b.examples = append(b.examples, example{center, other, false})
		}
	}
}

// A gradient holds the derivatives of the loss, summed over the examples of a batch.
type gradient struct {
	centers, contexts []float32 // the vectors of the rows that the batch lists
	projection        []float32
	loss              float64 // per pair of the text
}

// gradient computes the derivatives at a projection, and at the batch's rows of the tables.
func (b *batch) gradient(projection, centers, contexts []float32) gradient {
	n := len(b.centers.words)
	g := gradient{
		centers:    make([]float32, len(centers)),
		contexts:   make([]float32, len(contexts)),
		projection: make([]float32, dim*dim),
	}
	projected, toProjected := make([]float32, n*dim), make([]float32, n*dim)
	v, p := matrix(n, centers), matrix(dim, projection)
	blas32.Gemm(blas.NoTrans, blas.Trans, 1, v, p, 0, matrix(n, projected))
	pairs := 0
	for _, e := range b.examples {
		h, u := row(projected, e.center), row(contexts, e.context)
		score := blas32.Dot(h, u)
		if e.near {
			score = -score
		}
		odds := math.Exp(float64(score)) // the odds of an error
		g.loss += math.Log1p(odds)
		by := float32(odds / (1 + odds))
		if e.near {
			pairs++
			by = -by
		}
		blas32.Axpy(by, u, row(toProjected, e.center))
		blas32.Axpy(by, h, row(g.contexts, e.context))
	}
	g.loss /= float64(pairs)
	d := matrix(n, toProjected)
	blas32.Gemm(blas.NoTrans, blas.NoTrans, 1, d, p, 0, matrix(n, g.centers))
	blas32.Gemm(blas.Trans, blas.NoTrans, 1, d, v, 0, matrix(dim, g.projection))
	return g
}

func matrix(rows int, data []float32) blas32.General {
	return blas32.General{Rows: rows, Cols: dim, Stride: dim, Data: data}
}

func row(rows []float32, i int32) blas32.Vector {
	return blas32.Vector{N: dim, Inc: 1, Data: rows[int(i)*dim : int(i+1)*dim]}
}
