package rendezvous

// A message is what has come, or was offered, and met no receive yet.
type message struct {
	mc   *MatchContext
	key  key
	env  envelope
	peer *peer
	cost int64

	data      []byte   // pushed bytes
	complete  bool     // all of data is in
	claimedBy *Request // the receive that met it while data was arriving
	dropped   bool     // its space was closed while data was arriving
	withdrawn bool     // an offer of an ordered space that its sender took back
	offer     uint32   // when it is an offer
	loan      loan     // of the prepared buffer that data lies in
	local     *Request // when it is a send of this rank's to itself

	prev, next     *message // in its slot
	earlier, later *message // in the space's arrivals
	inTable        bool
}

func (e *Engine) getMessage(mc *MatchContext, k key) *message {
	m := e.freeMessages
	if m == nil {
		m = &message{}
	} else {
		e.freeMessages = m.next
		*m = message{}
	}
	m.mc, m.key = mc, k
	return m
}

func (e *Engine) freeMessage(m *message) {
	if pr := m.loan.from; pr != nil {
		pr.release()
	} else {
		e.pool.put(m.data)
	}
	*m = message{next: e.freeMessages}
	e.freeMessages = m
}

// discard ends a message whose bytes are not needed any more, and owes its cost.
func (e *Engine) discard(m *message) {
	if m.peer != nil {
		m.peer.returnCost(m.cost)
	}
	e.freeMessage(m)
}

// abandonMessage drops a message whose bytes will never all be in.
func (e *Engine) abandonMessage(m *message) {
	if m.inTable {
		m.mc.table.removeMessage(m)
	}
	m.complete, m.dropped = true, true // a claim ends with the verdict
}
