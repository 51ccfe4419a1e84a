// Package digits has the data and the network that the examples train: handwritten digits, and a
// multi-layer perceptron that recognizes them. It does not know about ranks.
package digits

import (
	"compress/gzip"
	_ "embed"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strconv"
	"strings"

	"gonum.org/v1/gonum/mat"
)

// Figures of the data.
const (
	Pixels  = 64 // the pixels of one image, 8 by 8
	Classes = 10 // the digits 0 to 9
	maxInk  = 16 // the value of the darkest pixel
)

// packed is the data as it was published; DATA.md names its authors.
//
//go:embed digits.csv.gz
var packed string

// An Images is a set of images, with the digits that they show. It does not change, so goroutines
// may share it.
type Images struct {
	images *mat.Dense // one row per image, ink from 0 to 1
	Digits []int
}

// Len returns the number of images.
func (s Images) Len() int { return len(s.Digits) }

// Pick returns the images of these rows, in this order. There must be at least one.
func (s Images) Pick(rows []int) Images {
	picked := Images{mat.NewDense(len(rows), Pixels, nil), make([]int, len(rows))}
	for i, row := range rows {
		picked.images.SetRow(i, s.images.RawRowView(row))
		picked.Digits[i] = s.Digits[row]
	}
	return picked
}

// Load unpacks the embedded data.
func Load() (Images, error) {
	unpacked, err := gzip.NewReader(strings.NewReader(packed))
	if err != nil {
		return Images{}, err
	}
	return parse(unpacked)
}

// parse parses rows of 64 pixels and a digit.
func parse(r io.Reader) (Images, error) {
	lines := csv.NewReader(r)
	lines.FieldsPerRecord = Pixels + 1
	records, err := lines.ReadAll()
	if err != nil {
		return Images{}, err
	}
	if len(records) == 0 {
		return Images{}, errors.New("rows: got none, want some")
	}
	all := Images{mat.NewDense(len(records), Pixels, nil), make([]int, len(records))}
	for i, record := range records {
		for j, field := range record {
			value, err := strconv.Atoi(field)
			limit := maxInk
			if j == Pixels {
				limit = Classes - 1
			}
			if err != nil || value < 0 || value > limit {
				return Images{}, fmt.Errorf("row %d, column %d: got %q, want a number from 0 to %d", i+1, j+1, field, limit)
			}
			if j == Pixels {
				all.Digits[i] = value
			} else {
				all.images.Set(i, j, float64(value)/maxInk)
			}
		}
	}
	return all, nil
}

// Split returns the rows to train on and the rows to test with. The test rows are a fifth of each
// digit's rows, rounded. The choice depends only on the seed, so all ranks with the same seed get
// the same rows.
func Split(digits []int, seed uint64) (train, test []int) {
	var rows [Classes][]int
	for row, digit := range digits {
		rows[digit] = append(rows[digit], row)
	}
	draw := rand.New(rand.NewPCG(seed, 0))
	for _, of := range rows {
		draw.Shuffle(len(of), func(i, j int) { of[i], of[j] = of[j], of[i] })
		fifth := (len(of) + 2) / 5
		test = append(test, of[:fifth]...)
		train = append(train, of[fifth:]...)
	}
	return train, test
}

// Batches divides all rows into batches, in an order that depends only on the seed and the epoch.
// Every rank, and the single process of the comparison, uses the same batches. The last batch may
// be smaller.
func Batches(rows, size int, seed uint64, epoch int) [][]int {
	order := rand.New(rand.NewPCG(seed, 1+uint64(epoch))).Perm(rows)
	var dealt [][]int
	for len(order) > 0 {
		n := min(size, len(order))
		dealt = append(dealt, order[:n])
		order = order[n:]
	}
	return dealt
}

// Share returns the part of a batch that one rank computes. Parts differ by at most one row. If
// there are more ranks than rows, some parts are empty.
func Share(batch []int, rank, size int) []int {
	return batch[rank*len(batch)/size : (rank+1)*len(batch)/size]
}
