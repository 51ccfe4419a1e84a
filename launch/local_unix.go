//go:build unix

package launch

import (
	"errors"
	"io"
	"os"
	"slices"
	"syscall"

	"github.com/tutti-go/tutti/internal/cpu"
)

// A localHost is the host that this process runs on. One goroutine owns it. For each process,
// another goroutine waits for the end of the process and sends the exit to exits.
type localHost struct {
	job        string // the name of the job's part; see host.part
	hostName   string // see host.name
	starter    *starter
	guardian   *guardian
	exitRecord *exitRecord
	listener   *os.File // rank 0's listener, until rank 0 has inherited it
	processes  map[int]*localProcess

	exits chan exit
	over  chan struct{} // closed when nothing reads exits any more
}

// A localProcess is a process of a localHost. Its states:
//
//	pid  ended  groupGone  meaning
//	0    false  false      not started
//	>0   false  false      runs
//	>0   true   false      has ended; its group has members, which may be signalled
//	>0   true   true       the group is empty; the kernel may reuse its number, so it gets no signal
type localProcess struct {
	pid         int         // also the number of the process group
	ended       bool        // the owner has received its exit
	groupGone   bool        // the group has no members
	credentials *os.File    // the file that the process has inherited, kept open here; nil if there is none
	joined      *joinedFile // nil if the job has no record of ends

	files [joinedFD + 1]*os.File // what the process inherits, by descriptor; empty once it has started
	own   []*os.File             // the elements of files that this process closes once the child has started
}

// An exit is the end of a process.
type exit struct {
	process int
	status  syscall.WaitStatus
	joined  bool // the process had joined as its rank
}

// statusUnknown is the status of a process whose status is unknown. Its exit code is 255.
const statusUnknown syscall.WaitStatus = 255 << 8

// newLocalHost returns a host without processes, for a job that begins with n of them.
func newLocalHost(job string, n int) *localHost {
	return &localHost{
		job: job, exitRecord: newExitRecord(n), processes: make(map[int]*localProcess),
		// exits has room for the ends of the processes that begin. The end of a process that is started
		// later may find exits full. Closing over unblocks such a send, so that no goroutine is left
		// after the end of the job.
		exits: make(chan exit, n), over: make(chan struct{}),
	}
}

// begin starts the thread that starts processes, and the guardian.
func (h *localHost) begin(guardian string, onLost func(error)) {
	h.starter = newStarter()
	h.guardian = newGuardian(guardian, h.job, onLost)
}

// close stops the starter and the guardian, and closes all files. It is called when the processes
// have ended, or cannot be ended.
func (h *localHost) close() {
	if h.starter != nil {
		h.starter.stop()
		h.guardian.dismiss()
	}
	close(h.over)
	if h.listener != nil {
		h.listener.Close()
	}
	for _, p := range h.processes {
		p.closeFiles()
		if p.credentials != nil {
			p.credentials.Close()
		}
		if p.joined != nil {
			p.joined.Close()
		}
	}
	h.exitRecord.close()
}

// process returns the process with this number. It adds the process if there is none.
func (h *localHost) process(number int) *localProcess {
	p := h.processes[number]
	if p == nil {
		p = new(localProcess)
		h.processes[number] = p
	}
	return p
}

// closeFiles closes this process's copies of the child's files, once the child has started or
// cannot be started.
func (p *localProcess) closeFiles() {
	for _, f := range p.own {
		f.Close()
	}
	p.own, p.files = nil, [joinedFD + 1]*os.File{}
}

// give makes f a descriptor of a process. closeFiles closes f here.
func (p *localProcess) give(fd int, f *os.File) {
	p.files[fd], p.own = f, append(p.own, f)
}

func (h *localHost) name() string { return h.hostName }

func (h *localHost) part() string { return h.job }

func (h *localHost) open(process, id int) (stream, error) {
	p := h.process(process)
	if id == pmiFD || id == storeFD {
		conn, theirs, err := socketPair("rank")
		if err != nil {
			return nil, err
		}
		p.give(id, theirs)
		return conn, nil
	}
	ours, theirs, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	if id == 0 {
		p.give(id, ours)
		return theirs, nil
	}
	p.give(id, theirs)
	return &tail{File: ours}, nil
}

func (h *localHost) inherit(process, id int, f *os.File) bool {
	h.process(process).files[id] = f
	return true
}

