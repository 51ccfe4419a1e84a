package cpu

// MinNonTemporal is the total size, in bytes, from which CopyNonTemporal is faster. The size counts
// the bytes that all ranks of a host write in one operation. From this size on, these bytes do not
// fit into a cache.
const MinNonTemporal = 16 << 20

// CopyNonTemporal copies as the built-in copy does, but stores past the processor's caches. The
// slices must not overlap. It returns the number of bytes copied.
//
// An ordinary store first reads the cache line that it writes to, and keeps that line in the cache,
// where it displaces another line. For memory larger than the caches, the read and the displacement
// are wasted. Storing past the caches avoids them: it causes a third less memory traffic, and the
// data in use stays cached. For memory that fits into a cache, CopyNonTemporal is slower, because
// the next reader finds the data in no cache.
//
// Processors without the instructions, and copies of a few bytes, use the built-in copy.
func CopyNonTemporal(dst, src []byte) int { return copyStreaming(dst, src) }
