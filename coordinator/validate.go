package coordinator

import (
	"math"
	"slices"

	"github.com/tutti-go/tutti/coordinator/negotiate"
	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/tensor"
)

// validate completes a request with the values that follow from its arguments. It returns the
// reason why the request cannot be submitted, or nil. The checks are divided as follows:
//
//	this function  the name, shape, buffers, root, scales, operator and type, compression
//	the Worker     the process set, names in flight, calls after Join or Close
//	the            whether the ranks agree, and whether the operation is possible without the ranks
//	Coordinator    that are absent
func (co *Coordinator) validate(q *negotiate.TensorRequest, h *Handle, count int) error {
	size := len(h.set.ranks)
	bad := func(format string, args ...any) error {
		return fault.New(fault.Misuse, q.Operation.String()+" "+q.Name, co.worldRank(co.rank), format, args...)
	}
	total := 1
	for _, d := range q.Shape {
		if d < 0 {
			return bad("shape %v: got dimension %d, want 0 or more", q.Shape, d)
		}
		total *= d
	}
	switch {
	case q.Name == "" || len(q.Name) > negotiate.MaxName:
		return bad("name: got %d bytes, want 1 to %d", len(q.Name), negotiate.MaxName)
	case len(q.Shape) > negotiate.MaxDims:
		return bad("shape: got %d dimensions, want at most %d", len(q.Shape), negotiate.MaxDims)
	case q.Operation != negotiate.Barrier && (total != count || len(q.Shape) == 0):
		return bad("buffer: got %d elements, want %d, as the shape %v has", count, total, q.Shape)
	case q.Operation == negotiate.Broadcast && (q.Root < 0 || q.Root >= size):
		return bad("root: got %d, want 0 to %d", q.Root, size-1)
	case (q.Operation == negotiate.AllGather || q.Operation == negotiate.AllToAll) && h.result == nil:
		return bad("dst: got nil, want the Rows for the result")
	case !isFinite(q.Pre) || !isFinite(q.Post):
		return bad("scales: got %g and %g, want finite numbers", q.Pre, q.Post)
	case (q.Pre != 1 || q.Post != 1) && (!scales(q.DType) || !reduces(q.Operation)):
		return bad("%v of %v cannot be scaled; only reductions of floating-point types can", q.Operation, q.DType)
	case q.Wire != q.DType && !compresses(q):
		return bad("%v of %v cannot be compressed to %v; allreduces of float32 and float64 can, to float16 or bfloat16", q.Operation, q.DType, q.Wire)
	}
	if why := validateFold(q, h, count); why != "" {
		return bad("%s", why)
	}
	switch q.Operation {
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
		if q.Operation == negotiate.ReduceScatter {
			return co.validatePart(q, h, bad)
		}
	case negotiate.AllGather:
		q.Rows, q.Shape[0] = q.Shape[0], -1
	case negotiate.AllToAll:
		sum := 0
		for _, n := range h.splits {
			if n < 0 {
				return bad("splits: got %d rows for a rank, want 0 or more", n)
			}
			sum += n
		}
		if len(h.splits) != size || sum != q.Shape[0] {
			return bad("splits: got %v, want %d numbers that sum to the %d rows", h.splits, size, q.Shape[0])
		}
		q.Splits, q.Shape[0] = h.splits, -1
	}
	return nil
}

// validatePart checks that dst has the size of this rank's part of a ReduceScatter, and that it
// does not overlap src.
func (co *Coordinator) validatePart(q *negotiate.TensorRequest, h *Handle, bad func(string, ...any) error) error {
	at := slices.Index(h.set.ranks, co.rank)
	if at < 0 {
		return nil // the Worker refuses the request
	}
	lo, hi := tensor.Chunk(q.Shape[0], len(h.set.ranks), at)
	if want := (hi - lo) * rowSize(&q.Spec); len(h.dst) != want {
		return bad("dst: got %d elements, want %d, for rows [%d, %d), which are this rank's part", len(h.dst)/q.DType.Size(), want/q.DType.Size(), lo, hi)
	}
	if tensor.Overlap(h.dst, h.src) {
		return bad("buffers: got dst of %d bytes at %p and src of %d bytes at %p, which overlap, want separate ones", len(h.dst), h.dst, len(h.src), h.src)
	}
	return nil
}

// isFinite reports whether f is neither infinite nor a NaN.
func isFinite(f float64) bool { return !math.IsNaN(f) && !math.IsInf(f, 0) }

// rowSize returns the size in bytes of one row of the first dimension.
func rowSize(t *negotiate.Spec) int {
	n := t.DType.Size()
	for _, d := range t.Shape[1:] {
		n *= d
	}
	return n
}
