package main

import (
	"bytes"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// sizes returns a map with the given times for 4 B, 1 KiB, 4 KiB and 64 KiB.
func sizes(us ...float64) map[int]float64 {
	all := make(map[int]float64)
	for i, bytes := range []int{4, 1 << 10, 4 << 10, 64 << 10}[:len(us)] {
		all[bytes] = us[i]
	}
	return all
}

func near(a, b float64) bool { return math.Abs(a-b) < 1e-9 }

// The means must use the best time of all runs. By these times new takes 2, 1, 1 and 16 times as
// long as old.
func TestMeansAreGeometricAndOfTheBestRuns(t *testing.T) {
	var r comparison
	r.add(sizes(20, 10, 30, 160), sizes(10, 10, 10, 10), sizes(10, 10, 40, 10))
	r.add(sizes(90, 90, 10, 900), sizes(30, 30, 30, 30), sizes(30, 30, 80, 30))
	all, small, noise, smallNoise := r.means()
	if want := math.Pow(32, 1.0/4); !near(all, want) {
		t.Errorf("all sizes: got %v, want %v", all, want)
	}
	if want := math.Cbrt(2); !near(small, want) {
		t.Errorf("to 4 KiB: got %v, want %v", small, want)
	}
	if want := math.Pow(4, 1.0/4) - 1; !near(noise, want) {
		t.Errorf("noise: got %v, want %v", noise, want)
	}
	if want := math.Cbrt(4) - 1; !near(smallNoise, want) {
		t.Errorf("noise to 4 KiB: got %v, want %v", smallNoise, want)
	}
}

func TestNoiseIsTheSameWhicheverTurnWasFaster(t *testing.T) {
	if a, b := noiseOf(1.25), noiseOf(0.8); !near(a, 0.25) || !near(a, b) {
		t.Errorf("got %v and %v, want 0.25 twice", a, b)
	}
}

func TestASizeIsTooSlowOnlyIfItIsInEachRun(t *testing.T) {
	var r comparison
	old := sizes(10, 10, 10, 10)
	r.add(sizes(11.1, 11.1, 10, 11), old, old)
	if got := r.slowSizes(); !slices.Equal(got, []int{4, 1 << 10}) {
		t.Errorf("one run: got %v, want 4 and 1024", got)
	}
	r.add(sizes(11.1, 10.9, 10, 11), old, old)
	if got := r.slowSizes(); !slices.Equal(got, []int{4}) {
		t.Errorf("two runs: got %v, want 4", got)
	}
}

func TestRowsAreHeldAgainstTheirBars(t *testing.T) {
	old := sizes(10, 10, 10, 10)
	for name, c := range map[string]struct {
		new, again map[int]float64
		want       string // part of the verdict; "" for ok
	}{
		"equal":                   {old, old, ""},
		"faster":                  {sizes(5, 5, 5, 5), old, ""},
		"within two percent":      {sizes(10.1, 10.2, 10.2, 10.1), old, ""},
		"within the noise":        {sizes(10.5, 10.5, 10.5, 10.5), sizes(9.4, 9.4, 9.4, 9.4), ""},
		"beyond the noise":        {sizes(10.5, 10.5, 10.5, 10.5), sizes(10.4, 10.4, 10.4, 10.4), "mean 1.050, want at most 1.040"},
		"slow small messages":     {sizes(10.5, 10.5, 10.5, 8), old, "mean to 4 KiB 1.050, want at most 1.020"},
		"one slow size":           {sizes(9, 9, 9, 11.2), old, "above 1.10 in each run at [65536] bytes"},
		"a size that new lacks":   {sizes(10, 10, 10), old, "not all sizes were run by both"},
		"a size that again lacks": {old, sizes(10, 10, 10), "not all sizes were run by both"},
		"no sizes":                {nil, nil, "not all sizes"},
	} {
		var r comparison
		o := old
		if c.new == nil {
			o = nil
		}
		r.add(c.new, o, c.again)
		line, ok := r.line("row")
		if ok != (c.want == "") || !strings.Contains(line, c.want) || ok != strings.HasSuffix(line, "  ok") {
			t.Errorf("%s: got %q, want %q", name, line, c.want)
		}
	}
}

// Another version must run in each round, and must not count as a peer. Its failure must be an
// error.
func TestAVersionIsNoPeer(t *testing.T) {
	old := fixedContender("old", map[int]float64{4: 1})
	old.version = true
	got := runBenchmark(t, 1, fixedContender(ours, map[int]float64{4: 2}), fixedContender("a", map[int]float64{4: 8}), old)
	if r := got.ratio(4); r != 4 {
		t.Errorf("got ratio %v, want that of the peer, 4", r)
	}
	var out strings.Builder
	if err := got.print(&out); err != nil || !strings.Contains(out.String(), "tutti / old: 2.000, to 4 KiB 2.000\n") {
		t.Errorf("got %v and\n%s", err, out.String())
	}
	bad := failingContender("old")
	bad.version = true
	c := benchmark{rounds: 1}
	if _, err := c.runAll(t.Context(), []contender{fixedContender(ours, map[int]float64{4: 1}), bad}, io.Discard); err == nil {
		t.Error("a version failed: got no error")
	}
}

func TestVersionsAreNamedOnce(t *testing.T) {
	var f versionFlag
	for _, bad := range []string{"", "old", "old=", "=dir", ours + "=dir", "a b=dir"} {
		if err := f.Set(bad); err == nil {
			t.Errorf("-with %q: got no error", bad)
		}
	}
	if err := f.Set("old=a=b"); err != nil || f[0] != (version{name: "old", dir: "a=b"}) {
		t.Errorf("got %+v, %v", f, err)
	}
	if err := f.Set("old=c"); err == nil {
		t.Error("a name was given twice: got no error")
	}
}

// The test's worktree has programs that print output in the form of tuttibench. The test can
// therefore cover -with without building tutti.
func TestVersionsAreBuiltFromTheirWorktrees(t *testing.T) {
	dir := t.TempDir()
	const printer = `package main
import "fmt"
func main() { fmt.Print("op,bytes,median_us,wrong\nallreduce,4,2.5,0\ncoordinator,8,7,0\nseparate,8,9,0\nwhole,8,9,0\nnegotiation,0,3,0\n") }
`
	for name, text := range map[string]string{
		"go.mod": "module other\n", "cmd/tuttirun/main.go": printer, "cmd/tuttibench/main.go": "package main\nfunc main() {}\n",
	} {
		path := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	f := versionFlag{{name: "old", dir: dir}}
	if err := f.build(t.Context(), t.TempDir()); err != nil {
		t.Fatal(err)
	}
	c := benchmark{op: "allreduce", np: 2, wire: "shm", min: 4, max: 4, time: 0.001}
	who := f.contenders(&c)
	got, err := who[0].run(t.Context())
	if err != nil || len(got) != 3 || got[4] != 2.5 || got[8] != 7 || got[0] != 3 {
		t.Errorf("got %v, %v, want 4: 2.5, 8: 7 and 0: 3", got, err)
	}
	missing := versionFlag{{name: "old", dir: filepath.Join(dir, "nowhere")}}
	if err := missing.build(t.Context(), t.TempDir()); err == nil || !strings.Contains(err.Error(), "-with old=") {
		t.Errorf("no such worktree: got %v", err)
	}
}

func TestVersionsRefusesWhatItCannotCompare(t *testing.T) {
	for _, args := range []string{"versions", "versions -with old=a -with new=b", "versions -with old=a -runs 0", "versions -with old=nowhere -rows nothing"} {
		if err := run(t.Context(), strings.Fields(args), io.Discard, new(bytes.Buffer)); err == nil {
			t.Errorf("%s: got no error", args)
		}
	}
	for _, r := range coordinatorRows() {
		c := benchmark{op: r.op, np: r.np, wire: r.wire, min: 4, max: 4, rounds: 1, time: 1}
		if err := c.check(); err != nil {
			t.Errorf("%s: %v", r.name(), err)
		}
	}
}
