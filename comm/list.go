package comm

import (
	"context"

	"github.com/tutti-go/tutti/collective"
	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/tensor"
)

// AllReduceListBy is AllReduceBy of several vectors as one operation, which replaces
// each of them; they may lie anywhere, but must not overlap, which is not checked.
// Every rank gives as many, and equally long ones. They are given as their bytes, whole elements of
// type d and aligned for it, because who has lists of vectors often knows their type
// only then. Nothing is copied beforehand: each vector is gathered from, and its
// result put, where it lies, while other parts of the list travel. Results are to the
// bit those of AllReduceBy of each vector alone. Algorithms "ring" and "shared" can do
// that; naming another is fault.Misuse. list is the caller's again at the return.
func AllReduceListBy(ctx context.Context, c *Comm, algorithm string, d tensor.DType, list [][]byte, op Op) error {
	pl := plan{verb: collective.VerbAllReduce, dtype: d, vectors: list, root: -1, op: op, forced: algorithm}
	if err := pl.bindVectors(c); err != nil {
		return err
	}
	return c.executeBound(ctx, &pl)
}

// bindVectors counts the elements of a list, and refuses what is not one.
func (pl *plan) bindVectors(c *Comm) error {
	name := pl.verb.String()
	if !pl.dtype.Valid() {
		return c.misuse(name, "elements of type %v", pl.dtype)
	}
	es := pl.dtype.Size()
	for i, v := range pl.vectors {
		if len(v)%es != 0 || !tensor.AlignedFor(pl.dtype, v) {
			return c.misuse(name, "vector %d of the list, of %d bytes, is not whole elements of %v, aligned for it", i, len(v), pl.dtype)
		}
		pl.bytes += len(v)
	}
	pl.count = pl.bytes / es
	a, err := collective.Find(pl.verb, pl.forced)
	if err == nil && !a.SupportsLists() {
		err = fault.New(fault.Misuse, name, c.rt.rank, "algorithm %s does not take a list of vectors; ring and shared do", pl.forced)
	}
	if err != nil {
		return c.withOp(name, err)
	}
	if pl.vectors == nil {
		pl.vectors = [][]byte{}
	}
	return nil
}
