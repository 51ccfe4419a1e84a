package membership

// A window records which floods of one rank were seen: the number of the newest flood, and one bit
// for each of the last windowSize numbers, the newest included. Older floods count as seen.
type window struct {
	last uint32
	bits [windowSize / 64]uint64 // a ring: bit i is number i mod windowSize
}

const windowSize = 1024

// add records the number of a flood and reports whether the number was new. Number 0 is never new.
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

// A floodLog holds the last floods for links that come up later, so that a rank that was
// unreachable for a moment gets the floods that it missed.
type floodLog struct {
	messages [64]Message
	n        int
}

// add records a flood in place of the oldest flood.
func (r *floodLog) add(m Message) {
	r.messages[r.n%len(r.messages)] = m
	r.n++
}

// each visits the floods, oldest first.
func (r *floodLog) each(do func(Message)) {
	for i := max(0, r.n-len(r.messages)); i < r.n; i++ {
		do(r.messages[i%len(r.messages)])
	}
}

// flood starts a flood from this rank, and returns the message with its origin and number. The
// numbers let every rank drop copies that arrive on other paths.
func (s *Machine) flood(m Message) Message {
	s.seq++
	m.Origin, m.Seq = s.cfg.Me, s.seq
	s.ranks[s.cfg.Me].seen.add(m.Seq)
	s.forward(m, s.cfg.Me)
	return m
}

// forward remembers a flood and sends it on every open link, except to its origin and to the rank
// from which it came.
func (s *Machine) forward(m Message, from int) {
	s.remember(m)
	for r := range s.ranks {
		if r != from && r != m.Origin && s.ranks[r].link.open {
			s.emit(Send{r, m})
		}
	}
}

// remember keeps a flood for links that come up later:
//
//	kind                 kept
//	Alive, Bye           for good, the latest of each rank
//	Failure              the last maxFailures
//	Ask                  not: every rank that works asks about traffic, up to once a second, and
//	                     the Asks would push all other floods out of the floodLog
//	anything else        the last floods of all ranks, in the floodLog
func (s *Machine) remember(m Message) {
	switch m.Kind {
	case Alive:
		if r := &s.ranks[m.Origin]; m.Seq > r.lastAlive.Seq && m.Origin == s.cfg.Me {
			r.lastAlive = m
		}
	case Bye:
		s.ranks[m.Origin].bye = m
	case Failure:
		s.failures.remember(m)
	case Ask:
	default:
		s.floods.add(m)
	}
}

// sync sends a peer all messages that the peer may have missed. First come the Alives and the Byes
// of all ranks, then the Failures, and then the latest floods. The order matters, because later
// messages refer to earlier messages. The peer drops messages that it has seen.
func (s *Machine) sync(to int) {
	for r := range s.ranks {
		if m := s.ranks[r].lastAlive; m.Seq != 0 && r != to {
			s.emit(Send{to, m})
		}
		if m := s.ranks[r].bye; m.Seq != 0 && r != to {
			s.emit(Send{to, m})
		}
	}
	for _, m := range s.failures.messages {
		s.emit(Send{to, m})
	}
	s.floods.each(func(m Message) {
		if m.Origin != to {
			s.emit(Send{to, m})
		}
	})
}

// apply repeats the messages that were dropped while the link's queue was full.
func (in Resync) apply(s *Machine) {
	if s.ranks[in.Rank].link.open {
		s.sync(in.Rank)
	}
}

// apply floods a body of the layer above.
func (in Flood) apply(s *Machine) { s.flood(Message{Kind: App, Code: in.Code, Body: in.Body}) }

// apply handles a message.
//
// A goodbye is acknowledged after the layer above has been notified. So once a rank's Close has
// returned, those calls of its neighbours that need the rank fail. The acknowledgement goes over
// the link to the closing rank, even if the goodbye first came over another link.
func (in Received) apply(s *Machine) {
	m, from := in.Msg, in.From
	if !s.valid(in) {
		return
	}
	s.markReceived(from)
	s.deliver(m, from)
	if m.Kind == Bye && m.Origin == from {
		s.emit(Send{from, Message{Kind: ByeAck, Origin: s.cfg.Me}})
	}
}

// deliver drops a flood that was seen, forwards a new one, and dispatches the message. It forwards
// a flood before it dispatches it, so that other ranks do not wait for this rank's work.
func (s *Machine) deliver(m Message, from int) {
	if m.Kind.flooded() {
		if !s.ranks[m.Origin].seen.add(m.Seq) {
			return
		}
		s.forward(m, from)
	}
	s.dispatch(from, m)
}

// valid returns false for messages that no rank of this version sends: messages from a rank that
// does not exist or from this rank itself, of an unknown kind, or over a closed link. The sender
// has proven that it belongs to the job. So this check protects against bugs, not against attacks.
func (s *Machine) valid(in Received) bool {
	n := len(s.ranks)
	ok := in.From >= 0 && in.From < n && in.Msg.Origin >= 0 && in.Msg.Origin < n && in.Msg.About >= 0 && in.Msg.About < n
	return ok && in.Msg.Kind.Valid() && s.ranks[in.From].link.open && in.Msg.Origin != s.cfg.Me
}

// dispatch calls the handler of the message's kind.
func (s *Machine) dispatch(from int, m Message) {
	switch m.Kind {
	case Heartbeat:
		l := &s.ranks[from].link
		l.lastCall = append(l.lastCall[:0], m.Body...)
		l.delay = max(0, m.Age)
	case Alive:
		s.handleAlive(m)
	case Suspected:
		s.handleSuspected(m)
	case Retracted:
		s.handleRetracted(m)
	case Refute:
		s.handleRefute(m)
	case Failure:
		s.handleFailure(m)
	case Bye:
		s.handleBye(m.Origin)
	case ByeAck:
		s.ranks[from].link.byePending = false
	case App:
		s.emit(Deliver{m.Origin, m.Code, m.Body})
	case Ask:
		s.handleAsk(from, m)
	case Answer:
		s.handleAnswer(m)
	case FenceRequest:
		s.emit(Send{from, Message{Kind: FenceAck, Origin: s.cfg.Me, Ref: m.Ref}})
	case FenceAck:
		s.handleFenceAck(from, m)
	}
}
