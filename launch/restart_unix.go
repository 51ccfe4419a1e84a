//go:build unix

package launch

import (
	"context"
	"syscall"
	"time"
)

// Run starts the ranks of j. It returns when all of them and all their children have ended. It
// handles this process's signals while it runs, so only one Run may run at a time. When ctx ends,
// all processes of the job get TERM, and 2 s later KILL.
//
// Run ends ranks that do not end by themselves: after Timeout, after the grace period that follows
// another rank's failure, at the end of ctx, and when the user signals a second time. It returns
// even if a process survives KILL.
//
// If the job fails, Run starts it again, up to Restarts times. Each start has its own name, secret
// and certificates, and the next incarnation.
func Run(ctx context.Context, j *Job) Outcome {
	out, err := newLineWriter(j, j.Stdout), newLineWriter(j, j.Stderr)
	files, begin := &outputFiles{log: err}, time.Now()
	for n := 0; ; n++ {
		r := &run{job: j, apps: j.Apps, startedAt: begin, out: out, err: err, outputFiles: files}
		r.info.incarnation = n
		result, again := r.run(ctx)
		if n == j.Restarts || !again || r.askedToEnd() {
			return result
		}
		for _, line := range result.Verdict {
			r.note("%s", line)
		}
		r.note("the job is started again (restart %d of %d)", n+1, j.Restarts)
	}
}

// mayRestart reports whether another start of the job may succeed where this one has failed. It
// returns false if a program cannot be executed or has refused its command line, if the time of the
// job is over, if the user has asked for the end, and if a process of this start is left.
func (r *run) mayRestart(ctx context.Context, out *Outcome) bool {
	switch {
	case out.Broken, r.policy.phase == abandoned, r.endSignal != 0, ctx.Err() != nil:
		return false
	case r.job.Timeout > 0 && r.now() >= r.job.Timeout:
		return false
	}
	switch out.Code {
	case 0, exitNotRunning, exitNotFound:
		return false
	case exitUsage:
		// A Go program exits with this code after a panic, too.
		k := culprit(r.ranks)
		return k != nil && k.lastError.panicked()
	}
	return true
}

// askedToEnd reports whether the user has asked for the end of the job since the last event of loop.
func (r *run) askedToEnd() bool {
	for {
		select {
		case s := <-r.signals:
			switch s {
			case syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT:
				return true
			}
		default:
			return false
		}
	}
}
