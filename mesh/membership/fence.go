package membership

import "slices"

// A pendingFence is one of this rank's own that is under way: it stands until all
// neighbours have handled what was sent to them before it.
type pendingFence struct {
	id      uint64
	ref     uint32
	waiting []int // the neighbours that have not said so
}

// apply asks the neighbours. A message on a link is handled before the next one,
// so whoever answers has sent on all floods that came before.
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

func (in CancelFence) apply(s *Machine) {
	s.endFences(func(f *pendingFence) bool { return f.id == in.ID })
}

// handleFenceAck takes a neighbour's answer.
func (s *Machine) handleFenceAck(from int, m Message) {
	for i := range s.fences {
		if f := &s.fences[i]; f.ref == m.Ref {
			f.waiting = slices.DeleteFunc(f.waiting, func(r int) bool { return r == from })
		}
	}
}

// checkFences ends those that nobody is asked for any more: links that break, or
// fall silent, have nothing to answer.
func (s *Machine) checkFences() {
	s.endFences(func(f *pendingFence) bool {
		f.waiting = slices.DeleteFunc(f.waiting, func(r int) bool { return !s.ranks[r].link.up() })
		return len(f.waiting) == 0
	})
}

func (s *Machine) endFences(over func(*pendingFence) bool) {
	s.fences = slices.DeleteFunc(s.fences, func(f pendingFence) bool {
		if !over(&f) {
			return false
		}
		s.emit(Fenced{f.id})
		return true
	})
}
