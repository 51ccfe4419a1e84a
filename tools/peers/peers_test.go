package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// fixedContender returns a contender that returns the given times, one map per round.
func fixedContender(name string, rounds ...map[int]float64) contender {
	i := 0
	return contender{name: name, run: func(context.Context) (map[int]float64, error) {
		i++
		return rounds[i-1], nil
	}}
}

func failingContender(name string) contender {
	return contender{name: name, run: func(context.Context) (map[int]float64, error) { return nil, errors.New("it fell over") }}
}

func runBenchmark(t *testing.T, rounds int, who ...contender) *table {
	t.Helper()
	c := benchmark{op: "allreduce", np: 2, wire: "shm", rounds: rounds}
	got, err := c.runAll(t.Context(), who, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func TestTheBestRoundOfTheBestPeerCounts(t *testing.T) {
	got := runBenchmark(t, 2,
		fixedContender(ours, map[int]float64{4: 2, 16: 5}, map[int]float64{4: 3, 16: 4}),
		fixedContender("a", map[int]float64{4: 9, 16: 8}, map[int]float64{4: 8, 16: 9}),
		fixedContender("b", map[int]float64{4: 4, 16: 20}, map[int]float64{4: 5, 16: 20}))
	for bytes, want := range map[int]float64{4: 2, 16: 2} {
		if r := got.ratio(bytes); r != want {
			t.Errorf("%d bytes: got ratio %v, want %v", bytes, r, want)
		}
	}
	if r := got.ratio(64); !math.IsNaN(r) {
		t.Errorf("a size that nobody ran: got %v, want NaN", r)
	}
}

func TestContendersAlternate(t *testing.T) {
	var turns []string
	who := func(name string) contender {
		return contender{name: name, run: func(context.Context) (map[int]float64, error) {
			turns = append(turns, name)
			return map[int]float64{4: 1}, nil
		}}
	}
	runBenchmark(t, 2, who(ours), who("a"), who("b"))
	if want := []string{ours, "a", "b", "a", "b", ours}; !slices.Equal(turns, want) {
		t.Errorf("got %v, want %v", turns, want)
	}
}

func TestAPeerThatFailsIsLeftOutAndOursThatFailsIsAnError(t *testing.T) {
	c := benchmark{rounds: 1}
	var log bytes.Buffer
	got, err := c.runAll(t.Context(), []contender{fixedContender(ours, map[int]float64{4: 1}), failingContender("a")}, &log)
	if err != nil || len(got.best["a"]) != 0 || !strings.Contains(log.String(), "it fell over") {
		t.Errorf("got %v, %v, and on the log %q", got, err, log.String())
	}
	if _, err := c.runAll(t.Context(), []contender{failingContender(ours), fixedContender("a", map[int]float64{4: 1})}, io.Discard); err == nil {
		t.Error("ours failed: got no error")
	}
	if _, err := c.runAll(t.Context(), []contender{fixedContender(ours, nil)}, io.Discard); err == nil {
		t.Error("ours printed nothing: got no error")
	}
}

// A band must be checked by its geometric mean. A size that only one side has run must fail the
// comparison.
func TestBandsAreChecked(t *testing.T) {
	full := runBenchmark(t, 1, fixedContender(ours, map[int]float64{4: 1, 16: 1, 1024: 1}), fixedContender("a", map[int]float64{4: 1, 16: 4, 1024: 3}))
	lacking := runBenchmark(t, 1, fixedContender(ours, map[int]float64{4: 1, 16: 1}), fixedContender("a", map[int]float64{4: 9}))
	for _, tc := range []struct {
		t       *table
		require string
		ok      bool
	}{
		{full, "", true},
		{full, "4:2.28", true}, // cube root of 12
		{full, "4:1.99,1024:2.99", true},
		{full, "4:2.01,1024:2.99", false},
		{full, "1024:3.1", false},
		{full, "4096:1", false}, // no size is in the band
		{lacking, "4:1", false},
		{lacking, "", true},
	} {
		bands, err := parseBands(tc.require)
		if err != nil {
			t.Fatal(err)
		}
		if err := tc.t.checkFloors(io.Discard, bands); (err == nil) != tc.ok {
			t.Errorf("%q: got %v", tc.require, err)
		}
	}
	for _, bad := range []string{"4", "4:", "x:1", "4:0", "-4:1", "4:1;16:2"} {
		if _, err := parseBands(bad); err == nil {
			t.Errorf("-require %q: got no error", bad)
		}
	}
}

func TestWrongResultsOfOursAreNoFigures(t *testing.T) {
	const head = "# remark\nop,bytes,median_us,wrong\n"
	got, err := readBench(head + "allreduce,4,1.50,0\nallreduce,16,2,0\n")
	if err != nil || len(got) != 2 || got[4] != 1.5 {
		t.Errorf("got %v, %v", got, err)
	}
	for _, bad := range []string{"", "op,bytes\n", head + "allreduce,4,1.5,7\n", head + "allreduce,4,fast,0\n"} {
		if got, err := readBench(bad); err == nil {
			t.Errorf("%q: got %v, want an error", bad, got)
		}
	}
}

func TestFiguresOfAPeerThatFailsLaterAreKept(t *testing.T) {
	got, err := peer(t.Context(), []string{"LINE=bytes=64 median_us=2.25"}, "sh", "-c", `echo "allreduce np=2 $LINE n=7"; echo wrong result >&2; exit 2`)
	if err == nil || !strings.Contains(err.Error(), "wrong result") || got[64] != 2.25 {
		t.Errorf("got %v, %v", got, err)
	}
}

func TestTheSuiteIsWellFormed(t *testing.T) {
	seen := make(map[string]bool)
	for _, r := range suite() {
		c := benchmark{op: r.op, np: r.np, wire: r.wire, min: 4, max: 4, rounds: 1, time: 1}
		if err := c.check(); err != nil || seen[r.name()] || len(r.bands) != 4 {
			t.Errorf("%s: %v", r.name(), err)
		}
		seen[r.name()] = true
	}
	if got, err := choose(suite(), "allreduce-*-2"); err != nil || len(got) != 2 {
		t.Errorf("got %v, %v, want two rows", got, err)
	}
	for _, bad := range []string{"nothing", "["} {
		if _, err := choose(suite(), bad); err == nil {
			t.Errorf("-rows %s: got no error", bad)
		}
	}
}

// Recorded results can be drawn. Their first lines must contain their origin, and no date.
func TestRecordsAreWrittenAndDrawn(t *testing.T) {
	dir := t.TempDir()
	r := recorder{dir: dir, log: io.Discard, origin: []string{"commit: abc", "command: x", "machine: y"}}
	for _, row := range suite()[:2] {
		tab := runBenchmark(t, 1, fixedContender(ours, map[int]float64{4: 1, 1024: 2, 65536: 30}), fixedContender("a", map[int]float64{4: 2, 1024: 6}))
		if err := r.record(row, tab); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.summarise(); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"allreduce-shm-2.csv": "bytes,tutti,a,ratio\n4,1.00,2.00,2.000\n1024,2.00,6.00,3.000\n65536,30.00,NaN,NaN\n",
		"allreduce-tcp-2.txt": "sizes without a partner",
		"summary.txt":         "allreduce-shm-2",
	} {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil || !strings.Contains(string(text), want) || !strings.HasPrefix(string(text), "# commit: abc\n# command: x\n# machine: y\n") {
			t.Errorf("%s: %v\n%s", name, err, text)
		}
	}
	path := filepath.Join(dir, "x.svg")
	if err := run(t.Context(), []string{"draw", "-dir", dir, path}, io.Discard, io.Discard); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(path); err != nil || !bytes.Contains(text, []byte("bus bandwidth")) || !bytes.Contains(text, []byte("allreduce of float32, 2 ranks, tcp")) {
		t.Errorf("the picture lacks something: %v", err)
	}
}

// On a machine without any of the peers, the log must name their packages, and nothing else must
// happen.
func TestMissingPeersAreNamedWithTheirPackages(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	dir := filepath.Join(t.TempDir(), "results")
	var log bytes.Buffer
	if err := run(t.Context(), []string{"record", "-dir", dir}, io.Discard, &log); err != nil {
		t.Errorf("got %v, want no error", err)
	}
	for _, r := range recipes() {
		if !strings.Contains(log.String(), "apt-get install "+r.packages) {
			t.Errorf("the log does not name %s:\n%s", r.packages, log.String())
		}
	}
	if exists(dir) {
		t.Error("something was recorded")
	}
}

func TestArgumentsThatMakeNoSenseAreRefused(t *testing.T) {
	for _, args := range []string{"dance", "compare -np 1", "-wire udp", "-min 0", "-min 8 -max 4", "-rounds 0", "-time 0", "-require x", "record -rows nothing", "draw", "draw -dir nowhere x.svg"} {
		t.Setenv("PATH", "")
		if err := run(t.Context(), strings.Fields(args), io.Discard, io.Discard); err == nil {
			t.Errorf("%s: got no error", args)
		}
	}
}

// Each peer that this machine has runs for real, and verifies its own results. Peers poll, so
// they take long while the cores are busy. The exit status of a peer does not matter after it
// has printed its figures: MPICH 4.0 over UCX's tcp sometimes never returns from MPI_Finalize,
// and is ended after sweepTimeout.
func TestSoakPeersRunEveryOperation(t *testing.T) {
	if os.Getenv("TUTTI_SOAK") == "" {
		// Reason: the jobs of other libraries take too long for every change.
		t.Skip("starts many jobs of other libraries: make soak")
	}
	var log bytes.Buffer
	built := buildPeers(t.Context(), &log)
	if len(built) == 0 {
		// Reason: the peers are other projects, which a machine need not have.
		t.Skipf("no peer can be built here:\n%s", log.String())
	}
	for _, wire := range []string{"shm", "tcp"} {
		for _, op := range []string{"allreduce", "broadcast", "allgather", "reduce_scatter", "alltoall", "pingpong"} {
			c := benchmark{op: op, np: 2, wire: wire, min: 4, max: 1024, rounds: 1, time: 0.001, bin: "nowhere"}
			for _, who := range c.contenders(built, io.Discard) {
				t.Run(fmt.Sprintf("%s/%s/%s", wire, op, who.name), func(t *testing.T) {
					got, err := who.run(t.Context())
					if len(got) != 5 {
						t.Errorf("got %v, %v, want five sizes", got, err)
					} else if err != nil {
						t.Logf("all five sizes, and then %v", err)
					}
				})
			}
		}
	}
}
