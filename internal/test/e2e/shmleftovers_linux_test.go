package e2e

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
)

// A privateShm is a /dev/shm that no other process uses. It is in a separate mount namespace, which
// a process keeps alive while the test runs. Without root it is in a user namespace, too.
type privateShm struct {
	keeper int
	enter  []string // the words before a command that uses it
}

// newPrivateShm makes a privateShm. If that is impossible, it skips the test and gives the reason.
func newPrivateShm(t *testing.T) *privateShm {
	t.Helper()
	for _, tool := range []string{"unshare", "nsenter", "mount", "cat"} {
		if _, err := exec.LookPath(tool); err != nil {
			// Reason: the tools are Debian's util-linux and coreutils, which nearly all systems
			// have.
			t.Skipf("mount namespaces need %s: %v", tool, err)
		}
	}
	unshare, enter := []string{"-m"}, []string{"nsenter", "-m"}
	if os.Geteuid() != 0 {
		unshare, enter = []string{"-m", "-r"}, []string{"nsenter", "-m", "-U", "--preserve-credentials"}
	}
	keeper := exec.Command("unshare", append(unshare, "sh", "-c", "mount -t tmpfs none /dev/shm && echo ready && exec cat")...)
	in, err := keeper.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := keeper.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := keeper.Start(); err != nil {
		// Reason: some containers forbid namespaces, and other programs' files come and go in the
		// host's /dev/shm.
		t.Skipf("no mount namespaces here: %v", err)
	}
	t.Cleanup(func() {
		in.Close()
		keeper.Wait()
	})
	if _, err := io.ReadFull(out, make([]byte, len("ready\n"))); err != nil {
		// Reason: the same as above; unshare reports the failure only once it runs.
		t.Skip("no mount namespaces here: unshare or mount failed")
	}
	return &privateShm{keeper.Process.Pid, append(enter, "-t", strconv.Itoa(keeper.Process.Pid))}
}

// files returns the names of the files in it.
func (c *privateShm) files(t *testing.T) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join("/proc", strconv.Itoa(c.keeper), "root", "dev", "shm"))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// run starts ranks by tuttirun that use this /dev/shm.
func (c *privateShm) run(t *testing.T, ranks int, wire string, o instruction) *job {
	t.Helper()
	j := newJob(t)
	command := append(c.enter[1:], self(t), "-np", strconv.Itoa(ranks), "--transport", wire, "--grace", "20", self(t))
	j.launcher = j.start(exec.Command(c.enter[0], command...), nil, asLauncher+"=1", asRank+"="+o.encode())
	return j
}

// However a job ends, it must leave no file in /dev/shm, under any name, and no process. The
// clean-up of every job checks that.
func TestJobsReleaseSharedMemory(t *testing.T) {
	const ranks = 3
	for name, end := range map[string]func(j *job, pids map[int]int){
		"a rank is killed": func(j *job, pids map[int]int) {
			j.signal(pids[1], syscall.SIGKILL)
			j.events("ended", ranks-1)
			j.wantExit(128 + int(syscall.SIGKILL))
		},
		"all ranks are killed": func(j *job, pids map[int]int) {
			for _, pid := range pids {
				// The last ranks may have ended because of the loss of the first.
				syscall.Kill(pid, syscall.SIGKILL)
			}
			j.wantExit(128 + int(syscall.SIGKILL))
		},
		"the launcher is killed": func(j *job, pids map[int]int) {
			j.signal(j.launcher.cmd.Process.Pid, syscall.SIGKILL)
			j.launcher.wantExit(j, -1)
		},
		"the launcher is interrupted": func(j *job, pids map[int]int) {
			j.signal(j.launcher.cmd.Process.Pid, syscall.SIGTERM)
			<-j.launcher.done
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := newPrivateShm(t)
			t.Run("", func(t *testing.T) { // the clean-up of the subtest waits for all processes
				j := c.run(t, ranks, "shm", instruction{Program: "sum", Bytes: 1 << 20, ReadyAtOnce: true})
				pids := j.pids(ranks)
				j.events("summing", ranks)
				end(j, pids)
			})
			if left := c.files(t); len(left) > 0 {
				t.Errorf("/dev/shm holds %q", left)
			}
		})
	}
}
