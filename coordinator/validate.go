package coordinator

import (
	"math"
	"slices"

	"github.com/tutti-go/tutti/coordinator/negotiate"
	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/tensor"
)

// validate completes a request, and is why it cannot be submitted.
func (co *Coordinator) validate(q *negotiate.TensorRequest, h *Handle, count int) error {
	size := len(h.set.ranks)
	bad := func(format string, args ...any) error {
		return fault.New(fault.Misuse, q.Operation.String()+" "+q.Name, co.worldRank(co.rank), format, args...)
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
	case q.Operation != negotiate.Barrier && (total != count || len(q.Shape) == 0):
		return bad("the buffer has %d elements, and shape %v another number", count, q.Shape)
	case q.Operation == negotiate.Broadcast && (q.Root < 0 || q.Root >= size):
		return bad("root %d is out of range; there are ranks 0 to %d", q.Root, size-1)
	case (q.Operation == negotiate.AllGather || q.Operation == negotiate.AllToAll) && h.result == nil:
		return bad("dst is nil; give the Rows that are to have the result")
	case !isFinite(q.Pre) || !isFinite(q.Post):
		return bad("scales %g and %g; finite ones are needed", q.Pre, q.Post)
	case (q.Pre != 1 || q.Post != 1) && (!scales(q.DType) || !reduces(q.Operation)):
		return bad("%v of %v cannot be scaled", q.Operation, q.DType)
	case q.Wire != q.DType && !compresses(q):
		return bad("%v of %v cannot travel as %v; allreduces of float32 and float64 can, as float16 or bfloat16", q.Operation, q.DType, q.Wire)
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

// validatePart compares dst with this rank's part of a ReduceScatter.
func (co *Coordinator) validatePart(q *negotiate.TensorRequest, h *Handle, bad func(string, ...any) error) error {
	at := slices.Index(h.set.ranks, co.rank)
	if at < 0 {
		return nil // refused by the Member, who says so
	}
	lo, hi := tensor.Chunk(q.Shape[0], len(h.set.ranks), at)
	if want := (hi - lo) * rowSize(&q.Spec); len(h.dst) != want {
		return bad("dst has %d elements; this rank's part, rows %d to %d, has %d", len(h.dst)/q.DType.Size(), lo, hi, want/q.DType.Size())
	}
	return nil
}

func isFinite(f float64) bool { return !math.IsNaN(f) && !math.IsInf(f, 0) }

// rowSize is the size of one row of the first dimension.
func rowSize(t *negotiate.Spec) int {
	n := t.DType.Size()
	for _, d := range t.Shape[1:] {
		n *= d
	}
	return n
}
