package comm

import (
	"context"

	"github.com/tutti-go/tutti/tensor"
)

// viewPartBytes is the largest part of a view, in bytes, that one call moves. Rows that are not
// adjacent are copied through a staging buffer of at most this size; a contiguous view needs no
// copy. The parts depend only on the view's length, so ranks may use different row layouts.
const viewPartBytes = 4 << 20

// AllReduceView does an AllReduce of a view's elements, in row-major order. Elements of the slice
// outside the view are neither read nor written. A view is a matrix in a slice, whose rows need not
// be adjacent. tensor.Slice, tensor.Strided, tensor.Dense and tensor.Vec make views of slices and
// of gonum's matrices and vectors. Views correspond to MPI's derived datatypes.
//
// AllReduceView reduces a large view in parts of viewPartBytes, with one AllReduce call per part.
// Errors therefore name AllReduce, and earlier parts may already be reduced when a later part
// fails. Ranks may use different row layouts, but all views must have the same length.
func AllReduceView[T Element](ctx context.Context, c *Comm, v tensor.View[T], op Op) error {
	return inParts(v, true, true, func(buf []T) error { return AllReduce(ctx, c, buf, op) })
}

// BroadcastView does a Broadcast of a view's elements; see AllReduceView.
func BroadcastView[T Element](ctx context.Context, c *Comm, v tensor.View[T], root int) error {
	mine := c.Rank() == root
	return inParts(v, mine, !mine, func(buf []T) error { return Broadcast(ctx, c, buf, root) })
}

// SendView sends a view's elements to RecvView of a view of the same length; see Send and
// AllReduceView. It does not write to the view.
func SendView[T Element](ctx context.Context, c *Comm, to, tag int, v tensor.View[T]) error {
	return inParts(v, true, false, func(buf []T) error { return Send(ctx, c, to, tag, buf) })
}

// RecvView receives what SendView sent into a view of the same length; see AllReduceView. Wildcards
// are not allowed, because a large view travels as several messages.
func RecvView[T Element](ctx context.Context, c *Comm, from, tag int, v tensor.View[T]) error {
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

// inParts calls the function do for each part of v in turn. For an empty view it calls do once,
// because do may be a collective, which every rank must call. The parameters read and write say
// whether do reads and changes the elements.
func inParts[T Element](v tensor.View[T], read, write bool, do func([]T) error) error {
	part := max(1, viewPartBytes/tensor.TypeOf[T]().Size())
	all, contiguous := v.Contiguous()
	var stage []T
	if !contiguous {
		stage = make([]T, min(part, v.Len()))
	}
	// An empty view has one empty part, so that the call takes place on all ranks.
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
