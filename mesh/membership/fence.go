package membership

import "slices"

// A pendingFence is a fence that this rank has started. It ends when each neighbour has handled all
// messages sent to it before the fence, or is unreachable. It needs no timeout, because the link to
// a neighbour that does not answer becomes silent, and a fence does not wait for a silent link.
type pendingFence struct {
	id      uint64
	ref     uint32
	waiting []int // the neighbours that have not acknowledged
}

// apply sends a FenceRequest to every neighbour. The messages of one link are handled in order, so
// a neighbour that acknowledges the request has forwarded all earlier floods.
func (in Fence) apply(s *Machine) {
	s.fenceRef++
	f := pendingFence{id: in.ID, ref: s.fenceRef}
	for r := range s.ranks {
		if s.ranks[r].link.up() {
			f.waiting = append(f.waiting, r)
			s.emit(Send{r, Message{Kind: FenceRequest, Origin: s.cfg.Me, Ref: f.ref}})
		}
	}
	s.fences = append(s.fences, f)
}

// apply ends the fence at once.
func (in CancelFence) apply(s *Machine) {
	s.endFences(func(f *pendingFence) bool { return f.id == in.ID })
}

// handleFenceAck records the acknowledgement of a neighbour.
func (s *Machine) handleFenceAck(from int, m Message) {
	for i := range s.fences {
		if f := &s.fences[i]; f.ref == m.Ref {
			f.waiting = slices.DeleteFunc(f.waiting, func(r int) bool { return r == from })
		}
	}
}

// checkFences ends the fences for which no neighbour is missing. A fence does not wait for a link
// that breaks or falls silent.
func (s *Machine) checkFences() {
	s.endFences(func(f *pendingFence) bool {
		f.waiting = slices.DeleteFunc(f.waiting, func(r int) bool { return !s.ranks[r].link.up() })
		return len(f.waiting) == 0
	})
}

// endFences ends the fences for which over returns true, and emits a Fenced for each.
func (s *Machine) endFences(over func(*pendingFence) bool) {
	s.fences = slices.DeleteFunc(s.fences, func(f pendingFence) bool {
		if !over(&f) {
			return false
		}
		s.emit(Fenced{f.id})
		return true
	})
}
