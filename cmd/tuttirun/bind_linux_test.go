package main

import (
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestRanksAreBoundToTheProcessorsThatAreReported(t *testing.T) {
	t.Parallel()
	var all unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		t.Fatal(err)
	}
	first := 0
	for !all.IsSet(first) {
		first++
	}
	const affinity = `echo "$TUTTI_RANK $(sed -n 's/^Cpus_allowed_list:[[:space:]]*//p' /proc/self/status)"`
	j := start(t, "-np", "2", "--cpu-list", fmt.Sprint(first), "--bind-to", "hwthread:overload-allowed", "--report-bindings", "--display-map", "sh", "-c", affinity)
	j.expect(fmt.Sprintf("0 %d", first), fmt.Sprintf("1 %d", first))
	code, stderr := j.wait()
	for _, want := range []string{
		"this host: ranks 0-1\n", fmt.Sprintf("rank 1 on this host is bound to processor %d\n", first),
	} {
		if !strings.Contains(stderr, want) {
			t.Errorf("got %q, want %q in it", stderr, want)
		}
	}
	if code != 0 {
		t.Errorf("exit code: got %d, want 0", code)
	}
}

func TestAJobThatCannotBeBoundStartsNoRank(t *testing.T) {
	t.Parallel()
	j := start(t, "-np", "2", "--cpu-list", "65000", "echo", "started")
	code, stderr := j.wait()
	if line := j.line(); code != 2 || line != "" || !strings.Contains(stderr, "got processors [65000], want some that exist") {
		t.Errorf("got %d, %q, %q", code, line, stderr)
	}
}
