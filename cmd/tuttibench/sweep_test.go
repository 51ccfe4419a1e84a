package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/csv"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/tensor"
)

// bench runs the command in this process and returns its output.
func bench(t *testing.T, args string) string {
	t.Helper()
	var out bytes.Buffer
	if err := run(t.Context(), strings.Fields(args), &out, io.Discard); err != nil {
		t.Fatalf("%s: %v", args, err)
	}
	return out.String()
}

func TestOperationsOverWiresInPlaceOrNot(t *testing.T) {
	for _, wire := range []string{"memory", "tcp", "grpc"} {
		for _, op := range opNames {
			for _, flag := range []string{"", "-inplace"} {
				args := fmt.Sprintf("-local 3 -op %s -transport %s %s -max 256Ki -factor 32 -time 0 -format csv", op, wire, flag)
				for _, r := range records(t, bench(t, args)) {
					if r["op"] != op || r["transport"] != wire || r["ranks"] != "3" || r["wrong"] != "0" {
						t.Errorf("%s: got %v", args, r)
					}
					if (r["algorithm"] == "-") != (op == "pingpong") {
						t.Errorf("%s: got algorithm %q", args, r["algorithm"])
					}
				}
			}
		}
	}
}

func TestEveryElementTypeIsSummedAndMoved(t *testing.T) {
	for _, d := range dtypeNames() {
		for _, op := range []string{"allreduce", "alltoall"} {
			bench(t, fmt.Sprintf("-local 4 -op %s -dtype %s -max 4Ki -time 0", op, d))
		}
	}
}

// records parses CSV with comments, and checks for the columns that programs rely on.
func records(t *testing.T, text string) []map[string]string {
	t.Helper()
	r := csv.NewReader(strings.NewReader(text))
	r.Comment = '#'
	lines, err := r.ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	const want = "op,transport,algorithm,ranks,dtype,bytes,iterations,median_us,min_us,p99_us,algbw_MBps,busbw_MBps,allocs_per_op,wrong"
	if got := strings.Join(lines[0], ","); got != want {
		t.Fatalf("got the columns %s, want %s", got, want)
	}
	var all []map[string]string
	for _, line := range lines[1:] {
		m := make(map[string]string)
		for i, name := range lines[0] {
			m[name] = line[i]
		}
		all = append(all, m)
	}
	return all
}

