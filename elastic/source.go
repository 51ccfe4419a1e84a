package elastic

import (
	"context"

	"github.com/tutti-go/tutti/comm"
)

// A source makes the communicators of one rank, one after the other.
type source interface {
	// first returns the communicator that this process begins with.
	first(ctx context.Context) (*comm.Comm, error)

	// next returns the communicator after c. All remaining members of c call it.
	next(ctx context.Context, c *comm.Comm) (*comm.Comm, error)

	// changed returns a channel that is closed when next would lead to other members, as far as
	// this rank knows. It returns nil on all ranks if no process can join.
	changed(c *comm.Comm) <-chan struct{}

	// close closes c, which the last call of first or next returned, and leaves the job.
	close(ctx context.Context, c *comm.Comm) error
}

// environment is the source of a job that was started by a launcher. If tuttirun decides which
// processes are ranks, the next communicator comes from Rejoin. Otherwise it comes from Shrink.
type environment struct {
	options []comm.Option
	job     *comm.Comm // the job's communicator, from Init or from the last Rejoin
}

func (e *environment) first(ctx context.Context) (c *comm.Comm, err error) {
	e.job, err = comm.Init(ctx, e.options...)
	return e.job, err
}

func (e *environment) next(ctx context.Context, c *comm.Comm) (next *comm.Comm, err error) {
	if c.Changed() != nil {
		if next, err = c.Rejoin(ctx); err == nil {
			e.job = next
		}
		return next, err
	}
	next, err = c.Shrink(ctx)
	if err == nil && c != e.job {
		c.Close(ctx) // local; the job's communicator stays open until the rank leaves
	}
	return next, err
}

func (e *environment) changed(c *comm.Comm) <-chan struct{} { return c.Changed() }

func (e *environment) close(ctx context.Context, c *comm.Comm) error {
	if c != e.job {
		c.Close(ctx)
	}
	return e.job.Close(ctx)
}
