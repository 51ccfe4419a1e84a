package elastic

import (
	"context"
	"errors"

	"github.com/tutti-go/tutti/comm"
)

// ErrHostsUpdated is the error of Job.Commit when processes wait to join. The training function
// must return it. Run then calls the function again with the new members.
var ErrHostsUpdated = errors.New("elastic: processes wait to join; return this error from the training function")

// A Job gives one call of the training function its communicator, and the methods Commit and Step.
// It must not be used after that call has returned. Only one goroutine at a time may call its
// methods.
type Job struct {
	r *runner
	c *comm.Comm
}

// Comm returns the communicator of this attempt. Run closes it.
func (j *Job) Comm() *comm.Comm { return j.c }

// Resets returns the number of attempts before this one. The number is equal on all ranks, even on
// those that have joined later.
func (j *Job) Resets() int { return int(j.r.resets) }

// Commit saves the state at hand, so that Restore returns to it. All ranks must call Commit at the
// same points of their programs. Commit costs a copy of the state. In a job that processes can
// join, Commit also makes an allreduce of 8 bytes on the Job's communicator. It returns
// ErrHostsUpdated if a rank knows of a process that waits. The first rank that returns this error
// to Run revokes the communicator, so Commit may fail with fault.Revoked on other ranks. Return
// either error.
func (j *Job) Commit(ctx context.Context) error {
	r := j.r
	r.progress++
	if err := r.commit(); err != nil {
		return err
	}
	changed := r.src.changed(j.c)
	if changed == nil {
		return nil
	}
	flag := make([]int64, 1)
	select {
	case <-changed:
		flag[0] = 1
	default:
	}
	if err := comm.AllReduce(ctx, j.c, flag, comm.Max); err != nil {
		return err
	}
	if flag[0] != 0 {
		return ErrHostsUpdated
	}
	return nil
}

// Step makes one step of a training that needs no rollback. It calls compute, and then apply if
// compute has returned nil. Otherwise it returns compute's error, which train must return as well.
//
// Compute communicates, and must not change the state; it computes gradients, for example. Apply
// changes the state, and must neither communicate nor fail. A loss during compute therefore leaves
// the state of this rank as it was after its last Step, and Run does not call Restore. A program
// that calls Step must not change its state elsewhere in train.
func (j *Job) Step(ctx context.Context, compute func(ctx context.Context) error, apply func()) error {
	if err := compute(ctx); err != nil {
		return err
	}
	apply()
	j.r.progress++
	j.r.whole = true
	return nil
}
