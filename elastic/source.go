package elastic

import (
	"context"

	"github.com/tutti-go/tutti/comm"
)

// A source makes the communicators of one rank, one after the other.
type source interface {
	// first returns the communicator that this process begins with.
	first(ctx context.Context) (*comm.Comm, error)

	// next returns the communicator after c. All members of c that are left call it.
	next(ctx context.Context, c *comm.Comm) (*comm.Comm, error)

	// grows reports whether processes may join. It is equal on all ranks.
	grows() bool

	// waiting reports whether this rank knows of processes that wait to join.
	waiting() bool

	// close closes c, which the last call of first or next returned, and leaves the job.
	close(ctx context.Context, c *comm.Comm) error
}

// shrinking is the source of a job that no process can join.
type shrinking struct {
	options []comm.Option
	job     *comm.Comm
}

func (s *shrinking) first(ctx context.Context) (c *comm.Comm, err error) {
	s.job, err = comm.Init(ctx, s.options...)
	return s.job, err
}

func (s *shrinking) next(ctx context.Context, c *comm.Comm) (*comm.Comm, error) {
	small, err := c.Shrink(ctx)
	if err == nil && c != s.job {
		c.Close(ctx) // local; the job's communicator stays open until the rank leaves
	}
	return small, err
}

func (s *shrinking) grows() bool { return false }

func (s *shrinking) waiting() bool { return false }

func (s *shrinking) close(ctx context.Context, c *comm.Comm) error {
	if c != s.job {
		c.Close(ctx)
	}
	return s.job.Close(ctx)
}
