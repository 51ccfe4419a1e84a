package worldtest

import (
	"context"

	"github.com/tutti-go/tutti/comm"
)

// Collectives returns one or more calls of each collective. The calls differ in whether they work
// in place, in the root, and in whether they block.
func Collectives[T number]() []Call {
	calls := []Call{
		{Name: "barrier", Verb: "barrier", Run: func(ctx context.Context, c *comm.Comm, _ int, _ *BufferTracker) error {
			return c.Barrier(ctx)
		}},
		{Name: "broadcast from the first", Verb: "broadcast", Run: broadcast[T](first)},
		{Name: "broadcast from the last", Verb: "broadcast", Run: broadcast[T](last)},
		{Name: "gather", Verb: "gather", Run: gather[T](middle)},
		{Name: "gather in place", Verb: "gather", Run: gatherInPlace[T]},
		{Name: "scatter", Verb: "scatter", Run: scatter[T](middle)},
		{Name: "scatter in place", Verb: "scatter", Run: scatterInPlace[T]},
		{Name: "scatter from the last", Verb: "scatter", Run: scatter[T](last)},
	}
	for _, more := range [][]Call{reductions[T](), exchanges[T](), vectorVariants[T]()} {
		calls = append(calls, more...)
	}
	return calls
}

// A rootChoice chooses a root among n ranks.
type rootChoice func(n int) int

func first(int) int    { return 0 }
func middle(n int) int { return n / 2 }
func last(n int) int   { return n - 1 }

// runFunc is the type of a Call's function Run.
type runFunc = func(ctx context.Context, c *comm.Comm, count int, bt *BufferTracker) error

func broadcast[T number](root rootChoice) runFunc {
	return func(ctx context.Context, c *comm.Comm, count int, bt *BufferTracker) error {
		root := root(c.Size())
		buf := track(bt, vector[T](c.Rank(), count))
		if err := comm.Broadcast(ctx, c, buf, root); err != nil {
			return err
		}
		return same("buf", buf, vector[T](root, count))
	}
}

func gather[T number](root rootChoice) runFunc {
	return func(ctx context.Context, c *comm.Comm, count int, bt *BufferTracker) error {
		root := root(c.Size())
		src := track(bt, vector[T](c.Rank(), count))
		var all []T
		if c.Rank() == root {
			all = track(bt, make([]T, c.Size()*count))
		}
		err := comm.Gather(ctx, c, all, root, comm.From(src))
		if e := same("src", src, vector[T](c.Rank(), count)); e != nil {
			return e
		}
		if err != nil || c.Rank() != root {
			return err
		}
		return same("dst", all, concatenated[T](c.Size(), count))
	}
}

func gatherInPlace[T number](ctx context.Context, c *comm.Comm, count int, bt *BufferTracker) error {
	buf := vector[T](c.Rank(), count)
	if c.Rank() == 0 {
		buf = make([]T, c.Size()*count)
		copy(buf, vector[T](0, count))
	}
	track(bt, buf)
	if err := comm.Gather(ctx, c, buf, 0); err != nil || c.Rank() != 0 {
		return err
	}
	return same("buf", buf, concatenated[T](c.Size(), count))
}

func scatterInPlace[T number](ctx context.Context, c *comm.Comm, count int, bt *BufferTracker) error {
	buf, want := make([]T, count), vector[T](c.Rank(), count)
	if c.Rank() == 0 {
		buf = concatenated[T](c.Size(), count)
		want = concatenated[T](c.Size(), count) // the buffer stays unchanged
	}
	track(bt, buf)
	if err := comm.Scatter(ctx, c, buf, 0); err != nil {
		return err
	}
	return same("buf", buf, want)
}

func scatter[T number](root rootChoice) runFunc {
	return func(ctx context.Context, c *comm.Comm, count int, bt *BufferTracker) error {
		root := root(c.Size())
		dst := track(bt, make([]T, count))
		var all []T
		if c.Rank() == root {
			all = track(bt, concatenated[T](c.Size(), count))
		}
		err := comm.Scatter(ctx, c, dst, root, comm.From(all))
		if c.Rank() == root {
			if e := same("src", all, concatenated[T](c.Size(), count)); e != nil {
				return e
			}
		}
		if err != nil {
			return err
		}
		return same("dst", dst, vector[T](c.Rank(), count))
	}
}
