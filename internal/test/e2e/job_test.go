//go:build unix

package e2e

import (
	"bytes"
	"cmp"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/tutti-go/tutti/internal/vars"
)

// limit bounds how long an action of a test may take on a busy machine. A call that promises a
// shorter limit is tested with that limit.
const limit = 40 * time.Second

// A job is a set of processes under test, and their output.
type job struct {
	t             *testing.T
	launcher      *process   // tuttirun; nil if the test starts the ranks itself
	ranks         []*process // the ranks that the test has started, indexed by rank
	out           *output
	err           *output
	root          string // the address at which rank 0 listens; "" with the launcher
	listener      *os.File
	commandPrefix func(rank int) []string // the words before a rank's command; may be nil

	exitPipe   *os.File // reads EOF when every process of the job has ended
	lifeline   *os.File
	gate       [gates]*os.File
	inherited  []*os.File
	shm        []string
	starving   map[int]time.Duration // by process ID, for how long the process had starved when last measured
	wantPanics bool
}

// A process is a process that the test has started.
type process struct {
	cmd  *exec.Cmd
	done chan struct{}
}

// run starts ranks by tuttirun, over a transport, with additional options of tuttirun.
func run(t *testing.T, ranks int, wire string, o instruction, options ...string) *job {
	t.Helper()
	j := newJob(t)
	args := []string{"-np", strconv.Itoa(ranks), "--transport", wire, "--grace", "20"}
	args = append(append(args, options...), self(t))
	j.launcher = j.start(exec.Command(self(t), args...), nil, asLauncher+"=1", asRank+"="+o.encode())
	return j
}

// spawn starts the ranks without tuttirun, so that the test knows each process.
func spawn(t *testing.T, ranks int, wire string, o instruction) *job {
	t.Helper()
	j := newJob(t)
	j.listen()
	for r := range ranks {
		j.rank(r, ranks, wire, o)
	}
	return j
}

func newJob(t *testing.T) *job {
	t.Helper()
	j := &job{t: t, shm: shared(), starving: make(map[int]time.Duration)}
	t.Cleanup(j.close)
	leak, held := j.pipe()
	theirs, lifeline := j.pipe()
	j.exitPipe, j.lifeline = leak, lifeline
	j.inherited = []*os.File{held, theirs}
	for i := range j.gate {
		theirs, j.gate[i] = j.pipe()
		j.inherited = append(j.inherited, theirs)
	}
	out, outEnd := j.pipe()
	err, errEnd := j.pipe()
	j.inherited = append(j.inherited, outEnd, errEnd) // the last two become descriptors 1 and 2
	j.out, j.err = record(out), record(err)
	return j
}

func (j *job) pipe() (r, w *os.File) {
	j.t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		j.t.Fatal(err)
	}
	return r, w
}

// listen opens rank 0's listener, so that its address is known beforehand.
func (j *job) listen() {
	j.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		j.t.Fatal(err)
	}
	defer l.Close()
	j.root = l.Addr().String()
	if j.listener, err = l.(*net.TCPListener).File(); err != nil {
		j.t.Fatal(err)
	}
}

// rank starts one rank of a job with size ranks. Later settings in env override earlier settings.
func (j *job) rank(r, size int, wire string, o instruction, env ...string) *process {
	j.t.Helper()
	var third *os.File
	if r == 0 && j.listener != nil {
		third = j.listener
		env = append([]string{vars.ListenFD + "=3"}, env...)
	}
	command := []string{self(j.t)}
	if j.commandPrefix != nil {
		command = append(j.commandPrefix(r), command...)
	}
	p := j.start(exec.Command(command[0], command[1:]...), third, append(j.identity(r, size, wire, o), env...)...)
	if r == 0 && j.listener != nil {
		j.listener.Close()
		j.listener = nil
	}
	j.ranks = append(j.ranks, p)
	return p
}

// identity returns the environment that a launcher gives a rank.
func (j *job) identity(r, size int, wire string, o instruction) []string {
	return []string{
		vars.Rank + "=" + strconv.Itoa(r), vars.Size + "=" + strconv.Itoa(size),
		vars.LocalRank + "=" + strconv.Itoa(r), vars.LocalSize + "=" + strconv.Itoa(size),
		vars.Root + "=" + j.root, vars.Job + "=e2e." + j.id(), vars.Incarnation + "=1",
		vars.Secret + "=" + hex.EncodeToString([]byte(secret)), vars.Transport + "=" + wire,
		asRank + "=" + o.encode(),
	}
}

