//go:build unix

package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/tutti-go/tutti/bootstrap"
	"github.com/tutti-go/tutti/internal/test/leak"
)

// This test binary also runs as tuttirun, as the guardian that tuttirun starts, and as a rank. The
// variable testRole selects the rank's program.
const (
	testLauncher = "TUTTIRUN_TEST_LAUNCHER"
	testRole     = "TUTTIRUN_TEST_ROLE"
	testStubborn = "TUTTIRUN_TEST_STUBBORN" // the rank does not end on TERM
)

func TestMain(m *testing.M) {
	if os.Args[0] == "tutti-guardian" || os.Getenv(testLauncher) != "" {
		os.Unsetenv(testLauncher)
		main()
	}
	switch os.Getenv(testRole) {
	case "signals":
		rankOfSignals()
	case "meet":
		rankThatMeets()
	}
	// Under nohup this process ignores HUP, and in the background of a script INT and QUIT. Its
	// children would ignore these signals, too. A handler prevents this, because children do not
	// inherit handlers.
	for _, s := range []os.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT} {
		if signal.Ignored(s) {
			signal.Notify(make(chan os.Signal, 1), s)
		}
	}
	os.Exit(m.Run())
}

// rankOfSignals prints the signals that it receives. TERM ends it, unless testStubborn is set. Rank
// 0 also ends when its input ends.
func rankOfSignals() {
	got := make(chan os.Signal, 16)
	signal.Notify(got, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGCONT)
	rank := os.Getenv("TUTTI_RANK")
	fmt.Printf("%s ready %d\n", rank, os.Getpid())
	if rank == "0" {
		go func() {
			io.Copy(io.Discard, os.Stdin)
			os.Exit(0)
		}()
	}
	for s := range got {
		fmt.Printf("%s got %v\n", rank, s)
		if s == syscall.SIGTERM && os.Getenv(testStubborn) == "" {
			os.Exit(0)
		}
	}
}

// rankThatMeets connects to the other ranks through the root. Rank 0 uses the listener that it
// has inherited.
func rankThatMeets() {
	job, err := bootstrap.Find(bootstrap.Options{})
	if err == nil && job.Rank == 0 {
		err = acceptAll(job)
	} else if err == nil {
		var c io.Closer
		if c, err = dial(job.Root); err == nil {
			c.Close()
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Printf("%d of %d met, secret of %d\n", job.Rank, job.Size, len(job.Secret))
	os.Exit(0)
}

// A job is tuttirun under test.
type job struct {
	t      *testing.T
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	stdout *os.File
	lines  *bufio.Reader
	stderr bytes.Buffer
	all    *leak.Processes
	waited sync.Once
	closed sync.Once
	code   int
}

// limit is the longest time that any action of a test may take on a busy machine.
const limit = 30 * time.Second

// start runs tuttirun. The cleanup checks that no process of the job is left.
func start(t *testing.T, args ...string) *job {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return startCommand(t, self, args...)
}

func startCommand(t *testing.T, program string, args ...string) *job {
	t.Helper()
	j := &job{t: t, cmd: exec.Command(program, args...)}
	stdout, theirs, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer theirs.Close()
	j.stdout, j.lines = stdout, bufio.NewReader(stdout)
	j.cmd.Stdout, j.cmd.Stderr = theirs, &j.stderr
	j.cmd.Env = append(os.Environ(), testLauncher+"=1", "WORLD_SIZE=99", "PMI_FD=9",
		"GORACE=atexit_sleep_ms=0") // otherwise each process of a race build waits 1 s at its end
	if j.stdin, err = j.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	j.all = leak.Start(t, j.cmd)
	t.Cleanup(j.checkNothingIsLeft)
	stdout.SetReadDeadline(time.Now().Add(limit))
	return j
}

// line returns the next line of standard output, or "" if there is none.
func (j *job) line() string {
	j.t.Helper()
	s, err := j.lines.ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		j.cmd.Process.Kill()
		j.t.Fatalf("no more output: %v; standard error:\n%s", err, j.stderr.String())
	}
	return strings.TrimSuffix(s, "\n")
}

// set reads n lines in any order.
func (j *job) set(n int) map[string]bool {
	j.t.Helper()
	set := make(map[string]bool)
	for range n {
		set[j.line()] = true
	}
	return set
}

// expect reads the wanted lines, in any order.
func (j *job) expect(want ...string) {
	j.t.Helper()
	got := j.set(len(want))
	for _, w := range want {
		if !got[w] {
			j.t.Errorf("%q is not among the lines %v", w, got)
		}
	}
}

// signal sends a signal to tuttirun itself.
func (j *job) signal(s syscall.Signal) {
	j.t.Helper()
	if err := j.cmd.Process.Signal(s); err != nil {
		j.t.Fatal(err)
	}
}

// wait returns the exit code and standard error. After a signal the exit code is -1.
func (j *job) wait() (code int, stderr string) {
	j.t.Helper()
	j.waited.Do(func() {
		stuck := time.AfterFunc(limit, func() { j.cmd.Process.Kill() })
		defer stuck.Stop()
		j.cmd.Wait()
		j.code = j.cmd.ProcessState.ExitCode()
	})
	return j.code, j.stderr.String()
}

// ends waits for the end of the job, and checks the exit code and that standard error contains
// the parts.
func (j *job) ends(code int, parts ...string) string {
	j.t.Helper()
	got, stderr := j.wait()
	if got != code {
		j.t.Errorf("exit code %d, want %d", got, code)
	}
	for _, p := range parts {
		if !strings.Contains(stderr, p) {
			j.t.Errorf("standard error does not say %q", p)
		}
	}
	if j.t.Failed() {
		j.t.Logf("standard error:\n%s", stderr)
	}
	return stderr
}

func (j *job) checkNothingIsLeft() { j.closed.Do(j.close) }

func (j *job) close() {
	j.cmd.Process.Kill() // does nothing if the process has ended
	j.stdin.Close()
	j.wait()
	j.stdout.Close()
	if err := j.all.Wait(limit); err != nil {
		j.t.Error(err)
	}
}

// role makes this test binary the program of the ranks.
func role(t *testing.T, name string) []string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return []string{"-x", testRole + "=" + name, self}
}

// script writes an executable shell script.
func script(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "script")
	if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}
