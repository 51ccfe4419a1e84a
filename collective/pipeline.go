package collective

import "github.com/tutti-go/tutti/p2p"

// A pipeline is a vector that passes from rank to rank in segments. A rank sends a segment on
// while it receives the next one. With three segments, rank 1 works as follows:
//
//	receives   0   1   2
//	sends          0   1   2
//
// Ranks at the ends of the chain use one message for all segments. The ranks between them use one
// message per segment. Both forms match, because p2p cuts a message into the same segments.
type pipeline struct {
	buf  []byte
	size int
}

// pipelineOf cuts buf into segments of the round's size.
func pipelineOf(r *p2p.Round, buf []byte) pipeline { return pipeline{buf, r.Segment()} }

// segments returns the number of segments. An empty vector has one empty segment.
func (p pipeline) segments() int { return max(1, fragmentCount(len(p.buf), p.size)) }

// of returns segment i.
func (p pipeline) of(i int) []byte { return blockOf(p.buf, i, p.size) }