// secret is the secret of the jobs whose ranks the test starts.
const secret = "what only these ranks know"

// id returns a name that distinguishes this job from other running jobs.
func (j *job) id() string {
	_, port, _ := net.SplitHostPort(j.root)
	return strconv.Itoa(os.Getpid()) + "." + port
}

func (o instruction) encode() string {
	text, _ := json.Marshal(o) // cannot fail, because all fields are plain
	return string(text)
}

// start starts a process that inherits the descriptors that all processes of a job inherit.
func (j *job) start(cmd *exec.Cmd, third *os.File, env ...string) *process {
	j.t.Helper()
	null, err := os.Open(os.DevNull)
	if err != nil {
		j.t.Fatal(err)
	}
	defer null.Close()
	if third == nil {
		third = null
	}
	n := len(j.inherited) - 2
	cmd.Stdout, cmd.Stderr = j.inherited[n], j.inherited[n+1]
	cmd.ExtraFiles = append([]*os.File{third, null, null, null, null}, j.inherited[:n]...)
	// Without the setting GORACE, each process of a race build ends 1 s late.
	cmd.Env = append(clean(os.Environ()), "GORACE=atexit_sleep_ms=0")
	cmd.Env = append(cmd.Env, env...)
	if err := cmd.Start(); err != nil {
		j.t.Fatal(err)
	}
	p := &process{cmd: cmd, done: make(chan struct{})}
	go func() {
		defer close(p.done)
		cmd.Wait()
	}()
	return p
}

// clean returns an environment without the variables of any job.
func clean(env []string) []string {
	return slices.DeleteFunc(env, func(e string) bool {
		name, _, _ := strings.Cut(e, "=")
		return strings.HasPrefix(name, "TUTTI_") || vars.IsForeignIdentity(name)
	})
}

