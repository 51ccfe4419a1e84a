package reduce

import "encoding/binary"

// logicalAnd is the loop of LogicalAnd. Its result is 0 or 1, whatever the operands are.
func logicalAnd[T integer](dst, earlier, later []T) {
	earlier, later = earlier[:len(dst)], later[:len(dst)]
	for i := range dst {
		dst[i] = one[T](earlier[i] != 0 && later[i] != 0)
	}
}

// logicalOr is the loop of LogicalOr.
func logicalOr[T integer](dst, earlier, later []T) {
	earlier, later = earlier[:len(dst)], later[:len(dst)]
	for i := range dst {
		dst[i] = one[T](earlier[i]|later[i] != 0)
	}
}

// logicalXor is the loop of LogicalXor.
func logicalXor[T integer](dst, earlier, later []T) {
	earlier, later = earlier[:len(dst)], later[:len(dst)]
	for i := range dst {
		dst[i] = one[T]((earlier[i] != 0) != (later[i] != 0))
	}
}

// one returns 1 for true and 0 for false.
func one[T integer](truth bool) T {
	if truth {
		return 1
	}
	return 0
}

// word is the number of bytes that a bitwise loop handles at a time. The bitwise operators do
// not depend on the element type, so one loop serves every integer, at any alignment.
const word = 8

// bitAnd is the loop of BitAnd.
func bitAnd(dst, earlier, later []byte) {
	for len(dst) >= word {
		bits := binary.NativeEndian.Uint64(earlier) & binary.NativeEndian.Uint64(later)
		binary.NativeEndian.PutUint64(dst, bits)
		dst, earlier, later = dst[word:], earlier[word:], later[word:]
	}
	for i := range dst {
		dst[i] = earlier[i] & later[i]
	}
}

// bitOr is the loop of BitOr.
func bitOr(dst, earlier, later []byte) {
	for len(dst) >= word {
		bits := binary.NativeEndian.Uint64(earlier) | binary.NativeEndian.Uint64(later)
		binary.NativeEndian.PutUint64(dst, bits)
		dst, earlier, later = dst[word:], earlier[word:], later[word:]
	}
	for i := range dst {
		dst[i] = earlier[i] | later[i]
	}
}

// bitXor is the loop of BitXor.
func bitXor(dst, earlier, later []byte) {
	for len(dst) >= word {
		bits := binary.NativeEndian.Uint64(earlier) ^ binary.NativeEndian.Uint64(later)
		binary.NativeEndian.PutUint64(dst, bits)
		dst, earlier, later = dst[word:], earlier[word:], later[word:]
	}
	for i := range dst {
		dst[i] = earlier[i] ^ later[i]
	}
}
