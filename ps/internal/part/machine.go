package part

// A Machine is one copy of a part. It is not for concurrent use. The slices that Step, Begin and
// Seal return are valid until the next call of one of them.
type Machine struct {
	cfg     Config
	epoch   uint64
	running bool
	primary bool

	index    uint64 // of the last entry that was applied
	version  uint64
	clients  []client // in folding order
	replicas []replica

	// log has the entries that the primary has forwarded and not applied. Its length is bounded by
	// what the clients may send without an acknowledgement.
	log []entry
	out []Output
}

// A client is a ClientState with its requests. Their number is bounded by what the client may send
// without an answer.
type client struct {
	ClientState
	lost    bool      // under Fail: requests that wait for it are refused
	logged  uint64    // Seq of its last entry in the log; Seq if the log has none
	pushing bool      // the log has a push of it
	queue   []request // its requests in their order
}

type request struct {
	kind InputKind
	seq  uint64
	name uint64 // Input.Request
}

type entry struct {
	request
	client uint64
}

type replica struct {
	server int
	done   uint64 // the index up to which it has applied the log
}

// New returns a sealed Machine with the given State. The zero State is that of a new part.
func New(cfg Config, s State) *Machine {
	m := &Machine{cfg: cfg, index: s.Index, version: s.Version}
	for _, c := range s.Clients {
		m.clients = append(m.clients, client{ClientState: c, logged: c.Seq})
	}
	return m
}

// Step handles one input.
func (m *Machine) Step(in Input) []Output {
	m.out = m.out[:0]
	c := m.client(in.Client)
	switch {
	case !m.running || in.Epoch != m.epoch:
		m.refuse(in.Request, OtherEpoch)
	case in.Kind == ReplicaDone:
		m.replicaDone(in.Server, in.Index)
	case in.Kind == Replicate:
		m.replicate(in, c)
	case !m.primary:
		m.refuse(in.Request, NotPrimary)
	case c == nil || c.lost || c.Closed && in.Seq > c.Seq:
		m.refuse(in.Request, Unknown)
	case in.Seq == 0 && !in.Kind.reads():
		m.refuse(in.Request, Gap)
	default:
		c.queue = append(c.queue, request{in.Kind, in.Seq, in.Request})
		if m.advance(c) {
			m.advanceAll()
		}
	}
	return m.out
}

// Begin begins an epoch, and seals the Machine first if it is not sealed. A round that waited for a
// worker which is no longer there may become complete.
func (m *Machine) Begin(e Members) []Output {
	m.Seal()
	m.epoch, m.running, m.primary = e.Epoch, true, e.Primary
	m.replicas = m.replicas[:0]
	if e.Primary {
		for _, r := range e.Replicas {
			m.replicas = append(m.replicas, replica{r, m.index})
		}
	}
	m.setClients(e)
	m.fold()
	return m.out
}

// Seal ends the epoch. It applies the log, because a replica may have applied it, and acknowledges
// nothing: the Fold or Assign of an entry is all that the executor gets. It refuses all other
// requests.
func (m *Machine) Seal() []Output {
	m.out = m.out[:0]
	if !m.running {
		return m.out
	}
	m.running = false
	for _, e := range m.log {
		m.apply(e)
	}
	m.log = m.log[:0]
	for i := range m.clients {
		c := &m.clients[i]
		for _, q := range c.queue {
			m.refuse(q.name, Sealed)
		}
		c.queue = c.queue[:0]
	}
	return m.out
}
