package part

// advance handles the requests of c in their order, up to the first one that must wait. It reports
// whether entries were applied.
func (m *Machine) advance(c *client) (applied bool) {
	done := 0
	for done < len(c.queue) && m.handle(c, c.queue[done]) {
		done++
		if m.commit() {
			applied = true
		}
	}
	c.queue = append(c.queue[:0], c.queue[done:]...)
	return applied
}

// advanceAll advances all clients until no request can go on. What one client has waited for may be
// an entry of another one.
func (m *Machine) advanceAll() {
	for again := true; again; {
		again = false
		for i := range m.clients {
			if m.advance(&m.clients[i]) {
				again = true
			}
		}
	}
}

// handle answers or refuses a request, or appends it to the log. It returns false if the request
// must wait.
func (m *Machine) handle(c *client, q request) bool {
	switch {
	case q.kind.reads():
		return m.pull(c, q)
	case q.seq <= c.Seq:
		m.out = append(m.out, Output{Kind: Acknowledge, Request: q.name, Repeated: true})
		return true
	case q.seq <= c.logged:
		return false
	case m.cfg.Mode == Synchronous && q.kind == Push && m.anyLost():
		m.refuse(q.name, WorkersLost)
		return true
	case m.cfg.Mode == Synchronous && q.kind != Close && (c.pushing || c.Share != None):
		return m.waitForRound(q)
	}
	c.logged = q.seq
	c.pushing = c.pushing || q.kind == Push
	m.log = append(m.log, entry{q, c.ID})
	for _, r := range m.replicas {
		m.out = append(m.out, Output{Kind: Forward, Server: r.server, Entry: q.kind,
			Index: m.index + uint64(len(m.log)), Client: c.ID, Seq: q.seq, Request: q.name})
	}
	return true
}

// pull answers a pull or a save, unless it must wait for an entry of its client or for other workers.
func (m *Machine) pull(c *client, q request) bool {
	switch {
	case c.logged > c.Seq:
		return false
	case m.cfg.Mode == Synchronous && c.Share != None:
		return m.waitForRound(q)
	case m.cfg.Mode == Bounded:
		wait := false
		for i := range m.clients {
			o := &m.clients[i]
			if o.Closed || o.Clock+m.cfg.Staleness >= c.Clock {
				continue
			}
			if o.lost {
				m.refuse(q.name, WorkersLost)
				return true
			}
			wait = true
		}
		if wait {
			return false
		}
	}
	o := Output{Kind: Answer, Request: q.name, Version: m.version}
	if q.kind == Save {
		s := m.State().AtVersion() // now, because later outputs of this Step may belong to later entries
		o.State = &s
	}
	m.out = append(m.out, o)
	return true
}

// waitForRound refuses a request that waits for the end of a round which a lost worker keeps open.
// It returns whether it has.
func (m *Machine) waitForRound(q request) bool {
	if !m.anyLost() {
		return false
	}
	m.refuse(q.name, WorkersLost)
	return true
}

// commit applies the entries that all replicas have applied, and acknowledges them. It reports
// whether there were any.
func (m *Machine) commit() bool {
	end := m.index + uint64(len(m.log))
	for _, r := range m.replicas {
		end = min(end, r.done)
	}
	n := int(end - m.index)
	for _, e := range m.log[:n] {
		m.apply(e)
		m.out = append(m.out, Output{Kind: Acknowledge, Request: e.name})
	}
	m.log = append(m.log[:0], m.log[n:]...)
	return n > 0
}

// replicaDone notes what a replica has applied.
func (m *Machine) replicaDone(server int, index uint64) {
	for i := range m.replicas {
		if r := &m.replicas[i]; r.server == server {
			r.done = max(r.done, min(index, m.index+uint64(len(m.log))))
		}
	}
	if m.commit() {
		m.advanceAll()
	}
}

// replicate applies the next entry of the primary's log.
func (m *Machine) replicate(in Input, c *client) {
	switch {
	case m.primary || in.Index != m.index+1 || in.Seq == 0 || in.Entry < Push || in.Entry > Close:
		m.refuse(in.Request, Gap)
	case c == nil || in.Seq <= c.Seq:
		m.refuse(in.Request, Unknown)
	default:
		c.logged = in.Seq
		m.apply(entry{request{in.Entry, in.Seq, in.Request}, in.Client})
		m.out = append(m.out, Output{Kind: ReplicaAcknowledge, Index: m.index})
	}
}

// apply applies the next entry of the log.
func (m *Machine) apply(e entry) {
	c := m.client(e.client)
	m.index++
	before := c.Seq
	c.Seq = e.seq
	switch {
	case e.kind == Set:
		m.out = append(m.out, Output{Kind: Assign, Request: e.name})
	case e.kind == Close:
		c.Closed = true
		m.fold()
	case m.cfg.Mode == Synchronous:
		c.pushing = false
		c.Clock++
		c.Before, c.Share, c.Request = before, Held, e.name
		m.fold()
	default:
		c.Clock++
		m.out = append(m.out, Output{Kind: Fold, Request: e.name, First: true})
		m.complete(1)
	}
}

// fold folds contributions in the order of the clients, up to the first worker that owes one. At the
// end it completes the round.
func (m *Machine) fold() {
	n := 0
	for i := range m.clients {
		c := &m.clients[i]
		switch {
		case c.Share == None && !c.Closed:
			return
		case c.Share == None:
			continue
		case c.Share == Held:
			m.out = append(m.out, Output{Kind: Fold, Request: c.Request, First: !m.folded()})
			c.Share, c.Request = Folded, 0
		}
		n++
	}
	if n == 0 {
		return
	}
	for i := range m.clients {
		m.clients[i].Share = None
	}
	m.complete(n)
}

// folded reports whether the accumulator has a contribution.
func (m *Machine) folded() bool {
	for i := range m.clients {
		if m.clients[i].Share == Folded {
			return true
		}
	}
	return false
}

// complete makes the next version.
func (m *Machine) complete(contributions int) {
	m.version++
	m.out = append(m.out, Output{Kind: Complete, Version: m.version, Contributions: contributions})
}

// refuse refuses a request. A ReplicaDone has none.
func (m *Machine) refuse(name uint64, why Refusal) {
	if name != 0 {
		m.out = append(m.out, Output{Kind: Refuse, Request: name, Refusal: why})
	}
}
