package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// A version is a tutti that is built from another worktree.
type version struct {
	name string
	dir  string // the worktree
	bin  string // the folder of its tuttirun and tuttibench, once they are built
}

// versionFlag collects -with NAME=DIR.
type versionFlag []version

// String implements flag.Value.
func (f *versionFlag) String() string { return "" }

// Set implements flag.Value.
func (f *versionFlag) Set(text string) error {
	name, dir, _ := strings.Cut(text, "=")
	duplicate := name == ours || slices.ContainsFunc(*f, func(v version) bool { return v.name == name })
	if name == "" || dir == "" || duplicate || strings.ContainsAny(name, ", ") {
		return errors.New("want NAME=DIR, with a name that no other version has")
	}
	*f = append(*f, version{name: name, dir: dir})
	return nil
}

func (f *versionFlag) define(flags *flag.FlagSet) {
	flags.Var(f, "with", "another version of tutti: `NAME=DIR`, where DIR is a worktree of this repository; may be repeated")
}

// build compiles the programs of each version into a separate folder below dir.
func (f versionFlag) build(ctx context.Context, dir string) error {
	for i := range f {
		v := &f[i]
		bin, err := filepath.Abs(filepath.Join(dir, v.name))
		if err != nil {
			return err
		}
		if err := os.MkdirAll(bin, 0o777); err != nil {
			return err
		}
		cmd := exec.CommandContext(ctx, "go", "build", "-o", bin+string(filepath.Separator), "./cmd/tuttirun", "./cmd/tuttibench")
		cmd.Dir = v.dir
		if text, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("-with %s=%s: %w: %s", v.name, v.dir, err, strings.TrimSpace(string(text)))
		}
		v.bin = bin
	}
	return nil
}

// contenders returns the versions as contenders of a benchmark.
func (f versionFlag) contenders(c *benchmark) (all []contender) {
	for _, v := range f {
		run := func(ctx context.Context) (map[int]float64, error) { return c.tutti(ctx, v.bin) }
		all = append(all, contender{name: v.name, run: run, version: true})
	}
	return all
}

// meanSlack and sizeLimit bound the time of the new version divided by the time of the old one. A
// mean may exceed 1 by meanSlack or by the noise, whichever is larger.
const (
	meanSlack  = 0.02    // for geometric means
	sizeLimit  = 1.10    // for each size; a size that exceeds it in every run is too slow
	smallLimit = 4 << 10 // the largest small size, in bytes
)

// versionsCommand compares this version with one other version. The other version takes part twice
// in each round, and the ratio of its two times is the noise.
func versionsCommand(ctx context.Context, args []string, out, log io.Writer) error {
	var c benchmark
	var with versionFlag
	f := c.flags(log, "versions")
	with.define(f)
	rows := f.String("rows", "*", "only rows whose name, such as allreduce-shm-2, matches this `pattern`")
	runs := f.Int("runs", 2, "how `often` to measure each row; a size is too slow if it is in each of them")
	if err := f.Parse(args); err != nil {
		return err
	}
	if len(with) != 1 || *runs < 1 {
		return errors.New("versions: want one -with NAME=DIR, and -runs of at least 1")
	}
	chosen, err := choose(append(suite(), coordinatorRows()...), *rows)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "tutti-versions-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	here := versionFlag{{name: ours, dir: "."}}
	if err := errors.Join(here.build(ctx, dir), with.build(ctx, dir)); err != nil {
		return err
	}
	c.bin = here[0].bin
	fmt.Fprintf(out, "# new: commit %s\n# old: %s, commit %s\n# machine: %s\n", commit(ctx, ".", ""), with[0].name, commit(ctx, with[0].dir, ""), machine())
	fmt.Fprint(out, comparisonHead)
	var slow []string
	for _, row := range chosen {
		c.op, c.wire, c.np = row.op, row.wire, row.np
		if err := c.check(); err != nil {
			return err
		}
		r, err := c.runVersions(ctx, with[0], *runs, log)
		if err != nil {
			return err
		}
		line, ok := r.line(row.name())
		fmt.Fprintln(out, line)
		if !ok {
			slow = append(slow, row.name())
		}
	}
	if len(slow) > 0 {
		return fmt.Errorf("slower than %s: %s", with[0].name, strings.Join(slow, ", "))
	}
	return nil
}

// coordinatorRows returns the rows with a coordinator, which no peer has: a step of a model's
// gradients and, at 0 bytes, its negotiation alone.
func coordinatorRows() []row {
	return []row{
		{op: "coordinator:small1000", wire: "shm", np: 2}, {op: "coordinator:small1000", wire: "tcp", np: 2},
		{op: "coordinator:resnet50", wire: "shm", np: 2}, {op: "coordinator:resnet50", wire: "tcp", np: 2},
	}
}

