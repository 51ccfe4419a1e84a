package membership

// A window remembers which floods of one rank were seen: the last one, and which
// of the windowSize before it. What is older counts as seen; on another path it
// has been overtaken by that many.
type window struct {
	last uint32
	bits [windowSize / 64]uint64 // bit i of the ring: number i mod windowSize
}

const windowSize = 1024

// add notes a number and reports whether it was new.
func (w *window) add(n uint32) bool {
	switch {
	case n == 0 || int64(n) <= int64(w.last)-windowSize:
		return false
	case n > w.last:
		for k := max(w.last, n-min(n, windowSize)) + 1; k <= n && k != 0; k++ {
			w.bits[k%windowSize/64] &^= 1 << (k % 64)
		}
		w.last = n
	case w.bits[n%windowSize/64]&(1<<(n%64)) != 0:
		return false
	}
	w.bits[n%windowSize/64] |= 1 << (n % 64)
	return true
}

// recent holds the last floods, for links that come up later: a rank that was
// cut off for a moment hears what it missed.
type recent struct {
	ring [64]Message
	n    int
}

func (r *recent) add(m Message) {
	r.ring[r.n%len(r.ring)] = m
	r.n++
}

// each visits the messages, oldest first.
func (r *recent) each(do func(Message)) {
	for i := max(0, r.n-len(r.ring)); i < r.n; i++ {
		do(r.ring[i%len(r.ring)])
	}
}

// flood begins a flood of this rank's own and returns it complete.
func (s *State) flood(m Message) Message {
	s.seq++
	m.Origin, m.Seq = s.cfg.Me, s.seq
	s.ranks[s.cfg.Me].seen.add(m.Seq)
	s.pass(m, s.cfg.Me)
	return m
}

// pass keeps a flood and sends it on, but not back.
func (s *State) pass(m Message, from int) {
	s.keep(m)
	for r := range s.ranks {
		if r != from && r != m.Origin && s.ranks[r].link.open {
			s.out(Send{r, m})
		}
	}
}

// keep remembers a flood for links that come up later. What belongs to a rank's
// or the job's standing is kept for good, the rest for a while.
func (s *State) keep(m Message) {
	switch m.Kind {
	case Here:
		if r := &s.ranks[m.Origin]; m.Seq > r.here.Seq && m.Origin == s.cfg.Me {
			r.here = m
		}
	case Bye:
		s.ranks[m.Origin].bye = m
	case Verdict:
		s.verdicts.keep(m)
	default:
		s.recent.add(m)
	}
}

// sync tells a peer all that it may have missed; what it knows it drops.
func (s *State) sync(to int) {
	for r := range s.ranks {
		if m := s.ranks[r].here; m.Seq != 0 && r != to {
			s.out(Send{to, m})
		}
		if m := s.ranks[r].bye; m.Seq != 0 && r != to {
			s.out(Send{to, m})
		}
	}
	for _, m := range s.verdicts.kept {
		s.out(Send{to, m})
	}
	s.recent.each(func(m Message) {
		if m.Origin != to {
			s.out(Send{to, m})
		}
	})
}

func (in Resync) apply(s *State) {
	if s.ranks[in.Rank].link.open {
		s.sync(in.Rank)
	}
}

func (in Flood) apply(s *State) { s.flood(Message{Kind: App, Code: in.Code, Body: in.Body}) }

// apply takes a message. A goodbye is acknowledged after the layer above has been
// told, so that once a rank's Close has returned, calls of its neighbours that
// need it fail; and also when it came by another way first.
func (in Received) apply(s *State) {
	m, from := in.Msg, in.From
	if !s.plausible(in) {
		return
	}
	s.hear(from)
	s.take(m, from)
	if m.Kind == Bye && m.Origin == from {
		s.out(Send{from, Message{Kind: ByeAck, Origin: s.cfg.Me}})
	}
}

// take drops what was seen, sends a flood on, and acts on the message.
func (s *State) take(m Message, from int) {
	if m.Kind.flooded() {
		if !s.ranks[m.Origin].seen.add(m.Seq) {
			return
		}
		s.pass(m, from)
	}
	s.act(from, m)
}

// plausible drops messages that no rank of this version sends. The sender has
// proven that it belongs to the job, so this is about bugs, not strangers.
func (s *State) plausible(in Received) bool {
	n := len(s.ranks)
	ok := in.From >= 0 && in.From < n && in.Msg.Origin >= 0 && in.Msg.Origin < n && in.Msg.About >= 0 && in.Msg.About < n
	return ok && in.Msg.Kind.Valid() && s.ranks[in.From].link.open && in.Msg.Origin != s.cfg.Me
}

func (s *State) act(from int, m Message) {
	switch m.Kind {
	case Heartbeat:
		l := &s.ranks[from].link
		l.call = append(l.call[:0], m.Body...)
	case Here:
		s.arrive(m)
	case Down:
		s.hearDown(m)
	case Up:
		s.hearUp(m)
	case Vouch:
		s.hearVouch(m)
	case Verdict:
		s.hearVerdict(m)
	case Bye:
		s.depart(m.Origin)
	case ByeAck:
		s.ranks[from].link.owes = false
	case App:
		s.out(Deliver{m.Origin, m.Code, m.Body})
	case Ask:
		s.hearAsk(from, m)
	case Answer:
		s.hearAnswer(m)
	case Mark:
		s.out(Send{from, Message{Kind: Marked, Origin: s.cfg.Me, Ref: m.Ref}})
	case Marked:
		s.hearMarked(from, m)
	}
}
