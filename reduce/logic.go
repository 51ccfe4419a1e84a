package reduce

import "encoding/binary"

func logicalAnd[T integer](dst, earlier, later []T) {
	earlier, later = earlier[:len(dst)], later[:len(dst)]
	for i := range dst {
		dst[i] = one[T](earlier[i] != 0 && later[i] != 0)
	}
}

func logicalOr[T integer](dst, earlier, later []T) {
	earlier, later = earlier[:len(dst)], later[:len(dst)]
	for i := range dst {
		dst[i] = one[T](earlier[i]|later[i] != 0)
	}
}

func logicalXor[T integer](dst, earlier, later []T) {
	earlier, later = earlier[:len(dst)], later[:len(dst)]
	for i := range dst {
		dst[i] = one[T]((earlier[i] != 0) != (later[i] != 0))
	}
}

func one[T integer](truth bool) T {
	if truth {
		return 1
	}
	return 0
}

// Bits know nothing of elements, so these serve every integer, eight bytes at a
// time, at any alignment.

const word = 8

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
