//go:build unix

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/test/hostlist"
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
		a.log("rejoining", "")
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
	t.Parallel()
	for _, wire := range wires() {
		t.Run(wire, func(t *testing.T) {
			t.Parallel()
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

// TestAJobGrowsAndShrinksWithItsSlots changes the slots that the discovery script finds. The number
// of ranks follows, up to --max-np. A host that tuttirun does not reach is named, and changes nothing.
func TestAJobGrowsAndShrinksWithItsSlots(t *testing.T) {
	t.Parallel()
	hosts := hostlist.New(t, "localhost:1")
	j := run(t, 1, "auto", instruction{Program: "rejoin"}, "--host-discovery-script", hosts.Script(), "--max-np", "3")
	j.summed(1, 1)
	hosts.Set("localhost:5")
	j.summed(3, 3)
	hosts.Set("localhost:3", "elsewhere:9")
	j.awaitLauncher("host elsewhere: ", 1)
	hosts.Set("localhost", "localhost:1")
	j.summed(2, 2)
	j.open(0)
	j.wantExit(0)
}

// TestRejoinInAJobWithoutARecordIsAMisuse runs a job of tuttirun without any option that allows
// Rejoin.
func TestRejoinInAJobWithoutARecordIsAMisuse(t *testing.T) {
	t.Parallel()
	j := run(t, 2, "auto", instruction{Program: "misrejoin"})
	for _, e := range j.events("refused", 2) {
		if e.Kind != fault.Misuse.Error() || !strings.Contains(e.Text, "--restart-ranks") {
			t.Errorf("rank %d: got %s, want Misuse that names the option", e.Rank, e.Text)
		}
	}
	j.wantExit(0)
}

// rejoinWithoutRecord calls Rejoin in a job without a record, reports the error, and goes on with
// its communicator.
func rejoinWithoutRecord(ctx context.Context, a *rankProcess, c *comm.Comm) error {
	_, err := c.Rejoin(ctx)
	a.report("refused", callSite{}, err)
	return c.Barrier(ctx)
}

// TestARankKilledInRejoinIsStartedAgain kills rank 1, and then rank 2 while it waits in Rejoin for
// rank 3, which is stopped.
func TestARankKilledInRejoinIsStartedAgain(t *testing.T) {
	t.Parallel()
	j := run(t, 4, "auto", instruction{Program: "rejoin"}, "--restart-ranks", "2", "--verbose")
	first := j.summed(4, 4)
	j.signal(first[3], syscall.SIGSTOP)
	j.signal(first[1], syscall.SIGKILL)
	j.awaitLauncher("rank 2 asks for the next epoch", 2)
	j.signal(first[2], syscall.SIGKILL)
	j.signal(first[3], syscall.SIGCONT)
	if second := j.summed(4, 8); second[0] != first[0] || second[1] != first[3] {
		t.Errorf("processes: got %v after %v, want the survivors 0 and 3 first", second, first)
	}
	j.open(0)
	j.wantExit(0)
}

// TestARankKilledWhenTheEpochIsFormedIsStartedAgain kills rank 1. Rank 2 has asked for the next
// epoch and is stopped when tuttirun forms it. Rank 2 is killed then, while the others wait for it
// in Init.
func TestARankKilledWhenTheEpochIsFormedIsStartedAgain(t *testing.T) {
	t.Parallel()
	marker := filepath.Join(t.TempDir(), "started")
	j := run(t, 3, "auto", instruction{Program: "rejoin", Victim: 1, Phase: marker}, "--restart-ranks", "2", "--verbose")
	first := j.summed(3, 3)
	j.signal(first[1], syscall.SIGKILL)
	j.awaitLauncher("rank 2 asks for the next epoch", 2)
	j.signal(first[2], syscall.SIGSTOP)
	j.open(1) // the new process of rank 1 goes on to Init
	j.awaitLauncher("epoch 1 has 3 ranks", 1)
	j.signal(first[2], syscall.SIGKILL)
	if second := j.summed(3, 6); second[0] != first[0] {
		t.Errorf("processes: got %v after %v, want the survivor first", second, first)
	}
	j.awaitLauncher("epoch 2 has 3 ranks", 1)
	j.open(0)
	j.wantExit(0)
}

// awaitLauncher waits until tuttirun has printed n lines with this text.
func (j *job) awaitLauncher(text string, n int) {
	j.t.Helper()
	if !j.err.await(limit, func(lines []string) bool { return countLines(lines, "tuttirun: ", text) >= n }) {
		j.t.Fatalf("tuttirun does not say %q %d times:\n%v", text, n, j.err)
	}
}

// TestARankThatDoesNotComeToRejoinIsKilled stops a rank, for which the others wait in Rejoin.
// tuttirun must kill the stopped rank.
func TestARankThatDoesNotComeToRejoinIsKilled(t *testing.T) {
	t.Parallel()
	j := run(t, 3, "auto", instruction{Program: "rejoin"}, "--restart-ranks", "2", "--elastic-timeout", "5s")
	first := j.summed(3, 3)
	j.signal(first[2], syscall.SIGSTOP)
	j.signal(first[1], syscall.SIGKILL)
	if second := j.summed(3, 6); second[0] != first[0] {
		t.Errorf("processes: got %v after %v, want the survivor first", second, first)
	}
	j.open(0)
	j.wantExit(0, "while others waited for it; the rank is killed")
}

// TestAnEpochWithAnUnreachableRankEnds advertises an address at which no rank answers. Init must end
// on all ranks, and name that rank and the address. When one rank has ended, the others may report
// that too few are left.
func TestAnEpochWithAnUnreachableRankEnds(t *testing.T) {
	t.Parallel()
	const victim = 2
	j := run(t, 3, "tcp", instruction{Program: "rejoin", Mistake: "unreachable", Victim: victim}, "--restart-ranks", "0", "--elastic-timeout", "5s")
	late := 0
	for _, e := range j.events("refused", 3) {
		switch {
		case strings.Contains(e.Text, "within 5s (--elastic-timeout)"):
			late++
			if e.Kind != fault.Timeout.Error() || len(e.Peers) == 0 || len(e.Peers) == 1 && e.Peers[0].Rank != victim {
				t.Errorf("rank %d: got %s, want a Timeout that names rank %d", e.Rank, e.Text, victim)
			}
		case e.Kind != fault.NoQuorum.Error():
			t.Errorf("rank %d: got %s, want the end of the time or NoQuorum", e.Rank, e.Text)
		}
	}
	if late == 0 {
		t.Error("no rank names --elastic-timeout")
	}
	j.wantExit(1, " listens at 127.0.0.1:")
}

// TestAJobEndsBelowItsLeastNumberOfRanks kills one of two ranks, both of which are needed.
func TestAJobEndsBelowItsLeastNumberOfRanks(t *testing.T) {
	t.Parallel()
	j := run(t, 2, "auto", instruction{Program: "rejoin"}, "--restart-ranks", "0")
	j.signal(j.summed(2, 2)[0], syscall.SIGKILL)
	if e := j.events("stopped", 1)[0]; e.Kind != fault.NoQuorum.Error() || !strings.Contains(e.Text, "got 1, want at least 2 (--min-np)") {
		t.Errorf("got %s, want NoQuorum", e.Text)
	}
	j.wantExit(128+int(syscall.SIGKILL), "ranks left: got 1, want at least 2 (--min-np)")
}

// TestTheLastOfTwoGoesOnWithRejoin runs without restarts. The survivor goes on alone.
func TestTheLastOfTwoGoesOnWithRejoin(t *testing.T) {
	t.Parallel()
	j := run(t, 2, "auto", instruction{Program: "rejoin"}, "--enable-recovery")
	j.signal(j.summed(2, 2)[0], syscall.SIGKILL)
	j.summed(1, 1)
	j.open(0)
	j.wantExit(0)
}

// TestKillsAtRandomMomentsDoNotEndAJob kills random ranks at random moments: while they sum, in
// Rejoin and in Init. The ranks that are left in the end sum together.
func TestKillsAtRandomMomentsDoNotEndAJob(t *testing.T) {
	t.Parallel()
	kills := 12
	if soaking() {
		kills = 1000
	}
	const ranks, seed = 3, 7
	random := rand.New(rand.NewPCG(seed, seed))
	j := run(t, ranks, "auto", instruction{Program: "rejoin"}, "--restart-ranks", "4000", "--blacklist-cooldown-range", "0", "0", "--verbose")
	j.summed(ranks, ranks)
	started := regexp.MustCompile(`rank \S+ is process (\d+),`)
	killed := 0
	for range kills {
		// Reason: the kills must hit all phases of the ranks, and no event marks every phase.
		time.Sleep(time.Duration(random.IntN(100)) * time.Millisecond)
		var alive []int
		log := j.err.String()
		for _, match := range started.FindAllStringSubmatch(log, -1) {
			if !strings.Contains(log, "process "+match[1]+") was killed") {
				pid, _ := strconv.Atoi(match[1])
				alive = append(alive, pid)
			}
		}
		if len(alive) > 0 && j.killChild(alive[random.IntN(len(alive))]) {
			killed++
		}
	}
	j.open(0)
	j.wantExit(0)
	if killed == 0 {
		t.Error("no rank was killed")
	}
	for _, name := range []string{"refused", "stopped"} {
		for _, e := range j.events(name, 0) {
			t.Errorf("rank %d, which was not killed: %s", e.Rank, e.Text)
		}
	}
}

// killChild kills a process that tuttirun has started, and reports whether it has. The process may
// have ended since tuttirun logged its pid, and the pid may belong to another program.
func (j *job) killChild(pid int) bool {
	child, err := os.FindProcess(pid) // on Linux a pidfd, which no later process can take over
	if err != nil {
		return false
	}
	defer child.Release()
	if stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)); err == nil {
		fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
		if fields[1] != strconv.Itoa(j.launcher.cmd.Process.Pid) {
			return false
		}
	}
	return child.Signal(syscall.SIGKILL) == nil
}

// rejoinOften rejoins once and closes, and then rejoins 20 times and closes. After both closes the
// process must hold the same number of descriptors and goroutines.
//
// It makes calls in every epoch. Otherwise a rank could call Rejoin while another rank is in Init.
// That rank's Init would then return the communicator of the next epoch, and its program would be
// one epoch behind the others.
func rejoinOften(ctx context.Context, a *rankProcess, c *comm.Comm) error {
	var before resources
	for _, rejoins := range []int{1, 20} {
		if err := useAll(ctx, c); err != nil {
			return err
		}
		for range rejoins {
			next, err := c.Rejoin(ctx)
			if err != nil {
				return err
			}
			c = next
			if err := useAll(ctx, c); err != nil {
				return err
			}
		}
		if err := c.Close(ctx); err != nil {
			return err
		}
		if rejoins == 1 {
			before = resourcesAtRest(resources{})
			next, err := comm.Init(ctx, a.options()...)
			if err != nil {
				return err
			}
			c = next
		}
	}
	if got := resourcesAtRest(before); got != before {
		return fmt.Errorf("after 20 epochs: got %+v, want %+v as after the first", got, before)
	}
	a.log("rejoined", "")
	return nil
}

// resourcesAtRest returns what this process holds, once that is equal to want or does not change
// for a second. Goroutines and descriptors end a moment after Close.
func resourcesAtRest(want resources) resources {
	got, since := resourcesOf(), time.Now()
	poll := time.NewTicker(time.Millisecond)
	defer poll.Stop()
	for got != want && time.Since(since) < time.Second {
		<-poll.C
		if now := resourcesOf(); now != got {
			got, since = now, time.Now()
		}
	}
	return got
}

// resources counts what a process holds.
type resources struct{ descriptors, goroutines int }

func resourcesOf() resources {
	fds, _ := os.ReadDir("/proc/self/fd")
	return resources{len(fds), runtime.NumGoroutine()}
}

func TestRejoinKeepsNoDescriptorsAndGoroutines(t *testing.T) {
	t.Parallel()
	for _, wire := range wires() {
		t.Run(wire, func(t *testing.T) {
			t.Parallel()
			j := run(t, 3, wire, instruction{Program: "rejoinoften"}, "--enable-recovery")
			j.events("rejoined", 3)
			j.wantExit(0)
		})
	}
}
