package elastic

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/fault"
)

// An Option changes how Run works.
type Option func(*options)

type options struct {
	comm      []comm.Option
	onReset   []func(ctx context.Context, job *Job) error
	maxResets int64
}

// WithComm passes options to comm.Init.
func WithComm(opts ...comm.Option) Option {
	return func(o *options) { o.comm = append(o.comm, opts...) }
}

// WithOnReset makes Run call f after each reset, when the state has been synchronized and before it
// calls the training function. For example, f adapts the learning rate to the number of ranks.
// Several callbacks run in the order of their options. Run treats an error of f like an error of
// the training function.
func WithOnReset(f func(ctx context.Context, job *Job) error) Option {
	return func(o *options) { o.onReset = append(o.onReset, f) }
}

// WithMaxResets limits the number of resets. The default is 0, no limit; resets without progress
// are always limited.
func WithMaxResets(n int) Option {
	return func(o *options) { o.maxResets = int64(n) }
}

// Limits of resets in a row without progress.
const (
	maxSame = 2   // with the same members: Run ends when this is reached
	maxIdle = 100 // with any members: Run ends when this is exceeded
)

// Run joins the job that the environment describes, as comm.Init does, and calls train until it has
// returned nil on all ranks. After a loss, and when processes join, it calls train again, with the
// communicator of the new members and the state of the rank that is furthest. The package comment
// says which errors of train end Run.
//
// All ranks call Run, with States of the same form. Start the job with tuttirun --enable-recovery,
// so that one rank's death does not end the others, or with --restart-ranks, --min-np or
// --host-discovery-script, so that processes can join. When Run returns, this rank has left the
// job.
func Run(ctx context.Context, state State, train func(ctx context.Context, job *Job) error, opts ...Option) error {
	var o options
	for _, opt := range opts {
		opt(&o)
	}
	switch {
	case ctx == nil:
		return fault.New(fault.Misuse, opRun, -1, "context: got nil, want one; context.Background() waits without a limit")
	case state == nil || train == nil:
		return fault.New(fault.Misuse, opRun, -1, "state and train: got nil, want both")
	case o.maxResets < 0:
		return fault.New(fault.Misuse, opRun, -1, "WithMaxResets: got %d, want 0 (no limit) or more", o.maxResets)
	}
	return run(ctx, &environment{options: o.comm}, state, train, o)
}

// opRun is the Op of errors.
const opRun = "elastic run"

// A runner is one call of Run. When an attempt fails, the field whole decides what happens to the
// state at hand. If whole is set, Run keeps that state. Otherwise Run restores the committed copy.
//
//	whole  the state at hand                          when
//	no     State.Sync may have replaced a part of it  during State.Sync
//	no     train may have changed a part of it        after Sync, until the end of the first Step
//	yes    is the state after the last Step           from the end of the first Step
type runner struct {
	src   source
	state State
	train func(ctx context.Context, job *Job) error
	o     options

	c       *comm.Comm
	members []int // the job's ranks of the members of the last attempt; nil: no attempt so far
	whole   bool

	progress  int64 // the progress of the state at hand
	committed int64 // the progress of the committed copy; lower than progress after a Step or a failed Commit; -1 if there is no copy
	last      error // the error of the last attempt
	record
}

// A record is what the ranks know of the attempts. They agree on it at the beginning of an attempt.
type record struct {
	resets int64
	base   int64 // the progress at the beginning of the last attempt
	idle   int64 // resets in a row without progress
	same   int64 // resets in a row without progress and without a change of the members
}

// run does the work of Run, with the given source of communicators.
func run(ctx context.Context, src source, state State, train func(ctx context.Context, job *Job) error, o options) error {
	c, err := src.first(ctx)
	if err != nil {
		return err
	}
	r := &runner{src: src, state: state, train: train, o: o, c: c, committed: -1}
	err = r.attempts(ctx)
	closing := r.src.close(ctx, r.c)
	// Close may fail because messages did not reach lost ranks, which is not an error here.
	if err == nil && !errors.Is(closing, fault.PeerLost) && !errors.Is(closing, fault.LinkLost) {
		err = closing
	}
	return err
}

// attempts makes attempts until all ranks are done, or this rank must stop.
func (r *runner) attempts(ctx context.Context) error {
	for {
		err := r.attempt(ctx)
		r.last = err
		vote := uint64(1)
		switch decide(err) {
		case abort:
			r.c.Abort(err)
			return err
		case stop:
			return err
		case again:
			if ctx.Err() != nil {
				return fault.New(fault.ContextKind(ctx.Err()), opRun, r.rank(), "%w; the last attempt ended with: %v", context.Cause(ctx), err)
			}
			vote = 0
			r.c.Revoke() // other ranks may wait for messages of this rank
		}
		all, lost := r.c.Agree(ctx, vote)
		switch {
		case lost != nil && (ctx.Err() != nil || r.src.changed(r.c) == nil):
			return r.afterAttempt(lost)
		case lost != nil: // the vote has no result; Rejoin learns the members from tuttirun
		case all == 1:
			return nil
		}
		next, lost := r.src.next(ctx, r.c)
		if lost != nil {
			return r.afterAttempt(lost)
		}
		r.c = next
		r.resets++
		if !r.whole {
			if err := r.state.Restore(); err != nil {
				return err
			}
			r.progress = max(r.committed, 0) // a Commit that has failed does not count
		}
	}
}

