package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// stat returns the state and the parent of a process, proc(5).
func stat(pid int) (state string, parent int) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "", 0
	}
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	parent, _ = strconv.Atoi(fields[1])
	return fields[0], parent
}

// until polls the function holds until it returns true. It is meant for conditions that only the
// process table shows.
func until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	poll := time.NewTicker(time.Millisecond)
	defer poll.Stop()
	late := time.After(limit)
	for !holds() {
		select {
		case <-poll.C:
		case <-late:
			t.Fatalf("still missing: %s", what)
		}
	}
}

// guardianOf returns the process ID of a launcher's guardian, or 0 if there is none.
func guardianOf(launcher int) int {
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		pid, _ := strconv.Atoi(filepath.Base(dir))
		if _, parent := stat(pid); parent != launcher {
			continue
		}
		if line, _ := os.ReadFile(dir + "/cmdline"); bytes.HasPrefix(line, []byte("tutti-guardian\x00")) {
			return pid
		}
	}
	return 0
}

// family is a script that starts three children of a rank: one in the rank's process group, and two
// that have left it. The last one ignores INT, TERM, HUP and QUIT.
const family = `
	sleep 1000 &
	setsid sleep 1000 &
	(trap '' INT TERM HUP QUIT; exec setsid sh -c 'echo ready; sleep 1000; :') &
	`

// TestKilledLauncherEndsItsJob kills tuttirun with SIGKILL while each rank has the children of
// family. All of these processes must end. The cleanup of start checks that: every process of the
// job holds a pipe, and the cleanup waits for the pipe's end of file.
func TestKilledLauncherEndsItsJob(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 4} {
		j := start(t, "-np", fmt.Sprint(n), "sh", "-c", family+"wait")
		j.set(n)
		j.signal(syscall.SIGKILL)
		j.ends(-1)
	}
}

// The launcher is killed at 20 different moments of its start, also at the first one. Every process
// of its job must end.
func TestLauncherKilledWhileStartingEndsItsJob(t *testing.T) {
	t.Parallel()
	for i := range 20 {
		j := start(t, "-np", "16", "sh", "-c", "sleep 1000 & sleep 1000")
		// Reason: the sleep chooses the moment of the kill, which differs from round to round.
		time.Sleep(time.Duration(i) * time.Millisecond)
		j.signal(syscall.SIGKILL)
		j.ends(-1)
		j.checkNothingIsLeft()
	}
}

func TestKilledGuardianIsReplaced(t *testing.T) {
	t.Parallel()
	j := start(t, "-np", "2", "sh", "-c", family+"wait")
	j.set(2)
	launcher := j.cmd.Process.Pid
	first := guardianOf(launcher)
	if first == 0 {
		t.Fatal("there is no guardian")
	}
	syscall.Kill(first, syscall.SIGKILL)
	until(t, "another guardian", func() bool { g := guardianOf(launcher); return g != 0 && g != first })
	j.signal(syscall.SIGKILL)
	j.ends(-1)
}

// Signals to the launcher's process group, or to processes with the launcher's name, must not reach
// the guardian.
func TestGuardianIsOutOfReachOfTheLaunchersGroup(t *testing.T) {
	t.Parallel()
	j := start(t, "-np", "1", "sh", "-c", family+"wait")
	j.set(1)
	g := guardianOf(j.cmd.Process.Pid)
	own, _ := syscall.Getpgid(j.cmd.Process.Pid)
	if pgid, err := syscall.Getpgid(g); err != nil || pgid != g || pgid == own {
		t.Errorf("the guardian is in group %d (%v)", pgid, err)
	}
	until(t, "a guardian of that name", func() bool {
		name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", g))
		return string(name) == "tutti-guardian\n"
	})
	j.signal(syscall.SIGKILL)
	j.ends(-1)
}

// When a rank fails, tuttirun must end the children of all ranks, whatever process group they have
// joined.
func TestFailedJobEndsDetachedChildren(t *testing.T) {
	t.Parallel()
	j := start(t, "-np", "2", "--grace", "0", "sh", "-c", family+`[ $TUTTI_RANK = 1 ] && wait; read line; exit 7`)
	j.set(2)
	fmt.Fprintln(j.stdin)
	j.ends(7)
}

func TestStopAndContinue(t *testing.T) {
	t.Parallel()
	j, pids := ready(t, 2)
	all := append([]int{j.cmd.Process.Pid}, pids...)
	j.signal(syscall.SIGTSTP)
	for _, pid := range all {
		until(t, "a stopped process", func() bool { s, _ := stat(pid); return s == "T" })
	}
	j.signal(syscall.SIGCONT)
	j.expect("0 got continued", "1 got continued")
	for _, pid := range all {
		until(t, "a running process", func() bool { s, _ := stat(pid); return s != "T" })
	}
	j.signal(syscall.SIGTERM)
	j.expect("0 got terminated", "1 got terminated")
	j.ends(0)
}
