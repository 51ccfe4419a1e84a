package rendezvous

// A message is an envelope that found no matching receive when it arrived. Its bytes come with the
// envelope, or the message is an offer. It is in a table if inTable is true. It is in exactly one
// of these states:
//
//	local != nil       a send of this rank to itself; its bytes are in the sender's buffer
//	offer != 0         an offer; its bytes are still on the peer
//	withdrawn          an offer that its sender took back, in an ordered context
//	loan.from != nil   complete, in a prepared buffer
//	complete           complete, in data
//	moving             complete, but being moved out of a prepared buffer: PreparedRecv.hide
//	none of these      eager, and its bytes are arriving in data
//
// While bytes arrive or are moved, claimedBy is the receive that has matched the message. dropped
// says that the message is to be discarded afterwards: completeMessage.
type message struct {
	mc   *MatchContext
	key  key
	env  envelope
	peer *peer // the sender; nil: this rank

	// cost is the credit that the message holds until it is consumed. It is 0 for an envelope
	// granted beyond the credit.
	cost int64

	// data holds the message's bytes. It is memory from the pool or, if loan is set, part of a
	// prepared buffer.
	data      []byte
	complete  bool
	moving    bool
	claimedBy *Request
	dropped   bool
	withdrawn bool
	offer     uint32 // the id at its sender
	loan      loan
	local     *Request // the send

	// A message in a table is in two lists: the list of its bucket, and the table's arrivals. Both
	// are in the order of arrival. The fields prev and next link the list of the bucket. The fields
	// earlier and later link arrivals.
	prev, next     *message
	earlier, later *message
	inTable        bool
}

// getMessage returns a message with the given context and key. It takes the message from the free
// list or allocates one.
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

// freeMessage recycles a message. It returns data to the pool, or releases the prepared buffer to
// its sender.
func (e *Engine) freeMessage(m *message) {
	if pr := m.loan.from; pr != nil {
		pr.release()
	} else {
		e.pool.put(m.data)
	}
	*m = message{next: e.freeMessages}
	e.freeMessages = m
}

// discard frees a message whose bytes are not needed any more, and returns its credit.
func (e *Engine) discard(m *message) {
	if m.peer != nil {
		m.peer.returnCost(m.cost)
	}
	e.freeMessage(m)
}

// abandonMessage drops a message whose remaining bytes will never arrive. If a receive has claimed
// the message, FailPeer ends the receive.
func (e *Engine) abandonMessage(m *message) {
	if m.inTable {
		m.mc.table.removeMessage(m)
	}
	m.complete, m.dropped = true, true // FailPeer ends the claiming receive
}
