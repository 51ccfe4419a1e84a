//go:build unix

package launch

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"runtime"
	"syscall"

	"github.com/tutti-go/tutti/internal/cpu"
	"github.com/tutti-go/tutti/launch/internal/placement"
)

// A starter starts processes from one thread that lives as long as the job. The kernel sends the
// parent-death signal when the thread that forked the child ends, even if the thread's process
// still runs. So a thread that ended early would kill its children.
type starter struct{ work chan func() }

// newStarter starts the thread.
func newStarter() *starter {
	s := &starter{work: make(chan func())}
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		for f := range s.work {
			f()
		}
	}()
	return s
}

// do runs f on the thread and waits until f returns.
func (s *starter) do(f func()) {
	done := make(chan struct{})
	s.work <- func() {
		defer close(done)
		f()
	}
	<-done
}

// stop ends the thread. On Linux the kernel then kills all children of the thread that still
// run.
func (s *starter) stop() { close(s.work) }

// startAll starts the guardian and then the ranks, rank 0 first. If a rank cannot be started,
// startAll starts no further rank, and ends the ranks that run.
func (r *run) startAll() {
	r.local.begin(r.job.Guardian, func(err error) { r.note("%s", noGuardian(err)) })
	for i, k := range r.ranks {
		if err := r.start(k); err != nil {
			r.policy.alive = i // the other ranks have not started
			r.notStarted(err)
			return
		}
	}
	r.startDiscovery()
}

// notStarted ends the job, because a rank could not be started. The ranks that have started cannot
// form a job without it.
func (r *run) notStarted(err *startError) {
	r.startErr = err
	r.epochs.halt()
	r.signalAll(r.policy.end(r.now()))
}

// noGuardian describes the consequence of the error that ended the last guardian of a host.
func noGuardian(err error) string {
	return fmt.Sprintf("no guardian: %v; if tuttirun is killed, children of ranks may keep running", err)
}

// start starts one rank, and the goroutines that serve its streams.
func (r *run) start(k *rank) *startError {
	info := r.info
	info.part = k.host.part()
	s := &spec{
		process: k.process, program: k.program, args: k.app.Args, env: rankEnv(r.base, r.job, k.app, info, k.slot), dir: k.app.Dir,
		preloaded: r.preload.numbers[k.app],
	}
	if r.epochs != nil {
		s.cpus = r.bindSlot(k)
	} else {
		s.cpus = r.info.places[k.slot].CPUs
	}
	if err := r.complete(k, s); err != nil {
		return startFailure(k.app.Args[0], "", err)
	}
	pid, err := k.host.start(s)
	if err != nil {
		k.link.close()
		return err
	}
	if r.epochs != nil {
		r.epochs.started(k.process, k.slot, r.now())
	}
	if h, elsewhere := k.host.(*remoteHost); elsewhere {
		h.expect(r.now(), answerLimit)
		k.starting = true
	} else {
		r.started(k, pid)
	}
	return nil
}

// bindSlot returns the processors of a rank's slot, on the host that the slot belongs to now. If
// the host has no processors left for the slot, the rank starts unbound.
func (r *run) bindSlot(k *rank) []int {
	h := placement.Host{Name: cmp.Or(k.host.name(), "localhost")}
	if elsewhere, ok := k.host.(*remoteHost); ok {
		h.CPUs = elsewhere.cpus
	} else if r.job.Placement.NeedsCPUs(nil) {
		h.CPUs = cpu.Topology()
	}
	cpus, err := r.job.Placement.BindOne(&h, r.epochs.slots[k.slot].local)
	if err != nil {
		r.note("rank %s is not bound to processors: %v", k.label(), err)
	}
	return cpus
}

// started notes that a rank runs.
func (r *run) started(k *rank, pid int) {
	k.pid, k.starting = pid, false
	r.detail("rank %s is process %d%s, %s", k.label(), k.pid, onHost(k.host), k.program)
}

// complete opens the streams of a rank, and makes its credentials. If it fails, the host closes the
// streams at the end of the job.
func (r *run) complete(k *rank, s *spec) (err error) {
	if err := r.connectInput(k); err != nil {
		return err
	}
	// If the launcher does not change what a rank prints, the rank can write to a file itself. A
	// terminal or pipe then behaves as it does without a launcher.
	stdout, isFile := r.job.Stdout.(*os.File)
	if !isFile || !r.job.Output.inheritsStdout() || !k.host.inherit(k.process, 1, stdout) {
		if err := r.copyOutput(k, 1); err != nil {
			return err
		}
	}
	s.merge = r.job.Output.Merge
	if !s.merge {
		if err := r.copyOutput(k, 2); err != nil {
			return err
		}
	}
	if r.epochs != nil {
		return r.epochs.connect(k)
	}
	s.listener = k.id == 0
	if s.credentials, err = r.bundle(r.secret, k.id, uint32(r.info.incarnation)); err != nil {
		return err
	}
	// The PMI connection ends when the last process that holds its other end has ended.
	conn, err := k.host.open(k.process, pmiFD)
	if err == nil {
		r.copiers.Go(func() { r.pmi.Serve(k.id, conn) })
	}
	return err
}

// copyOutput starts to copy one stream of a rank, 1 or 2.
func (r *run) copyOutput(k *rank, fd int) error {
	c, err := r.newCopier(k, fd)
	if err != nil {
		return err
	}
	from, err := k.host.open(k.process, fd)
	if err != nil {
		return err
	}
	c.src = from
	r.pipes = append(r.pipes, from)
	r.copiers.Go(c.run)
	return nil
}

// connectInput makes the launcher's standard input the standard input of one rank: the first
// process in the slot StdinRank, in the first start of the job. All other ranks have no standard
// input. The input is copied if it is a terminal, or if the rank is on another host.
func (r *run) connectInput(k *rank) error {
	in := r.job.Stdin
	if k.slot != r.job.StdinRank || k.restart > 0 || r.info.incarnation > 0 || in == nil {
		return nil
	}
	if _, err := in.Stat(); errors.Is(err, syscall.EBADF) || errors.Is(err, os.ErrClosed) {
		return nil // standard input was closed when the launcher started
	}
	if !isControllingTerminal(in) && k.host.inherit(k.process, 0, in) {
		return nil
	}
	to, err := k.host.open(k.process, 0)
	if err != nil {
		return err
	}
	if r.input, err = newInputCopier(in, to); err != nil {
		to.Close()
	}
	return err
}
