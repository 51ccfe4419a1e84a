package rendezvous

// A message is what has come, or was offered, and met no receive yet.
type message struct {
	space *Space
	key   key
	env   envelope
	peer  *peer
	cost  int64

	data     []byte // pushed bytes
	complete bool   // all of data is in
	claim    *Op    // the receive that met it while data was arriving
	gone     bool   // its space was closed while data was arriving
	taken    bool   // an offer of an ordered space that its sender took back
	offer    uint32 // when it is an offer
	lies     lent   // where data is, when it lies in a region
	local    *Op    // when it is a send of this rank's to itself

	prev, next     *message // in its slot
	earlier, later *message // in the space's arrivals
	listed         bool
}

func (e *Engine) takeMessage(s *Space, k key) *message {
	m := e.freeMsg
	if m == nil {
		m = &message{}
	} else {
		e.freeMsg = m.next
		*m = message{}
	}
	m.space, m.key = s, k
	return m
}

func (e *Engine) freeMessage(m *message) {
	if l := m.lies.from; l != nil {
		l.giveBack(m.lies.berth)
	} else {
		e.storage.put(m.data)
	}
	*m = message{next: e.freeMsg}
	e.freeMsg = m
}

// discard ends a message whose bytes are not needed any more, and owes its cost.
func (e *Engine) discard(m *message) {
	if m.peer != nil {
		m.peer.pay(m.cost)
	}
	e.freeMessage(m)
}

// abandonMessage drops a message whose bytes will never all be in.
func (e *Engine) abandonMessage(m *message) {
	if m.listed {
		m.space.table.remove(m)
	}
	m.complete, m.gone = true, true // a claim ends with the verdict
}
