package rendezvous

// A message is an envelope that arrived and matched no receive yet, with its bytes or as an offer.
// It is in a table, unless inTable is false, and in exactly one of these states:
//
//	local != nil       a send of this rank to itself; its bytes are in the sender's buffer
//	offer != 0         an offer; its bytes are at the peer
//	withdrawn          an offer that its sender took back, in an ordered context
//	loan.from != nil   complete, in a prepared buffer
//	complete           complete, in data
//	none of these      eager, and its bytes are arriving in data
//
// While bytes arrive, claimedBy is the receive that matched it, and dropped says that nobody wants
// it any more.
type message struct {
	mc   *MatchContext
	key  key
	env  envelope
	peer *peer // the sender; nil: this rank

	// cost is the credit that the message holds until it is consumed. An envelope beyond the credit
	// holds none.
	cost int64

	// data are the bytes: memory of the pool, or, with a loan, of a prepared buffer.
	data      []byte
	complete  bool
	claimedBy *Request
	dropped   bool
	withdrawn bool
	offer     uint32 // the id at its sender
	loan      loan
	local     *Request // the send

	// A message in a table is in two lists: its bucket's, in the order of arrival per key, and the
	// table's arrivals, in the order of arrival.
	prev, next     *message
	earlier, later *message
	inTable        bool
}

// getMessage returns a message with its context and key set, from the free list if there is one.
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

// freeMessage returns a message's memory: the prepared buffer to its sender, or data to the pool.
func (e *Engine) freeMessage(m *message) {
	if pr := m.loan.from; pr != nil {
		pr.release()
	} else {
		e.pool.put(m.data)
	}
	*m = message{next: e.freeMessages}
	e.freeMessages = m
}

// discard ends a message whose bytes are not needed any more, and returns its credit.
func (e *Engine) discard(m *message) {
	if m.peer != nil {
		m.peer.returnCost(m.cost)
	}
	e.freeMessage(m)
}

// abandonMessage drops a message whose remaining bytes will never arrive. If a receive has claimed
// it, the receive ends with its peer's verdict.
func (e *Engine) abandonMessage(m *message) {
	if m.inTable {
		m.mc.table.removeMessage(m)
	}
	m.complete, m.dropped = true, true // a claim ends with the verdict
}
