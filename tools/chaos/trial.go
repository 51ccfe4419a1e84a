package main

import (
	"bufio"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/tutti-go/tutti/internal/vars"
)

// asRank holds the instruction of a process that is a rank.
const asRank = "TUTTI_CHAOS_RANK"

// Limits of a trial.
const (
	reportLimit = 5 * time.Second  // from the kill to the report of every other rank
	startLimit  = 30 * time.Second // for all processes to begin
	maxPause    = 400 * time.Millisecond
	stay        = 300 * time.Millisecond // how long a rank with the reaction "stay" goes on after its error
)

// An instruction tells a rank what to run.
type instruction struct {
	Program  string
	Reaction string // what the rank does after its first error
	Seed     uint64 // seeds the sizes and the sequence of calls; equal on all ranks
}

// A trial is one job with one kill.
type trial struct {
	instruction
	seed   uint64
	number int
	wire   string
	ranks  int
	victim int
	pause  time.Duration // the time to the kill, counted from when all processes have begun, or have joined
	inInit bool          // the pause begins before Init
}

// newTrial makes the choices of a trial.
func newTrial(seed uint64, number int) *trial {
	rng := rand.New(rand.NewPCG(seed, uint64(number)))
	t := &trial{seed: seed, number: number}
	t.wire = transports()[rng.IntN(len(transports()))]
	t.ranks = 2 + rng.IntN(6)
	t.victim = rng.IntN(t.ranks)
	t.Program = programNames()[rng.IntN(len(programNames()))]
	t.Reaction = reactions()[rng.IntN(len(reactions()))]
	t.pause = time.Duration(rng.Int64N(int64(maxPause)))
	t.inInit = rng.IntN(8) == 0
	t.Seed = rng.Uint64()
	return t
}

func transports() []string { return []string{"shm", "tcp", "grpc", "auto"} }

// reactions returns what programs do after an error: close in order, exit at once, or go on for a
// short time and then close.
func reactions() []string { return []string{"close", "exit", "stay"} }

// String returns the choices, and the arguments that repeat them.
func (t *trial) String() string {
	phase := "calls"
	if t.inInit {
		phase = "init"
	}
	return fmt.Sprintf("-seed %d -only %d: %s, %d ranks, %s, then %s; rank %d killed after %v in %s",
		t.seed, t.number, t.wire, t.ranks, t.Program, t.Reaction, t.victim, t.pause.Round(time.Millisecond), phase)
}

// An event is a line that a rank writes.
type event struct {
	Name    string // begun, joined, error, wrong, goroutines, done
	Time    int64  // in ns, by the clock of the host
	Op      string
	Kind    string
	Peers   []int
	Text    string
	Program bool // the error came from the program, and not from Close
}

// An outcome says how a rank has ended.
type outcome struct {
	events []event
	ended  bool // the rank ended by itself, within the limit
	code   int
	stderr string
}

// A result is what a trial has observed.
type result struct {
	killed   time.Time
	outcomes []outcome // indexed by rank
	left     []string  // files in /dev/shm
	err      error     // the trial could not be run
}

// A process is a rank under observation.
type process struct {
	cmd    *exec.Cmd
	stderr strings.Builder
	done   chan struct{} // closed when the process has ended, and all of its output has been read

	mu     sync.Mutex // guards the fields below
	events []event
	seen   chan struct{} // closed at each event
}

