package comm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/tutti-go/tutti/bootstrap"
	"github.com/tutti-go/tutti/fault"
)

// Rejoin leaves the job's communicators and returns the communicator of the job's next epoch. The
// ranks of that epoch are the remaining processes, in the order of their ranks, and then the
// processes that tuttirun has started meanwhile, which are in Init. All remaining processes must
// call Rejoin, on any communicator of the job. The communicator may be revoked or closed.
//
// Rejoin first closes all communicators of this process. It does not wait for lost ranks. A rank
// that is still in a call of the old epoch gets fault.Closed, or the loss that has made this rank
// call Rejoin. The options of Init apply to the new epoch, too. A process may have another rank in
// the new epoch.
//
// tuttirun forms the next epoch when every process whose end it has not seen has called Rejoin or
// Init, and these processes are enough (--min-np). So two epochs never go on side by side. If a
// member ends before the epoch has begun, tuttirun forms another epoch, and Rejoin continues with
// that one. The same happens if a member calls Rejoin again while other members are still in Init
// or Rejoin. Those members become ranks of the later epoch without knowing of the earlier one.
// Therefore exchange the state of the program, such as the number of the step, after each Init and
// Rejoin.
//
// Rejoin ends with fault.NoQuorum if there will be no next epoch, or if tuttirun is gone; then end
// this process. If ctx ends, Rejoin may be called again. If tuttirun did not start the job with one
// of the options that allow Rejoin (--restart-ranks, --min-np, --host-discovery-script,
// --enable-recovery), Rejoin returns fault.Misuse and closes nothing. Such a job can Shrink, but
// not grow.
func (c *Comm) Rejoin(ctx context.Context) (*Comm, error) {
	if err := checkContext("rejoin", ctx); err != nil {
		return nil, err
	}
	if c.rt.rejoin == nil {
		return nil, c.misuse("rejoin", "job: got one without a record of its ranks, want one with a record; start it by tuttirun with --restart-ranks, --min-np, --host-discovery-script or --enable-recovery, or call Shrink")
	}
	limited, cancel := context.WithTimeout(ctx, departLimit)
	c.rt.close(limited) // messages that are not delivered in this time are lost
	cancel()
	if !initOpen.CompareAndSwap(false, true) {
		return nil, c.misuse("rejoin", "process: got a second call of Rejoin or Init while the communicator of the first is open, want one job at a time")
	}
	next, err := c.rt.rejoin(ctx)
	if err != nil {
		initOpen.Store(false)
		return nil, c.withOp("rejoin", err)
	}
	next.rt.byInit = true
	return next, nil
}

// departLimit bounds how long Rejoin waits until the other ranks have received what this rank has
// sent. Ranks that have called Rejoin as well do not need these messages.
const departLimit = time.Second

// Changed returns a channel that is closed when Rejoin would lead to other members: the process of
// a member has failed, a member has called Rejoin, or a process waits in Init. Ranks see this at
// different times. In a job without a record of its ranks, and for Local, Changed returns nil, from
// which a receive waits for ever. A select with a default case is cheap enough for each step.
func (c *Comm) Changed() <-chan struct{} { return c.rt.changed }

// join makes this process a rank of the job that bootstrap has found. If the launcher decides which
// processes are ranks, join takes part in the launcher's epochs until one has begun.
func (o *options) join(ctx context.Context, job *bootstrap.Job) (*Comm, error) {
	if !job.Elastic() {
		if _, limited := ctx.Deadline(); !limited && job.TimeoutSet && job.Timeout > 0 {
			var cancel context.CancelFunc // one limit holds for Join and the steps after it
			ctx, cancel = context.WithTimeoutCause(ctx, job.Timeout, errTimeout)
			defer cancel()
		}
		job, err := job.Join(ctx)
		if err != nil {
			return nil, err
		}
		defer job.Close()
		c, err := o.joinEpoch(ctx, job)
		if err == nil {
			job.Finalize()
		}
		return c, err
	}
	for {
		epoch, err := job.Join(ctx)
		if err != nil {
			return nil, err
		}
		c, err := o.joinElasticEpoch(ctx, epoch)
		o.again = true
		switch {
		case err == nil:
			c.rt.rejoin = func(ctx context.Context) (*Comm, error) { return o.join(ctx, job) }
			return c, nil
		case ctx.Err() != nil || !lostDuringInit(err):
			return nil, err
		}
	}
}

// errEpochBroken is the reason to give up a start: the epoch has lost a member, so tuttirun will
// form another epoch.
var errEpochBroken = &fault.Error{Kind: fault.PeerLost, Op: "init", Rank: -1, Err: errors.New("a member of this epoch has left before the epoch began")}

