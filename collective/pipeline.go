package collective

import "github.com/tutti-go/tutti/p2p"

// A pipeline is a vector that passes rank after rank, one segment behind the
// other. Ranks at its ends use whole messages, those between one message for each
// segment: they meet, because p2p cuts messages in the same way.
type pipeline struct {
	buf  []byte
	size int
}

func pipelineOf(r *p2p.Round, buf []byte) pipeline { return pipeline{buf, r.Segment()} }

// segments is how many there are; of an empty vector one, which is empty.
func (p pipeline) segments() int { return max(1, fragmentCount(len(p.buf), p.size)) }

// of is segment i.
func (p pipeline) of(i int) []byte { return blockOf(p.buf, i, p.size) }
