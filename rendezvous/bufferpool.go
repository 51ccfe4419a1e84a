package rendezvous

import "math/bits"

// A bufferPool keeps the memory of eager messages that matched no receive, for the next ones. Free
// pieces are sorted by size class, because few lengths recur: that of a segment, and what is left
// of a message for its last one. Where several ranks send to one, they run ahead of it for as long
// as their credit lasts, so the pool may keep as many bytes as that. The engine's lock guards it.
type bufferPool struct {
	free  [bits.UintSize + 1][][]byte // by bits.Len of the capacity
	size  int                         // bytes in free
	limit int                         // the most bytes that free may have
}

const (
	maxPooled = 16 << 20 // the most bytes of any pool, however many peers there are
	poolAlign = 64       // capacities are multiples of this
	poolTries = 4        // pieces per class that get looks at before it makes a new one
)

// newBufferPool returns a pool for the messages of a number of peers, each with credit bytes of
// credit.
func newBufferPool(peers, credit int) bufferPool {
	return bufferPool{limit: min(max(peers, 1)*min(credit, maxPooled), maxPooled)}
}

// get returns n bytes with any content. Their capacity is at most a little more than twice n, so
// that a small message does not keep a large piece.
func (st *bufferPool) get(n int) []byte {
	if n == 0 {
		return []byte{}
	}
	// A piece of the wanted capacity is in its own class; one of up to twice that may be in the next.
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

// put keeps b for another get; the caller must not use b any more. If there is no room, pieces of
// other classes are given up first: the program has gone over to other lengths.
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

// drop frees pieces of a class until the pool has that many bytes less.
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
