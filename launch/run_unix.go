//go:build unix

package launch

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"
)

// drainPoll is how often the launcher looks for what ranks left behind, once
// the last one has ended and something is there.
const drainPoll = 20 * time.Millisecond

// A run is one job under way. The goroutine in Run owns all of it; others only
// send it what they saw.
type run struct {
	job       *Job
	info      jobInfo
	ranks     []*rank
	policy    *policy
	startedAt time.Time

	out, err *lineWriter
	starter  *starter
	guardian *guardian
	listener *os.File // rank 0's, until it has it
	copiers  sync.WaitGroup
	pipes    []*os.File      // the relays' ends
	stdin_   *terminalCopier // rank 0's terminal; nil without one

	exits     chan exit
	signals   chan os.Signal
	endSignal syscall.Signal // the first signal by which the user asked for the end
	startErr  *startError    // why not all ranks were started
}

// A rank is one process of the job.
type rank struct {
	id      int
	app     *App
	program string
	env     []string

	pid       int  // also its group; 0 when it was not started
	ended     bool // the process itself; its group may live on
	groupGone bool // the group has no members any more
	status    syscall.WaitStatus
	endedAt   time.Duration // when it ended, since the job's start
	killed    bool          // it had TERM or KILL from us when it ended
	lastError *lastError
}

// An exit is the end of one rank's process.
type exit struct {
	rank   *rank
	status syscall.WaitStatus
}

// Run starts the ranks of j, and returns when all of them have ended, and all
// that they started. While it runs it catches this process's signals and
// forwards them; so there is one Run at a time. Ending ctx asks the ranks to
// end. It always returns; what bounds it when a rank does not end by itself is
// Timeout, the grace after another's failure, ctx, or a signal.
func Run(ctx context.Context, j *Job) Outcome {
	r := &run{job: j, startedAt: time.Now(), out: &lineWriter{w: j.Stdout}, err: &lineWriter{w: j.Stderr}}
	if err := r.prepare(); err != nil {
		return startFailed(err)
	}
	r.notifySignals()
	defer r.cleanUp()
	r.startErr = r.startAll()
	if r.startErr != nil {
		r.signalAll(r.policy.end(r.now()))
	}
	r.loop(ctx)
	r.drain()
	if r.info.timeline != "" {
		for _, note := range mergeTimeline(r.info.timeline, r.info.size) {
			if !j.Quiet {
				r.err.logf("%s", note)
			}
		}
	}
	return r.outcome()
}

// startFailed is the outcome of a job of which nothing was started.
func startFailed(err error) Outcome {
	code := exitNotRunning
	var se *startError
	if errors.As(err, &se) {
		code = se.code
	}
	return Outcome{Code: code, Verdict: []string{"cannot start " + err.Error()}, Broken: true}
}

func (r *run) now() time.Duration { return time.Since(r.startedAt) }

// prepare finds all programs before any of them runs, and makes what the world
// shares. It starts nothing and leaves nothing open when it fails.
func (r *run) prepare() error {
	env := r.job.Env
	if env == nil {
		env = os.Environ()
	}
	base := baseEnv(env)
	r.info.job, r.info.secret = "job-"+random(8), random(16)
	for i := range r.job.Apps {
		r.info.size += r.job.Apps[i].Ranks
	}
	if r.job.Timeline != "" {
		var err error
		if r.info.timeline, err = prepareTimeline(r.job.Timeline, r.info.size); err != nil {
			return fmt.Errorf("with --timeline: %w", err)
		}
	}
	listener, root, err := listen()
	if err != nil {
		return err
	}
	r.listener, r.info.root = listener, root
	for i := range r.job.Apps {
		if err := r.addApp(base, &r.job.Apps[i]); err != nil {
			listener.Close()
			return err
		}
	}
	r.policy = newPolicy(len(r.ranks), r.job.Grace, r.job.Timeout)
	r.exits = make(chan exit, len(r.ranks))
	return nil
}

func (r *run) addApp(base []string, a *App) error {
	if a.Dir != "" && !isDir(a.Dir) {
		return &startError{exitNotRunning, a.Args[0] + ": the working directory " + a.Dir + " does not exist"}
	}
	path, _ := lookup(append(base[:len(base):len(base)], a.Set...), "PATH")
	program, err := findProgram(a.Args[0], a.Dir, path)
	if err != nil {
		return err
	}
	for range a.Ranks {
		id := len(r.ranks)
		r.ranks = append(r.ranks, &rank{
			id: id, app: a, program: program, env: rankEnv(base, r.job, a, r.info, id), lastError: new(lastError),
		})
	}
	return nil
}

// random is n random bytes in hex. crypto/rand does not fail.
func random(n int) string {
	b := make([]byte, n)
	rand.Read(b)
	return hex.EncodeToString(b)
}

// listen binds the job's address on loopback and returns the listener as a file
// to hand over.
func listen() (*os.File, string, error) {
	var config net.ListenConfig
	config.SetMultipathTCP(false) // the ranks' links are plain TCP
	l, err := config.Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		var err6 error
		if l, err6 = config.Listen(context.Background(), "tcp", "[::1]:0"); err6 != nil {
			return nil, "", err
		}
	}
	defer l.Close()
	file, err := l.(*net.TCPListener).File()
	return file, l.Addr().String(), err
}

