package reduce

import (
	"unsafe"

	"github.com/tutti-go/tutti/reduce/internal/vector"
	"github.com/tutti-go/tutti/tensor"
)

// vectorBlock is how many bytes a vector loop is given at a time. A goroutine
// cannot be preempted inside, so this bounds what a fold adds to another's wait,
// a garbage collection's for one, to some tens of microseconds; and it is so
// much that a call is nothing beside it. Whole vectors and elements of all kinds.
const vectorBlock = 256 << 10

// foldVector is Fold by a vector loop. The last piece is longer than a block, if
// the rest alone would be too short.
func (l *loops) foldVector(dst, earlier, later []byte) {
	raceWrite(dst)
	raceRead(earlier)
	raceRead(later)
	for len(dst) >= 2*vectorBlock {
		l.vector(&dst[0], &earlier[0], &later[0], vectorBlock)
		dst, earlier, later = dst[vectorBlock:], earlier[vectorBlock:], later[vectorBlock:]
	}
	l.vector(unsafe.SliceData(dst), unsafe.SliceData(earlier), unsafe.SliceData(later), len(dst))
}

// finishVector makes a finish of a vector loop, for as few bytes as it takes,
// and of the plain one for fewer.
func finishVector(divide vector.Divide, shortest int, plain finish) finish {
	return func(buf []byte, ranks int) {
		if len(buf) < shortest {
			plain(buf, ranks)
			return
		}
		raceWrite(buf)
		for len(buf) >= 2*vectorBlock {
			divide(&buf[0], vectorBlock, float64(ranks))
			buf = buf[vectorBlock:]
		}
		divide(&buf[0], len(buf), float64(ranks))
	}
}

// best is the highest level that this machine has.
func best() vector.Level {
	levels := vector.Available()
	return levels[len(levels)-1]
}

// addVectors comes last, because it adds to what is in the table. What a loop
// does for sums it does for means, and for logical operators on bools it does
// for the bitwise ones.
func (t *table) addVectors(v vector.Kernels) {
	codes := map[string]code{}
	for _, o := range []Op{Sum, Prod, Min, Max, MinLoc, MaxLoc, LogicalAnd, LogicalOr, LogicalXor, BitAnd, BitOr, BitXor} {
		codes[o.Name()] = o.definition().code
	}
	set := func(c code, d tensor.DType, loop vector.Fold) {
		t.loops[c][d].vector, t.loops[c][d].minVectorBytes = loop, v.Shortest
	}
	for _, f := range v.Folds {
		set(codes[f.Op], f.Type, f.Fold)
	}
	for _, f := range v.Divisions {
		mean := t.loops[codeMean][f.Type]
		mean.finish = finishVector(f.Divide, v.Shortest, mean.finish)
		set(codeMean, f.Type, t.loops[codeSum][f.Type].vector)
	}
	for _, c := range sameOnBools() {
		if loop := t.loops[c.logical.definition().code][tensor.Bool].vector; loop != nil {
			set(c.bit.definition().code, tensor.Bool, loop)
		}
	}
}
