package part

import (
	"encoding/binary"
	"slices"

	"github.com/tutti-go/tutti/internal/wire"
)

// Index returns the index of the last log entry that was applied.
func (m *Machine) Index() uint64 { return m.index }

// Version returns the version of the values.
func (m *Machine) Version() uint64 { return m.version }

// Waiting returns the number of requests that the Machine has not acknowledged, answered or refused.
func (m *Machine) Waiting() int {
	n := len(m.log)
	for i := range m.clients {
		n += len(m.clients[i].queue)
	}
	return n
}

// State returns what was applied. A hand-over of a sealed Machine sends it together with the values,
// the accumulator, and the buffers that are Held. The receiver replaces each Request by its own.
func (m *Machine) State() State {
	s := State{Index: m.index, Version: m.version, Clients: make([]ClientState, len(m.clients))}
	for i := range m.clients {
		s.Clients[i] = m.clients[i].ClientState
	}
	return s
}

// AtVersion returns s without the contributions to an incomplete round. It is the State that goes with
// the values alone, as a snapshot has them.
func (s State) AtVersion() State {
	atVersion := s
	atVersion.Clients = nil
	for _, c := range s.Clients {
		if c.Share != None {
			c.Seq, c.Clock = c.Before, c.Clock-1
		}
		atVersion.Clients = append(atVersion.Clients, ClientState{ID: c.ID, Seq: c.Seq, Clock: c.Clock, Closed: c.Closed})
	}
	return atVersion
}

// EqualClocks returns s with the highest Clock for all clients. After a restoration they step together
// from there, so no pull of a Bounded part waits for a push from before.
func (s State) EqualClocks() State {
	var highest uint64
	for _, c := range s.Clients {
		highest = max(highest, c.Clock)
	}
	s.Clients = slices.Clone(s.Clients)
	for i := range s.Clients {
		s.Clients[i].Clock = highest
	}
	return s
}

// minClient is the length of the shortest ClientState in the form of Append.
const minClient = 13

// Append appends s in the form that ParseState reads. All numbers but the clients' are in the
// variable-length form of encoding/binary.
//
//	Index, Version, number of clients
//	for each client
//	  8 bytes  ID, little endian
//	  Seq, Before, Clock
//	  1 byte   Share, and 4 if the client has left
//	  Request
func (s State) Append(b []byte) []byte {
	b = binary.AppendUvarint(b, s.Index)
	b = binary.AppendUvarint(b, s.Version)
	b = binary.AppendUvarint(b, uint64(len(s.Clients)))
	for _, c := range s.Clients {
		b = binary.LittleEndian.AppendUint64(b, c.ID)
		b = binary.AppendUvarint(b, c.Seq)
		b = binary.AppendUvarint(b, c.Before)
		b = binary.AppendUvarint(b, c.Clock)
		marks := byte(c.Share)
		if c.Closed {
			marks |= 4
		}
		b = append(b, marks)
		b = binary.AppendUvarint(b, c.Request)
	}
	return b
}

// ParseState reads a State. It returns false if b is not exactly one.
func ParseState(b []byte) (State, bool) {
	r := wire.NewReader(b)
	s := State{Index: r.Uvarint(), Version: r.Uvarint()}
	s.Clients = make([]ClientState, r.Count(minClient))
	for i := range s.Clients {
		c := &s.Clients[i]
		c.ID, c.Seq, c.Before, c.Clock = r.Uint64(), r.Uvarint(), r.Uvarint(), r.Uvarint()
		marks := r.Uint8()
		c.Share, c.Closed = Share(marks&3), marks&4 != 0
		c.Request = r.Uvarint()
		if marks > 7 || c.Share > Folded {
			r.Fail()
		}
	}
	return s, r.Done()
}
