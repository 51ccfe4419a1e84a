package membership

import (
	"bytes"
	"slices"
)

// An asking is a question of this rank's own that is under way.
type asking struct {
	ticket  uint64
	seq     uint32 // of the Ask
	limit   Time
	answers []Reached
	open    []bool // which answers are still to come
}

// A route says over which link an Ask came first; its answers go back there.
type route struct {
	origin int
	seq    uint32
	via    int
}

// routes holds the last ones. An answer whose route was overwritten is lost, and
// the rank that asked goes by its own limit.
type routes struct {
	ring [256]route
	n    int
}

func (r *routes) add(x route) {
	r.ring[r.n%len(r.ring)] = x
	r.n++
}

func (r *routes) find(origin int, seq uint32) (via int, ok bool) {
	for i := max(0, r.n-len(r.ring)); i < r.n; i++ {
		if x := r.ring[i%len(r.ring)]; x.origin == origin && x.seq == seq {
			return x.via, true
		}
	}
	return 0, false
}

// A note is a question to a neighbour, for whom this rank answers when nothing
// is heard of it.
type note struct {
	origin int
	seq    uint32
	about  int
	asked  Time
}

// maxNotes bounds the notes; more questions than that in NoteWait go without.
const maxNotes = 256

// apply floods a question. Those who are gone answer at once.
func (in Question) apply(s *State) {
	bits := make([]byte, (len(s.ranks)+7)/8, (len(s.ranks)+7)/8+len(in.Body))
	a := asking{ticket: in.Ticket, limit: s.now + Time(AskWait)}
	for _, r := range in.Ranks {
		a.answers = append(a.answers, Reached{Rank: r})
		a.open = append(a.open, true)
		if r != s.cfg.Me {
			bits[r/8] |= 1 << (r % 8)
		}
	}
	m := s.flood(Message{Kind: Ask, Body: append(bits, in.Body...)})
	a.seq = m.Seq
	s.asking = append(s.asking, a)
	if slices.Contains(in.Ranks, s.cfg.Me) {
		s.out(Asked{s.cfg.Me, m.Seq, in.Body})
	}
}

func (in Forget) apply(s *State) {
	for i := range s.asking {
		if a := &s.asking[i]; a.ticket == in.Ticket {
			a.limit = s.now
		}
	}
}

// hearAsk answers a question, and takes note of those to neighbours.
func (s *State) hearAsk(from int, m Message) {
	n := (len(s.ranks) + 7) / 8
	if len(m.Body) < n {
		return
	}
	s.routes.add(route{m.Origin, m.Seq, from})
	for r := range s.ranks {
		if m.Body[r/8]&(1<<(r%8)) == 0 {
			continue
		}
		if r == s.cfg.Me {
			s.out(Asked{m.Origin, m.Seq, m.Body[n:]})
		} else if s.ranks[r].link.open && len(s.notes) < maxNotes {
			s.notes = append(s.notes, note{m.Origin, m.Seq, r, s.now})
		}
	}
}

func (in Reply) apply(s *State) {
	m := Message{Kind: Answer, Origin: s.cfg.Me, About: in.To, Ref: in.Ref, Body: in.Body}
	if in.Body == nil {
		m.Code = ownSilence
	}
	s.hearAnswer(m)
}

// hearAnswer takes an answer, or sends it on towards the rank that asked.
func (s *State) hearAnswer(m Message) {
	if m.About != s.cfg.Me {
		if s.ranks[m.About].link.up() {
			s.out(Send{m.About, m})
		} else if via, ok := s.routes.find(m.About, m.Ref); ok && s.ranks[via].link.open {
			s.out(Send{via, m})
		}
		return
	}
	k := slices.IndexFunc(s.asking, func(a asking) bool { return a.seq == m.Ref })
	if k < 0 {
		return
	}
	a := &s.asking[k]
	for i := range a.answers {
		if x := &a.answers[i]; x.Rank == m.Origin && a.open[i] {
			a.open[i] = a.take(x, m)
		}
	}
}

// take notes an answer, and reports whether a better one may come.
func (a *asking) take(x *Reached, m Message) (open bool) {
	switch m.Code {
	case hearsay:
		x.Last, x.Silent = string(m.Body), m.Age
		return true
	case ownWords:
		x.Body = m.Body
		if x.Body == nil {
			x.Body = []byte{}
		}
	}
	x.Last, x.Silent = "", 0
	return false
}

// endQuestions answers for silent neighbours, and ends questions of this rank's
// own that have all their answers or have waited long enough.
func (s *State) endQuestions() {
	s.notes = slices.DeleteFunc(s.notes, func(n note) bool {
		if !s.due(n.asked + Time(NoteWait)) {
			return false
		}
		s.sendNote(n)
		return true
	})
	s.asking = slices.DeleteFunc(s.asking, func(a asking) bool {
		if s.pending(&a) && !s.due(a.limit) {
			return false
		}
		s.addOwnKnowledge(&a)
		s.out(Answered{a.ticket, a.answers})
		return true
	})
}

// sendNote tells what is known of a neighbour that was not heard since the question.
func (s *State) sendNote(n note) {
	l := &s.ranks[n.about].link
	if l.heard > n.asked || s.ranks[n.about].gone() {
		return
	}
	s.hearAnswer(Message{Kind: Answer, Code: hearsay, Origin: n.about, About: n.origin, Ref: n.seq,
		Age: Span(s.now - l.heard), Body: bytes.Clone(l.call)})
}

// pending reports whether somebody who could still answer has not.
func (s *State) pending(a *asking) bool {
	for i, x := range a.answers {
		if a.open[i] && !s.ranks[x.Rank].gone() {
			return true
		}
	}
	return false
}

// addOwnKnowledge says of neighbours that did not answer what this rank heard.
func (s *State) addOwnKnowledge(a *asking) {
	for i := range a.answers {
		x := &a.answers[i]
		if l := &s.ranks[x.Rank].link; a.open[i] && x.Silent == 0 && l.was {
			x.Last, x.Silent = string(l.call), Span(s.now-l.heard)
		}
	}
}
