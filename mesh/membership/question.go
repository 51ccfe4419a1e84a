package membership

import (
	"bytes"
	"slices"
)

// An openQuestion is a question that this rank has asked and that has not ended. The course of a
// question:
//
//	the asking rank          each rank                      the asking rank
//	Question                 handleAsk                      handleAnswer
//	  Ask, flooded     ->      Asked to the layer above       Answered, when all have
//	                           Reply                          answered, or at deadline
//	                           Answer, routed         ->
//	                         its neighbours, when it is
//	                         silent for RelayDelay:
//	                           Answer, relayed        ->
type openQuestion struct {
	id       uint64
	seq      uint32 // of the Ask
	deadline Time
	answers  []RankAnswer
	pending  []bool // by answer: a better answer may still come
}

// A route is the link over which an Ask arrived first. Its answers go back over that link.
type route struct {
	origin int
	seq    uint32
	via    int
}

// routes holds the latest routes. An answer that needs an overwritten route is lost. Then the rank
// that asked ends its question after AnswerTimeout.
type routes struct {
	recent [256]route
	n      int
}

// add records a route in place of the oldest route.
func (r *routes) add(x route) {
	r.recent[r.n%len(r.recent)] = x
	r.n++
}

// find returns the link for answers to an Ask, if it is still known.
func (r *routes) find(origin int, seq uint32) (via int, ok bool) {
	for i := max(0, r.n-len(r.recent)); i < r.n; i++ {
		if x := r.recent[i%len(r.recent)]; x.origin == origin && x.seq == seq {
			return x.via, true
		}
	}
	return 0, false
}

// A proxyQuestion is a question to a neighbour. This rank answers for the neighbour when nothing is
// received from it within RelayDelay.
type proxyQuestion struct {
	origin int
	seq    uint32
	about  int
	asked  Time
}

// maxProxied bounds the proxy questions. If more questions arrive within RelayDelay, the rest have
// no proxy.
const maxProxied = 256

// apply floods a question. The body starts with one bit for each rank, which says whether that rank
// is asked. The question does not wait for ranks that are gone. A question to this rank itself goes
// to the layer above at once.
func (in Question) apply(s *Machine) {
	bits := make([]byte, (len(s.ranks)+7)/8, (len(s.ranks)+7)/8+len(in.Body))
	a := openQuestion{id: in.ID, deadline: s.now + Time(AnswerTimeout)}
	for _, r := range in.Ranks {
		a.answers = append(a.answers, RankAnswer{Rank: r})
		a.pending = append(a.pending, true)
		if r != s.cfg.Me {
			bits[r/8] |= 1 << (r % 8)
		}
	}
	m := s.flood(Message{Kind: Ask, Code: in.Code, Body: append(bits, in.Body...)})
	a.seq = m.Seq
	s.questions = append(s.questions, a)
	if slices.Contains(in.Ranks, s.cfg.Me) {
		s.emit(Asked{s.cfg.Me, m.Seq, in.Code, in.Body})
	}
}

// apply lets the question end in this Step, with the answers it has.
func (in CancelQuestion) apply(s *Machine) {
	for i := range s.questions {
		if a := &s.questions[i]; a.id == in.ID {
			a.deadline = s.now
		}
	}
}

// handleAsk passes a question for this rank to the layer above. It also makes this rank the proxy
// of each neighbour that is asked. So all neighbours of a silent rank are its proxies.
func (s *Machine) handleAsk(from int, m Message) {
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
			s.emit(Asked{m.Origin, m.Seq, m.Code, m.Body[n:]})
		} else if s.ranks[r].link.open && len(s.proxied) < maxProxied {
			s.proxied = append(s.proxied, proxyQuestion{m.Origin, m.Seq, r, s.now})
		}
	}
}

// apply sends the answer of the layer above.
func (in Reply) apply(s *Machine) {
	m := Message{Kind: Answer, Origin: s.cfg.Me, About: in.To, Ref: in.Ref, Body: in.Body}
	if in.Body == nil {
		m.Code = answerDeclined
	}
	s.handleAnswer(m)
}

// handleAnswer records an answer to a question that this rank has asked. If the answer is for
// another rank, handleAnswer forwards it: directly if there is a link to that rank, else along the
// route.
func (s *Machine) handleAnswer(m Message) {
	if m.About != s.cfg.Me {
		if s.ranks[m.About].link.up() {
			s.emit(Send{m.About, m})
		} else if via, ok := s.routes.find(m.About, m.Ref); ok && s.ranks[via].link.open {
			s.emit(Send{via, m})
		}
		return
	}
	k := slices.IndexFunc(s.questions, func(a openQuestion) bool { return a.seq == m.Ref })
	if k < 0 {
		return
	}
	a := &s.questions[k]
	for i := range a.answers {
		if x := &a.answers[i]; x.Rank == m.Origin && a.pending[i] {
			a.pending[i] = a.record(x, m)
		}
	}
}

// record stores an answer, and reports whether a better one may come:
//
//	Code            stored                  a better one may come
//	answerRelayed   last call and silence   yes, from the rank itself
//	answerGiven     the body                no
//	answerDeclined  nothing                 no
func (a *openQuestion) record(x *RankAnswer, m Message) (open bool) {
	switch m.Code {
	case answerRelayed:
		x.Last, x.Silent = string(m.Body), m.Age
		return true
	case answerGiven:
		x.Body = m.Body
		if x.Body == nil {
			x.Body = []byte{}
		}
	}
	x.Last, x.Silent = "", 0
	return false
}

// endQuestions answers for silent neighbours, and ends the questions of this rank that have all
// their answers or have reached their deadline. An answer that arrives later is dropped.
func (s *Machine) endQuestions() {
	s.proxied = slices.DeleteFunc(s.proxied, func(n proxyQuestion) bool {
		if !s.reached(n.asked + Time(RelayDelay)) {
			return false
		}
		s.relayAnswer(n)
		return true
	})
	s.questions = slices.DeleteFunc(s.questions, func(a openQuestion) bool {
		if s.isOpen(&a) && !s.reached(a.deadline) {
			return false
		}
		s.addLocalKnowledge(&a)
		s.emit(Answered{a.id, a.answers})
		return true
	})
}

// relayAnswer answers for a neighbour that has sent nothing since the question. The answer holds
// the neighbour's last call, and for how long the neighbour has been silent.
func (s *Machine) relayAnswer(n proxyQuestion) {
	l := &s.ranks[n.about].link
	if l.receivedAt > n.asked || s.ranks[n.about].gone() {
		return
	}
	s.handleAnswer(Message{Kind: Answer, Code: answerRelayed, Origin: n.about, About: n.origin, Ref: n.seq,
		Age: Span(s.now - l.receivedAt), Body: bytes.Clone(l.lastCall)})
}

// isOpen reports whether an answer may still come.
func (s *Machine) isOpen(a *openQuestion) bool {
	for i, x := range a.answers {
		if a.pending[i] && !s.ranks[x.Rank].gone() {
			return true
		}
	}
	return false
}

// addLocalKnowledge completes the answers of neighbours that did not answer. It adds the last call
// that this rank received from each of them.
func (s *Machine) addLocalKnowledge(a *openQuestion) {
	for i := range a.answers {
		x := &a.answers[i]
		if l := &s.ranks[x.Rank].link; a.pending[i] && x.Silent == 0 && l.everUp {
			x.Last, x.Silent = string(l.lastCall), Span(s.now-l.receivedAt)
		}
	}
}
