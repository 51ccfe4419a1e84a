package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strings"
)

// A benchmark is one comparison: an operation, a number of ranks, and a transport.
type benchmark struct {
	op     string
	np     int
	wire   string
	min    int // the smallest size in bytes; each size is 4 times the size before it
	max    int
	rounds int
	time   float64 // sum of the seconds of one size's iterations
	bin    string  // folder of tuttirun and tuttibench
}

// flags defines the flags that all commands have.
func (c *benchmark) flags(log io.Writer, name string) *flag.FlagSet {
	f := flag.NewFlagSet("peers "+name, flag.ContinueOnError)
	f.SetOutput(log)
	f.IntVar(&c.min, "min", 4, "smallest vector in `bytes`")
	f.IntVar(&c.max, "max", 64<<20, "largest vector in `bytes`")
	f.IntVar(&c.rounds, "rounds", 3, "how `often` each contender has its turn")
	f.Float64Var(&c.time, "time", 0.2, "how many `seconds` to measure each size in each round")
	f.StringVar(&c.bin, "bin", "bin", "the `folder` of tuttirun and tuttibench")
	return f
}

func (c *benchmark) check() error {
	switch {
	case c.np < 2:
		return fmt.Errorf("-np %d: want 2 or more", c.np)
	case c.wire != "shm" && c.wire != "tcp":
		return fmt.Errorf("-wire %q: want shm or tcp", c.wire)
	case c.min < 1 || c.max < c.min:
		return fmt.Errorf("-min %d and -max %d: want 1 <= min <= max", c.min, c.max)
	case c.rounds < 1 || c.time <= 0:
		return fmt.Errorf("-rounds %d and -time %v: want both above 0", c.rounds, c.time)
	}
	return nil
}

// compareCommand prints the table of one benchmark.
func compareCommand(ctx context.Context, args []string, out, log io.Writer) error {
	var c benchmark
	f := c.flags(log, "compare")
	f.StringVar(&c.op, "op", "allreduce", "the `operation`")
	f.IntVar(&c.np, "np", 2, "how many `ranks`")
	f.StringVar(&c.wire, "wire", "shm", "shm or tcp")
	require := f.String("require", "", "fail below these ratios: `BYTES:RATIO,...`")
	csv := f.String("csv", "", "write the table into this `file`, too")
	var with versionFlag
	with.define(f)
	if err := f.Parse(args); err != nil {
		return err
	}
	floors, err := parseBands(*require)
	if err = errors.Join(c.check(), err); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "tutti-versions-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := with.build(ctx, dir); err != nil {
		return err
	}
	t, err := c.runAll(ctx, append(c.contenders(buildPeers(ctx, log), log), with.contenders(&c)...), log)
	if err != nil {
		return err
	}
	if err := t.print(out); err != nil {
		return err
	}
	if *csv != "" {
		if err := os.WriteFile(*csv, []byte(t.csv()), 0o644); err != nil {
			return err
		}
	}
	return t.checkFloors(out, floors)
}

// runAll runs the contenders in turns, round after round, and keeps the best result of each
// contender for each size. Each round begins with another contender, because the machine may be in
// another state for the first contender than for the following ones.
func (c *benchmark) runAll(ctx context.Context, contenders []contender, log io.Writer) (*table, error) {
	t := &table{benchmark: *c, best: make(map[string]map[int]float64)}
	for _, who := range contenders {
		t.names = append(t.names, who.name)
		if who.version {
			t.versions = append(t.versions, who.name)
		}
		t.best[who.name] = make(map[int]float64)
	}
	for round := range c.rounds {
		for i := range contenders {
			who := contenders[(round+i)%len(contenders)]
			got, err := who.run(ctx)
			if err != nil {
				if who.name == ours || who.version || ctx.Err() != nil {
					return nil, fmt.Errorf("%s: %w", who.name, err)
				}
				fmt.Fprintf(log, "# %s: %v\n", who.name, err)
			}
			for bytes, us := range got {
				if old, ok := t.best[who.name][bytes]; !ok || us < old {
					t.best[who.name][bytes] = us
				}
			}
		}
	}
	if slices.Contains(t.names, ours) && len(t.best[ours]) == 0 {
		return nil, errors.New("tutti printed no figures")
	}
	return t, nil
}

