package main

import (
	"encoding/csv"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"

	"github.com/tutti-go/tutti/internal/figure"
)

// drawCommand draws the recorded allreduces on two ranks, one row of panels per transport.
func drawCommand(args []string, log io.Writer) error {
	f := flag.NewFlagSet("peers draw", flag.ContinueOnError)
	f.SetOutput(log)
	dir := f.String("dir", "bench/results", "the `folder` of the results")
	if err := f.Parse(args); err != nil {
		return err
	}
	if f.NArg() != 1 {
		return errors.New("draw: want one argument, the file to draw into")
	}
	var lines [][]figure.Panel
	for _, r := range []row{{op: "allreduce", wire: "shm", np: 2}, {op: "allreduce", wire: "tcp", np: 2}} {
		text, err := os.Open(filepath.Join(*dir, r.name()+".csv"))
		if err != nil {
			return fmt.Errorf("draw: %w; run make bench-peers to record this file", err)
		}
		panels, err := r.panels(text)
		text.Close()
		if err != nil {
			return fmt.Errorf("draw: %s: %w", text.Name(), err)
		}
		lines = append(lines, panels)
	}
	return figure.Draw(f.Arg(0), lines)
}

// panels returns the panels with the times and the bus bandwidths of a recorded table.
func (r row) panels(text io.Reader) ([]figure.Panel, error) {
	in := csv.NewReader(text)
	in.Comment = '#'
	lines, err := in.ReadAll()
	if err != nil {
		return nil, err
	}
	if len(lines) == 0 || len(lines[0]) < 3 {
		return nil, errors.New("the file has no columns of contenders")
	}
	title := fmt.Sprintf("%s of float32, %d ranks, %s", r.op, r.np, r.wire)
	times := figure.Panel{Title: title, Unit: "median time in µs"}
	rates := figure.Panel{Title: title, Unit: "bus bandwidth in MB/s"}
	for column := 1; column < len(lines[0])-1; column++ { // the columns between bytes and ratio
		time, rate := figure.Curve{Name: lines[0][column]}, figure.Curve{Name: lines[0][column]}
		for _, l := range lines[1:] {
			bytes, err1 := strconv.ParseFloat(l[0], 64)
			us, err2 := strconv.ParseFloat(l[column], 64) // NaN if the contender did not run
			if err := errors.Join(err1, err2); err != nil {
				return nil, err
			}
			time.Points = append(time.Points, figure.Point{Bytes: bytes, Value: us})
			rate.Points = append(rate.Points, figure.Point{Bytes: bytes, Value: bytes / us * figure.BusFactor(r.op, r.np)})
		}
		times.Curves, rates.Curves = append(times.Curves, time), append(rates.Curves, rate)
	}
	return []figure.Panel{times, rates}, nil
}
