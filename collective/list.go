package collective

import (
	"context"

	"github.com/tutti-go/tutti/p2p"
	"github.com/tutti-go/tutti/reduce"
)

// AllReduceList reduces each vector of a list over all ranks, in place. All ranks pass the same
// number of vectors, with the same lengths. Vectors hold whole elements and do not overlap. The
// whole list is one operation.
//
// Each vector is cut into chunks separately, and chunk i of the list consists of chunk i of every
// vector. So each vector gets the same bits as from AllReduce on this vector alone, with the same
// algorithm. If SupportsLists returns false for the algorithm, AllReduceList returns fault.Misuse.
func AllReduceList(ctx context.Context, r *p2p.Round, a Algorithm, list [][]byte, k reduce.Kernel) error {
	if err := a.check(r, VerbAllReduce, k.Op()); err != nil {
		return err
	}
	switch a.Name() {
	case shared:
		return sharedAllReduceList(ctx, r, list, k)
	case ring:
		return ringAllReduceList(ctx, r, list, k)
	}
	return misuse(VerbAllReduce.String(), "algorithm for a list of vectors: got %s, want %s or %s", a.Name(), ring, shared)
}

// SupportsLists reports whether AllReduceList supports the algorithm.
func (a Algorithm) SupportsLists() bool {
	return a.Verb() == VerbAllReduce && (a.Name() == shared || a.Name() == ring)
}

// The constant ring is the common name of the algorithms that pass chunks around a ring.
const ring = "ring"

// ringAllReduceList is like ringAllReduce, for vectors in separate memory. Chunk i of the list is
// chunk i of each vector. With two ranks and two vectors:
//
//	vector 0   a0 a1 | a2 a3
//	vector 1   b0 | b1
//	           chunk 0   chunk 1
//
// A message gathers a chunk's parts from all vectors: chunk 0 is a0 a1 b0. The receiver folds or
// copies each arriving segment into those parts while the next segments travel.
func ringAllReduceList(ctx context.Context, r *p2p.Round, list [][]byte, k reduce.Kernel) error {
	all := p2p.Vectors{List: list, Chunks: r.Size(), Elem: k.DType().Size()}
	order := ringOrderOf(r)
	next, prev := order.at(1), order.at(-1)
	for step := range order.n - 1 {
		outgoing, partial := order.at(-1-step), order.at(-2-step)
		if err := r.ExchangeFoldVectors(ctx, next, all.Chunk(outgoing), prev, all.Chunk(partial), k, p2p.Earlier); err != nil {
			return err
		}
	}
	for piece := range all.Chunk(r.Rank()).Ranges {
		k.Finish(piece, r.Size())
	}
	for step := range order.n - 1 {
		if err := r.ExchangeVectors(ctx, next, all.Chunk(order.at(-step)), prev, all.Chunk(order.at(-1-step))); err != nil {
			return err
		}
	}
	return nil
}

// sharedAllReduceList is like sharedAllReduce, for vectors in separate memory. It copies shares
// directly from the vectors into the slots, and results directly back. The fold is in rank order,
// so the position of an element within a fragment does not change its result.
func sharedAllReduceList(ctx context.Context, r *p2p.Round, list [][]byte, k reduce.Kernel) error {
	total := 0
	for _, v := range list {
		total += len(v)
	}
	s := iovCursor{left: list}
	if total <= directBytes {
		return listDirect(ctx, r, s.next(total, &r.Iovecs()[0]), total, k)
	}
	return listFragments(ctx, r, &s, total, k)
}

// listDirect is like allReduceDirect, for a list.
func listDirect(ctx context.Context, r *p2p.Round, list iovRange, total int, k reduce.Kernel) error {
	p := r.Fragments(1, total)
	if err := p.AwaitFree(ctx); err != nil {
		return err
	}
	slot := p.Slot(r.Rank())
	list.each(0, total, func(lo, hi int, v []byte) { copy(slot[lo:hi], v) })
	p.SetDone()
	if err := awaitDone(ctx, r, p); err != nil {
		return err
	}
	list.each(0, total, func(lo, hi int, v []byte) {
		foldSlots(r, p, v, slot[lo:hi], lo, hi, k)
		k.Finish(v, r.Size())
	})
	return nil
}

