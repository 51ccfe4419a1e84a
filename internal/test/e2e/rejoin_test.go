//go:build unix

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/fault"
)

// sumAndRejoin sums until the job's ranks change, rejoins, and sums again. It ends on all ranks at
// the same sum, after the test has opened gate 0.
func sumAndRejoin(ctx context.Context, a *rankProcess, c *comm.Comm) error {
	var open atomic.Bool
	go func() {
		a.awaitGate(0)
		open.Store(true)
	}()
	for {
		a.rank = c.Rank()
		over, err := a.sumEpoch(ctx, c, &open)
		switch {
		case err == nil && over:
			return c.Close(ctx)
		case err != nil && !rejoins(err):
			return a.report("stopped", callSite{}, err)
		}
		at := callBelow()
		next, err := c.Rejoin(ctx)
		if err != nil {
			return a.report("stopped", at, err)
		}
		c = next
	}
}

// rejoins reports whether a rank calls Rejoin after this error.
func rejoins(err error) bool {
	for _, k := range []fault.Kind{fault.PeerLost, fault.LinkLost, fault.Revoked, fault.Closed} {
		if errors.Is(err, k) {
			return true
		}
	}
	return false
}

// sumEpoch sums on one communicator, until a rank has seen gate 0 open, or a change. It reports the
// first sum.
func (a *rankProcess) sumEpoch(ctx context.Context, c *comm.Comm, open *atomic.Bool) (over bool, err error) {
	for i := 0; ; i++ {
		v := []int{1, 0, 0} // ranks, ranks that have seen the gate open, ranks that have seen a change
		if open.Load() {
			v[1] = 1
		}
		select {
		case <-c.Changed():
			v[2] = 1
		default:
		}
		if err := comm.AllReduce(ctx, c, v, comm.Sum); err != nil {
			return false, err
		}
		if v[0] != c.Size() {
			return false, fmt.Errorf("sum: got %d, want %d", v[0], c.Size())
		}
		if i == 0 {
			if err := useAll(ctx, c); err != nil {
				return false, err
			}
			a.log("summed", fmt.Sprint(c.Size()))
		}
		if v[1] > 0 || v[2] > 0 {
			return v[1] > 0, nil
		}
	}
}

// summed waits until n first sums of epochs with the given size have been reported, and returns the
// processes of the last of these epochs by rank.
func (j *job) summed(size, n int) map[int]int {
	j.t.Helper()
	pids := make(map[int]int)
	seen := 0
	ok := j.out.await(limit, func(lines []string) bool {
		seen = 0
		for _, line := range lines {
			var e event
			if json.Unmarshal([]byte(line), &e) == nil && e.Name == "summed" && e.Text == fmt.Sprint(size) {
				seen++
				pids[e.Rank] = e.PID
			}
		}
		return seen >= n
	})
	if !ok {
		j.t.Fatalf("got %d sums of %d ranks, want %d; the ranks said:\n%v\n%v", seen, size, n, j.out, j.err)
	}
	return pids
}

// TestAKilledRankIsStartedAgain kills a rank, and then rank 0. Each time all three ranks sum again.
func TestAKilledRankIsStartedAgain(t *testing.T) {
	for _, wire := range wires() {
		t.Run(wire, func(t *testing.T) {
			j := run(t, 3, wire, instruction{Program: "rejoin"}, "--restart-ranks", "2")
			first := j.summed(3, 3)
			j.signal(first[1], syscall.SIGKILL)
			second := j.summed(3, 6)
			if second[0] != first[0] || second[1] != first[2] {
				t.Errorf("processes: got %v after %v, want the survivors first, in their order", second, first)
			}
			j.signal(second[0], syscall.SIGKILL)
			if third := j.summed(3, 9); third[0] != second[1] || third[1] != second[2] {
				t.Errorf("processes: got %v after %v, want the survivors first, in their order", third, second)
			}
			j.open(0)
			j.wantExit(0, "was killed by signal 9 (SIGKILL)", "it is started again as [1.1]")
		})
	}
}

// TestAJobGrowsWithItsSlots starts with one slot, and the discovery script then finds three.
func TestAJobGrowsWithItsSlots(t *testing.T) {
	slots := filepath.Join(t.TempDir(), "slots")
	set := func(text string) {
		if err := os.WriteFile(slots+".new", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(slots+".new", slots); err != nil {
			t.Fatal(err)
		}
	}
	set("localhost:1\n")
	j := run(t, 1, "auto", instruction{Program: "rejoin"}, "--host-discovery-script", "cat "+slots, "--max-np", "3")
	j.summed(1, 1)
	set("localhost:5\n")
	j.summed(3, 3)
	j.open(0)
	j.wantExit(0)
}

// TestRejoinInAJobWithoutARecordIsAMisuse covers jobs that no launcher has started, and jobs of
// tuttirun without any of the options.
func TestRejoinInAJobWithoutARecordIsAMisuse(t *testing.T) {
	j := run(t, 2, "auto", instruction{Program: "misrejoin"})
	for _, e := range j.events("refused", 2) {
		if e.Kind != fault.Misuse.Error() || !strings.Contains(e.Text, "--restart-ranks") {
			t.Errorf("rank %d: got %s, want Misuse that names the option", e.Rank, e.Text)
		}
	}
	j.wantExit(0)
}

// rejoinWithoutRecord rejoins, and then uses the old communicator.
func rejoinWithoutRecord(ctx context.Context, a *rankProcess, c *comm.Comm) error {
	_, err := c.Rejoin(ctx)
	a.report("refused", callSite{}, err)
	return c.Barrier(ctx)
}