// runVersions measures one row.
func (c *benchmark) runVersions(ctx context.Context, old version, runs int, log io.Writer) (comparison, error) {
	var r comparison
	again := version{name: old.name + "-again", bin: old.bin}
	who := append([]contender{c.own()}, versionFlag{old, again}.contenders(c)...)
	for range runs {
		t, err := c.runAll(ctx, who, log)
		if err != nil {
			return r, err
		}
		r.add(t.best[ours], t.best[old.name], t.best[again.name])
	}
	return r, nil
}

// A comparison has the results of a row in each run: microseconds by bytes.
type comparison struct{ runs []comparedRun }

type comparedRun struct{ new, old, again map[int]float64 }

func (r *comparison) add(new, old, again map[int]float64) {
	r.runs = append(r.runs, comparedRun{new, old, again})
}

// best returns the smallest time of each size over all runs.
func (r *comparison) best(of func(comparedRun) map[int]float64) map[int]float64 {
	best := make(map[int]float64)
	for _, run := range r.runs {
		for bytes, us := range of(run) {
			if old, ok := best[bytes]; !ok || us < old {
				best[bytes] = us
			}
		}
	}
	return best
}

// means returns the geometric means of new over old, over all sizes and over the small ones,
// and the noise of each.
func (r *comparison) means() (all, small, noise, smallNoise float64) {
	new, old := r.best(func(x comparedRun) map[int]float64 { return x.new }), r.best(func(x comparedRun) map[int]float64 { return x.old })
	again := r.best(func(x comparedRun) map[int]float64 { return x.again })
	return meanRatio(new, old, math.MaxInt), meanRatio(new, old, smallLimit), noiseOf(meanRatio(again, old, math.MaxInt)), noiseOf(meanRatio(again, old, smallLimit))
}

// noiseOf returns how much slower the slower of two equal contenders was, given the ratio of
// their times.
func noiseOf(ratio float64) float64 { return max(ratio, 1/ratio) - 1 }

// meanRatio returns the geometric mean of a over b. It includes the sizes that both have, up to the
// parameter most. If there are none, it returns NaN.
func meanRatio(a, b map[int]float64, most int) float64 {
	sum, n := 0.0, 0
	for bytes, us := range a {
		if other, ok := b[bytes]; ok && bytes <= most {
			sum += math.Log(us / other)
			n++
		}
	}
	return math.Exp(sum / float64(n))
}

// slowSizes returns the sizes at which the new time exceeds sizeLimit times the old time in every
// run.
func (r *comparison) slowSizes() (slow []int) {
	for bytes := range r.runs[0].new {
		if !slices.ContainsFunc(r.runs, func(run comparedRun) bool { return !(run.new[bytes] > sizeLimit*run.old[bytes]) }) {
			slow = append(slow, bytes)
		}
	}
	slices.Sort(slow)
	return slow
}

// unmatched reports whether one version ran sizes that the other did not.
func (r *comparison) unmatched() bool {
	for _, run := range r.runs {
		for _, other := range []map[int]float64{run.old, run.again} {
			if !slices.Equal(slices.Sorted(maps.Keys(run.new)), slices.Sorted(maps.Keys(other))) {
				return true
			}
		}
	}
	return false
}

var comparisonHead = fmt.Sprintf("New / old, geometric mean; above 1 the new version is slower. Noise is old against old.\n\n%-28s  %8s  %8s  %8s  %8s  %s\n",
	"row", "new/old", "noise", "to 4 KiB", "noise", "verdict")

// line returns a row of the summary. If the row exceeds a limit, ok is false.
func (r *comparison) line(name string) (text string, ok bool) {
	all, small, noise, smallNoise := r.means()
	var missed []string
	check := func(what string, ratio, noise float64) {
		if limit := 1 + max(meanSlack, noise); ratio > limit {
			missed = append(missed, fmt.Sprintf("%s %.3f, want at most %.3f", what, ratio, limit))
		}
	}
	check("mean", all, noise)
	check("mean to 4 KiB", small, smallNoise)
	if slow := r.slowSizes(); len(slow) > 0 {
		missed = append(missed, fmt.Sprintf("above %.2f in each run at %v bytes", sizeLimit, slow))
	}
	if math.IsNaN(all) || r.unmatched() {
		missed = append(missed, "not all sizes were run by both")
	}
	verdict := "ok"
	if len(missed) > 0 {
		verdict = strings.Join(missed, "; ")
	}
	return fmt.Sprintf("%-28s  %8.3f  %8.3f  %8.3f  %8.3f  %s", name, all, noise, small, smallNoise, verdict), len(missed) == 0
}