// ours is the name of the contender with which the other contenders are compared.
const ours = "tutti"

// A table holds the results of a benchmark.
type table struct {
	benchmark
	names    []string                   // in the order in which they run
	versions []string                   // the subset of names that are other versions of tutti
	best     map[string]map[int]float64 // by name and bytes: the best median, in microseconds
}

// sizes returns the sizes that tutti ran, ascending. Without tutti it returns the sizes that any
// contender ran.
func (t *table) sizes() []int {
	var all []int
	for _, name := range t.names {
		if name != ours && slices.Contains(t.names, ours) {
			continue
		}
		for bytes := range t.best[name] {
			if !slices.Contains(all, bytes) {
				all = append(all, bytes)
			}
		}
	}
	slices.Sort(all)
	return all
}

// unmatched returns the sizes that only tutti, or only its peers, ran.
func (t *table) unmatched() []int {
	var all []int
	for _, name := range t.names {
		for bytes := range t.best[name] {
			if math.IsNaN(t.ratio(bytes)) && !slices.Contains(all, bytes) {
				all = append(all, bytes)
			}
		}
	}
	slices.Sort(all)
	return all
}

// time returns a contender's time, or NaN if it has none.
func (t *table) time(name string, bytes int) float64 {
	if us, ok := t.best[name][bytes]; ok {
		return us
	}
	return math.NaN()
}

// ratio returns the best peer's time divided by tutti's time. If either time is missing, it returns
// NaN. Other versions of tutti are not peers.
func (t *table) ratio(bytes int) float64 {
	best := math.NaN()
	for _, name := range t.names {
		if us := t.time(name, bytes); name != ours && !slices.Contains(t.versions, name) && (math.IsNaN(best) || us < best) {
			best = us
		}
	}
	return best / t.time(ours, bytes)
}

// mean returns the geometric mean of the ratios of all sizes s with lo <= s < hi. If there are
// none, it returns NaN.
func (t *table) mean(lo, hi int) float64 {
	sum, n := 0.0, 0
	for _, bytes := range t.sizes() {
		if r := t.ratio(bytes); lo <= bytes && bytes < hi && !math.IsNaN(r) {
			sum += math.Log(r)
			n++
		}
	}
	return math.Exp(sum / float64(n))
}

// print prints the table for people.
func (t *table) print(out io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s np=%d %s, microseconds, best of %d medians\n%10s", t.op, t.np, t.wire, t.rounds, "bytes")
	for _, name := range append(slices.Clone(t.names), "ratio") {
		fmt.Fprintf(&b, " %12s", name)
	}
	for _, bytes := range t.sizes() {
		fmt.Fprintf(&b, "\n%10d", bytes)
		for _, name := range t.names {
			fmt.Fprintf(&b, " %12.2f", t.time(name, bytes))
		}
		fmt.Fprintf(&b, " %12.2f", t.ratio(bytes))
	}
	if lonely := t.unmatched(); len(lonely) > 0 {
		fmt.Fprintf(&b, "\nsizes without a partner: %v", lonely)
	}
	fmt.Fprintf(&b, "\ngeometric mean of ratios: %.2f\n", t.mean(0, math.MaxInt))
	for _, name := range t.versions {
		fmt.Fprintf(&b, "%s / %s: %.3f, to 4 KiB %.3f\n", ours, name, meanRatio(t.best[ours], t.best[name], math.MaxInt), meanRatio(t.best[ours], t.best[name], smallLimit))
	}
	_, err := io.WriteString(out, b.String())
	return err
}

// csv returns the table for programs: microseconds, and the ratio.
func (t *table) csv() string {
	var b strings.Builder
	fmt.Fprintf(&b, "bytes,%s,ratio\n", strings.Join(t.names, ","))
	for _, bytes := range t.sizes() {
		fmt.Fprintf(&b, "%d", bytes)
		for _, name := range t.names {
			fmt.Fprintf(&b, ",%.2f", t.time(name, bytes))
		}
		fmt.Fprintf(&b, ",%.3f\n", t.ratio(bytes))
	}
	return b.String()
}
