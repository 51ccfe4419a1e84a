package main

import (
	"encoding/json"
	"fmt"
	"io"
)

// A reporter writes rows in one format, each row as soon as its result is known.
type reporter interface {
	begin(remark string) error
	row(row) error
	remark(string) error // writes text for people, below the rows
	end() error
}

// newReporter returns the reporter of a format, or nil for an unknown format. The reporter writes
// to out what programs read. Remarks for people go to notes if they would disturb programs.
func newReporter(format string, out, notes io.Writer) reporter {
	switch format {
	case "table":
		return tableReporter{out}
	case "csv":
		return csvReporter{out, notes}
	case "json":
		return &jsonReporter{out: out}
	}
	return nil
}

// columns are the names of the columns in the CSV format.
const columns = "op,transport,algorithm,ranks,dtype,bytes,iterations,median_us,min_us,p99_us,algbw_MBps,busbw_MBps,allocs_per_op,wrong"

// A csvReporter writes comma-separated values below a line of column names. No value contains a
// comma or a quote.
type csvReporter struct{ out, notes io.Writer }

func (s csvReporter) begin(remark string) error {
	if err := s.remark(remark); err != nil {
		return err
	}
	_, err := fmt.Fprintln(s.out, columns)
	return err
}

func (s csvReporter) remark(text string) error { return comment(s.notes, text) }

func comment(to io.Writer, text string) error {
	_, err := fmt.Fprintf(to, "# %s\n", text)
	return err
}

func (s csvReporter) row(r row) error {
	_, err := fmt.Fprintf(s.out, "%s,%s,%s,%d,%s,%d,%d,%.2f,%.2f,%.2f,%.2f,%.2f,%.2f,%d\n",
		r.Op, r.Transport, r.Algorithm, r.Ranks, r.DType, r.Bytes, r.Iterations,
		r.MedianUs, r.MinUs, r.P99Us, r.AlgBW, r.BusBW, r.AllocsPerOp, r.Wrong)
	return err
}

func (s csvReporter) end() error { return nil }

// A tableReporter writes a table for people. It prints values that are equal in all rows once,
// above the rows.
type tableReporter struct{ out io.Writer }

func (s tableReporter) begin(remark string) error {
	if err := s.remark(remark); err != nil {
		return err
	}
	_, err := fmt.Fprintf(s.out, "%10s %-9s %-18s %6s %11s %11s %11s %10s %10s %7s %5s\n",
		"bytes", "transport", "algorithm", "iters", "median us", "min us", "p99 us", "algbw MB/s", "busbw MB/s", "allocs", "wrong")
	return err
}

func (s tableReporter) row(r row) error {
	_, err := fmt.Fprintf(s.out, "%10d %-9s %-18s %6d %11.2f %11.2f %11.2f %10.1f %10.1f %7.2f %5d\n",
		r.Bytes, r.Transport, r.Algorithm, r.Iterations, r.MedianUs, r.MinUs, r.P99Us, r.AlgBW, r.BusBW, r.AllocsPerOp, r.Wrong)
	return err
}

func (s tableReporter) remark(text string) error { return comment(s.out, text) }

func (s tableReporter) end() error { return nil }

// A jsonReporter writes one JSON array of all rows, without remarks.
type jsonReporter struct {
	out  io.Writer
	rows int
}

func (s *jsonReporter) begin(string) error { return nil }

func (s *jsonReporter) remark(string) error { return nil }

func (s *jsonReporter) row(r row) error {
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	before := "[\n "
	if s.rows > 0 {
		before = ",\n "
	}
	s.rows++
	_, err = fmt.Fprintf(s.out, "%s%s", before, text)
	return err
}

func (s *jsonReporter) end() error {
	_, err := io.WriteString(s.out, "\n]\n")
	return err
}
