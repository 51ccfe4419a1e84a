package coordinator

import (
	"hash/fnv"
	"math"
	"slices"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/coordinator/negotiate"
	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/tensor"
)

// A Submitter takes submissions: a *Coordinator at once, a *Group together with
// others.
type Submitter interface {
	coordinator() *Coordinator
	submit(q *negotiate.Request, h *Handle)
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

// AllReduce replaces buf, on every rank, by the reduction of all ranks' buf.
func AllReduce[T comm.Element](to Submitter, name string, buf []T, op comm.Op, opts ...CallOption) *Handle {
	b := tensor.Bytes(buf)
	return start(to, negotiate.AllReduce, name, tensor.TypeOf[T](), len(buf), &Handle{dst: b, src: b, op: op}, opts)
}

// ReduceScatter leaves in dst, on rank i, rows of part i of the reduction of all
// ranks' src. Rows are cut as evenly as can be, the first parts longer by one.
// src and dst must not overlap.
func ReduceScatter[T comm.Element](to Submitter, name string, dst, src []T, op comm.Op, opts ...CallOption) *Handle {
	return start(to, negotiate.ReduceScatter, name, tensor.TypeOf[T](), len(src), &Handle{dst: tensor.Bytes(dst), src: tensor.Bytes(src), op: op}, opts)
}

// Broadcast replaces buf, on every rank, by the root's.
func Broadcast[T comm.Element](to Submitter, name string, buf []T, root int, opts ...CallOption) *Handle {
	b := tensor.Bytes(buf)
	return start(to, negotiate.Broadcast, name, tensor.TypeOf[T](), len(buf), &Handle{dst: b, src: b}, append(opts[:len(opts):len(opts)], CallOption{n: root}))
}

// AllGather gives every rank all ranks' src in rank order. First dimensions may
// differ from rank to rank.
func AllGather[T comm.Element](to Submitter, name string, src []T, opts ...CallOption) *Output[T] {
	h, out := withResult[T](src)
	return &Output[T]{start(to, negotiate.AllGather, name, tensor.TypeOf[T](), len(src), h, opts), out}
}

// AllToAll sends splits[i] rows of src to rank i, and gives this rank what all
// ranks sent it, in rank order.
func AllToAll[T comm.Element](to Submitter, name string, src []T, splits []int, opts ...CallOption) *Output[T] {
	h, out := withResult[T](src)
	h.splits = slices.Clone(splits)
	return &Output[T]{start(to, negotiate.AllToAll, name, tensor.TypeOf[T](), len(src), h, opts), out}
}

func withResult[T comm.Element](src []T) (*Handle, *[]T) {
	out := new([]T)
	var e T
	size := len(tensor.Bytes([]T{e}))
	return &Handle{src: tensor.Bytes(src), alloc: func(bytes int) []byte {
		*out = make([]T, bytes/size)
		return tensor.Bytes(*out)
	}}, out
}

// Barrier is done when every rank has submitted it.
func Barrier(to Submitter, name string, opts ...CallOption) *Handle {
	return start(to, negotiate.Barrier, name, tensor.Uint8, 0, &Handle{}, opts)
}

// start checks what this rank can check by itself, and submits.
func start(to Submitter, kind negotiate.Kind, name string, d tensor.DType, count int, h *Handle, opts []CallOption) *Handle {
	co := to.coordinator()
	h.co, h.done = co, make(chan struct{})
	q := &negotiate.Request{Site: co.site()}
	q.Kind, q.Name, q.DType, q.Wire, q.Root, q.Pre, q.Post = kind, name, d, d, -1, 1, 1
	q.Shape = []int{count}
	set := co.all
	for i := range opts {
		if opts[i].set != nil {
			set = opts[i].set
		}
		opts[i].apply(q, h)
	}
	if kind == negotiate.Barrier {
		q.DType, q.Wire, q.Shape = tensor.Invalid, tensor.Invalid, nil
	}
	if err := co.refusal(q, h, count, set); err != nil {
		h.call = q.Call()
		h.finish(err)
		return h
	}
	h.call = q.Call()
	to.submit(q, h)
	return h
}

func (o *CallOption) apply(q *negotiate.Request, h *Handle) {
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
	default:
		q.Root = o.n
	}
}

