package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/tutti-go/tutti/collective"
	"github.com/tutti-go/tutti/collective/choose"
	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/fault"
)

func TestTuneWritesAFileThatInitFollows(t *testing.T) {
	file := filepath.Join(t.TempDir(), "tuning.json")
	args := "tune -local 3 -transport tcp -min 4 -max 16Ki -factor 4096 -time 0 -segments 1Ki -o " + file
	bench(t, args)
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	tuning, err := choose.Decode(file, text)
	if err != nil {
		t.Fatal(err)
	}
	if want := "tuttibench " + args + ", on 3 ranks"; tuning.Command != want || tuning.Machine == "" || tuning.Commit == "" || tuning.Measured == "" {
		t.Errorf("got %q, %q, %q, %q, want the command %q and no empty one", tuning.Command, tuning.Machine, tuning.Commit, tuning.Measured, want)
	}
	timed, cut := make(map[string]bool), false
	for _, x := range tuning.Measurements {
		timed[x.Algorithm.String()] = true
		cut = cut || x.Segment == 1<<10
		if x.Wire != "tcp" || x.Ranks != 3 || x.Seconds <= 0 {
			t.Errorf("got the time %+v", x)
		}
	}
	for _, op := range tunable() {
		verb, _ := collective.ParseVerb(op)
		for _, a := range collective.Algorithms(verb) {
			if timed[a.String()] == (a.NeedsShared() || a.Hierarchical()) {
				t.Errorf("%v: timed is %v on ranks of one host that share nothing", a, timed[a.String()])
			}
		}
	}
	if !cut {
		t.Error("no algorithm was timed in segments of 1 KiB")
	}
	if len(tuning.Model.Links) == 0 || tuning.Model.Gamma <= 0 {
		t.Errorf("got the model %+v", tuning.Model)
	}
	explained := fmt.Sprint(tuning.Rules[0].Algorithm.Name())
	err = comm.Local(3, func(_ context.Context, c *comm.Comm) error {
		x, err := c.Bridge().Explain(tuning.Rules[0].Algorithm.Verb().String(), 4)
		if err == nil && (x.Chosen.Algorithm != explained || x.Chosen.Reason != "rule 1 of the tuning file") {
			err = fmt.Errorf("got %v, want %s", x.Chosen, explained)
		}
		return err
	}, comm.WithTransportName("tcp"), comm.WithParameters(comm.Parameters{Tuning: file}))
	if err != nil {
		t.Error(err)
	}
}

func TestTuneAddsToAnOlderFile(t *testing.T) {
	older := filepath.Join(t.TempDir(), "older.json")
	bench(t, "tune -local 2 -ops barrier,broadcast -min 64 -max 64 -time 0 -o "+older)
	got, err := choose.Decode("out", []byte(bench(t, "tune -local 3 -ops barrier -min 64 -max 64 -time 0 -add "+older)))
	if err != nil {
		t.Fatal(err)
	}
	count := make(map[string]int)
	for _, x := range got.Measurements {
		count[fmt.Sprint(x.Algorithm.Verb(), x.Ranks)]++
	}
	if count["barrier 2"] == 0 || count["broadcast 2"] == 0 || count["barrier 3"] == 0 || count["broadcast 3"] != 0 {
		t.Errorf("got the times %v", count)
	}
	if shared := got.Measurements[0]; !strings.Contains(string(got.Encode()), `"wire": "shared"`) {
		t.Errorf("memory that goroutines share was not measured: %v", shared)
	}
	if err := run(t.Context(), []string{"tune", "-local", "2", "-add", "/nonexistent"}, io.Discard, io.Discard); err == nil || !strings.Contains(err.Error(), syscall.ENOENT.Error()) { // the error of any rank
		t.Errorf("got %v for no older file", err)
	}
}

func TestLimitsSetsAnAllReduceBesideItsBound(t *testing.T) {
	out := bench(t, "limits -local 2 -min 1Mi -max 2Mi -factor 2 -time 0 -cold 8Mi")
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if len(lines) != 5 || !strings.HasPrefix(lines[0], "# allreduce of float32 on 2 ranks") {
		t.Fatalf("got\n%s", out)
	}
	var seconds float64
	if runtime.GOMAXPROCS(0) > 1 {
		if _, err := fmt.Sscanf(lines[1], "# latency between two cores: %f ns", &seconds); err != nil || seconds <= 0 {
			t.Errorf("got %q: %v", lines[1], err)
		}
	}
	for i, line := range lines[3:] {
		var size int
		var wire, algorithm string
		var copied, added, bound, reduced, ratio float64
		n, err := fmt.Sscan(line, &size, &wire, &algorithm, &copied, &added, &bound, &reduced, &ratio)
		about := func(got, want float64) bool { return got > 0.98*want-0.02 && got < 1.02*want+0.02 }
		if n != 8 || err != nil || size != 1<<20<<i || copied <= 0 || added <= 0 || !about(bound, copied+added) || !about(ratio, reduced/bound) {
			t.Errorf("got %q: %v", line, err)
		}
	}
}

func TestTuneFindsOutBeforeItMeasures(t *testing.T) {
	folder := t.TempDir()
	for _, c := range []struct{ args, want string }{
		{"-o " + filepath.Join(folder, "none", "x.json"), "-o "},
		{"-o " + folder, "cannot write to a directory"},
		{"-add " + filepath.Join(folder, "none.json"), "-add "},
	} {
		var log bytes.Buffer
		err := run(t.Context(), strings.Fields("tune -local 2 -ops barrier -max 4 -time 0 "+c.args), io.Discard, &log)
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(log.String(), "barrier") {
			t.Errorf("%s: got %v after\n%s\nwant %q, and no time", c.args, err, &log, c.want)
		}
	}
	if left, _ := os.ReadDir(folder); len(left) > 0 {
		t.Errorf("%v is left behind", left)
	}
}

func TestExplainPrintsEachSizeOnce(t *testing.T) {
	out := bench(t, "explain -local 2 -op broadcast -min 4 -max 16Ki -factor 64")
	for _, want := range []string{"broadcast of 4 bytes on 2 ranks over memory\n", "broadcast of 256 bytes", "broadcast of 16384 bytes"} {
		if strings.Count(out, want) != 1 {
			t.Errorf("no %q, or more than one, in\n%s", want, out)
		}
	}
}

func TestSubcommandsRefuseWhatMakesNoSense(t *testing.T) {
	for _, args := range []string{
		"tune -ops pingpong", "tune -ops allsum", "tune -min 0", "tune -factor 1", "tune -segments 100", "tune -segments 0", "tune -segments x",
		"tune -time -1s", "tune more", "tune -local 1", "limits -min 8 -max 4", "limits -time -1s", "limits -cold 0", "limits more", "limits -local 1",
		"explain -min 0", "explain more", "explain -op allsum -local 2", "tune -segments 16384Gi",
	} {
		if err := run(t.Context(), strings.Fields(args), io.Discard, io.Discard); err == nil {
			t.Errorf("%s: got no error", args)
		}
	}
	err := run(t.Context(), strings.Fields("limits -local 2 -algorithm rung"), io.Discard, io.Discard)
	if !errors.Is(err, fault.Misuse) {
		t.Errorf("got %v, want fault.Misuse", err)
	}
	var usage bytes.Buffer
	run(t.Context(), []string{"tune", "-h"}, io.Discard, &usage)
	if !strings.Contains(usage.String(), "-segments") {
		t.Errorf("got the usage %q", &usage)
	}
}
