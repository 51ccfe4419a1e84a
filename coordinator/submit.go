package coordinator

import (
	"slices"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/coordinator/negotiate"
	"github.com/tutti-go/tutti/internal/callsite"
	"github.com/tutti-go/tutti/tensor"
)

// A Submitter takes submissions: a *Coordinator at once, a *Group together with
// others.
type Submitter interface {
	coordinator() *Coordinator
	submit(q *negotiate.TensorRequest, h *Handle)
}

// A CallOption says more about one submission. All ranks give equal ones.
type CallOption struct {
	code     optionCode
	n        int
	pre, pos float64
	shape    []int
	set      *ProcessSet
	wire     tensor.DType
	codec    negotiate.Codec
	residual []byte // of elements of type wire
}

type optionCode uint8

const (
	optShape optionCode = iota + 1
	optPriority
	optScale
	optSet
	optCompress
	optCodec
)

// Shape tells the dimensions of the buffer, at most 8; without it, it has one.
// Ranks that disagree about it get fault.Mismatch, and gathers and scatters go by
// its first dimension.
func Shape(dims ...int) CallOption { return CallOption{code: optShape, shape: dims} }

// Priority makes a tensor go before others of lower priority that are ready; the
// default is 0.
func Priority(p int) CallOption { return CallOption{code: optPriority, n: p} }

// Scale multiplies every rank's share by pre, before it is compressed, and the
// result by post, in the element type; floating-point types only.
func Scale(pre, post float64) CallOption { return CallOption{code: optScale, pre: pre, pos: post} }

// Compress has the elements of an AllReduce of float32 or float64 travel, and
// folded, as wire: tensor.F16 or tensor.BF16, rounded to nearest once on each
// rank and once per fold. A mean divides in that type, too.
func Compress(wire tensor.DType) CallOption { return CallOption{code: optCompress, wire: wire} }

// In submits to a process set, of which this rank is a member; roots and parts
// are numbered within it.
func In(s *ProcessSet) CallOption { return CallOption{code: optSet, set: s} }

// A request is what a program asks for, before anybody has looked at it.
type request struct {
	kind     negotiate.Operation
	name     string
	dtype    tensor.DType
	count    int // elements of src
	dst, src []byte
	op       comm.Op
	root     int // -1: none
	splits   []int
	alloc    func(bytes int) []byte
}

// AllReduce replaces buf, on every rank, by the reduction of all ranks' buf.
func AllReduce[T comm.Element](to Submitter, name string, buf []T, op comm.Op, opts ...CallOption) *Handle {
	b := tensor.Bytes(buf)
	return start(to, &request{kind: negotiate.AllReduce, name: name, dtype: tensor.TypeOf[T](), count: len(buf), dst: b, src: b, op: op, root: -1}, opts)
}

// ReduceScatter leaves in dst, on rank i, rows of part i of the reduction of all
// ranks' src. Rows are cut as evenly as can be, the first parts longer by one.
// src and dst must not overlap.
func ReduceScatter[T comm.Element](to Submitter, name string, dst, src []T, op comm.Op, opts ...CallOption) *Handle {
	return start(to, &request{kind: negotiate.ReduceScatter, name: name, dtype: tensor.TypeOf[T](), count: len(src), dst: tensor.Bytes(dst), src: tensor.Bytes(src), op: op, root: -1}, opts)
}

// Broadcast replaces buf, on every rank, by the root's.
func Broadcast[T comm.Element](to Submitter, name string, buf []T, root int, opts ...CallOption) *Handle {
	b := tensor.Bytes(buf)
	return start(to, &request{kind: negotiate.Broadcast, name: name, dtype: tensor.TypeOf[T](), count: len(buf), dst: b, src: b, root: root}, opts)
}

// AllGather gives every rank all ranks' src in rank order. First dimensions may
// differ from rank to rank.
func AllGather[T comm.Element](to Submitter, name string, src []T, opts ...CallOption) *Output[T] {
	return withResult(to, &request{kind: negotiate.AllGather, name: name, root: -1}, src, opts)
}

// AllToAll sends splits[i] rows of src to rank i, and gives this rank what all
// ranks sent it, in rank order.
func AllToAll[T comm.Element](to Submitter, name string, src []T, splits []int, opts ...CallOption) *Output[T] {
	return withResult(to, &request{kind: negotiate.AllToAll, name: name, root: -1, splits: slices.Clone(splits)}, src, opts)
}

func withResult[T comm.Element](to Submitter, s *request, src []T, opts []CallOption) *Output[T] {
	out := new([]T)
	s.dtype, s.count, s.src = tensor.TypeOf[T](), len(src), tensor.Bytes(src)
	size := s.dtype.Size()
	s.alloc = func(bytes int) []byte {
		*out = make([]T, bytes/size)
		return tensor.Bytes(*out)
	}
	return &Output[T]{start(to, s, opts), out}
}

// Barrier is done when every rank has submitted it.
func Barrier(to Submitter, name string, opts ...CallOption) *Handle {
	return start(to, &request{kind: negotiate.Barrier, name: name, dtype: tensor.Uint8, root: -1}, opts)
}

