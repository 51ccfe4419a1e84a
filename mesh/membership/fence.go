package membership

import "slices"

// A fence is one of this rank's own that is under way: it stands until all
// neighbours have handled what was sent to them before it.
type fence struct {
	ticket uint64
	ref    uint32
	open   []int // the neighbours that have not said so
}

// apply asks the neighbours. A message on a link is handled before the next one,
// so whoever answers has sent on all floods that came before.
func (in Fence) apply(s *State) {
	s.fenceRef++
	f := fence{ticket: in.Ticket, ref: s.fenceRef}
	for r := range s.ranks {
		if s.ranks[r].link.up() {
			f.open = append(f.open, r)
			s.out(Send{r, Message{Kind: Mark, Origin: s.cfg.Me, Ref: f.ref}})
		}
	}
	s.fences = append(s.fences, f)
}

func (in Unfence) apply(s *State) {
	s.endFences(func(f *fence) bool { return f.ticket == in.Ticket })
}

// hearMarked takes a neighbour's answer.
func (s *State) hearMarked(from int, m Message) {
	for i := range s.fences {
		if f := &s.fences[i]; f.ref == m.Ref {
			f.open = slices.DeleteFunc(f.open, func(r int) bool { return r == from })
		}
	}
}

// checkFences ends those that nobody is asked for any more: links that break, or
// fall silent, have nothing to answer.
func (s *State) checkFences() {
	s.endFences(func(f *fence) bool {
		f.open = slices.DeleteFunc(f.open, func(r int) bool { return !s.ranks[r].link.up() })
		return len(f.open) == 0
	})
}

func (s *State) endFences(over func(*fence) bool) {
	s.fences = slices.DeleteFunc(s.fences, func(f fence) bool {
		if !over(&f) {
			return false
		}
		s.out(Fenced{f.ticket})
		return true
	})
}
