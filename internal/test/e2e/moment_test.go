//go:build unix

package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/tutti-go/tutti/internal/test/starved"
	"github.com/tutti-go/tutti/mesh"
)

// A moment is the time from which a limit counts, with the time for which the processes of the job
// had starved by then. For an action that takes time, before is when it began and after is when it
// ended.
type moment struct {
	before, after time.Time
	starved       time.Duration
}

// now returns this moment.
func (j *job) now() moment {
	// The starved time is read before the clock, so that starving between the two extends the
	// limit.
	total := j.starved()
	now := time.Now()
	return moment{now, now, total}
}

// awaitExit returns once a process that was killed has ended. On a busy machine that takes time,
// because the process dies only when it gets a processor. It does not matter whether another
// process has waited for it already. Without /proc, awaitExit returns at once.
func (j *job) awaitExit(pid int) {
	j.t.Helper()
	for late := time.Now().Add(limit); ; {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			return
		}
		// The first thread may have ended before the others.
		threads, _ := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
		state := strings.TrimSpace(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
		if len(threads) <= 1 && strings.ContainsAny(state[:1], "ZX") {
			return
		}
		if time.Now().After(late) {
			j.t.Fatalf("process %d lives on", pid)
		}
		// Reason: the process is a child of another process, so this process cannot wait for it.
		// Only the process table shows its end, without an event. The loop ends with the process.
		time.Sleep(time.Millisecond)
	}
}

// starved returns how long this process and all ranks that have joined have starved so far.
// For a process that has ended, the last known time counts.
func (j *job) starved() time.Duration {
	for _, e := range j.out.events() {
		if e.PID != 0 {
			j.starving[e.PID] = max(j.starving[e.PID], e.Starved[1], starved.Of(e.PID))
		}
	}
	total := starved.Of(os.Getpid()) + starved.Stolen()
	for _, d := range j.starving {
		total += d
	}
	return total
}

// wantWithin checks the time between a moment of this process and the return of a rank's call,
// which the rank reports. Both read the same clock. wantWithin extends the limit by the time for
// which the job's processes had no processor, because the library cannot keep its promise while its
// process does not run. A rank that gets no message sleeps, and sleeping does not count as
// starving.
func (j *job) wantWithin(e event, since moment, most time.Duration) {
	j.t.Helper()
	if most > mesh.DefaultSilence {
		most += starved.Granted(e.Text, mesh.DefaultSilence, mesh.DefaultHeartbeat)
	}
	most += j.starved() - since.starved
	elapsed := time.Unix(0, e.Ended).Sub(since.after)
	if time.Unix(0, e.Ended).Before(since.before) || elapsed > most {
		j.t.Errorf("rank %d was told after %v, want at most %v: %s", e.Rank, elapsed, most, e.Text)
	}
}

// starvedIn returns how long processes starved during the calls that the events report.
func starvedIn(es []event) (total time.Duration) {
	for _, e := range es {
		total += e.Starved[1] - e.Starved[0]
	}
	return total
}

// events returns the events so far, in the order of their arrival.
func (tr *output) events() (all []event) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	for _, line := range tr.lines {
		var e event
		if json.Unmarshal([]byte(line), &e) == nil {
			all = append(all, e)
		}
	}
	return all
}
