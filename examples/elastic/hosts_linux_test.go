package main

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tutti-go/tutti/internal/test/hostlist"
)

// limit is the longest time that a job of a test may take on a busy machine.
const limit = 3 * time.Minute

// far and farther are pseudo-hosts. Both mean this machine, and tuttirun reaches them by a program in
// place of ssh, or by an agent.
const (
	far     = "127.0.0.2"
	farther = "127.0.0.3"
)

// TestHostsComeAndGo trains while a script adds hosts and takes a host away, and while one of these
// hosts is lost and comes back. The job begins on one host, so its first rank listens on loopback.
func TestHostsComeAndGo(t *testing.T) {
	dir := build(t)
	for name, reach := range map[string]func(*testing.T, string) (options []string, starter int){"ssh": reachBySSH, "agent": reachByAgent} {
		t.Run(name, func(t *testing.T) {
			options, starter := reach(t, dir)
			hosts := hostlist.New(t, "localhost:1")
			j := start(t, dir, append(options, "--host-discovery-script", hosts.Script(), "--min-np", "1", "--restart-ranks", "1")...)
			j.await("epoch 0 has 1 ranks")
			hosts.Set("localhost:1", far+":1")
			j.await("so 2 ranks go on")
			j.goOn(1)
			j.cut(starter)
			j.await("host " + far + ": the connection has ended")
			j.await(" on " + far + ") was lost after ")
			j.await("so 2 ranks go on") // the host can still be reached, and comes back
			j.goOn(2)
			hosts.Set("localhost:1", far+":1", farther+":1")
			j.await("so 3 ranks go on")
			j.goOn(3)
			hosts.Set("localhost:1", farther+":1")
			j.await("gets TERM, because " + far + " has only 0 slots now")
			j.await("so 2 ranks go on")
			j.ends(2)
		})
	}
}

// Without a script, a rank of a lost host is started again on a host that has a free slot.
func TestARankMovesFromALostHost(t *testing.T) {
	dir := build(t)
	options, starter := reachBySSH(t, dir)
	j := start(t, dir, append(options, "-H", "localhost:2,"+far+":1", "--map-by", "node", "-np", "2", "--min-np", "1", "--restart-ranks", "1")...)
	j.await("epoch 0 has 2 ranks")
	j.cut(starter)
	here, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	j.await("it is started again as [1.1] on " + here)
	j.await("has 2 ranks")
	j.ends(2)
}

// A job whose only host is lost begins again there when the host can be reached again.
func TestTheOnlyHostComesBack(t *testing.T) {
	dir := build(t)
	options, starter := reachBySSH(t, dir)
	j := start(t, dir, append(options, "--host-discovery-script", "echo "+far+":1", "--min-np", "1", "--restart-ranks", "1")...)
	j.await("epoch 0 has 1 ranks")
	j.cut(starter)
	j.await("it is started again as [0.1] on " + far)
	j.await("epoch 1 has 1 ranks")
	j.ends(1)
}

// build builds tuttirun and the example into a directory.
func build(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	cmd := exec.Command("go", "build", "-o", dir, "../../cmd/tuttirun", ".")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	return dir
}

