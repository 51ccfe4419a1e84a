//go:build linux

package main

import (
	"bufio"
	"bytes"
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

	"github.com/tutti-go/tutti/internal/test/relay"
	"github.com/tutti-go/tutti/internal/test/starved"
	"github.com/tutti-go/tutti/internal/vars"
)

// asRank is the environment variable that makes a process a rank, and holds its instruction.
const asRank = "TUTTI_CHAOS_RANK"

// Limits of a trial.
const (
	startLimit = 30 * time.Second // for the start of all processes
	maxPause   = 400 * time.Millisecond
	stay       = 300 * time.Millisecond // how long a rank with the reaction "stay" goes on after its error
	closeLimit = 5 * time.Second        // for Close
)

// An instruction tells a rank what to run.
type instruction struct {
	Program  string
	Reaction string // what the rank does after its first error
	Seed     uint64 // seeds the sizes and the sequence of calls; equal on all ranks
	Ends     bool   // rank 0 will be told to end the program
	Patient  bool   // Init and calls may take as long as they need: the ranks get little processor time

	// The fields below say which faults the ranks inject themselves; see faults. Zero values inject
	// nothing.
	Redial      time.Duration // the time of WithRedial; 0: without WithRedial
	Relayed     bool          // dial through relays, over Wire
	Wire        string
	Lie         relay.Fault // what the relays between Victim and Other do, in one direction
	Frame       int         // the number of the altered frame
	Up          bool        // the direction is from the dialling rank to the other one
	Checksums   bool        // the ranks verify checksums of bodies
	Descriptors int         // how many more descriptors Victim may open than it has at its start; 0: any number
	Victim      int
	Other       int
}

// A trial is one job with one fault.
type trial struct {
	instruction
	fault         *injection
	seed          uint64
	number        int
	wire          string
	ranks         int
	victim, other int
	pause         time.Duration // the time from the event trial.first to the fault
	inInit        bool          // the pause begins before Init, so the fault may occur during Init
	lasts         time.Duration // how long the fault lasts
	recorded      bool          // the ranks inherit a record of ends, as from tuttirun
	hosts         int           // the number of pseudo-hosts on which the ranks run; 0: they run on this host
	lab           *lab          // these hosts, while the trial runs
}

// newTrial makes the choices of a trial.
func newTrial(f *injection, seed uint64, number int) *trial {
	index := slices.IndexFunc(faults(), func(g *injection) bool { return g.name == f.name })
	rng := rand.New(rand.NewPCG(seed, uint64(index)<<32|uint64(number)))
	t := &trial{fault: f, seed: seed, number: number}
	t.wire = f.wires[rng.IntN(len(f.wires))]
	t.ranks = 2 + rng.IntN(6)
	t.victim = rng.IntN(t.ranks)
	t.Program = programNames()[rng.IntN(len(programNames()))]
	t.Reaction = reactions()[rng.IntN(len(reactions()))]
	t.pause = random(rng, maxPause)
	t.inInit = rng.IntN(8) == 0
	t.Seed = rng.Uint64()
	if index == 0 {
		f.choose(t, rng)
		return t
	}
	t.ranks = 2 + t.ranks%4 // several jobs of this fault run at the same time
	t.victim %= t.ranks
	t.other = (t.victim + 1 + rng.IntN(t.ranks-1)) % t.ranks
	t.inInit = false
	t.Victim, t.Other, t.Ends, t.Relayed = t.victim, t.other, f.rest > 0, f.link || f.name == "delay" || f.name == "reset"
	if f.choose != nil {
		f.choose(t, rng)
	}
	return t
}

func transports() []string { return []string{"shm", "tcp", "grpc", "auto"} }

// reactions returns what programs may do after an error: call Close, exit at once, or continue for
// a short time and then call Close.
func reactions() []string { return []string{"close", "exit", "stay"} }

// String returns the choices, and the arguments that repeat them.
func (t *trial) String() string {
	phase := "calls"
	if t.inInit {
		phase = "init"
	}
	text := fmt.Sprintf("-seed %d -faults %s -only %d: %s, %d ranks, %s, then %s; rank %d %s after %v in %s",
		t.seed, t.fault.name, t.number, t.wire, t.ranks, t.Program, t.Reaction, t.victim, t.fault.name, t.pause.Round(time.Millisecond), phase)
	switch {
	case t.Lie != "":
		text += fmt.Sprintf("; frame %d to or from rank %d, up %v, checksums %v", t.Frame, t.other, t.Up, t.Checksums)
	case t.Relayed && t.fault.name != "reset":
		text += fmt.Sprintf("; the link to rank %d", t.other)
	case t.Descriptors > 0:
		text += fmt.Sprintf("; %d descriptors", t.Descriptors)
	}
	if t.Redial > 0 {
		text += fmt.Sprintf(", WithRedial(%v)", t.Redial)
	}
	if t.recorded {
		text += ", ends recorded"
	}
	if t.hosts > 0 {
		text += fmt.Sprintf(", on %d hosts", t.hosts)
	}
	if t.lasts > 0 {
		text += fmt.Sprintf(", for %v", t.lasts.Round(time.Millisecond))
	}
	return text
}