// start checks what this rank can check by itself, and submits.
func start(to Submitter, s *request, opts []CallOption) *Handle {
	co := to.coordinator()
	if h := co.resubmit(to, s, opts); h != nil {
		return h
	}
	h := &Handle{
		co: co, dst: s.dst, src: s.src, op: s.op, splits: s.splits, alloc: s.alloc,
		count: s.count, sizes: [2]int{len(s.dst), len(s.src)}, opts: slices.Clone(opts),
	}
	q := &h.requests[0]
	q.Site = co.site()
	q.Operation, q.Name, q.DType, q.Wire, q.Root, q.Pre, q.Post = s.kind, s.name, s.dtype, s.dtype, s.root, 1, 1
	q.Shape = []int{s.count}
	set := co.setOf(opts)
	for i := range opts {
		opts[i].apply(q, h)
	}
	if s.kind == negotiate.Barrier {
		q.DType, q.Wire, q.Shape = tensor.Invalid, tensor.Invalid, nil
	}
	if err := co.validate(q, h, s.count, set); err != nil {
		h.complete(err)
		return h
	}
	h.set = set
	to.submit(q, h)
	return h
}

// setOf is the process set that a submission is for: the last one named.
func (co *Coordinator) setOf(opts []CallOption) *ProcessSet {
	set := co.all
	for i := range opts {
		if opts[i].set != nil {
			set = opts[i].set
		}
	}
	return set
}

// maxRepeatable bounds the handles of a process set that are remembered by their names.
const maxRepeatable = 1 << 16

// resubmit submits what was submitted before, with all that was made for it; nil
// where something is new. It costs no allocation.
func (co *Coordinator) resubmit(to Submitter, s *request, opts []CallOption) *Handle {
	if to != Submitter(co) || s.alloc != nil {
		return nil
	}
	set := co.setOf(opts)
	var at callsite.Site
	at.Capture()
	born := co.timestamp()
	co.mu.Lock()
	h := set.handles[s.name]
	if h == nil || !h.repeats(s, opts) || co.closed || !h.state.CompareAndSwap(awaited, inFlight) {
		co.mu.Unlock()
		return nil
	}
	h.turn.Add(1)
	h.done, h.dst, h.src, h.op, h.submittedAt = nil, s.dst, s.src, s.op, born
	h.requests[0].Site = co.describeSite(at)
	co.register(h)
	co.mu.Unlock()
	co.stepInline(&h.input)
	return h
}

// repeats reports whether a submission is the one that the handle is of, but for
// where the buffers lie.
func (h *Handle) repeats(s *request, opts []CallOption) bool {
	q := &h.requests[0]
	if q.Operation != s.kind || q.DType != s.dtype && s.kind != negotiate.Barrier || h.count != s.count || q.Root != s.root ||
		h.sizes != [2]int{len(s.dst), len(s.src)} || h.op != s.op || len(h.opts) != len(opts) {
		return false
	}
	for i := range opts {
		if !h.opts[i].equal(&opts[i]) {
			return false
		}
	}
	return true
}

// equal is never true for codecs, which have memory of their own.
func (o *CallOption) equal(p *CallOption) bool {
	return o.code == p.code && o.code != optCodec && o.n == p.n && o.pre == p.pre && o.pos == p.pos && o.set == p.set && o.wire == p.wire && slices.Equal(o.shape, p.shape)
}

// register makes a handle's one request ready to be told. co.mu is held.
func (co *Coordinator) register(h *Handle) {
	h.tickets[0] = co.handles.add(h)
	h.input = negotiate.Submit{Requests: h.requests[:], Submissions: h.tickets[:]}
}

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
			q.Set = o.set.id
		}
	}
}

func (co *Coordinator) coordinator() *Coordinator { return co }

// submit keeps the handle for the name's next turn.
func (co *Coordinator) submit(q *negotiate.TensorRequest, h *Handle) {
	born := co.timestamp()
	co.mu.Lock()
	if co.closed {
		h.complete(co.closedError(h.describe()))
		co.mu.Unlock()
		return
	}
	h.submittedAt = born
	if h.alloc == nil {
		kept := h.set.handles
		if len(kept) >= maxRepeatable { // of a program with a new name for everything
			clear(kept)
		}
		kept[q.Name] = h
	}
	co.register(h)
	co.mu.Unlock()
	co.stepInline(&h.input)
}

// submitAll submits requests as one.
func (co *Coordinator) submitAll(rs []negotiate.TensorRequest, hs []*Handle) {
	tickets := make([]negotiate.SubmissionID, len(rs))
	born := co.timestamp()
	co.mu.Lock()
	if co.closed {
		for _, h := range hs {
			h.complete(co.closedError(h.describe()))
		}
		co.mu.Unlock()
		return
	}
	for i, h := range hs {
		tickets[i] = co.handles.add(h)
		h.submittedAt = born
	}
	co.mu.Unlock()
	co.stepInline(negotiate.Submit{Requests: rs, Submissions: tickets})
}