func self(t *testing.T) string {
	t.Helper()
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// open opens a gate for all ranks, now and later.
func (j *job) open(n int) {
	if j.gate[n] != nil {
		j.gate[n].Close()
		j.gate[n] = nil
	}
}

// events waits until ranks have reported n events of the given name, and returns the events in the
// order of the ranks.
func (j *job) events(name string, n int) []event {
	j.t.Helper()
	var got []event
	ok := j.out.await(limit, func(lines []string) bool {
		got = got[:0]
		for _, line := range lines {
			var e event
			if json.Unmarshal([]byte(line), &e) == nil && e.Name == name {
				got = append(got, e)
			}
		}
		return len(got) >= n
	})
	slices.SortStableFunc(got, func(a, b event) int { return cmp.Compare(a.Rank, b.Rank) })
	if !ok {
		j.t.Fatalf("%d events %q, want %d; the ranks said:\n%v\n%v", len(got), name, n, j.out, j.err)
	}
	return got
}

// warnings waits until n stall warnings of the given call have been logged.
func (j *job) warnings(n int, call string) {
	j.t.Helper()
	j.err.await(limit, func(lines []string) bool { return countLines(lines, "tutti: rank ", call) >= n })
}

// pids waits until n ranks have joined, and returns their processes by rank.
func (j *job) pids(n int) map[int]int {
	j.t.Helper()
	pids := make(map[int]int)
	for _, e := range j.events("joined", n) {
		pids[e.Rank] = e.PID
	}
	return pids
}

// signal signals a process. The returned moment begins just before the signal. For a signal that
// kills, the moment ends once the process has exited.
func (j *job) signal(pid int, s syscall.Signal) moment {
	j.t.Helper()
	d := j.now()
	if err := syscall.Kill(pid, s); err != nil {
		j.t.Fatal(err)
	}
	if s == syscall.SIGKILL {
		j.awaitExit(pid)
		d.after = time.Now()
	}
	return d
}

// wantExit waits for tuttirun, and checks its exit code and the parts of its log.
func (j *job) wantExit(code int, parts ...string) {
	j.t.Helper()
	j.launcher.wantExit(j, code)
	j.closeInherited()
	j.err.await(limit, func([]string) bool { return j.err.ended })
	for _, p := range parts {
		if !strings.Contains(j.err.String(), p) {
			j.t.Errorf("standard error does not say %q", p)
		}
	}
	if j.t.Failed() {
		j.t.Logf("standard error:\n%v", j.err)
	}
}

// wantExit waits for a process and checks its exit code, which is -1 after a signal.
func (p *process) wantExit(j *job, code int) {
	j.t.Helper()
	select {
	case <-p.done:
	case <-time.After(limit):
		j.t.Fatalf("%v does not end; standard error:\n%v", p.cmd.Args, j.err)
	}
	if got := p.cmd.ProcessState.ExitCode(); got != code {
		j.t.Errorf("process %d ended with code %d, want %d", p.cmd.Process.Pid, got, code)
	}
}

// closeInherited closes the test's copies of the pipes that processes inherit. Each pipe then ends
// when the last of these processes ends.
func (j *job) closeInherited() {
	for _, f := range j.inherited {
		f.Close()
	}
	j.inherited = nil
}

// close ends the processes that still run, and checks what the job has left behind.
func (j *job) close() {
	for _, p := range append(slices.Clone(j.ranks), j.launcher) {
		if p != nil {
			p.cmd.Process.Kill() // does nothing if the process has ended
			<-p.done
		}
	}
	j.closeInherited()
	j.lifeline.Close()
	if j.listener != nil {
		j.listener.Close()
	}
	for i := range j.gate {
		j.open(i)
	}
	j.exitPipe.SetReadDeadline(time.Now().Add(limit))
	if _, err := j.exitPipe.Read(make([]byte, 1)); err != io.EOF {
		j.t.Errorf("something that the job started is left: %v", err)
	}
	j.exitPipe.Close()
	j.out.finish()
	j.err.finish()
	j.checkLeftovers()
}

// checkLeftovers checks for files that a job must not leave, and for lines that it must not
// log.
func (j *job) checkLeftovers() {
	for _, name := range shared() {
		if !slices.Contains(j.shm, name) {
			j.t.Errorf("the job has left %s", name)
		}
	}
	logged := j.err.String()
	for _, bad := range []string{"DATA RACE", "fatal error:", "panic:"} {
		if strings.Contains(logged, bad) && !(bad == "panic:" && j.wantPanics) {
			j.t.Errorf("standard error says %q:\n%s", bad, logged)
		}
	}
}

// shared lists the files of this library in shared memory. It omits files of other programs, which
// come and go.
func shared() []string {
	names, _ := filepath.Glob("/dev/shm/*tutti*") // the pattern is well-formed
	return names
}

// An output holds the lines that processes have written to a pipe.
type output struct {
	from *os.File
	done chan struct{}

	mu      sync.Mutex // guards the fields below
	lines   []string
	partial []byte
	ended   bool
	changed chan struct{} // closed when a line is added
}

func record(from *os.File) *output {
	tr := &output{from: from, done: make(chan struct{}), changed: make(chan struct{})}
	go func() {
		defer close(tr.done)
		_, err := io.Copy(tr, from)
		if err != nil && !errors.Is(err, os.ErrClosed) {
			fmt.Fprintln(os.Stderr, "e2e:", err)
		}
		tr.mu.Lock()
		defer tr.mu.Unlock()
		tr.ended = true
		tr.notifyLocked()
	}()
	return tr
}

// Write implements io.Writer.
func (tr *output) Write(b []byte) (int, error) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.partial = append(tr.partial, b...)
	for {
		line, rest, ok := bytes.Cut(tr.partial, []byte("\n"))
		if !ok {
			break
		}
		tr.lines, tr.partial = append(tr.lines, string(line)), rest
	}
	tr.notifyLocked()
	return len(b), nil
}

func (tr *output) notifyLocked() {
	close(tr.changed)
	tr.changed = make(chan struct{})
}

// await returns true as soon as the function enough returns true for the lines. It returns false if
// no more lines come, or if enough does not return true within the given time.
func (tr *output) await(within time.Duration, enough func(lines []string) bool) bool {
	late := time.After(within)
	for {
		tr.mu.Lock()
		ok, ended, more := enough(tr.lines), tr.ended, tr.changed
		tr.mu.Unlock()
		if ok || ended {
			return ok
		}
		select {
		case <-more:
		case <-late:
			return false
		}
	}
}

// count returns the number of lines so far that contain all the given parts.
func (tr *output) count(parts ...string) int {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	return countLines(tr.lines, parts...)
}

func countLines(lines []string, parts ...string) (n int) {
	for _, line := range lines {
		if !slices.ContainsFunc(parts, func(p string) bool { return !strings.Contains(line, p) }) {
			n++
		}
	}
	return n
}

func (tr *output) String() string {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	return strings.Join(tr.lines, "\n")
}

// finish stops recording. It runs after all writers have ended.
func (tr *output) finish() {
	tr.from.SetReadDeadline(time.Now().Add(time.Second))
	<-tr.done
	tr.from.Close()
}