// afterAttempt adds the error of the last attempt, if there is one, to an error of Run.
func (r *runner) afterAttempt(err error) error {
	if r.last == nil {
		return err
	}
	return fmt.Errorf("%w; the last attempt ended with: %v", err, r.last)
}

// attempt makes one attempt on the current communicator.
func (r *runner) attempt(ctx context.Context) error {
	if err := r.sync(ctx); err != nil {
		return err
	}
	job := &Job{r, r.c}
	if r.resets > 0 {
		for _, f := range r.o.onReset {
			if err := f(ctx, job); err != nil {
				return err
			}
		}
	}
	return r.train(ctx, job)
}

// sync gives all ranks the state of the rank that is furthest, and commits it.
func (r *runner) sync(ctx context.Context) error {
	// Sync overwrites the state at hand, and fails if the root is lost. Restore then needs a
	// committed copy of the state with which this attempt began.
	if r.committed != r.progress {
		if err := r.commit(); err != nil {
			return err
		}
	}
	progress, root, err := r.meet(ctx)
	if err != nil {
		return err
	}
	r.whole = false
	if err := r.state.Sync(ctx, r.c, root); err != nil {
		return err
	}
	r.progress = progress
	return r.commit()
}

// commit saves the state at hand.
func (r *runner) commit() error {
	if err := r.state.Commit(); err != nil {
		return err
	}
	r.committed = r.progress
	return nil
}

// meet makes the ranks agree on their record. It returns the highest progress, and the lowest rank
// that has made this progress. It fails on all ranks if there have been too many resets. The result
// depends only on what the ranks exchange, so it is equal on all of them.
func (r *runner) meet(ctx context.Context) (progress int64, root int, err error) {
	members := make([]int, r.c.Size())
	for i := range members {
		members[i] = r.c.WorldRank(i)
	}
	changed := int64(1)
	if slices.Equal(members, r.members) {
		changed = 0
	}
	mine := []int64{r.progress, changed, r.resets, r.base, r.idle, r.same}
	all := make([]int64, len(members)*len(mine))
	if err := comm.AllGather(ctx, r.c, all, comm.From(mine)); err != nil {
		return 0, 0, err
	}
	highest := slices.Clone(all[:len(mine)])
	for rank := range members {
		theirs := all[rank*len(mine):][:len(mine)]
		if theirs[0] > highest[0] {
			root = rank
		}
		for i, v := range theirs {
			highest[i] = max(highest[i], v)
		}
	}
	r.members = members
	progress, changed = highest[0], highest[1]
	r.record = record{highest[2], highest[3], highest[4], highest[5]}
	switch {
	case r.resets == 0:
	case progress > r.base:
		r.idle, r.same = 0, 0
	case changed != 0:
		r.idle, r.same = r.idle+1, 0
	default:
		r.idle, r.same = r.idle+1, r.same+1
	}
	r.base = progress
	if why := r.tooMany(); why != nil {
		return 0, 0, r.afterAttempt(why)
	}
	return progress, root, nil
}

// rank returns this rank's number in the job.
func (r *runner) rank() int { return r.c.WorldRank(r.c.Rank()) }

// tooMany returns the error of a job that has had too many resets, or nil.
func (r *runner) tooMany() error {
	rank := r.rank()
	switch {
	case r.o.maxResets > 0 && r.resets > r.o.maxResets:
		return fault.New(fault.Exhausted, opRun, rank, "resets: got %d, want at most %d (WithMaxResets)", r.resets, r.o.maxResets)
	case r.same >= maxSame:
		return fault.New(fault.Exhausted, opRun, rank,
			"resets without progress and without a change of the members: got %d in a row, want fewer than %d", r.same, maxSame)
	case r.idle > maxIdle:
		return fault.New(fault.Exhausted, opRun, rank, "resets without progress: got %d in a row, want at most %d", r.idle, maxIdle)
	}
	return nil
}

// A decision says what Run does after an attempt.
type decision uint8

const (
	done  decision = iota // this rank is done
	again                 // make another attempt
	stop                  // return the error
	abort                 // end the job on all ranks, and return the error
)

// decide returns what Run does after an attempt that ended with err. A kind that ends Run counts
// even below a Revoked, so Run ends on all ranks.
func decide(err error) decision {
	is := func(kinds ...fault.Kind) bool {
		return slices.ContainsFunc(kinds, func(k fault.Kind) bool { return errors.Is(err, k) })
	}
	var f *fault.Error
	switch {
	case err == nil:
		return done
	case errors.Is(err, ErrHostsUpdated):
		return again
	case !errors.As(err, &f):
		return stop
	case is(fault.Misuse, fault.Mismatch):
		if is(fault.PeerLost, fault.Revoked) {
			return stop // another rank has aborted, or has the mismatch
		}
		return abort
	case is(fault.PeerLost, fault.LinkLost, fault.Timeout):
		return again
	case is(fault.Canceled, fault.NoQuorum, fault.Exhausted, fault.Refused):
		return stop
	case f.Kind == fault.Revoked, f.Kind == fault.Closed && len(f.Peers) > 0:
		return again
	}
	return stop
}
