//go:build unix

package launch

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// guardianName is argv[0] of the guardian. Main runs as the guardian if its argv[0] has this
// value. Because the name differs from "tuttirun", "killall tuttirun" does not kill the
// guardian.
const guardianName = "tutti-guardian"

// guardianFD is the guardian's end of the pipe. The guardian's arguments are the job's name, and the
// process groups and the directory that exist when it starts. The lines in the pipe are "+GROUP" to
// add a process group, "-GROUP" to remove a process group, "/..." to name the directory, and "bye"
// when the guardian is no longer needed.
const guardianFD = 3

// A guardian is the launcher's side of the process that ends the job if the launcher is killed. If
// the guardian process itself is killed, it is started again, at most three times. Any goroutine
// may call its methods, on a nil guardian too.
//
//	pipe    dismissed  the process
//	a pipe  false      runs, or has just ended and is being restarted by watch
//	a pipe  true       has been told to end; ended is closed once it has
//	nil     any        there is none, and onLost has been called
//
// The guardian is started before the first rank. The kernel closes the launcher's end of the pipe
// whenever the launcher ends. The guardian reads all lines before it sees the end of the pipe, so
// it knows the process group of every rank that add has reported. Between the start of a rank and
// the call of add, the guardian does not know the rank's process group. During this time, on Linux,
// the parent-death signal and the job's name in the environment ensure that the rank is killed.
type guardian struct {
	program string
	job     string
	onLost  func(error) // called when the last guardian is lost

	mu        sync.Mutex // guards the fields below
	pipe      *os.File   // nil without a guardian
	process   *os.Process
	groups    map[int]bool
	dir       string // removed if the launcher is killed; "" if there is none
	dismissed bool
	ended     chan struct{} // closed when the current process has ended
	starts    int           // the number of processes started so far
}

// newGuardian starts the guardian of a job. The argument program is the file to run as the
// guardian. If it is "", newGuardian returns nil, and the job has no guardian.
func newGuardian(program, job string, onLost func(error)) *guardian {
	if program == "" {
		return nil
	}
	g := &guardian{program: program, job: job, onLost: onLost, groups: make(map[int]bool)}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.startLocked()
	return g
}

// startLocked starts the process. If the start fails, the job continues without a guardian.
func (g *guardian) startLocked() {
	g.starts++
	p, pipe, err := g.fork()
	if err != nil {
		g.pipe = nil
		g.onLost(err)
		return
	}
	g.process, g.pipe, g.ended = p, pipe, make(chan struct{})
	go g.watch(p, pipe, g.ended)
}

// fork starts the process. The guardian runs in its own session, so signals from the terminal and
// signals to the launcher's process group do not reach it. It inherits only the pipe. Its
// environment lacks the job's name, because it kills every process whose environment has that name.
func (g *guardian) fork() (*os.Process, *os.File, error) {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, nil, err
	}
	defer null.Close()
	from, to, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	defer from.Close()
	// The process groups are passed as arguments. Lines in the pipe might be read too late, or be
	// lost when a guardian is killed.
	args := []string{guardianName, g.job}
	for pgid := range g.groups {
		args = append(args, strconv.Itoa(pgid))
	}
	if g.dir != "" {
		args = append(args, g.dir)
	}
	p, err := os.StartProcess(g.program, args, &os.ProcAttr{
		Dir: "/", Env: []string{}, Files: []*os.File{null, null, null, from},
		Sys: &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		to.Close()
		return nil, nil, err
	}
	return p, to, nil
}

// watch waits for one guardian process, and starts the next one unless it was dismissed.
func (g *guardian) watch(p *os.Process, pipe *os.File, ended chan struct{}) {
	state, err := p.Wait()
	pipe.Close()
	close(ended)
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	// The job has ended, or is ending: no guardian is needed.
	case g.dismissed:
	// A user may have killed the guardian by mistake, so it is restarted. After three restarts
	// watch gives up, because something kills every guardian.
	case err == nil && g.starts < 4:
		g.startLocked()
	default:
		g.pipe = nil
		if err == nil {
			err = fmt.Errorf("its process ended %d times, most recently with %v", g.starts, state)
		}
		g.onLost(err)
	}
}

// add tells the guardian about a process group. The guardian kills the group if the launcher ends
// without sending "bye".
func (g *guardian) add(pgid int) {
	g.update(fmt.Sprintf("+%d", pgid), func() { g.groups[pgid] = true })
}

