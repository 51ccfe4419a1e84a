package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// terminal makes a pseudo-terminal. The file process is its side for a process, and the file user
// is the other side.
func terminal(t *testing.T) (user, process *os.File) {
	t.Helper()
	user, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		// Reason: some sandboxes have no pseudo-terminals.
		t.Skipf("no pseudo-terminals here: %v", err)
	}
	t.Cleanup(func() { user.Close() })
	conn, err := user.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var n int
	conn.Control(func(fd uintptr) {
		if err = unix.IoctlSetPointerInt(int(fd), unix.TIOCSPTLCK, 0); err == nil {
			n, err = unix.IoctlGetInt(int(fd), unix.TIOCGPTN)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	process, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		// Reason: some sandboxes have no pseudo-terminals.
		t.Skipf("no pseudo-terminals here: %v", err)
	}
	return user, process
}

// At a terminal the ranks are in background process groups. Rank 0 therefore cannot read the
// terminal by itself. The interrupt key reaches only the launcher, which must forward the signal.
func TestTerminalReachesRankZeroAndItsInterruptEveryRank(t *testing.T) {
	t.Parallel()
	user, process := terminal(t)
	self := role(t, "")[2]
	cmd := exec.Command(self, "-l", "-np", "2", "sh", "-c",
		`trap 'echo $TUTTI_RANK interrupted; exit 0' INT; [ $TUTTI_RANK = 0 ] && { read a; echo "read $a"; }; echo up; while :; do sleep 0.05; done`)
	cmd.Env = append(os.Environ(), testLauncher+"=1", "NO_COLOR=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = process, process, process
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	process.Close()
	stuck := time.AfterFunc(limit, func() { cmd.Process.Kill() })
	defer stuck.Stop()

	lines := bufio.NewScanner(user)
	seek := func(want ...string) {
		t.Helper()
		for len(want) > 0 && lines.Scan() {
			want = slices.DeleteFunc(want, func(w string) bool { return strings.Contains(lines.Text(), w) })
		}
		if len(want) > 0 {
			t.Errorf("the terminal never shows %q", want)
		}
	}
	io.WriteString(user, "typed\n")
	seek("[0] read typed", "[0] up", "[1] up")
	io.WriteString(user, "\x03")
	seek("[0] 0 interrupted", "[1] 1 interrupted")
	if err := cmd.Wait(); err != nil {
		t.Errorf("got %v, want exit code 0", err)
	}
}