// refusal completes a request, and is why it cannot be submitted.
func (co *Coordinator) refusal(q *negotiate.Request, h *Handle, count int, set *ProcessSet) error {
	size := len(set.ranks)
	bad := func(format string, args ...any) error {
		return fault.New(fault.Misuse, q.Kind.String()+" "+q.Name, co.world(co.rank), format, args...)
	}
	total := 1
	for _, d := range q.Shape {
		if d < 0 {
			return bad("dimension %d in shape %v", d, q.Shape)
		}
		total *= d
	}
	switch {
	case q.Name == "" || len(q.Name) > negotiate.MaxName:
		return bad("a name has 1 to %d bytes, not %d", negotiate.MaxName, len(q.Name))
	case len(q.Shape) > negotiate.MaxDims:
		return bad("%d dimensions; at most %d are allowed", len(q.Shape), negotiate.MaxDims)
	case q.Kind != negotiate.Barrier && (total != count || len(q.Shape) == 0):
		return bad("the buffer has %d elements, and shape %v another number", count, q.Shape)
	case q.Kind == negotiate.Broadcast && (q.Root < 0 || q.Root >= size):
		return bad("root %d is out of range; there are ranks 0 to %d", q.Root, size-1)
	case !isFinite(q.Pre) || !isFinite(q.Post):
		return bad("scales %g and %g; finite ones are needed", q.Pre, q.Post)
	case (q.Pre != 1 || q.Post != 1) && (!scales(q.DType) || !reduces(q.Kind)):
		return bad("%v of %v cannot be scaled", q.Kind, q.DType)
	case q.Wire != q.DType && !compresses(q):
		return bad("%v of %v cannot travel as %v; allreduces of float32 and float64 can, as float16 or bfloat16", q.Kind, q.DType, q.Wire)
	}
	if why := refuseFold(q, h, count); why != "" {
		return bad("%s", why)
	}
	switch q.Kind {
	case negotiate.AllReduce, negotiate.ReduceScatter:
		q.Op, q.OpID = h.op.Name(), h.op.ID()
		if q.OpID == Adasum.ID() {
			return nil
		}
		for _, d := range [...]tensor.DType{q.DType, q.Wire} {
			if _, err := h.op.Kernel(d); err != nil {
				return bad("%w", err)
			}
		}
		_, known := builtin(q.OpID)
		q.NoIdentity = !known
		if q.Kind == negotiate.ReduceScatter {
			return co.checkPart(q, h, set, bad)
		}
	case negotiate.AllGather:
		q.Rows, q.Shape[0] = q.Shape[0], -1
	case negotiate.AllToAll:
		sum := 0
		for _, n := range h.splits {
			if n < 0 {
				return bad("a split of %d rows", n)
			}
			sum += n
		}
		if len(h.splits) != size || sum != q.Shape[0] {
			return bad("splits %v are not of %d rows to %d ranks", h.splits, q.Shape[0], size)
		}
		q.Splits, q.Shape[0] = h.splits, -1
	}
	return nil
}

// checkPart compares dst with this rank's part of a ReduceScatter.
func (co *Coordinator) checkPart(q *negotiate.Request, h *Handle, set *ProcessSet, bad func(string, ...any) error) error {
	at := slices.Index(set.ranks, co.rank)
	if at < 0 {
		return nil // refused by the Member, who says so
	}
	lo, hi := negotiate.Chunk(q.Shape[0], len(set.ranks), at)
	if want := (hi - lo) * rowBytes(&q.Tensor); len(h.dst) != want {
		return bad("dst has %d elements; this rank's part, rows %d to %d, has %d", len(h.dst)/q.DType.Size(), lo, hi, want/q.DType.Size())
	}
	return nil
}

func isFinite(f float64) bool { return !math.IsNaN(f) && !math.IsInf(f, 0) }

// rowBytes is the size of one row of the first dimension.
func rowBytes(t *negotiate.Tensor) int {
	n := t.DType.Size()
	for _, d := range t.Shape[1:] {
		n *= d
	}
	return n
}

func (co *Coordinator) coordinator() *Coordinator { return co }

func (co *Coordinator) submit(q *negotiate.Request, h *Handle) {
	co.submitAll([]negotiate.Request{*q}, []*Handle{h})
}

// submitAll gives requests to the loop as one.
func (co *Coordinator) submitAll(rs []negotiate.Request, hs []*Handle) {
	tickets := make([]negotiate.Ticket, len(rs))
	born := co.stamp()
	co.mu.Lock()
	if co.over || co.handles == nil {
		co.mu.Unlock()
		for _, h := range hs {
			h.finish(co.ending(h.call))
		}
		return
	}
	for i, h := range hs {
		co.ticket++
		tickets[i] = co.ticket
		h.born = born
		co.handles[co.ticket] = h
	}
	co.unsent = true
	co.inbox = append(co.inbox, event{in: negotiate.Submit{Requests: rs, Tickets: tickets}})
	co.mu.Unlock()
	co.signal()
}

// A Group collects submissions that are submitted as one: none of them runs
// before all of them are ready on all ranks, and a mismatch in one fails all. It
// is used by one goroutine.
type Group struct {
	co *Coordinator
	rs []negotiate.Request
	hs []*Handle
}

// Group begins an empty group. Handles of what is submitted to it are not done
// before Submit.
func (co *Coordinator) Group() *Group { return &Group{co: co} }

func (g *Group) coordinator() *Coordinator { return g.co }

func (g *Group) submit(q *negotiate.Request, h *Handle) {
	g.rs = append(g.rs, *q)
	g.hs = append(g.hs, h)
}

// Submit submits what was collected, and empties the group. All of it must be of
// one process set.
func (g *Group) Submit() {
	rs, hs := g.rs, g.hs
	g.rs, g.hs = nil, nil
	if len(rs) == 0 {
		return
	}
	names := make([]string, len(rs))
	for i := range rs {
		names[i] = rs[i].Name
	}
	slices.Sort(names)
	id := fnv.New64a()
	for _, n := range names {
		id.Write([]byte(n))
		id.Write([]byte{0})
	}
	for i := range rs {
		if rs[i].Set != rs[0].Set {
			for _, h := range hs {
				h.finish(fault.New(fault.Misuse, "group", g.co.world(g.co.rank), "tensors %q and %q are of different process sets", rs[0].Name, rs[i].Name))
			}
			return
		}
		rs[i].Group, rs[i].GroupSize = id.Sum64()|1, len(rs)
	}
	g.co.submitAll(rs, hs)
}
