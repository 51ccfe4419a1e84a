package e2e

import (
	"fmt"
	"os/exec"
	"testing"
	"time"
)

// Init waits for all ranks, and exiting with 0 is no failure. The launcher must notice that a rank
// has ended without calling Init.
func TestARankThatExitsWithoutInitEndsTheOthers(t *testing.T) {
	const victim = 1
	j := newJob(t)
	args := []string{"-np", "3", "--transport", "tcp", "--grace", "0.5", self(t)}
	began := time.Now()
	j.launcher = j.start(exec.Command(self(t), args...), nil, asLauncher+"=1", asRank+"="+instruction{Program: "absentee", Victim: victim}.encode())
	j.wantExit(1, fmt.Sprintf("tuttirun: rank %d (", victim), "exited with code 0", "and never called Init, in which other ranks waited for it")
	if elapsed := time.Since(began); elapsed > limit/2 {
		t.Errorf("the launcher ended after %v", elapsed)
	}
}
