package coordinator

import (
	"slices"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/coordinator/negotiate"
	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/callsite"
	"github.com/tutti-go/tutti/tensor"
)

// A Sparse holds some rows of a tensor, such as the gradient of an embedding. For each index in
// Indices, Values holds a row of Width elements. Rows without an index are zero. If an index occurs
// twice, its rows are added.
type Sparse[T comm.Element] struct {
	Indices []int64
	Values  []T
	Width   int
}

// AllReduceSparse adds the rows of all ranks by comm.Sum, or averages them by comm.Mean over the
// contributing ranks. Ranks may give different numbers of rows, including none. The rows are
// gathered under the names name+"/indices" and name+"/values". So AllReduceSparse is useful if each
// rank has only a few rows of a very large tensor.
//
// After Wait has returned nil, dst holds each index that any rank has passed, once, with the sum of
// its rows. The indices are in ascending order, and the memory is newly allocated. Rows with equal
// indices are added in rank order, so all ranks get the same bits. src belongs to the coordinator
// until the handle is done.
func AllReduceSparse[T comm.Element](to Submitter, name string, dst *Sparse[T], src Sparse[T], op comm.Op, opts ...CallOption) *Handle {
	co := to.coordinator()
	call := "sparse allreduce " + name
	s := &sparseSum[T]{call: call, op: op, width: src.Width}
	// The leading index -1 has no row. It shows that the rank has not joined.
	indices := append([]int64{-1}, src.Indices...)
	rows := append(slices.Clone(opts), Shape(len(src.Indices), src.Width))
	parts := []*Handle{
		co.declare(gather(&request{kind: negotiate.AllGather, name: name + "/indices", root: -1}, &s.indices, indices), opts),
		co.declare(gather(&request{kind: negotiate.AllGather, name: name + "/values", root: -1}, &s.values, src.Values), rows),
	}
	if err := co.validateSparse(call, tensor.TypeOf[T](), op, len(src.Indices), len(src.Values), src.Width, opts); err != nil {
		parts[0].invalid, parts[1].invalid = err, err
	}
	h := newParent(call, func() (err error) { *dst, err = s.combine(co); return err }, parts...)
	var at callsite.Site
	at.Capture()
	if g, grouped := to.(*TensorGroup); grouped {
		g.submitParts(parts, at)
	} else {
		co.Group(func(g *TensorGroup) { g.submitParts(parts, at) })
	}
	return h
}

// submitParts adds the two gathers to the group. The parameter at is the call site of
// AllReduceSparse.
func (g *TensorGroup) submitParts(parts []*Handle, at callsite.Site) {
	for _, h := range parts {
		g.submit(h, at)
	}
}

// validateSparse returns the reason why rows cannot be submitted, or nil.
func (co *Coordinator) validateSparse(call string, d tensor.DType, op comm.Op, rows, values, width int, opts []CallOption) error {
	bad := func(format string, args ...any) error {
		return fault.New(fault.Misuse, call, co.worldRank(co.rank), format, args...)
	}
	if width < 1 || values != rows*width {
		return bad("rows: got %d indices, width %d and %d values, want a width of at least 1, and width values for each index", rows, width, values)
	}
	if op.ID() != comm.Sum.ID() && op.ID() != comm.Mean.ID() {
		return bad("operator: got %s, want comm.Sum or comm.Mean", op.Name())
	}
	if _, err := op.Kernel(d); err != nil {
		return bad("%w", err)
	}
	for i := range opts {
		if c := opts[i].code; c != optPriority && c != optSet {
			return bad("options: got an option other than Priority and In, want only these")
		}
	}
	return nil
}

// A sparseSum holds the results of the two gathers of an AllReduceSparse.
type sparseSum[T comm.Element] struct {
	call    string
	indices Rows[int64]
	values  Rows[T]
	op      comm.Op
	width   int
}

// combine adds the rows of each index, in the order of the ranks. The sort by index is stable, so
// rows with the same index stay in the order of ranks:
//
//	rank 0: 7 a, 2 b   rank 1: 2 c      gathered: 7 a, 2 b, 2 c      result: 2 b+c, 7 a
func (o *sparseSum[T]) combine(co *Coordinator) (Sparse[T], error) {
	indices, values := o.indices.Values, o.values.Values
	contributors := 0
	var order []int // the rows, sorted by index and then by rank
	var index []int64
	for _, n := range o.indices.Counts {
		if n == 0 {
			continue // the rank has joined
		}
		contributors++
		index = append(index, indices[1:n]...)
		indices = indices[n:]
	}
	if len(values) != len(index)*o.width {
		return Sparse[T]{}, fault.New(fault.Mismatch, o.call, co.worldRank(co.rank),
			"got %d indices and %d values from the ranks, want %d values per index", len(index), len(values), o.width)
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
