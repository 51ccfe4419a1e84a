package rendezvous

import "math/bits"

// A bufferPool recycles the memory of eager messages that waited for a receive. Free pieces are
// sorted by size class, because only a few lengths recur. Most are the length of a full segment or
// of a message's last segment. Every peer may send ahead by its whole credit at the same time, so
// the pool may keep as many bytes as the credits of all peers together, up to maxPooled. The
// engine's lock guards the pool.
type bufferPool struct {
	free  [bits.UintSize + 1][][]byte // by bits.Len of the capacity
	size  int                         // bytes in free
	limit int                         // the upper bound of size
}

const (
	maxPooled = 16 << 20 // the upper bound of limit, for any number of peers
	poolAlign = 64       // capacities are multiples of this
	poolTries = 4        // free pieces per class to try before a new piece is allocated
)

// newBufferPool returns a pool for a job with the given number of peers. Each peer may have
// messages of up to credit bytes in total waiting on this rank.
func newBufferPool(peers, credit int) bufferPool {
	return bufferPool{limit: min(max(peers, 1)*min(credit, maxPooled), maxPooled)}
}

// get returns a slice of n bytes with arbitrary content. Its capacity is at most 2m, where m is n
// rounded up to a multiple of poolAlign, so that a small message does not occupy a large piece.
func (st *bufferPool) get(n int) []byte {
	if n == 0 {
		return []byte{}
	}
	// A piece with the smallest suitable capacity is in class bits.Len(least). A piece of up to
	// twice that capacity may be in the next class.
	least := (n + poolAlign - 1) / poolAlign * poolAlign
	for class := bits.Len(uint(least)); class <= bits.Len(uint(2*least)); class++ {
		free := st.free[class]
		last := len(free) - 1
		for i := last; i >= max(0, last-poolTries); i-- {
			if b := free[i]; cap(b) >= least && cap(b) <= 2*least {
				free[i], free[last] = free[last], nil
				st.free[class] = free[:last]
				st.size -= cap(b)
				return b[:n]
			}
		}
	}
	return make([]byte, n, least)
}

// put adds b to the pool. The caller must not use b afterwards. If the pool is full, put first
// frees pieces of other classes, because the program now uses messages of b's length.
func (st *bufferPool) put(b []byte) {
	if cap(b) == 0 || cap(b) > st.limit {
		return
	}
	own := bits.Len(uint(cap(b)))
	for class := len(st.free) - 1; class > 0 && st.size+cap(b) > st.limit; class-- {
		if class != own {
			st.drop(class, st.size+cap(b)-st.limit)
		}
	}
	if st.size+cap(b) <= st.limit {
		st.free[own] = append(st.free[own], b)
		st.size += cap(b)
	}
}

// drop frees pieces of a class until it has freed the given number of bytes or the class is empty.
func (st *bufferPool) drop(class, bytes int) {
	free := st.free[class]
	for len(free) > 0 && bytes > 0 {
		last := len(free) - 1
		bytes -= cap(free[last])
		st.size -= cap(free[last])
		free[last], free = nil, free[:last]
	}
	st.free[class] = free
}
