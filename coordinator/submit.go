package coordinator

import (
	"slices"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/coordinator/negotiate"
	"github.com/tutti-go/tutti/internal/callsite"
	"github.com/tutti-go/tutti/tensor"
)

// A Submitter accepts submissions. A *Coordinator submits each operation at once. A *TensorGroup
// collects operations.
type Submitter interface {
	coordinator() *Coordinator
	submit(h *Handle, at callsite.Site)
}

// A CallOption is an option of one tensor. All ranks must give equal options.
type CallOption struct {
	code     optionCode
	n        int
	pre, pos float64
	shape    []int
	set      *ProcessSet
	wire     tensor.DType
	codec    negotiate.Codec
	residual []byte // the codec's residual, with elements of type wire
}

// An optionCode is the kind of a CallOption. Options are values, not functions, so that a call with
// options does not allocate closures.
type optionCode uint8

const (
	optShape optionCode = iota + 1
	optPriority
	optScale
	optSet
	optCompress
	optCodec
)

// Shape gives the dimensions of the buffer, at most 8. Without it, the buffer has one dimension.
// Ranks with different shapes get fault.Mismatch. Rows of gathers and scatters are counted in the
// first dimension.
func Shape(dims ...int) CallOption { return CallOption{code: optShape, shape: dims} }

// Priority makes a tensor run before ready tensors of lower priority; the default is 0. After the
// first tensor with a priority, rank 0 orders fewer bytes ahead; see WithCredit.
func Priority(p int) CallOption { return CallOption{code: optPriority, n: p} }

// Scale multiplies every rank's share by pre, before the share is compressed. It multiplies the
// result by post. Both products are computed in the element type. It is for reductions of
// floating-point types.
func Scale(pre, post float64) CallOption { return CallOption{code: optScale, pre: pre, pos: post} }

// Compress makes an AllReduce of float32 or float64 send and fold the elements as wire, which is
// tensor.F16 or tensor.BF16. The elements are rounded to nearest once on each rank and once in each
// fold. A mean is divided in that type, too.
func Compress(wire tensor.DType) CallOption { return CallOption{code: optCompress, wire: wire} }

// In submits the tensor to a process set. This rank must be a member of the set. Roots and parts
// are indexes into the set.
func In(s *ProcessSet) CallOption { return CallOption{code: optSet, set: s} }

// A request describes the operation of one of the functions below. declare checks the request and
// makes a handle from it. start calls declare and then submits the handle:
//
//	AllReduce, …  ► request ► declare ► Handle ► Submitter.submit ► in flight, or in a group
//	Declare       ► request ► declare ► Handle
type request struct {
	kind     negotiate.Operation
	name     string
	dtype    tensor.DType
	count    int // elements of src
	dst, src []byte
	op       comm.Op
	root     int // -1: no root
	splits   []int
	result   func(bytes int, counts []int) []byte
}

// AllReduce reduces the vectors that the ranks pass in buf, and leaves the result in buf on every
// rank.
func AllReduce[T comm.Element](to Submitter, name string, buf []T, op comm.Op, opts ...CallOption) *Handle {
	b := tensor.Bytes(buf)
	return start(to, &request{kind: negotiate.AllReduce, name: name, dtype: tensor.TypeOf[T](), count: len(buf), dst: b, src: b, op: op, root: -1}, opts)
}

// Declare prepares an AllReduce of buf. Each Submit of the handle begins it. Declare does all
// checks and allocations that need to be done only once, so that neither Submit nor Wait allocates.
// If an argument is invalid, each Wait returns the error. Other handles of the same name may exist,
// but only one submission of a name may be in flight at a time.
func Declare[T comm.Element](co *Coordinator, name string, buf []T, op comm.Op, opts ...CallOption) *Handle {
	b := tensor.Bytes(buf)
	return co.declare(&request{kind: negotiate.AllReduce, name: name, dtype: tensor.TypeOf[T](), count: len(buf), dst: b, src: b, op: op, root: -1}, opts)
}

// ReduceScatter reduces the vectors that the ranks pass in src, and leaves part i of the result in
// dst on rank i. The parts consist of whole rows and are as equal as possible. The first parts may
// be one row longer. src and dst must not overlap.
func ReduceScatter[T comm.Element](to Submitter, name string, dst, src []T, op comm.Op, opts ...CallOption) *Handle {
	return start(to, &request{kind: negotiate.ReduceScatter, name: name, dtype: tensor.TypeOf[T](), count: len(src), dst: tensor.Bytes(dst), src: tensor.Bytes(src), op: op, root: -1}, opts)
}