// lostDuringInit reports whether Init has failed because of a lost or closed rank, so that it may
// succeed in another epoch.
func lostDuringInit(err error) bool {
	for _, k := range []fault.Kind{fault.PeerLost, fault.LinkLost, fault.Revoked, fault.Closed} {
		if errors.Is(err, k) {
			return true
		}
	}
	return false
}

// breakLimit bounds how long a rank whose start has failed waits to learn that its epoch is broken.
// The launcher sends that within milliseconds.
const breakLimit = time.Second

// joinElasticEpoch starts this process as a rank of an epoch. When the epoch has begun, a goroutine
// waits for changes until Close.
func (o *options) joinElasticEpoch(ctx context.Context, epoch *bootstrap.Job) (*Comm, error) {
	defer epoch.Close()
	c, err := startEpoch(ctx, epoch.AwaitBreak, func(ctx context.Context) (*Comm, error) { return o.joinEpoch(ctx, epoch) })
	if err != nil {
		return nil, withAddresses(ctx, epoch, err)
	}
	changed := make(chan struct{})
	c.rt.changed = changed
	c.rt.spawn(func(ctx context.Context) {
		if epoch.AwaitChange(ctx) == nil {
			close(changed)
		}
	})
	return c, nil
}

// The bounds of withAddresses: how many ranks it describes, and how long the launcher may take to
// answer.
const (
	maxAddresses = 8
	addressLimit = 10 * time.Second
)

// withAddresses adds to the error of a start that has timed out the addresses at which the missing
// ranks listen. A missing rank that no other rank reaches cannot report its host itself.
func withAddresses(ctx context.Context, epoch *bootstrap.Job, err error) error {
	var e *fault.Error
	if !errors.As(err, &e) || e.Kind != fault.Timeout {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, addressLimit)
	defer cancel()
	var ranks []int
	for _, p := range e.Peers[:min(len(e.Peers), maxAddresses)] {
		ranks = append(ranks, p.Rank)
	}
	if texts := epoch.Addresses(ctx, ranks); len(texts) > 0 {
		named := *e
		named.Err = fmt.Errorf("%w; %s", e.Err, strings.Join(texts, ", "))
		return &named
	}
	return err
}

// startEpoch calls start, and ends it as soon as awaitBreak returns because the epoch is broken.
// The error is errEpochBroken if the break may have made start fail: start was canceled or ran out
// of time, or a rank that is in the next epoch already has refused this rank. Any other error of
// start names a lost rank, or has another cause that would recur in the next epoch.
func startEpoch(ctx context.Context, awaitBreak func(context.Context) error, start func(context.Context) (*Comm, error)) (*Comm, error) {
	starting, giveUp := context.WithCancelCause(ctx)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		if awaitBreak(starting) == nil {
			giveUp(errEpochBroken)
		}
	}()
	c, err := start(starting)
	ended := slices.ContainsFunc([]fault.Kind{fault.Timeout, fault.Canceled, fault.Refused}, func(k fault.Kind) bool { return errors.Is(err, k) })
	if ended && ctx.Err() == nil {
		// Another rank may have learned first that the epoch is broken, and have given up. This rank
		// waits for the same news, for at most breakLimit.
		late := time.AfterFunc(breakLimit, func() { giveUp(nil) })
		<-watched
		late.Stop()
	}
	broken := ended && errors.Is(context.Cause(starting), errEpochBroken)
	giveUp(nil)
	<-watched
	if broken {
		return nil, errEpochBroken
	}
	return c, err
}

// joinEpoch makes this process the rank of the epoch that job describes. It works on a copy of the
// options, because the job completes them.
func (o *options) joinEpoch(ctx context.Context, job *bootstrap.Job) (*Comm, error) {
	for _, warning := range job.Warnings {
		o.log.Warn("tutti: " + warning)
	}
	if job.ReportBootstrap {
		fmt.Fprintf(os.Stderr, "tutti: %v\n", job)
	}
	own := *o
	own.applyEnvironment(job)
	own.exited = job.Exited
	if err := own.check(job.Rank); err != nil {
		return nil, err
	}
	if job.StartLimit > 0 {
		var end context.CancelFunc
		ctx, end = own.limited(ctx) // initJob sets this limit only if the context has no deadline
		defer end()
		late := fmt.Errorf("the epoch has not begun within %v (--elastic-timeout)", job.StartLimit)
		ctx, end = context.WithTimeoutCause(ctx, job.StartLimit, late)
		defer end()
	}
	return initJob(ctx, &own, job)
}