// An event is a line that a rank writes.
type event struct {
	Name    string // begun, joined, altered, error, shrunk, wrong, goroutines, descriptors, done
	Rank    int    // the rank's number in its launcher's environment
	Pid     int
	Time    int64 // in ns, by the clock of the host
	Starved int64 // in ns: how long the process has waited for a processor so far
	Op      string
	Kind    string
	Peers   []int
	Waited  []int // the rank that the failed call has waited for; empty if it needs all ranks
	Text    string
}

// A command is a line that a rank reads.
type command struct {
	Do  string // cut, hold, silence, shortage, end
	To  int    // the other end of the link
	For time.Duration
}

// An outcome says how a rank ended.
type outcome struct {
	events  []event
	ended   bool // the rank ended by itself, within the limit
	code    int
	stderr  string
	starved time.Duration // how long the process had waited for a processor when the fault was injected
}

// A result is what a trial has observed.
type result struct {
	injected time.Time
	over     time.Time // the end of the injection
	outcomes []outcome // indexed by rank
	err      error     // the trial could not be run
}

// A process is a rank under observation.
type process struct {
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	stderr strings.Builder
	done   chan struct{} // closed when the process has ended and all of its output has been read

	mu     sync.Mutex // guards the fields below
	events []event
	seen   chan struct{} // closed at each event
}

// signal sends a signal. It does nothing if the process has ended.
func (p *process) signal(s syscall.Signal) { p.cmd.Process.Signal(s) }

// order sends a command. It does nothing if the rank has ended.
func (p *process) order(c command) {
	line, _ := json.Marshal(c) // cannot fail, because all fields are plain
	p.stdin.Write(append(line, '\n'))
}

// run runs the trial. It returns when all processes of the trial have ended.
func (t *trial) run() *result {
	if t.Program == rejoins {
		return t.runLaunched()
	}
	res := &result{outcomes: make([]outcome, t.ranks)}
	var m meeting
	defer m.close()
	if res.err = t.prepare(&m); res.err != nil {
		return res
	}
	var ps []*process
	defer func() {
		for _, p := range ps {
			p.cmd.Process.Kill() // does nothing if the process has ended
			<-p.done
		}
	}()
	for r := range t.ranks {
		p, err := t.start(r, &m)
		if err != nil {
			res.err = err
			return res
		}
		ps = append(ps, p)
	}
	m.listener.Close() // rank 0 has it
	first := t.first()
	late := time.After(startLimit)
	for r, p := range ps {
		if !p.await(first, late) {
			res.err = fmt.Errorf("rank %d has not %s: %v\n%s", r, first, p.copyEvents(), p.stderr.String())
			return res
		}
	}
	time.Sleep(t.pause)
	for r, p := range ps {
		res.outcomes[r].starved = starved.Of(p.cmd.Process.Pid)
	}
	res.injected = time.Now()
	if t.fault.inject != nil {
		t.fault.inject(t, ps)
	}
	res.over = time.Now()
	if t.Ends {
		time.Sleep(t.fault.rest)
		ps[0].order(command{Do: "end"})
	}
	t.awaitEnds(ps, res)
	return res
}

// first returns the name of an event. The pause before the fault begins when all ranks have
// reported this event.
func (t *trial) first() string {
	if t.inInit || t.Lie != "" {
		return "begun"
	}
	return "joined"
}

// awaitEnds waits until all ranks have ended, and collects their outcomes. It sends SIGQUIT to
// ranks that are late, so that their stacks show where they hang.
func (t *trial) awaitEnds(ps []*process, res *result) {
	// A rank must report in time, and then close.
	over := time.After(t.limit() + stay + closeLimit + startLimit)
	for r, p := range ps {
		o := &res.outcomes[r]
		select {
		case <-p.done:
			o.ended, o.code = true, p.cmd.ProcessState.ExitCode()
		case <-over:
			over = time.After(0)
		}
		if !o.ended { // the stacks show where the rank hangs
			p.signal(syscall.SIGQUIT)
			select {
			case <-p.done:
			case <-time.After(time.Second):
				p.cmd.Process.Kill()
				<-p.done
			}
		}
		o.events, o.stderr = p.copyEvents(), p.stderr.String()
	}
}

// A meeting holds what the director has prepared for the ranks of a trial.
type meeting struct {
	root     string   // the address at which rank 0 listens
	listener *os.File // rank 0 inherits it; nil: rank 0 opens root itself
	ends     *os.File // the record of ends; nil: nobody records ends
	lab      *lab     // nil: all ranks run on this host
}