func (h *localHost) start(s *spec) (int, *startError) {
	p := h.process(s.process)
	defer p.closeFiles()
	if s.program == "" {
		if err := s.find(); err != nil {
			return 0, err
		}
	}
	if err := h.complete(p, s); err != nil {
		return 0, startFailure(s.args[0], "", err)
	}
	attr := &os.ProcAttr{Dir: s.dir, Env: s.env, Files: p.files[:], Sys: rankAttr()}
	if h.exitRecord != nil {
		attr.Env = append(slices.Clip(attr.Env), exitsSettings()...)
	}
	var child *os.Process
	var err error
	// The parent-death signal is tied to the thread that forks, so the starter's thread forks all
	// ranks.
	start := func() error {
		child, err = os.StartProcess(s.program, s.args, attr)
		return err
	}
	h.starter.do(func() {
		if s.cpus == nil {
			err = start()
		} else {
			err = cpu.WithThreads(s.cpus, start)
		}
	})
	if err != nil {
		return 0, startFailure(s.args[0], s.dir, err)
	}
	p.pid = child.Pid
	h.guardian.add(p.pid)
	if s.listener {
		// Only rank 0 holds the listener from now on. After rank 0 ends, the kernel refuses
		// connections to the port at once.
		h.listener.Close()
		h.listener = nil
	}
	go h.wait(s.process, child, p.joined)
	return p.pid, nil
}

// find looks the program up, by the PATH of the process's own environment, which -x may have set.
func (s *spec) find() (err *startError) {
	if s.dir != "" && !isDir(s.dir) {
		return &startError{exitNotRunning, s.args[0] + ": the working directory " + s.dir + " does not exist"}
	}
	path, _ := lookup(s.env, "PATH")
	program, e := findProgram(s.args[0], s.dir, path)
	if s.program = program; e != nil && !errors.As(e, &err) {
		err = &startError{exitNotRunning, e.Error()}
	}
	return err
}

// complete adds the files that all processes inherit, and the files that the spec asks for.
func (h *localHost) complete(p *localProcess, s *spec) error {
	if p.files[0] == nil {
		null, err := os.Open(os.DevNull)
		if err != nil {
			return err
		}
		p.give(0, null)
	}
	if s.merge {
		p.files[2] = p.files[1]
	}
	if s.credentials != nil {
		f, err := privateFile(s.credentials)
		if err != nil {
			return err
		}
		p.credentials, p.files[secretFD] = f, f // stays open; see calledInit
	}
	if h.exitRecord != nil {
		j, err := newJoinedFile()
		if err != nil {
			return err
		}
		p.joined, p.files[joinedFD] = j, j.File // stays open until wait has read it
		p.files[exitsFD] = h.exitRecord.inherited()
	}
	if s.listener {
		p.files[listenFD] = h.listener
	}
	return nil
}

// wait waits until a process has ended, records its end, and sends its exit status to the owner. It
// closes joined, which is nil if nobody records ends.
func (h *localHost) wait(process int, child *os.Process, joined *joinedFile) {
	state, err := child.Wait()
	// If the rank is no longer a child of this process, its status is unknown.
	e := exit{process: process, status: statusUnknown}
	if err == nil {
		if e.joined = joined != nil && joined.by(child.Pid); e.joined {
			h.exitRecord.add(process)
		}
		e.status = state.Sys().(syscall.WaitStatus)
	}
	if joined != nil {
		joined.Close()
	}
	select {
	case h.exits <- e:
	case <-h.over:
	}
}

// received marks a process as ended. The owner calls it when it has received the exit.
func (h *localHost) received(e exit) {
	p := h.processes[e.process]
	p.ended = true
	h.updateGroup(p)
}

// updateGroup checks whether the process group of a process is empty. If so, the kernel may reuse
// the group's number. From then on neither this process nor the guardian sends a signal to the
// number.
func (h *localHost) updateGroup(p *localProcess) {
	if p.ended && !p.groupGone && !groupAlive(p.pid) {
		p.groupGone = true
		h.guardian.remove(p.pid)
	}
}

func (h *localHost) grow(n int) { h.exitRecord.grow(n) }

func (h *localHost) died(process int) { h.exitRecord.add(process) }

func (h *localHost) signal(process int, s syscall.Signal) {
	if p := h.process(process); p.pid != 0 && !p.groupGone {
		signalGroup(p.pid, s)
	}
}

func (h *localHost) signalAll(s syscall.Signal, detached bool) {
	groups := h.groups()
	// A process group includes the children of its rank.
	for pgid := range groups {
		signalGroup(pgid, s)
	}
	if detached {
		signalDetached(groups, h.job, s)
	}
}

// groups returns the IDs of the process groups that may still have processes.
func (h *localHost) groups() map[int]bool {
	groups := make(map[int]bool)
	for _, p := range h.processes {
		if p.pid != 0 && !p.groupGone {
			groups[p.pid] = true
		}
	}
	return groups
}

// calledInit uses the file of the credentials. Init reads the file, which moves the file's
// position. This process has the same open file, and so sees the position. If the credentials are a
// pipe, the answer is unknown.
func (h *localHost) calledInit(process int) initState {
	p := h.processes[process]
	if p == nil || p.credentials == nil {
		return initUnknown
	}
	at, err := p.credentials.Seek(0, io.SeekCurrent)
	switch {
	case err != nil:
	case at > 0:
		return initCalled
	case p.groupGone:
		return initNever
	}
	return initUnknown
}

func (h *localHost) left() (names []string) {
	for _, p := range h.processes {
		h.updateGroup(p)
	}
	for _, p := range membersOf(h.groups(), h.job) {
		names = append(names, p.String())
	}
	return names
}
