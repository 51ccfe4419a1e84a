//go:build unix

package main

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestRandomSchedules runs jobs in which ranks are killed at random, and in which some of them come
// back. The program itself fails if its result differs from that of a training without losses.
func TestRandomSchedules(t *testing.T) {
	bin := t.TempDir()
	build := exec.Command("go", "build", "-o", bin, "../../cmd/tuttirun", ".")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	schedules := 3
	if os.Getenv("TUTTI_SOAK") != "" {
		schedules = 200
	}
	for seed := range uint64(schedules) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			args := randomSchedule(rand.New(rand.NewPCG(seed, 0)), filepath.Join(bin, "elastic"))
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			cmd := exec.CommandContext(ctx, filepath.Join(bin, "tuttirun"), args...)
			cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
			cmd.WaitDelay = 10 * time.Second
			out, err := cmd.CombinedOutput()
			if err != nil || !strings.Contains(string(out), "without losses it is 9") {
				t.Errorf("tuttirun %s: %v\n%s", strings.Join(args, " "), err, out)
			}
		})
	}
}

// randomSchedule returns the arguments of tuttirun. At least one rank is never killed, because the
// state would be lost with the last rank.
func randomSchedule(draw *rand.Rand, program string) []string {
	ranks := 2 + draw.IntN(4)
	kills := make([]death, 1+draw.IntN(ranks-1))
	for i := range kills {
		kills[i] = death{draw.IntN(ranks), 1 + draw.IntN(280)}
	}
	slices.SortFunc(kills, func(a, b death) int { return cmp.Compare(a.step, b.step) })
	var list []string
	for _, k := range kills {
		list = append(list, fmt.Sprintf("%d@%d", k.rank, k.step))
	}
	wire := []string{"auto", "tcp", "shm"}[draw.IntN(3)]
	return []string{
		"-np", fmt.Sprint(ranks), "--oversubscribe", "--transport", wire, "--min-np", "1",
		"--restart-ranks", fmt.Sprint(draw.IntN(len(kills) + 1)), "--blacklist-cooldown-range", "1ms", "200ms",
		program, "-epochs", "10", "-kill", strings.Join(list, ","),
	}
}
