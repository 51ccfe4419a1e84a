package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"testing"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/ps"
	"github.com/tutti-go/tutti/tensor"
)

func TestServersAlternateWithPingPongsAndAllReduces(t *testing.T) {
	for _, tc := range []struct {
		args, ops string
		crosses   []int // bytes of each row
	}{
		{"-local 3 -op pushpull -servers 1 -min 4Ki -max 4Ki", "pushpull pingpong allreduce", []int{4 * 4096, 2 * 4096, 2 * 4096}},
		{"-local 6 -op pushpull -servers 2 -min 4Ki -max 4Ki", "pushpull pingpong allreduce", []int{8 * 4096, 6 * 4096, 6 * 4096}},
		{"-local 3 -op pushpull -min 4Ki -max 4Ki -inplace", "pushpull pingpong allreduce", []int{4 * 4096, 2 * 4096, 4 * 4096}},
		{"-local 2 -op pushpull -servers 1 -min 4Ki -max 4Ki", "pushpull pingpong", []int{2 * 4096, 2 * 4096}},
		{"-local 3 -op sparse -servers 1 -rows 500 -width 4 -indices 256", "sparse sparse pingpong", []int{4 * 4096, 4 * 4096, 2 * 4096}},
		{"-local 3 -op sparse -rows 500 -width 4 -indices 256", "sparse sparse pingpong", []int{6 * 4096, 6 * 4096, 2 * 4096}},
	} {
		for _, wire := range []string{"memory", "tcp"} {
			args := fmt.Sprintf("%s -transport %s -time 1h -iterations 6 -format csv", tc.args, wire)
			var ops []string
			for i, r := range records(t, bench(t, args)) {
				ops = append(ops, r["op"])
				if r["wrong"] != "0" || r["iterations"] != "6" || r["bytes"] != "4096" || r["transport"] != wire {
					t.Errorf("%s: got %v", args, r)
				}
				rate, err1 := strconv.ParseFloat(r["busbw_MBps"], 64)
				us, err2 := strconv.ParseFloat(r["median_us"], 64)
				if want := float64(tc.crosses[i]); err1 != nil || err2 != nil || rate*us < 0.98*want-us || rate*us > 1.02*want+us {
					t.Errorf("%s: got %v MB/s in %v us, want %v bytes", args, rate, us, want)
				}
			}
			if got := strings.Join(ops, " "); got != tc.ops {
				t.Errorf("%s: got rows of %q, want %q", args, got, tc.ops)
			}
		}
	}
}

func TestStepsAlternateWithComputationAndCommunication(t *testing.T) {
	for _, servers := range []string{"0", "1"} {
		args := "-local 3 -op training -model small1000 -time 1h -iterations 5 -format csv -servers " + servers
		var names []string
		for _, r := range records(t, bench(t, args)) {
			names = append(names, r["algorithm"])
			if r["op"] != training || r["wrong"] != "0" || r["iterations"] != "5" || r["bytes"] != "1024000" {
				t.Errorf("%s: got %v", args, r)
			}
		}
		if got, want := strings.Join(names, " "), "compute communication step"; got != want {
			t.Errorf("%s: got rows of %q, want %q", args, got, want)
		}
	}
}

// A value that lacks the push of this step is wrong, also if it is the right one of the step before.
func TestAValueOfAnotherStepIsWrong(t *testing.T) {
	const rows, width = 20, 4
	o := options{dtype: tensor.Float32, rows: rows, width: width, indices: rows, maxIterations: minIterations}
	err := comm.Local(2, func(ctx context.Context, c *comm.Comm) error {
		return ps.Run(ctx, c, ps.Everywhere(), func(ctx context.Context, cl *ps.Client) error {
			b := &psBench{c: c, o: o, cl: cl, workers: 2, vectors: newTypedVectors(c, o, rows*width, integer[float32])}
			pushed, err := b.pushPull(ctx, rows*width)
			if err != nil {
				return err
			}
			traffic := newRowTraffic(b)
			if err := traffic.fill(ctx); err != nil {
				return err
			}
			for _, tc := range []struct {
				route
				out []float32
			}{{pushed, b.vectors.out}, {traffic.steps("uniform"), traffic.out}} {
				old := make([]float32, len(tc.out))
				right, run := tc.run, 0
				tc.run = func(ctx context.Context) error {
					if err := right(ctx); err != nil {
						return err
					}
					if run++; run == 3 && c.Rank() == 1 {
						copy(tc.out, old)
					}
					copy(old, tc.out)
					return nil
				}
				s, err := b.alternate(ctx, []route{tc.route})
				if err != nil {
					return err
				}
				if s[0].wrong == 0 {
					return fmt.Errorf("%s: got no wrong element, want some", tc.op)
				}
			}
			return nil
		}, nil)
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestAJobOfTooFewRanksHasNoServers(t *testing.T) {
	for args, want := range map[string]string{
		"-local 1 -op pushpull":            "tuttirun -np 2",
		"-local 2 -op pushpull -servers 2": "tuttirun -np 3",
		"-local 3 -op sparse -rows 2":      "-rows 2",
	} {
		if err := run(t.Context(), strings.Fields(args), io.Discard, io.Discard); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want an error that says %q", args, err, want)
		}
	}
}

func TestTheRatiosOfServersArePrinted(t *testing.T) {
	var out bytes.Buffer
	if err := run(t.Context(), strings.Fields("-local 3 -op pushpull -servers 1 -min 4Ki -max 4Ki -time 0"), &out, io.Discard); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"2w+1s", "pairs=1", "# 16384 bytes cross between processes", "of the workers' allreduce (medians of 5)"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("got %s, want %q in it", &out, want)
		}
	}
}
