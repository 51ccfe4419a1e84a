package part

import "slices"

// client returns the record of a client, or nil.
func (m *Machine) client(id uint64) *client {
	if i := index(m.clients, id); i >= 0 {
		return &m.clients[i]
	}
	return nil
}

// anyLost reports whether a worker is lost under Fail.
func (m *Machine) anyLost() bool {
	for i := range m.clients {
		if m.clients[i].lost {
			return true
		}
	}
	return false
}

// setClients brings the records up to the members of an epoch. The workers stand in rank order. Of
// the clients that are no longer there, two kinds stay, each behind the client that it followed
// before: those that are lost under Fail, and those with a contribution to the present round.
func (m *Machine) setClients(e Members) {
	old, first := m.clients, slowest(m.clients)
	record := func(id uint64) client {
		if i := index(old, id); i >= 0 {
			return client{ClientState: old[i].ClientState, logged: old[i].Seq, queue: old[i].queue}
		}
		return client{ClientState: ClientState{ID: id, Clock: first}}
	}
	m.clients = make([]client, 0, len(e.Workers)+len(old))
	for _, id := range e.Workers {
		m.clients = append(m.clients, record(id))
	}
	blocks := m.cfg.Policy == Fail && m.cfg.Mode != Asynchronous
	for i, c := range old {
		if index(m.clients, c.ID) >= 0 {
			continue
		}
		c.lost = blocks && slices.Contains(e.Lost, c.ID)
		c.Closed = !c.lost
		if c.lost || c.Share != None {
			m.clients = slices.Insert(m.clients, m.behind(old[:i]), c)
		}
	}
	for _, id := range e.Lost {
		if blocks && index(m.clients, id) < 0 {
			c := record(id)
			c.lost = true
			m.clients = append(m.clients, c)
		}
	}
}

// behind returns the position behind the last of these clients that still has a record.
func (m *Machine) behind(before []client) int {
	for _, c := range slices.Backward(before) {
		if i := index(m.clients, c.ID); i >= 0 {
			return i + 1
		}
	}
	return 0
}

// index returns the position of a client's record, or -1.
func index(clients []client, id uint64) int {
	for i := range clients {
		if clients[i].ID == id {
			return i
		}
	}
	return -1
}

// slowest returns the lowest Clock of the clients that have not left, or 0.
func slowest(clients []client) uint64 {
	var lowest uint64
	first := true
	for _, c := range clients {
		if !c.Closed && (first || c.Clock < lowest) {
			lowest, first = c.Clock, false
		}
	}
	return lowest
}

// Lost returns the workers for which WorkersLost refuses requests.
func (m *Machine) Lost() []uint64 {
	var ids []uint64
	for _, c := range m.clients {
		if c.lost {
			ids = append(ids, c.ID)
		}
	}
	return ids
}

// Lag returns by how many pushes the slowest worker is behind the fastest one.
func (m *Machine) Lag() uint64 {
	var fastest uint64
	for _, c := range m.clients {
		if !c.Closed {
			fastest = max(fastest, c.Clock)
		}
	}
	return fastest - slowest(m.clients)
}
