package reduce

import (
	"unsafe"

	"github.com/tutti-go/tutti/reduce/internal/vector"
	"github.com/tutti-go/tutti/tensor"
)

// vectorBlock is the number of bytes that one call of a vector loop handles. The last call of a
// fold handles up to twice as many. A goroutine cannot be preempted inside such a loop. So the
// block size bounds the time for which a fold delays another goroutine, such as the garbage
// collector, to some tens of microseconds. A block is so large that the cost of the call is
// negligible. It holds whole vectors and whole elements of all types.
const vectorBlock = 256 << 10

// foldVector folds with a vector loop. The last call includes the remainder, which could be too
// short for a call of its own.
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

// finishVector returns a finish that runs a vector loop. For fewer than shortest bytes, it runs the
// function plain.
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

// best returns the highest level that this machine supports.
func best() vector.Level {
	levels := vector.Available()
	return levels[len(levels)-1]
}

// addVectors adds vector loops to existing entries of the table, so it must run after addPlain. A
// loop for sums also serves means. A loop for a logical operator on bools also serves the bitwise
// operator.
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
