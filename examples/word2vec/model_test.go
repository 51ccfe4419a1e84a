package main

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

func TestGradientIsTheDerivativeOfTheLoss(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	random := func(n int) []float32 {
		v := make([]float32, n)
		for i := range v {
			v[i] = float32(rng.NormFloat64()) / 8
		}
		return v
	}
	b := batch{
		centers:  wordList{words: []int64{7, 3}},
		contexts: wordList{words: []int64{1, 2, 9}},
		examples: []example{{0, 1, true}, {0, 2, false}, {1, 2, true}, {1, 0, false}, {0, 1, true}},
	}
	projection, centers, contexts := random(dim*dim), random(2*dim), random(3*dim)
	const pairs, h = 3, 1e-2
	g := b.gradient(projection, centers, contexts)
	for _, tc := range []struct {
		name string
		x, d []float32
	}{{"projection", projection, g.projection}, {"centers", centers, g.centers}, {"contexts", contexts, g.contexts}} {
		for i := 0; i < len(tc.x); i += 7 {
			x := tc.x[i]
			tc.x[i] = x + h
			above := b.gradient(projection, centers, contexts).loss
			tc.x[i] = x - h
			below := b.gradient(projection, centers, contexts).loss
			tc.x[i] = x
			want := (above - below) * pairs / (2 * h)
			if got := float64(tc.d[i]); math.Abs(got-want) > 1e-3 {
				t.Fatalf("derivative %d of the %s: got %.5f, want %.5f", i, tc.name, got, want)
			}
		}
	}
}

func TestBatchPairsWordsOfOneCommentWithinTheWindow(t *testing.T) {
	const s = separator
	text := []int32{10, 11, 12, s, 20, 21, 22, 23, 24, 25, 26, 27, s, 30, s}
	draws := sampler{40, 41, 20}
	var b batch
	pairs := map[[2]int64]int{}
	rng := rand.New(rand.NewPCG(1, 1))
	const times = 200
	for range times {
		b.fill(text, 1, 8, draws, rng)
		for i, word := range b.contexts.words {
			if slices.Contains(b.contexts.words[:i], word) {
				t.Fatalf("word %d is twice in %d", word, b.contexts.words)
			}
		}
		near := int64(separator) // the other word of the last pair
		for i, e := range b.examples {
			center, other := b.centers.words[e.center], b.contexts.words[e.context]
			if e.near {
				pairs[[2]int64{center, other}]++
				near = other
			} else if other == near || !slices.Contains(draws, int32(other)) {
				t.Fatalf("example %d: word %d was drawn, want one of %d, but not %d", i, other, draws, near)
			}
		}
	}
	for pair, n := range pairs {
		center, other := pair[0], pair[1]
		if center < 11 || center > 23 || center/10 != other/10 || center == other || max(center-other, other-center) > window {
			t.Errorf("%d are pairs, want the words near 11 to 23", pair)
		}
		if adjacent := max(center-other, other-center) == 1; adjacent != (n == times) {
			t.Errorf("pair %d: got it %d times in %d batches, want it in each if and only if the words are adjacent", pair, n, times)
		}
	}
	if len(pairs) != 2+2+4*7-3 {
		t.Errorf("got %d different pairs, want %d", len(pairs), 2+2+4*7-3)
	}
}

func TestEpochTextHasEveryCommentAndThinsOutFrequentWords(t *testing.T) {
	c := &corpus{words: make([]string, 3), counts: []int{900_000, 900, 90}}
	for range 9000 {
		c.total += 101
		c.comments = append(c.comments, append(make([]int32, 100), 1))
	}
	text := c.epochText(rand.New(rand.NewPCG(3, 3)))
	got := map[int32]int{}
	for _, word := range text {
		got[word]++
	}
	if got[separator] != 9000 || got[1] < 8900 {
		t.Errorf("got %d separators and %d rare words, want 9000 of each", got[separator], got[1])
	}
	share := float64(got[0]) / 900_000
	if want := math.Sqrt(often / 0.99); math.Abs(share-want) > 0.002 {
		t.Errorf("share of the frequent word that is kept: got %.4f, want %.4f", share, want)
	}
}

func TestSamplerFollowsThePowerOfCounts(t *testing.T) {
	s := newSampler(&corpus{counts: []int{10_000, 16, 1}})
	got := make([]float64, 3)
	for _, word := range s {
		got[word] += 1 / float64(len(s))
	}
	for i, want := range []float64{1000. / 1009, 8. / 1009, 1. / 1009} {
		if math.Abs(got[i]-want) > 1e-4 {
			t.Errorf("word %d: got the share %.5f, want %.5f", i, got[i], want)
		}
	}
}
