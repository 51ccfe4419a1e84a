package main

import (
	"math"
	"slices"
	"strings"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/internal/figure"
)

// A row is one line of the results. The fields are in the order of the columns. In JSON they have
// the names of the columns.
type row struct {
	Op          string  `json:"op"`
	Transport   string  `json:"transport"`
	Algorithm   string  `json:"algorithm"`
	Ranks       int     `json:"ranks"`
	DType       string  `json:"dtype"`
	Bytes       int     `json:"bytes"`
	Iterations  int     `json:"iterations"`
	MedianUs    float64 `json:"median_us"`
	MinUs       float64 `json:"min_us"`
	P99Us       float64 `json:"p99_us"`
	AlgBW       float64 `json:"algbw_MBps"`
	BusBW       float64 `json:"busbw_MBps"`
	AllocsPerOp float64 `json:"allocs_per_op"`
	Wrong       int     `json:"wrong"`
}

// rowOf returns the row of a sample. The parameter count is the number of elements of its vectors.
func (o *options) rowOf(c *comm.Comm, count int, s sample) row {
	r := row{
		Op: o.op, Transport: wires(c), Algorithm: "-", Ranks: c.Size(), DType: o.dtype.String(),
		Bytes: count * o.dtype.Size(), Iterations: len(s.seconds),
		MedianUs:    1e6 * s.median(),
		MinUs:       1e6 * s.seconds[0],
		P99Us:       1e6 * percentile(s.seconds, 99),
		AllocsPerOp: s.allocs, Wrong: s.wrong,
	}
	moves := r.Bytes
	if o.op == "barrier" {
		moves = 0
	}
	if name := c.Bridge().Algorithm(o.op, moves, comm.Sum); name != "" {
		r.Algorithm = name
	}
	// If the clock is too coarse, the median is 0, and the row has no bandwidth.
	if r.MedianUs > 0 {
		r.AlgBW = float64(moves) / r.MedianUs
		r.BusBW = r.AlgBW * figure.BusFactor(o.op, c.Size())
	}
	return r
}

// percentile returns the smallest of the ascending values that is at least as large as p percent of
// the values.
func percentile(ascending []float64, p int) float64 {
	n := len(ascending)
	return ascending[int(math.Ceil(float64(n*p)/100))-1]
}

// wires returns the names of the transports between this rank and the others, such as "memory+tcp".
// For a single rank it returns "self".
func wires(c *comm.Comm) string {
	var names []string
	for rank := range c.Size() {
		name := c.Bridge().Transport(rank)
		if (rank != c.Rank() || c.Size() == 1) && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return strings.Join(names, "+")
}
