package comm

import (
	"context"

	"github.com/tutti-go/tutti/tensor"
)

// A View is a matrix in a slice, whose rows need not be adjacent: tensor.Slice, tensor.Strided,
// tensor.Dense and tensor.Vec make one of slices and of gonum's matrices and vectors. It plays the
// role of MPI's derived datatypes.
type View[T Element] = tensor.View[T]

// viewPartBytes bounds the bytes of a view that are handled at a time, and so the memory for
// staging. Rows that are not adjacent are staged in a buffer of that size; a contiguous view
// is used where it lies. The parts depend on the view's length alone, so ranks may differ in
// how theirs lie.
const viewPartBytes = 4 << 20

// AllReduceView is AllReduce of a view's elements, in row-major order. Elements of the slice
// outside the view are neither read nor written.
//
// A large view is handled in parts of viewPartBytes, each by a call of its own, so the errors
// name AllReduce, and a part may have been reduced when a later one fails. Ranks may give
// views whose rows lie differently, if they have one length.
func AllReduceView[T Element](ctx context.Context, c *Comm, v View[T], op Op) error {
	return inParts(v, true, true, func(buf []T) error { return AllReduce(ctx, c, buf, op) })
}

// BroadcastView is Broadcast of a view's elements; see AllReduceView.
func BroadcastView[T Element](ctx context.Context, c *Comm, v View[T], root int) error {
	mine := c.Rank() == root
	return inParts(v, mine, !mine, func(buf []T) error { return Broadcast(ctx, c, buf, root) })
}

// SendView is Send of a view's elements, to be received by RecvView of a view of the same
// length; see AllReduceView. It does not write to the view.
func SendView[T Element](ctx context.Context, c *Comm, to, tag int, v View[T]) error {
	return inParts(v, true, false, func(buf []T) error { return Send(ctx, c, to, tag, buf) })
}

// RecvView receives what SendView sent into a view of the same length; see AllReduceView. from
// must be a rank, and tag a tag: no wildcards, because a large view travels as several messages.
func RecvView[T Element](ctx context.Context, c *Comm, from, tag int, v View[T]) error {
	if from == AnySource || tag == AnyTag {
		return c.misuse("recvview", "source and tag: got a wildcard, want a rank and a tag; a large view travels as several messages")
	}
	return inParts(v, false, true, func(buf []T) error {
		st, err := Recv(ctx, c, from, tag, buf)
		if err == nil && Count[T](st) != len(buf) {
			err = c.misuse("recvview", "message of a view: got %d elements, want %d; give views of equal length to SendView and RecvView", Count[T](st), len(buf))
		}
		return err
	})
}

// inParts calls do for one part of v after another, at least once, also for an empty view: a
// collective is called by all ranks equally often. read says whether do reads the elements,
// write whether it changes them.
func inParts[T Element](v View[T], read, write bool, do func([]T) error) error {
	part := max(1, viewPartBytes/tensor.TypeOf[T]().Size())
	all, contiguous := v.Contiguous()
	var stage []T
	if !contiguous {
		stage = make([]T, min(part, v.Len()))
	}
	// An empty view has one empty part: the call still takes place on all ranks.
	for from := 0; from == 0 || from < v.Len(); from += part {
		n := min(part, v.Len()-from)
		if contiguous {
			if err := do(all[from : from+n]); err != nil {
				return err
			}
			continue
		}
		buf := stage[:n]
		if read {
			v.Read(buf, from)
		}
		if err := do(buf); err != nil {
			return err
		}
		if write {
			v.Write(buf, from)
		}
	}
	return nil
}