// listFragments is like allReduceFragments, for a list.
func listFragments(ctx context.Context, r *p2p.Round, s *iovCursor, total int, k reduce.Kernel) error {
	elem := k.DType().Size()
	size := fragmentSize(elem)
	count := fragmentCount(total, size)
	p := r.Fragments(count, total)
	copyOut := resultCopy(r.Size() * total)
	memory := r.Iovecs() // for this fragment and the next one
	at := s.next(min(size, total), &memory[0])
	if err := at.copyIn(ctx, r, p, elem); err != nil {
		return err
	}
	for i := range count {
		next, ahead := p.Next(), iovRange{}
		if i+1 < count {
			ahead = s.next(min(size, total-(i+1)*size), &memory[(i+1)%2])
			if err := ahead.copyIn(ctx, r, next, elem); err != nil {
				return err
			}
		}
		if err := at.fold(ctx, r, p, elem, k, copyOut); err != nil {
			return err
		}
		if err := at.copyOut(ctx, r, p, elem, copyOut); err != nil {
			return err
		}
		p, at = next, ahead
	}
	return nil
}

// copyIn is like the function copyIn, for a range of a list.
func (s *iovRange) copyIn(ctx context.Context, r *p2p.Round, p p2p.Fragment, elem int) error {
	if err := p.AwaitFree(ctx); err != nil {
		return err
	}
	lo, hi := partOf(r.Rank(), r.Size(), s.size, elem)
	slot := p.Slot(r.Rank())
	put := func(lo, hi int, v []byte) { copy(slot[lo:hi], v) }
	s.each(0, lo, put)
	s.each(hi, s.size, put)
	p.SetReady()
	return nil
}

// fold is like foldPart, for a range of a list.
func (s *iovRange) fold(ctx context.Context, r *p2p.Round, p p2p.Fragment, elem int, k reduce.Kernel, copyOut copyFunc) error {
	if err := awaitReady(ctx, r, p); err != nil {
		return err
	}
	lo, hi := partOf(r.Rank(), r.Size(), s.size, elem)
	slot := p.Slot(r.Rank())
	s.each(lo, hi, func(lo, hi int, v []byte) { foldSlots(r, p, slot[lo:hi], v, lo, hi, k) })
	k.Finish(slot[lo:hi], r.Size())
	p.SetDone()
	s.each(lo, hi, func(lo, hi int, v []byte) { copyOut(v, slot[lo:hi]) })
	return nil
}

// copyOut is like copyOutParts, for a range of a list.
func (s *iovRange) copyOut(ctx context.Context, r *p2p.Round, p p2p.Fragment, elem int, copyOut copyFunc) error {
	n, me := r.Size(), r.Rank()
	for i := 1; i < n; i++ {
		rank := modulo(me+i, n)
		if err := p.AwaitDone(ctx, rank); err != nil {
			return err
		}
		lo, hi := partOf(rank, n, s.size, elem)
		slot := p.Slot(rank)
		s.each(lo, hi, func(lo, hi int, v []byte) { copyOut(v, slot[lo:hi]) })
	}
	return nil
}

// An iovCursor reads a list of slices from its beginning to its end. A fragment of a list may
// end anywhere in a slice, and a slice may span several fragments.
type iovCursor struct {
	left [][]byte
	at   int // bytes of the first slice that have been read
}

// An iovRange is a range of consecutive bytes of a list. It holds the slices that contain the
// bytes.
type iovRange struct {
	parts [][]byte
	size  int
}

// next returns the next n bytes of the list as slices. It stores the slices in *memory, which it
// grows if needed.
func (s *iovCursor) next(n int, memory *[][]byte) iovRange {
	out := iovRange{(*memory)[:0], n}
	for n > 0 {
		v := s.left[0][s.at:]
		if len(v) > n {
			v = v[:n:n]
			s.at += n
		} else {
			s.left, s.at = s.left[1:], 0
		}
		if n -= len(v); len(v) > 0 {
			out.parts = append(out.parts, v)
		}
	}
	*memory = out.parts
	return out
}

// each calls f for every slice, or part of a slice, that lies between bytes lo and hi of the range.
// It passes the slice and the slice's bounds in the range.
func (s *iovRange) each(lo, hi int, f func(lo, hi int, v []byte)) {
	at := 0
	for _, v := range s.parts {
		if at >= hi {
			return
		}
		if end := at + len(v); end > lo {
			from, to := max(lo, at), min(hi, end)
			f(from, to, v[from-at:to-at])
		}
		at += len(v)
	}
}
