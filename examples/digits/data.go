package main

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

const (
	pixels  = 64 // the pixels of one image, 8 by 8
	classes = 10 // the digits 0 to 9
	maxInk  = 16 // the darkest pixel
)

// packed is the data as it was published; DATA.md names its authors.
//
//go:embed digits.csv.gz
var packed string

// A set is some of the images with the digits that they show. It does not change, so goroutines
// may share it.
type set struct {
	images *mat.Dense // one row per image, ink from 0 to 1
	digits []int
}

// len returns the number of images.
func (s set) len() int { return len(s.digits) }

// pick returns the images of these rows, in this order. There must be at least one.
func (s set) pick(rows []int) set {
	picked := set{mat.NewDense(len(rows), pixels, nil), make([]int, len(rows))}
	for i, row := range rows {
		picked.images.SetRow(i, s.images.RawRowView(row))
		picked.digits[i] = s.digits[row]
	}
	return picked
}

// load unpacks the embedded data.
func load() (set, error) {
	unpacked, err := gzip.NewReader(strings.NewReader(packed))
	if err != nil {
		return set{}, err
	}
	return parse(unpacked)
}

// parse parses rows of 64 pixels and a digit.
func parse(r io.Reader) (set, error) {
	lines := csv.NewReader(r)
	lines.FieldsPerRecord = pixels + 1
	records, err := lines.ReadAll()
	if err != nil {
		return set{}, err
	}
	if len(records) == 0 {
		return set{}, errors.New("rows: got none, want some")
	}
	all := set{mat.NewDense(len(records), pixels, nil), make([]int, len(records))}
	for i, record := range records {
		for j, field := range record {
			value, err := strconv.Atoi(field)
			limit := maxInk
			if j == pixels {
				limit = classes - 1
			}
			if err != nil || value < 0 || value > limit {
				return set{}, fmt.Errorf("row %d, column %d: got %q, want a number from 0 to %d", i+1, j+1, field, limit)
			}
			if j == pixels {
				all.digits[i] = value
			} else {
				all.images.Set(i, j, float64(value)/maxInk)
			}
		}
	}
	return all, nil
}

// split returns the rows to train on and those to test with. The test rows are a fifth of every
// digit, rounded, drawn by the seed alone, so all ranks with the same seed get the same rows.
func split(digits []int, seed uint64) (train, test []int) {
	var rows [classes][]int
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

// batches divides all rows into batches, in an order that depends only on the seed and the epoch.
// Every rank, and the single process of the comparison, uses the same batches. The last batch may
// be smaller.
func batches(rows, size int, seed uint64, epoch int) [][]int {
	order := rand.New(rand.NewPCG(seed, 1+uint64(epoch))).Perm(rows)
	var dealt [][]int
	for len(order) > 0 {
		n := min(size, len(order))
		dealt = append(dealt, order[:n])
		order = order[n:]
	}
	return dealt
}

// share returns the part of a batch that one rank computes. Parts differ by at most one row. If
// there are more ranks than rows, some parts are empty.
func share(batch []int, rank, size int) []int {
	return batch[rank*len(batch)/size : (rank+1)*len(batch)/size]
}