// remove tells the guardian to forget a process group whose last process has ended, because the
// kernel may reuse the number.
func (g *guardian) remove(pgid int) {
	g.update(fmt.Sprintf("-%d", pgid), func() { delete(g.groups, pgid) })
}

// keep tells the guardian about a directory, whose path is absolute and has no newline. The guardian
// removes the directory when it has killed the job.
func (g *guardian) keep(dir string) {
	g.update(dir, func() { g.dir = dir })
}

// update records a change, so that later guardians start with it, and sends the line that describes
// the change to the present guardian. It may be called on nil.
func (g *guardian) update(line string, change func()) {
	if g == nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	change()
	g.sendLocked(line)
}

// sendLocked writes a line. If the guardian has just ended, the write is lost, but watch passes all
// current process groups to the next guardian. The pipe holds more than a job writes, so this does
// not block.
func (g *guardian) sendLocked(line string) {
	if g.pipe != nil {
		fmt.Fprintln(g.pipe, line)
	}
}

// dismiss tells the guardian to end, and waits until it has ended. It kills a guardian that does
// not end, for example because a signal has stopped it.
func (g *guardian) dismiss() {
	if g == nil {
		return
	}
	g.mu.Lock()
	g.dismissed = true
	g.sendLocked("bye")
	none, now, ended := g.pipe == nil, g.process, g.ended
	g.mu.Unlock()
	if none {
		return
	}
	// A guardian that is stopped (SIGSTOP) does not read "bye".
	late := time.AfterFunc(killAfter, func() { now.Kill() })
	defer late.Stop()
	<-ended
}

// guardJob is the guardian process. It waits for the end of the pipe. If it has not read "bye" by
// then, it kills what is left of the job.
func guardJob(job string, left *remains, in io.Reader) int {
	if bye := left.watchPipe(in); bye {
		return 0
	}
	killed := killJob(job, left.groups)
	if left.dir != "" && os.RemoveAll(left.dir) != nil || !killed {
		return 1
	}
	return 0
}

// remains holds what a guardian kills and removes.
type remains struct {
	groups map[int]bool
	dir    string // "" if there is none
}

// killJob kills the processes of a job, and reports whether none is left.
func killJob(job string, groups map[int]bool) bool {
	// A process that forks while it is being killed may leave a child. The loop therefore looks
	// again until it finds nothing. The number of rounds is limited, because a process may survive
	// KILL.
	for range 100 {
		for pgid := range groups {
			signalGroup(pgid, syscall.SIGKILL)
		}
		signalDetached(groups, job, syscall.SIGKILL)
		if len(membersOf(groups, job)) == 0 {
			return true
		}
		time.Sleep(10 * time.Millisecond)
	}
	return false
}

// watchPipe applies the launcher's lines until "bye" or the end of the pipe. It reports whether it
// has read "bye".
func (l *remains) watchPipe(in io.Reader) (bye bool) {
	for lines := bufio.NewScanner(in); lines.Scan(); {
		line := lines.Text()
		if line == "bye" {
			return true
		}
		switch pgid := groupIn(strings.TrimLeft(line, "+-")); {
		case strings.HasPrefix(line, "/"):
			l.dir = line
		case pgid == 0:
		case line[0] == '+':
			l.groups[pgid] = true
		case line[0] == '-':
			delete(l.groups, pgid)
		}
	}
	return false
}

// groupIn parses a process group's number. It returns 0 if the text is not a valid number. Numbers
// below 2 are not valid, because they would signal the guardian's own process group, or every
// process.
func groupIn(text string) int {
	pgid, err := strconv.Atoi(text)
	if err != nil || pgid < 2 {
		return 0
	}
	return pgid
}

// guardMain is Main in a process that was started as the guardian. The parameter args holds the
// arguments after the program's name.
func guardMain(args []string) int {
	signal.Ignore(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGPIPE)
	in := os.NewFile(guardianFD, "launcher")
	if info, err := in.Stat(); err != nil || info.Mode()&os.ModeNamedPipe == 0 || len(args) == 0 || args[0] == "" {
		fmt.Fprintln(os.Stderr, guardianName+": only tuttirun may start this process")
		return exitUsage
	}
	nameProcess(guardianName)
	left := remains{groups: make(map[int]bool)}
	for _, a := range args[1:] {
		if pgid := groupIn(a); pgid != 0 {
			left.groups[pgid] = true
		} else if strings.HasPrefix(a, "/") {
			left.dir = a
		}
	}
	return guardJob(args[0], &left, in)
}
