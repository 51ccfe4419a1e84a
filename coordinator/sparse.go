package coordinator

import (
	"context"
	"slices"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/tensor"
)

// A Sparse is some rows of a tensor, as the gradient of an embedding is: Values
// holds Width elements for each of Indices. Rows that are not there are zero; an
// index that is there twice counts as the sum of its rows.
type Sparse[T comm.Element] struct {
	Indices []int64
	Values  []T
	Width   int
}

// A SparseOutput is a sparse submission under way.
type SparseOutput[T comm.Element] struct {
	name    string
	indices *Output[int64]
	values  *Output[T]
	op      comm.Op
	width   int
}

// AllReduceSparse adds all ranks' rows, by comm.Sum, or comm.Mean over the ranks
// that take part. Ranks may give different numbers of rows, and none. What travels
// are the rows as they are, under two names, name+"/indices" and name+"/values":
// of use where a rank has some of very many rows.
//
// s is the coordinator's until the submission is done.
func AllReduceSparse[T comm.Element](to Submitter, name string, s Sparse[T], op comm.Op, opts ...CallOption) *SparseOutput[T] {
	co := to.coordinator()
	out := &SparseOutput[T]{name: name, op: op, width: s.Width}
	if err := co.validateSparse(name, tensor.TypeOf[T](), op, len(s.Indices), len(s.Values), s.Width, opts); err != nil {
		h := &Handle{co: co}
		h.complete(err)
		out.indices, out.values = &Output[int64]{Handle: h}, &Output[T]{Handle: h}
		return out
	}
	own, grouped := to.(*TensorGroup)
	if !grouped {
		own = co.Group()
	}
	// A first index of no row shows that a rank has taken part.
	indices := append([]int64{-1}, s.Indices...)
	out.indices = AllGather(own, name+"/indices", indices, opts...)
	out.values = AllGather(own, name+"/values", s.Values, append(slices.Clone(opts), Shape(len(s.Indices), s.Width))...)
	if !grouped {
		own.Submit()
	}
	return out
}

// validateSparse is why rows cannot be submitted, or nil.
func (co *Coordinator) validateSparse(name string, d tensor.DType, op comm.Op, rows, values, width int, opts []CallOption) error {
	bad := func(format string, args ...any) error {
		return fault.New(fault.Misuse, "sparse allreduce "+name, co.worldRank(co.rank), format, args...)
	}
	if width < 1 || values != rows*width {
		return bad("%d indices and a width of %d, with %d values", rows, width, values)
	}
	if op.ID() != comm.Sum.ID() && op.ID() != comm.Mean.ID() {
		return bad("rows are added, by comm.Sum or comm.Mean, and not by %s", op.Name())
	}
	if _, err := op.Kernel(d); err != nil {
		return bad("%w", err)
	}
	for i := range opts {
		if c := opts[i].code; c != optPriority && c != optSet {
			return bad("it takes no options but Priority and In")
		}
	}
	return nil
}

// Wait returns when the submission is done.
func (o *SparseOutput[T]) Wait(ctx context.Context) error {
	return WaitAll(ctx, o.indices.Handle, o.values.Handle)
}

// Result waits, and returns the rows that any rank gave, in the order of their
// indices, each once. Rows of one index are added in the order of the ranks, so
// results are the same bits on all of them. They are the caller's.
func (o *SparseOutput[T]) Result(ctx context.Context) (Sparse[T], error) {
	if err := o.Wait(ctx); err != nil {
		return Sparse[T]{}, err
	}
	indices, counts, err := o.indices.Result(ctx)
	if err != nil {
		return Sparse[T]{}, err
	}
	values, _, err := o.values.Result(ctx)
	if err != nil {
		return Sparse[T]{}, err
	}
	return o.combine(indices, counts, values)
}

// combine adds rows of one index.
func (o *SparseOutput[T]) combine(indices []int64, counts []int, values []T) (Sparse[T], error) {
	contributors := 0
	var order []int // of rows, by index and then by rank
	var index []int64
	for _, n := range counts {
		if n == 0 {
			continue // it has joined
		}
		contributors++
		index = append(index, indices[1:n]...)
		indices = indices[n:]
	}
	if len(values) != len(index)*o.width {
		return Sparse[T]{}, fault.New(fault.Mismatch, "sparse allreduce "+o.name, o.indices.co.worldRank(o.indices.co.rank),
			"%d indices and %d values of %d each have come", len(index), len(values), o.width)
	}
	for i := range index {
		order = append(order, i)
	}
	slices.SortStableFunc(order, func(a, b int) int {
		switch {
		case index[a] < index[b]:
			return -1
		case index[a] > index[b]:
			return 1
		}
		return 0
	})
	sum, err := comm.Sum.Kernel(tensor.TypeOf[T]())
	if err != nil {
		return Sparse[T]{}, err
	}
	out := Sparse[T]{Width: o.width}
	for _, i := range order {
		row := values[i*o.width : (i+1)*o.width]
		if n := len(out.Indices); n > 0 && out.Indices[n-1] == index[i] {
			last := tensor.Bytes(out.Values[(n-1)*o.width:])
			sum.Fold(last, last, tensor.Bytes(row))
			continue
		}
		out.Indices = append(out.Indices, index[i])
		out.Values = append(out.Values, row...)
	}
	if mean, err := o.op.Kernel(tensor.TypeOf[T]()); err == nil && o.op.ID() == comm.Mean.ID() {
		mean.Finish(tensor.Bytes(out.Values), contributors)
	}
	return out, nil
}