// notifySignals takes over the signals. One that this process was started to ignore, as
// by nohup, stays ignored, here and in the ranks.
func (r *run) notifySignals() {
	r.signals = make(chan os.Signal, 16)
	for _, s := range []os.Signal{
		syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2,
		syscall.SIGTSTP, syscall.SIGCONT, syscall.SIGPIPE,
	} {
		if !signal.Ignored(s) {
			signal.Notify(r.signals, s)
		}
	}
}

// cleanUp gives back all that Run took.
func (r *run) cleanUp() {
	signal.Stop(r.signals)
	if r.stdin_ != nil {
		r.stdin_.stop()
	}
	if r.starter != nil {
		r.starter.stop()
	}
	if r.guardian != nil {
		r.guardian.dismiss()
	}
	if r.listener != nil {
		r.listener.Close()
	}
}

// loop watches the job until nothing of it is left, or can be ended.
func (r *run) loop(ctx context.Context) {
	canceled := ctx.Done()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for !r.isOver() {
		timer.Reset(r.pause())
		select {
		case e := <-r.exits:
			r.exited(e)
		case s := <-r.signals:
			r.signalled(s.(syscall.Signal))
		case <-canceled:
			canceled = nil
			r.signalAll(r.policy.end(r.now()))
		case <-timer.C:
			if now := r.now(); now >= r.policy.deadline {
				r.deadlinePassed(now)
			}
		}
	}
}

// isOver tells whether the loop's work is done.
func (r *run) isOver() bool {
	if r.policy.phase == abandoned {
		return true
	}
	return r.policy.alive == 0 && len(r.leftovers()) == 0
}

// pause is how long to wait for an event.
func (r *run) pause() time.Duration {
	d := r.policy.deadline - r.now()
	if r.policy.alive == 0 {
		d = min(d, drainPoll)
	}
	return max(d, 0)
}

func (r *run) exited(e exit) {
	e.rank.ended, e.rank.status, e.rank.endedAt = true, e.status, r.now()
	e.rank.killed = r.policy.phase >= terminating
	r.policy.exited(r.now(), e.status != 0)
	r.updateGroup(e.rank)
}

// updateGroup notes that a rank's group is empty. From then on its number may
// be anybody's, so it gets no signal from us or the guardian.
func (r *run) updateGroup(k *rank) {
	if k.ended && !k.groupGone && !groupAlive(k.pid) {
		k.groupGone = true
		r.guardian.remove(k.pid)
	}
}

func (r *run) deadlinePassed(now time.Duration) {
	phase := r.policy.phase
	left := r.leftovers()
	r.signalAll(r.policy.deadlinePassed(now))
	if phase == draining && len(left) > 0 && !r.job.Quiet {
		r.err.logf("ended %s that ranks had left behind", describe(left))
	}
}

// signalled handles one signal to the launcher.
func (r *run) signalled(s syscall.Signal) {
	switch s {
	case syscall.SIGPIPE:
		// Our own writes report it as an error.
	case syscall.SIGTSTP:
		r.signalAll(s)
		syscall.Kill(os.Getpid(), syscall.SIGSTOP)
	case syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT:
		if r.endSignal == 0 {
			r.endSignal = s
		}
		r.signalAll(r.policy.interrupted(r.now(), s))
	default:
		r.signalAll(s)
	}
}

// signalAll signals every group that has members. What must end is also sought
// by the job's name.
func (r *run) signalAll(s syscall.Signal) {
	if s == 0 {
		return
	}
	groups := r.groups()
	for pgid := range groups {
		signalGroup(pgid, s)
	}
	if r.policy.phase >= terminating {
		signalDetached(groups, r.info.job, s)
	}
}

// groups are the ranks' groups that may have members.
func (r *run) groups() map[int]bool {
	groups := make(map[int]bool)
	for _, k := range r.ranks {
		if k.pid != 0 && !k.groupGone {
			groups[k.pid] = true
		}
	}
	return groups
}

// leftovers is what the job still has once its ranks have ended: members of
// their groups, and strays.
func (r *run) leftovers() []process {
	for _, k := range r.ranks {
		r.updateGroup(k)
	}
	return membersOf(r.groups(), r.info.job)
}

func describe(left []process) string {
	var names []string
	for i, p := range left {
		if i == 8 {
			names = append(names, "...")
			break
		}
		names = append(names, p.String())
	}
	return strings.Join(names, ", ")
}

// drain lets the relays finish. They end by themselves when the last writer has
// gone, unless one survived, or the reader of our own output does not read; a
// signal ends the wait then.
func (r *run) drain() {
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.copiers.Wait()
	}()
	late := time.After(killAfter)
	for {
		select {
		case <-done:
			return
		case <-late:
			for _, p := range r.pipes {
				p.Close()
			}
		case s := <-r.signals:
			switch s {
			case syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT:
				return
			}
		}
	}
}