// Broadcast copies buf from the root to every rank.
func Broadcast[T comm.Element](to Submitter, name string, buf []T, root int, opts ...CallOption) *Handle {
	b := tensor.Bytes(buf)
	return start(to, &request{kind: negotiate.Broadcast, name: name, dtype: tensor.TypeOf[T](), count: len(buf), dst: b, src: b, root: root}, opts)
}

// Rows is the result of a gather: the rows of all ranks of the process set, in rank order.
type Rows[T comm.Element] struct {
	Values []T
	Counts []int // the number of rows from each rank; 0 for a rank that has joined
}

// AllGather concatenates the rows that the ranks pass in src, in rank order. The first dimension
// may differ from rank to rank. When the handle is done, dst has the result on every rank, in newly
// allocated memory.
func AllGather[T comm.Element](to Submitter, name string, dst *Rows[T], src []T, opts ...CallOption) *Handle {
	return start(to, gather(&request{kind: negotiate.AllGather, name: name, root: -1}, dst, src), opts)
}

// AllToAll sends splits[i] rows of src to rank i. Once the handle is done, dst has the rows that
// all ranks have sent to this rank, in rank order and in newly allocated memory.
func AllToAll[T comm.Element](to Submitter, name string, dst *Rows[T], src []T, splits []int, opts ...CallOption) *Handle {
	return start(to, gather(&request{kind: negotiate.AllToAll, name: name, root: -1, splits: slices.Clone(splits)}, dst, src), opts)
}

// gather completes a request whose result size no rank knows in advance.
func gather[T comm.Element](r *request, dst *Rows[T], src []T) *request {
	r.dtype, r.count, r.src = tensor.TypeOf[T](), len(src), tensor.Bytes(src)
	if dst != nil {
		r.result = func(bytes int, counts []int) []byte {
			*dst = Rows[T]{make([]T, bytes/r.dtype.Size()), counts}
			return tensor.Bytes(dst.Values)
		}
	}
	return r
}

// Barrier is done when every rank has submitted it.
func Barrier(to Submitter, name string, opts ...CallOption) *Handle {
	return start(to, &request{kind: negotiate.Barrier, name: name, dtype: tensor.Uint8, root: -1}, opts)
}

// start declares a request and submits it on behalf of the program's call.
func start(to Submitter, r *request, opts []CallOption) *Handle {
	h := to.coordinator().declare(r, opts)
	var at callsite.Site
	at.Capture()
	to.submit(h, at)
	return h
}

// declare makes a handle from a request, and makes the checks that need no other rank. If a check
// fails, the handle keeps the error, and each submission of the handle fails at once. So Wait is
// the only call that returns errors.
func (co *Coordinator) declare(r *request, opts []CallOption) *Handle {
	h := &Handle{co: co, dst: r.dst, src: r.src, op: r.op, splits: r.splits, result: r.result}
	q := &h.requests[0]
	q.Operation, q.Name, q.DType, q.Wire, q.Root, q.Pre, q.Post = r.kind, r.name, r.dtype, r.dtype, r.root, 1, 1
	q.Shape = []int{r.count}
	h.set = co.all
	for i := range opts {
		opts[i].apply(q, h)
	}
	if r.kind == negotiate.Barrier {
		q.DType, q.Wire, q.Shape = tensor.Invalid, tensor.Invalid, nil
	}
	h.invalid = co.validate(q, h, r.count)
	h.input = negotiate.Submit{Requests: h.requests[:], Submissions: h.submissions[:]}
	return h
}

// apply sets the option in a request and its handle. If an option is given twice, the last one
// wins.
func (o *CallOption) apply(q *negotiate.TensorRequest, h *Handle) {
	switch o.code {
	case optShape:
		q.Shape = slices.Clone(o.shape)
	case optPriority:
		q.Priority = o.n
	case optScale:
		q.Pre, q.Post = o.pre, o.pos
	case optCompress:
		q.Wire = o.wire
	case optCodec:
		q.Codec, q.Whole = o.codec, true
		if o.codec == negotiate.TopK {
			q.Keep = o.n
		}
		h.residual, h.residualType = o.residual, o.wire
	case optSet:
		if o.set != nil {
			q.Set, h.set = o.set.id, o.set
		}
	}
}

// coordinator implements Submitter.
func (co *Coordinator) coordinator() *Coordinator { return co }

// submit implements Submitter.
func (co *Coordinator) submit(h *Handle, at callsite.Site) { h.submit(at) }