// run runs the trial. It leaves no process behind.
func (t *trial) run() *result {
	res := &result{outcomes: make([]outcome, t.ranks)}
	before := sharedFiles()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		res.err = err
		return res
	}
	listener, err := l.(*net.TCPListener).File()
	root := l.Addr().String()
	l.Close()
	if err != nil {
		res.err = err
		return res
	}
	defer listener.Close()
	var ps []*process
	defer func() {
		for _, p := range ps {
			p.cmd.Process.Kill() // does nothing if the process has ended
			<-p.done
		}
	}()
	for r := range t.ranks {
		p, err := t.start(r, root, listener)
		if err != nil {
			res.err = err
			return res
		}
		ps = append(ps, p)
	}
	listener.Close()
	first := "joined"
	if t.inInit {
		first = "begun"
	}
	late := time.After(startLimit)
	for r, p := range ps {
		if !p.await(first, late) {
			res.err = fmt.Errorf("rank %d has not %s: %v\n%s", r, first, p.copyEvents(), p.stderr.String())
			return res
		}
	}
	time.Sleep(t.pause)
	res.killed = time.Now()
	ps[t.victim].cmd.Process.Signal(syscall.SIGKILL)
	over := time.After(reportLimit + stay + time.Second) // a rank must report in time, and then close
	for r, p := range ps {
		o := &res.outcomes[r]
		select {
		case <-p.done:
			o.ended, o.code = true, p.cmd.ProcessState.ExitCode()
		case <-over:
			over = time.After(0)
		}
		if !o.ended { // its stacks show where the rank hangs
			p.cmd.Process.Signal(syscall.SIGQUIT)
			select {
			case <-p.done:
			case <-time.After(time.Second):
				p.cmd.Process.Kill()
				<-p.done
			}
		}
		o.events, o.stderr = p.copyEvents(), p.stderr.String()
	}
	for _, name := range sharedFiles() {
		if !slices.Contains(before, name) {
			res.left = append(res.left, name)
		}
	}
	return res
}

// start starts a rank.
func (t *trial) start(r int, root string, listener *os.File) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	text, _ := json.Marshal(t.instruction) // cannot fail, because all fields are plain
	p := &process{cmd: exec.Command(self), done: make(chan struct{}), seen: make(chan struct{})}
	p.cmd.Stderr = &p.stderr
	_, port, _ := net.SplitHostPort(root)
	p.cmd.Env = append(slices.DeleteFunc(os.Environ(), func(e string) bool { return strings.HasPrefix(e, "TUTTI_") }),
		vars.Rank+"="+strconv.Itoa(r), vars.Size+"="+strconv.Itoa(t.ranks),
		vars.LocalRank+"="+strconv.Itoa(r), vars.LocalSize+"="+strconv.Itoa(t.ranks),
		vars.Root+"="+root, vars.Job+"=chaos."+strconv.Itoa(os.Getpid())+"."+port,
		vars.Secret+"="+hex.EncodeToString([]byte("the secret of this trial")), vars.Transport+"="+t.wire,
		asRank+"="+string(text))
	if r == 0 {
		p.cmd.ExtraFiles = []*os.File{listener}
		p.cmd.Env = append(p.cmd.Env, vars.ListenFD+"=3")
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		defer close(p.done)
		p.read(out)
		p.cmd.Wait()
	}()
	return p, nil
}

// read records the events until the rank closes its output.
func (p *process) read(from io.Reader) {
	lines := bufio.NewScanner(from)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var e event
		if json.Unmarshal(lines.Bytes(), &e) != nil {
			e = event{Name: "wrong", Text: "unreadable: " + lines.Text()}
		}
		p.mu.Lock()
		p.events = append(p.events, e)
		close(p.seen)
		p.seen = make(chan struct{})
		p.mu.Unlock()
	}
}

func (p *process) copyEvents() []event {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.events)
}

// await returns true once the rank has reported an event of the given name.
func (p *process) await(name string, late <-chan time.Time) bool {
	for {
		p.mu.Lock()
		found, seen := slices.ContainsFunc(p.events, func(e event) bool { return e.Name == name }), p.seen
		p.mu.Unlock()
		if found {
			return true
		}
		select {
		case <-seen:
		case <-p.done:
			return slices.ContainsFunc(p.copyEvents(), func(e event) bool { return e.Name == name })
		case <-late:
			return false
		}
	}
}

// sharedFiles returns the files of this library in shared memory.
func sharedFiles() []string {
	names, _ := filepath.Glob("/dev/shm/*tutti*") // cannot fail, because the pattern is well-formed
	return names
}
