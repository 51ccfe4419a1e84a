package main

import (
	"fmt"

	"github.com/tutti-go/tutti/internal/figure"
)

// picture draws median time and bus bandwidth over bytes, on logarithmic scales, into the SVG file
// at path. It makes the file's folder if needed.
func picture(path string, rows []row) error {
	last := rows[len(rows)-1]
	title := fmt.Sprintf("%s of %s, %d ranks, %s", last.Op, last.DType, last.Ranks, last.Transport)
	var times, bandwidths figure.Curve
	for _, r := range rows {
		times.Points = append(times.Points, figure.Point{Bytes: float64(r.Bytes), Value: r.MedianUs})
		bandwidths.Points = append(bandwidths.Points, figure.Point{Bytes: float64(r.Bytes), Value: r.BusBW})
	}
	return figure.Draw(path, [][]figure.Panel{{
		{Title: title, Unit: "median time in µs", Curves: []figure.Curve{times}},
		{Title: title, Unit: "bus bandwidth in MB/s", Curves: []figure.Curve{bandwidths}},
	}})
}