// reachBySSH returns the options for a program in place of ssh. The launcher starts it.
func reachBySSH(t *testing.T, dir string) ([]string, int) {
	login := filepath.Join(dir, "login")
	// Its arguments are the host and the command.
	if err := os.WriteFile(login, []byte("#!/bin/sh\nshift\nexec sh -c \"$*\"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	return []string{"--launcher-exec", login}, 0
}

// reachByAgent starts an agent for all hosts, and returns the options to reach it, and its process.
func reachByAgent(t *testing.T, dir string) ([]string, int) {
	secret := filepath.Join(dir, "secret")
	if err := os.WriteFile(secret, []byte("what agent and launcher know"), 0o600); err != nil {
		t.Fatal(err)
	}
	agent := exec.Command(filepath.Join(dir, "tuttirun"), "agent", "--allow-run-as-root", "--listen", "0.0.0.0:0", "--secret-file", secret)
	log, err := agent.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := agent.Start(); err != nil {
		t.Fatal(err)
	}
	stuck := time.AfterFunc(limit, func() { agent.Process.Kill() })
	t.Cleanup(func() {
		agent.Process.Signal(syscall.SIGTERM) // it ends after its last job
		agent.Wait()
		stuck.Stop()
	})
	lines := bufio.NewScanner(log)
	lines.Scan()
	_, rest, _ := strings.Cut(lines.Text(), "address=")
	address, _, _ := strings.Cut(rest, " ")
	go func() {
		for lines.Scan() {
		}
	}()
	return []string{"--agent-secret-file", secret, "--agent-port", address[strings.LastIndexByte(address, ':')+1:]}, agent.Process.Pid
}

// A job is a training of six epochs under tuttirun. After each epoch it waits for goOn.
type job struct {
	t    *testing.T
	cmd  *exec.Cmd
	out  *bufio.Scanner // of both streams
	seen strings.Builder
	hold string
}

// start starts a job with options of tuttirun.
func start(t *testing.T, dir string, options ...string) *job {
	t.Helper()
	j := &job{t: t, hold: t.TempDir()}
	args := append([]string{"-v"}, options...)
	j.cmd = exec.Command(filepath.Join(dir, "tuttirun"), append(args, filepath.Join(dir, "elastic"), "-epochs", "6", "-hold", j.hold)...)
	out, err := j.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	j.out, j.cmd.Stderr = bufio.NewScanner(out), j.cmd.Stdout
	if err := j.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	stuck := time.AfterFunc(limit, func() { j.cmd.Process.Signal(syscall.SIGTERM) })
	t.Cleanup(func() {
		stuck.Stop()
		if j.cmd.ProcessState == nil { // the test has failed
			j.cmd.Process.Signal(syscall.SIGTERM)
			j.cmd.Wait()
		}
		if t.Failed() {
			t.Logf("%q:\n%s", j.cmd.Args, j.seen.String())
		}
	})
	return j
}

// await reads lines until one has the part.
func (j *job) await(part string) {
	j.t.Helper()
	for j.out.Scan() {
		fmt.Fprintln(&j.seen, j.out.Text())
		if strings.Contains(j.out.Text(), part) {
			return
		}
	}
	j.t.Fatalf("no further line has %q", part)
}

// goOn lets the training begin the epoch after the given one.
func (j *job) goOn(epoch int) {
	j.t.Helper()
	if err := os.WriteFile(filepath.Join(j.hold, strconv.Itoa(epoch)), nil, 0o600); err != nil {
		j.t.Fatal(err)
	}
}

// ends lets the training go on to its end. It checks that the given number of ranks is left, and that
// the result is that of a training without losses.
func (j *job) ends(ranks int) {
	j.t.Helper()
	for epoch := range 5 {
		j.goOn(epoch + 1)
	}
	j.await(fmt.Sprintf("%d ranks are left", ranks))
	j.await("(at most 1e-09)")
	for j.out.Scan() {
		fmt.Fprintln(&j.seen, j.out.Text())
	}
	if err := j.cmd.Wait(); err != nil {
		j.t.Errorf("tuttirun: got %v, want success", err)
	}
}

// cut kills the one process by which the launcher and another host are connected. It is a child of
// the process starter, or of the launcher if that is 0. Ranks and guardians are children, too.
func (j *job) cut(starter int) {
	j.t.Helper()
	if starter == 0 {
		starter = j.cmd.Process.Pid
	}
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", starter)) // of each thread
	for _, thread := range threads {
		children, _ := os.ReadFile(thread)
		for _, child := range strings.Fields(string(children)) {
			line, _ := os.ReadFile("/proc/" + child + "/cmdline")
			if strings.Contains(string(line), "remote") {
				pid, _ := strconv.Atoi(child)
				syscall.Kill(pid, syscall.SIGKILL)
				return
			}
		}
	}
	j.t.Fatalf("no child of process %d connects to a host", starter)
}
