package main

import (
	"math"
	"math/rand/v2"
)

// The task: each word has a worth, and an example is three words and the sum of their
// worths. The model has a row of numbers per word. It adds the rows of an example and
// multiplies the sum by the dense weights.
const (
	words    = 100 // rows of the table
	dim      = 8   // numbers in a row, and dense weights
	perText  = 3   // words in an example
	batch    = 50  // examples in a step, over all workers together
	steps    = 400
	rate     = 0.1
	showEach = 100 // steps
)

// An example is some words and the sum of their worths.
type example struct {
	words [perText]int64
	worth float64
}

// batchOf returns the batch of a step. The batch is equal on every rank.
func batchOf(step int) []example {
	rng := rand.New(rand.NewPCG(1, uint64(step)))
	examples := make([]example, batch)
	for i := range examples {
		e := &examples[i]
		for j := range e.words {
			word := rng.IntN(words)
			e.words[j] = int64(word)
			e.worth += math.Sin(float64(word)) // any function that is hard to guess
		}
	}
	return examples
}

// share returns the part of a batch for one of n workers. Shares differ by at most one example.
func share(examples []example, worker, n int) []example {
	return examples[worker*len(examples)/n : (worker+1)*len(examples)/n]
}

// wordsOf lists the words of the examples, one after the other.
func wordsOf(examples []example) []int64 {
	var ids []int64
	for _, e := range examples {
		ids = append(ids, e.words[:]...)
	}
	return ids
}

// firstWeights returns the initial weights of every run.
func firstWeights() []float64 {
	rng := rand.New(rand.NewPCG(2, 0))
	v := make([]float64, dim)
	for i := range v {
		v[i] = 0.5 * rng.NormFloat64()
	}
	return v
}

// gradients returns the gradients of the squared error, summed over the examples. The result dense
// holds the gradient of the dense weights, followed by the sum of the squared errors. The result
// ofRows holds the gradients of the rows, one per word of each example, in the order of rows.
func gradients(weights, rows []float64, examples []example) (dense, ofRows []float64) {
	dense, ofRows = make([]float64, dim+1), make([]float64, len(rows))
	for i, e := range examples {
		first := i * perText * dim
		sum := make([]float64, dim)
		for j := range perText * dim {
			sum[j%dim] += rows[first+j]
		}
		off := -e.worth
		for j, w := range weights {
			off += w * sum[j]
		}
		for j := range dim {
			dense[j] += 2 * off * sum[j]
		}
		dense[dim] += off * off
		for j := range perText * dim {
			ofRows[first+j] = 2 * off * weights[j%dim]
		}
	}
	return dense, ofRows
}

// pick copies the rows of some words.
func pick(table []float64, ids []int64) []float64 {
	rows := make([]float64, 0, len(ids)*dim)
	for _, id := range ids {
		rows = append(rows, table[int(id)*dim:(int(id)+1)*dim]...)
	}
	return rows
}

// descend subtracts the gradients of the words from their rows, scaled by the learning rate. The
// gradients are sums over a share of the batch.
func descend(table, ofRows []float64, ids []int64) {
	for i, id := range ids {
		move(table[int(id)*dim:(int(id)+1)*dim], ofRows[i*dim:(i+1)*dim], rate/batch)
	}
}

// move subtracts the gradient, multiplied by the given factor, from v.
func move(v, gradient []float64, by float64) {
	for i := range v {
		v[i] -= by * gradient[i]
	}
}