// prepare fills in m. The caller closes m, even after an error.
func (t *trial) prepare(m *meeting) (err error) {
	if t.recorded {
		if m.ends, err = newRecord(vars.ExitsMagic, vars.ExitsSize(t.ranks)); err != nil {
			return err
		}
	}
	if t.hosts > 0 {
		m.root = rootOnHost0
		t.lab, err = newLab(t.hosts)
		m.lab = t.lab
		return err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer l.Close()
	m.root = l.Addr().String()
	m.listener, err = l.(*net.TCPListener).File()
	return err
}

// close releases what the director still has.
func (m *meeting) close() {
	m.listener.Close() // does nothing if it is nil or closed
	m.ends.Close()
	if m.lab != nil {
		m.lab.down()
	}
}

// newRecord returns a file without a name, as tuttirun's ranks inherit them: the magic, and zeroes
// up to the given size.
func newRecord(magic string, size int) (*os.File, error) {
	f, err := os.CreateTemp("", "chaos-ends")
	if err != nil {
		return nil, err
	}
	if err = os.Remove(f.Name()); err == nil {
		_, err = f.WriteString(magic)
	}
	if err == nil {
		err = f.Truncate(int64(size))
	}
	if err != nil {
		f.Close()
	}
	return f, err
}

// start starts a rank. If there is a record of ends, the rank inherits it, and start records the
// end of the rank in it, if the rank has called Init.
func (t *trial) start(r int, m *meeting) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self)
	env := t.environment()
	if m.lab != nil {
		cmd = m.lab.command(t.hostOf(r), self)
		env = append(env, m.lab.setting())
	}
	local, localSize := t.localRank(r)
	cmd.Env = append(env,
		vars.Rank+"="+strconv.Itoa(r), vars.Size+"="+strconv.Itoa(t.ranks),
		vars.LocalRank+"="+strconv.Itoa(local), vars.LocalSize+"="+strconv.Itoa(localSize),
		vars.Root+"="+m.root, vars.Job+"="+fmt.Sprintf("chaos.%d.%s.%d", os.Getpid(), t.fault.name, t.number),
		vars.Secret+"="+hex.EncodeToString([]byte("the secret of this trial")))
	if !t.Relayed {
		cmd.Env = append(cmd.Env, vars.Transport+"="+t.wire)
	}
	if r == 0 && m.listener != nil {
		cmd.ExtraFiles = []*os.File{m.listener}
		cmd.Env = append(cmd.Env, vars.ListenFD+"=3")
	}
	if m.ends == nil {
		return begin(cmd)
	}
	joined, err := newRecord(vars.JoinedMagic, vars.JoinedSize)
	if err != nil {
		return nil, err
	}
	cmd.ExtraFiles = append(cmd.ExtraFiles, m.ends, joined)
	last := 2 + len(cmd.ExtraFiles)
	cmd.Env = append(cmd.Env, vars.ExitsFD+"="+strconv.Itoa(last-1), vars.JoinedFD+"="+strconv.Itoa(last))
	p, err := begin(cmd)
	if err != nil {
		joined.Close()
		return nil, err
	}
	go func() {
		defer joined.Close()
		<-p.done
		id := make([]byte, 4)
		if joined.ReadAt(id, int64(len(vars.JoinedMagic))); !bytes.Equal(id, make([]byte, 4)) {
			m.ends.WriteAt([]byte{1}, int64(vars.ExitsSize(r)))
		}
	}()
	return p, nil
}

// environment returns the variables that are equal for all ranks. They contain the trial's
// instruction.
func (t *trial) environment() []string {
	t.Wire = t.wire
	text, _ := json.Marshal(t.instruction) // cannot fail, because all fields are plain
	env := slices.DeleteFunc(os.Environ(), func(e string) bool { return strings.HasPrefix(e, "TUTTI_") })
	return append(env, asRank+"="+string(text))
}

// begin starts a process, and records its events.
func begin(cmd *exec.Cmd) (p *process, err error) {
	p = &process{cmd: cmd, done: make(chan struct{}), seen: make(chan struct{})}
	p.cmd.Stderr = &p.stderr
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
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
		line := lines.Bytes()
		if json.Unmarshal(line[max(0, bytes.IndexByte(line, '{')):], &e) != nil { // tuttirun puts a tag before it
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

// await waits for one event; see awaitMany.
func (p *process) await(name string, late <-chan time.Time) bool { return p.awaitMany(name, 1, late) }

// awaitMany waits until the process has reported n events of the given name. It returns false if
// the process ends first, or if the channel late delivers a value first.
func (p *process) awaitMany(name string, n int, late <-chan time.Time) bool {
	for {
		p.mu.Lock()
		found, seen := 0, p.seen
		for _, e := range p.events {
			if e.Name == name {
				found++
			}
		}
		p.mu.Unlock()
		if found >= n {
			return true
		}
		select {
		case <-seen:
		case <-p.done:
			p.mu.Lock()
			last := p.seen == seen
			p.mu.Unlock()
			if last {
				return false
			}
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
