package elastic

import (
	"context"

	"github.com/tutti-go/tutti/comm"
)

// A State is what a training must not lose: parameters, the optimizer's buffers, counters. Each
// rank has the state at hand, which the program works on, and a committed copy of it. Run and
// Job.Commit call the methods, one at a time.
type State interface {
	// Commit replaces the committed copy by the state at hand.
	Commit() error

	// Restore replaces the state at hand by the committed copy. It is called only after a Commit.
	Restore() error

	// Sync replaces the state at hand of every rank by the root's state at hand. All ranks of c call
	// Sync. A failed Sync may leave the state at hand incomplete, because Run then calls Restore
	// before any other method. It must not change the committed copy.
	Sync(ctx context.Context, c *comm.Comm, root int) error
}

// Tensors returns the State of some vectors. All ranks must pass vectors of equal lengths in the
// same order. The caller keeps the vectors and works on them. The committed copy takes as much
// memory as the vectors.
func Tensors[T comm.Element](vectors ...[]T) State {
	s := &tensors[T]{current: vectors, committed: make([][]T, len(vectors))}
	for i, v := range vectors {
		s.committed[i] = make([]T, len(v))
	}
	return s
}

type tensors[T comm.Element] struct{ current, committed [][]T }

func (s *tensors[T]) Commit() error {
	for i, v := range s.current {
		copy(s.committed[i], v)
	}
	return nil
}

func (s *tensors[T]) Restore() error {
	for i, v := range s.current {
		copy(v, s.committed[i])
	}
	return nil
}

func (s *tensors[T]) Sync(ctx context.Context, c *comm.Comm, root int) error {
	for _, v := range s.current {
		if err := comm.Broadcast(ctx, c, v, root); err != nil {
			return err
		}
	}
	return nil
}

// Values returns the State of some variables, such as counters. All ranks must pass the same number
// of variables, in the same order.
func Values[T comm.Element](variables ...*T) State {
	return &values[T]{variables, make([]T, len(variables))}
}

type values[T comm.Element] struct {
	current   []*T
	committed []T
}

func (s *values[T]) Commit() error {
	s.read(s.committed)
	return nil
}

func (s *values[T]) Restore() error {
	s.write(s.committed)
	return nil
}

func (s *values[T]) Sync(ctx context.Context, c *comm.Comm, root int) error {
	v := make([]T, len(s.current))
	s.read(v)
	if err := comm.Broadcast(ctx, c, v, root); err != nil {
		return err
	}
	s.write(v)
	return nil
}

// read copies the variables into dst.
func (s *values[T]) read(dst []T) {
	for i, p := range s.current {
		dst[i] = *p
	}
}

// write copies src into the variables.
func (s *values[T]) write(src []T) {
	for i, p := range s.current {
		*p = src[i]
	}
}

// States returns the State that consists of several States. All ranks must pass the same kinds of
// States in the same order.
func States(parts ...State) State { return states(parts) }

type states []State

func (s states) Commit() error {
	return s.each(State.Commit)
}

func (s states) Restore() error {
	return s.each(State.Restore)
}

func (s states) Sync(ctx context.Context, c *comm.Comm, root int) error {
	return s.each(func(part State) error { return part.Sync(ctx, c, root) })
}

// each calls f for each part in turn, until a call fails.
func (s states) each(f func(State) error) error {
	for _, part := range s {
		if err := f(part); err != nil {
			return err
		}
	}
	return nil
}
