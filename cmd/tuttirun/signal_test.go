//go:build unix

package main

import (
	"fmt"
	"syscall"
	"testing"
)

// ready starts ranks that print their signals, and returns their process IDs.
func ready(t *testing.T, n int, args ...string) (*job, []int) {
	t.Helper()
	args = append([]string{"-np", fmt.Sprint(n)}, args...)
	j := start(t, append(args, role(t, "signals")...)...)
	pids := make([]int, n)
	for range n {
		var rank, pid int
		if _, err := fmt.Sscanf(j.line(), "%d ready %d", &rank, &pid); err != nil {
			t.Fatal(err)
		}
		pids[rank] = pid
	}
	return j, pids
}

func TestSignalsAreForwarded(t *testing.T) {
	t.Parallel()
	j, _ := ready(t, 2)
	for _, s := range []syscall.Signal{syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGHUP} {
		j.signal(s)
		j.expect(fmt.Sprintf("0 got %v", s), fmt.Sprintf("1 got %v", s))
	}
	// HUP has asked the ranks to end, and they have not ended. The second signal must become TERM.
	j.signal(syscall.SIGINT)
	j.set(2) // TERM
	j.ends(0)
}

// Ranks that handle the first signal must have unlimited time, even with a grace period of 0.
func TestFirstInterruptIsTheRanksToHandle(t *testing.T) {
	t.Parallel()
	for _, s := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGQUIT} {
		j, _ := ready(t, 2, "--grace", "0")
		j.signal(s)
		j.expect(fmt.Sprintf("0 got %v", s), fmt.Sprintf("1 got %v", s))
		if s != syscall.SIGTERM {
			j.signal(s)
			j.expect("0 got terminated", "1 got terminated")
		}
		j.ends(0)
	}
}

func TestInterruptedJobIsReported(t *testing.T) {
	t.Parallel()
	j := start(t, "-np", "2", "sh", "-c", "echo ready; exec sleep 1000")
	j.expect("ready", "ready")
	j.signal(syscall.SIGINT)
	j.ends(130, "asked to end (SIGINT)", "was killed by signal 2 (SIGINT)")
}

func TestThirdInterruptKills(t *testing.T) {
	t.Parallel()
	j, _ := ready(t, 2, "-x", testStubborn+"=1")
	for _, name := range []string{"interrupt", "terminated"} {
		j.signal(syscall.SIGINT)
		j.expect("0 got "+name, "1 got "+name)
	}
	j.signal(syscall.SIGINT)
	j.ends(130, "asked to end (SIGINT), and was ended")
}

// A job that is started under nohup must survive the end of its terminal.
func TestIgnoredHangupStaysIgnored(t *testing.T) {
	t.Parallel()
	self := role(t, "")[2]
	j := startCommand(t, "sh", "-c", `trap '' HUP; exec "$@"`, "sh", self, "-np", "1", "sh", "-c",
		`echo ready; read line; kill -HUP $$; echo alive`)
	j.expect("ready")
	j.signal(syscall.SIGHUP)
	fmt.Fprintln(j.stdin)
	j.expect("alive")
	j.ends(0)
}
