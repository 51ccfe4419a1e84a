//go:build unix

package launch

import (
	"errors"
	"os"
	"runtime"
	"syscall"
)

// A starter starts processes from one thread that lives as long as the job. The kernel sends the
// parent-death signal when the thread that forked the child ends, even if its process still
// runs. A thread that ended early would cause its children to be killed.
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
// startAll stops there, and the caller ends the ranks that run.
func (r *run) startAll() *startError {
	r.starter = newStarter()
	r.guardian = newGuardian(r.job.Guardian, r.info.job, func(err error) {
		if !r.job.Quiet {
			r.err.logf("no guardian: %v; if tuttirun is killed, children of ranks may keep running", err)
		}
	})
	for i, k := range r.ranks {
		if err := r.start(k); err != nil {
			r.policy.alive = i // the other ranks have not started
			r.epochs.halt()
			return err
		}
	}
	r.startDiscovery()
	return nil
}

// start starts one rank, and the goroutines that wait for it and copy its output.
func (r *run) start(k *rank) *startError {
	files, ours, err := r.files(k)
	if err != nil {
		return startFailure(k.app.Args[0], "", err)
	}
	attr := &os.ProcAttr{Dir: k.app.Dir, Env: k.env, Files: files, Sys: rankAttr()}
	var p *os.Process
	// The parent-death signal is tied to the thread that forks, so the starter's thread forks all
	// ranks.
	r.starter.do(func() { p, err = os.StartProcess(k.program, k.app.Args, attr) })
	// The rank has its own copies of these files. If this process kept the write ends open, the
	// pipes would never reach end of file.
	for _, f := range ours {
		f.Close()
	}
	if err != nil {
		k.link.close()
		return startFailure(k.app.Args[0], k.app.Dir, err)
	}
	k.pid = p.Pid
	r.guardian.add(k.pid)
	if r.epochs != nil {
		r.epochs.started(k.process, k.slot, r.now())
	} else if k.id == 0 {
		// Only rank 0 holds the listener from now on. After rank 0 ends, the kernel refuses
		// connections to the port at once.
		r.listener.Close()
		r.listener = nil
	}
	if r.job.Verbose {
		r.err.logf("rank %s is process %d, %s", k.label(), k.pid, k.program)
	}
	go r.wait(k, p)
	return nil
}

// wait sends the end of one rank to the job's goroutine.
func (r *run) wait(k *rank, p *os.Process) {
	state, err := p.Wait()
	e := exit{k, 255 << 8} // if the rank is no longer a child of this process, its status is unknown
	if err == nil {
		r.exitRecord.add(k.process, p.Pid)
		e.status = state.Sys().(syscall.WaitStatus)
	}
	select {
	case r.exits <- e:
	case <-r.over:
	}
}

// files returns a rank's descriptors, and those of them that must be closed here once the rank has
// started. If it fails, it leaves none open.
func (r *run) files(k *rank) (files, toClose []*os.File, err error) {
	defer func() {
		if err != nil {
			for _, f := range toClose {
				f.Close()
			}
		}
	}()
	stdin, err := r.stdin(k)
	if err != nil {
		return nil, nil, err
	}
	if stdin != r.job.Stdin {
		toClose = append(toClose, stdin)
	}
	// If the lines of a rank need no tags, the rank can write to a file itself. A terminal or pipe
	// then behaves as it does without a launcher.
	stdout, direct := r.job.Stdout.(*os.File)
	if !direct || r.job.Tags != NoTags {
		if stdout, err = r.startCopier(r.out, r.job.Tags.tag(k.label(), "stdout"), nil); err != nil {
			return nil, toClose, err
		}
		toClose = append(toClose, stdout)
	}
	// Standard error always passes through a copier, which keeps the last error for the
	// verdict.
	stderr, err := r.startCopier(r.err, r.job.Tags.tag(k.label(), "stderr"), k.lastError)
	if err != nil {
		return nil, toClose, err
	}
	toClose = append(toClose, stderr)
	if r.epochs != nil {
		conn, err := r.epochs.connect(k)
		if err != nil {
			return nil, toClose, err
		}
		return []*os.File{stdin, stdout, stderr, nil, r.exitRecord.inherited(), conn}, append(toClose, conn), nil
	}
	proof, err := r.credentials(k)
	if err != nil {
		return nil, toClose, err
	}
	k.credentials = proof // stays open; see startedInit
	pmiConn, err := r.connectPMI(k)
	if err != nil {
		return nil, toClose, err
	}
	toClose = append(toClose, pmiConn)
	files = []*os.File{stdin, stdout, stderr, proof, r.exitRecord.inherited(), nil, pmiConn}
	if k.id == 0 {
		files[listenFD] = r.listener
	}
	return files, toClose, nil
}

// connectPMI connects a rank to the PMI server, and returns the end that the rank inherits. The
// connection ends with the last process that has the end.
func (r *run) connectPMI(k *rank) (*os.File, error) {
	conn, theirs, err := socketPair("PMI_FD")
	if err != nil {
		return nil, err
	}
	r.copiers.Go(func() { r.pmi.Serve(k.id, conn) })
	return theirs, nil
}

// startCopier starts to copy one stream, and returns the end of the pipe to which the rank writes.
func (r *run) startCopier(to *lineWriter, tag string, watcher *lastError) (*os.File, error) {
	from, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	r.pipes = append(r.pipes, from)
	r.copiers.Go((&lineCopier{src: from, dst: to, tag: tag, last: watcher}).run)
	return w, nil
}

// stdin returns the launcher's own standard input for the first process in slot 0, and the null
// device for all others. If the input is a terminal, stdin returns a pipe to which the input is
// copied.
func (r *run) stdin(k *rank) (*os.File, error) {
	in := r.job.Stdin
	if k.slot != 0 || k.restart > 0 || in == nil {
		return os.Open(os.DevNull)
	}
	if _, err := in.Stat(); errors.Is(err, syscall.EBADF) || errors.Is(err, os.ErrClosed) {
		return os.Open(os.DevNull) // the launcher was started with <&-
	}
	if !isControllingTerminal(in) {
		return in, nil
	}
	from, to, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	if r.terminal, err = newTerminalCopier(in, to); err != nil {
		from.Close()
		to.Close()
	}
	return from, err
}
