package rendezvous

import "math/bits"

// bufferPool is memory for pushed bytes that met no receive, between two uses. What is
// free lies by size: few lengths recur, those of segments and what is left of a
// message for the last one. Where several ranks send to one they run ahead of it for as
// long as their credit lasts, so so much may be free at a time.
type bufferPool struct {
	free  [bits.UintSize + 1][][]byte // by the bits of the capacity
	size  int                         // bytes in free
	limit int                         // bytes that free may have
}

const (
	maxPooled = 16 << 20 // the most bytes of free storage, however many peers there are
	poolAlign = 64       // pieces are of so many bytes, or a multiple
	poolTries = 4        // pieces about as large that are looked at before a new one is made
)

// newBufferPool is for messages of so many peers, each with that much credit.
func newBufferPool(peers, credit int) bufferPool {
	return bufferPool{limit: min(max(peers, 1)*min(credit, maxPooled), maxPooled)}
}

// get is n bytes of storage, with any content, in memory of little more than twice as
// many.
func (st *bufferPool) get(n int) []byte {
	if n == 0 {
		return []byte{}
	}
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

// put keeps b for another use. Where there is no room for it, that of other sizes,
// which were in use before, is given up for it.
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

// drop gives up free pieces of a class until there are so many bytes less.
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