func TestFiguresOfARowAgree(t *testing.T) {
	r := records(t, bench(t, "-local 4 -min 64Ki -max 64Ki -algorithm ring -dtype int64 -time 5ms -format csv"))[0]
	f := func(name string) float64 {
		v, err := strconv.ParseFloat(r[name], 64)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	if r["algorithm"] != "ring" || r["dtype"] != "int64" || r["bytes"] != "65536" {
		t.Errorf("got %v", r)
	}
	if !(f("min_us") <= f("median_us") && f("median_us") <= f("p99_us")) || f("iterations") < minIterations {
		t.Errorf("got times and iterations that cannot be: %v", r)
	}
	about := func(got, want float64) bool { return got > 0.98*want-0.01 && got < 1.02*want+0.01 }
	if !about(f("algbw_MBps"), 65536/f("median_us")) || !about(f("busbw_MBps"), 1.5*f("algbw_MBps")) {
		t.Errorf("got bandwidths that do not follow from the time: %v", r)
	}
}

func TestJSONHoldsTheSameRows(t *testing.T) {
	var rows []map[string]any
	if err := json.Unmarshal([]byte(bench(t, "-local 2 -max 64 -time 0 -format json")), &rows); err != nil {
		t.Fatal(err)
	}
	if len(rows) != 3 || len(rows[0]) != strings.Count(columns, ",")+1 {
		t.Errorf("got %v", rows)
	}
	for name := range strings.SplitSeq(columns, ",") {
		if _, ok := rows[0][name]; !ok {
			t.Errorf("no %s in %v", name, rows[0])
		}
	}
}

func TestPercentileIsOneOfTheValues(t *testing.T) {
	v := []float64{1, 2, 3, 4}
	for p, want := range map[int]float64{1: 1, 25: 1, 26: 2, 50: 2, 99: 4, 100: 4} {
		if got := percentile(v, p); got != want {
			t.Errorf("percentile %d: got %v, want %v", p, got, want)
		}
	}
}

// A wrong result on any rank must be counted, and must fail the sweep on all ranks.
func TestAWrongResultFailsTheSweep(t *testing.T) {
	err := comm.Local(3, func(ctx context.Context, c *comm.Comm) error {
		o := options{op: "allreduce", dtype: tensor.Int32}
		k := newTypedVectors(c, o, 1000, integer[int32])
		tr := k.trial(1000)
		right := tr.run
		tr.run = func(ctx context.Context) error {
			err := right(ctx)
			if c.Rank() == 2 {
				k.out[999]++
			}
			return err
		}
		s, err := measure(ctx, c, tr, budget{maxIterations: minIterations})
		if err != nil {
			return err
		}
		if s.wrong != 2 { // once in the last timed run, and once in the run after it
			return fmt.Errorf("rank %d: got %d wrong elements, want 2", c.Rank(), s.wrong)
		}
		if verdict([]row{{Bytes: 4000, Wrong: s.wrong}}) == nil || verdict([]row{{}}) != nil {
			return errors.New("the verdict does not follow from the rows")
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// The sweep must detect an operation that writes no output, even if an earlier run has left the
// right result.
func TestARunThatWritesNothingIsWrong(t *testing.T) {
	err := comm.Local(2, func(ctx context.Context, c *comm.Comm) error {
		k := newTypedVectors(c, options{op: "allgather", dtype: tensor.Uint8}, 10, integer[uint8])
		tr := k.trial(10)
		right, runs := tr.run, 0
		tr.run = func(ctx context.Context) error {
			if runs++; runs > 1 {
				return nil
			}
			return right(ctx)
		}
		s, err := measure(ctx, c, tr, budget{maxIterations: minIterations})
		if err == nil && s.wrong != 20 {
			err = fmt.Errorf("got %d wrong elements, want all of both ranks", s.wrong)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestOnlyRankZeroPrints(t *testing.T) {
	var outs [3]bytes.Buffer
	err := comm.Local(3, func(ctx context.Context, c *comm.Comm) error {
		o := options{op: "allreduce", dtype: tensor.Float32, min: 4, max: 4, factor: 4, maxIterations: minIterations, format: "table"}
		return sweep(ctx, c, o, &outs[c.Rank()], io.Discard)
	})
	if err != nil {
		t.Fatal(err)
	}
	if outs[0].Len() == 0 || outs[1].Len() > 0 || outs[2].Len() > 0 {
		t.Errorf("got %q, want output of rank 0 only", []string{outs[0].String(), outs[1].String(), outs[2].String()})
	}
}

func TestNoSizeHasMoreIterationsThanAskedFor(t *testing.T) {
	var out bytes.Buffer
	if err := run(t.Context(), []string{"-local", "2", "-max", "16", "-time", "1h", "-iterations", "7", "-format", "csv"}, &out, io.Discard); err != nil {
		t.Fatal(err)
	}
	for _, r := range records(t, out.String()) {
		if r["iterations"] != "7" {
			t.Errorf("got %s iterations of %s bytes, want 7", r["iterations"], r["bytes"])
		}
	}
}

func TestOneRankAloneIsABenchmarkToo(t *testing.T) {
	for _, op := range opNames {
		var out bytes.Buffer
		args := []string{"-local", "1", "-op", op, "-max", "4Ki", "-time", "0", "-format", "csv"}
		err := run(t.Context(), args, &out, io.Discard)
		if op == "pingpong" {
			if err == nil || !strings.Contains(err.Error(), "want 2 or more") {
				t.Errorf("got %v, want a pingpong on one rank to be refused", err)
			}
			continue
		}
		if err != nil || records(t, out.String())[0]["transport"] != "self" {
			t.Errorf("%s: %v, %s", op, err, &out)
		}
	}
}

func TestAnUnknownAlgorithmIsRefused(t *testing.T) {
	err := run(t.Context(), []string{"-local", "1", "-algorithm", "quickest"}, io.Discard, io.Discard)
	if !errors.Is(err, fault.Misuse) || !strings.Contains(err.Error(), "quickest") {
		t.Errorf("got %v, want Misuse that names it", err)
	}
}

func TestTheProfileIsOfRankZero(t *testing.T) {
	path := filepath.Join(t.TempDir(), "new", "cpu.prof")
	bench(t, "-local 2 -max 64 -time 0 -cpuprofile "+path)
	zipped, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer zipped.Close()
	r, err := gzip.NewReader(zipped)
	if err != nil {
		t.Fatal(err)
	}
	if text, err := io.ReadAll(r); err != nil || !bytes.Contains(text, []byte("nanoseconds")) {
		t.Errorf("the profile has %d bytes and names no unit of time, error %v", len(text), err)
	}
}

func TestThePlotIsDrawn(t *testing.T) {
	for _, args := range []string{
		"-local 2 -max 64Ki",
		"-local 2 -min 1 -max 1 -dtype int8 -op alltoall", // a single point
		"-local 1 -max 4Ki",                               // no bus bandwidth at all
	} {
		path := filepath.Join(t.TempDir(), "new", "folder", "plot.svg")
		bench(t, args+" -time 0 -plot "+path)
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Contains(text, []byte("<path")) || !bytes.Contains(text, []byte("median time in µs")) || !bytes.Contains(text, []byte("bus bandwidth in MB/s")) {
			t.Errorf("%s: the picture lacks something", args)
		}
		for d := xml.NewDecoder(bytes.NewReader(text)); ; {
			if _, err := d.Token(); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatalf("%s: %v", args, err)
			}
		}
	}
}
