//go:build unix

package launch

import (
	"context"
	"slices"
	"syscall"
	"time"

	"github.com/tutti-go/tutti/launch/internal/placement"
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
// and certificates, and the next incarnation. It omits hosts that were lost before.
func Run(ctx context.Context, j *Job) Outcome {
	out, log := newLineWriter(j, j.Stdout), newLineWriter(j, j.Stderr)
	files, begin := &outputFiles{log: log}, time.Now()
	for n := 0; ; n++ {
		r := &run{job: j, apps: j.Apps, startedAt: begin, out: out, err: log, outputFiles: files}
		r.info.incarnation = n
		result, again := r.run(ctx)
		if n == j.Restarts || !again || r.askedToEnd() {
			return result
		}
		for _, line := range result.Verdict {
			r.note("%s", line)
		}
		next, err := r.withoutLost()
		if err != nil {
			r.note("the job is not started again on the hosts that are left: %v", err)
			return result
		}
		j = next
		r.note("the job is started again (restart %d of %d)", n+1, j.Restarts)
	}
}

// withoutLost returns the job on the hosts that have not been lost. It fails if these hosts have
// too few slots.
func (r *run) withoutLost() (*Job, error) {
	left := func(hosts []placement.Host) []placement.Host {
		return slices.DeleteFunc(slices.Clone(hosts), func(h placement.Host) bool { return r.others.lost[h.Name] })
	}
	j := *r.job
	j.Hosts, j.Apps = left(j.Hosts), slices.Clone(j.Apps)
	for i := range j.Apps {
		j.Apps[i].Hosts = left(j.Apps[i].Hosts)
	}
	if j.Placement.NeedsCPUs(j.Hosts) {
		return &j, nil // the survey of the next start finds out whether the slots suffice
	}
	_, _, err := j.assign(j.Apps, j.Hosts)
	return &j, err
}

// mayRestart reports whether another start of the job may succeed where this start has failed. It
// returns false if a program cannot be executed or has refused its command line, if the job's time
// is over, if the user has asked for the end, or if a process of this start is left. It also
// returns false if a host cannot be reached in the first start, because that is likely a mistake of
// the user. In a later start such a host counts as lost, and the next start omits it.
func (r *run) mayRestart(ctx context.Context, out *Outcome) bool {
	switch {
	case r.endSignal != 0, ctx.Err() != nil, r.timedOut():
		return false
	case out.Broken:
		return r.others.unreached && r.info.incarnation > 0
	case r.policy.phase == abandoned:
		return false
	}
	switch out.Code {
	case 0, exitNotRunning, exitNotFound:
		return false
	case exitUsage:
		// A Go program also exits with this code after a panic.
		k := culprit(r.ranks)
		return k != nil && k.lastError.panicked()
	}
	return true
}

// askedToEnd reports whether a signal that loop has not received yet asks for the end of the job.
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
