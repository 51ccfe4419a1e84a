package tcp

import "github.com/tutti-go/tutti/transport"

const (
	batchFrames   = 32 // the maximum number of frames in one write
	pendingFrames = 2  // the maximum before Admit

	// batchBytes is the approximate number of bytes that one write offers. A batch that has reached
	// batchBytes gets no further frame. Its last frame may exceed batchBytes, because frames are
	// not cut. A larger batch would be useless: a socket accepts fewer bytes at once, and the rest
	// of the batch would have to be built again.
	batchBytes = 1 << 20
)

// A batch is the data that one write offers to the socket: the next frames as a list of byte slices
// for one writev. It belongs to the outbox's writer and refers to the frames' memory.
//
// Its prefixes and parts are allocated once per outbox. Their size depends on whether the peer is
// admitted or pending.
type batch struct {
	prefixes [][prefixMax]byte // one per frame
	frames   int
	parts    [][]byte
	bytes    int
	ack      uint64 // the acknowledgement in the frames that begin in this batch
}

// newBatch returns a batch for the given number of frames, each with a prefix and a body in one
// piece.
func newBatch(frames int) batch {
	return batch{prefixes: make([][prefixMax]byte, frames), parts: make([][]byte, 0, 2*frames)}
}

// reset empties the batch, and drops its references to the frames' memory.
func (b *batch) reset() {
	clear(b.parts)
	b.parts, b.frames, b.bytes = b.parts[:0], 0, 0
}

// add appends frame number seq without its first skip bytes, and reports whether the batch has room
// for another frame. The argument c is the cursor of f. The parts before the cursor lie within the
// skipped bytes.
func (b *batch) add(f *transport.Frame, c *cursor, seq uint32, skip int) (more bool) {
	prefix := &b.prefixes[b.frames]
	n := preamble{body: c.size, head: len(f.Head), id: f.ID, seq: seq, ack: c.ack}.put(prefix[:], f.Head)
	b.frames++
	if skip < n {
		b.append(prefix[skip:n])
	}
	skip = max(0, skip-n)
	b.append(f.Body[min(skip, len(f.Body)):])
	skip = max(0, skip-c.skipped)
	for _, p := range c.parts {
		if len(b.parts) == cap(b.parts) {
			return false
		}
		k := min(skip, len(p))
		skip -= k
		b.append(p[k:])
	}
	return b.roomy()
}

// roomy reports whether there is room for another frame, that is, for its prefix and for a body in
// one piece.
func (b *batch) roomy() bool {
	return b.frames < len(b.prefixes) && len(b.parts)+2 <= cap(b.parts) && b.bytes < batchBytes
}

// append adds a piece that is not empty.
func (b *batch) append(p []byte) {
	if len(p) > 0 {
		b.parts = append(b.parts, p)
		b.bytes += len(p)
	}
}
