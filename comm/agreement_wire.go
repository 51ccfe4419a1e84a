package comm

import (
	"encoding/binary"

	"github.com/tutti-go/tutti/comm/agreement"
	cursor "github.com/tutti-go/tutti/internal/wire"
)

// An agreementNotice is the body of an agreement's flood: the sender's State, and the members that
// the sender asks for their States. Integers are little endian:
//
//	0  communicator (8)              20 term (4)
//	8  number (4)                    24 accepted (4)
//	12 version (4)                   28 bits (8)
//	16 1 if the sender is out (1)    36 the proposal's bits (8)
//	17 the sender's calls (1)        44 the members asked, 4 bytes each, then the proposal's side,
//	18 the proposal's calls (1)         its members and the dead, a bit per member each
//	19 how many are asked (1)
type agreementNotice struct {
	comm   uint64
	number uint32
	state  agreement.State
	ask    []int
}

// Bounds of a notice. With these bounds the largest notice fits into a flood.
const (
	maxAgreement = 8000 // the most members of a communicator that can agree
	maxQuestions = 4    // the most members that one notice asks
)

// append appends the notice to b. The parameter size is the number of bits of each set.
func (n *agreementNotice) append(b []byte, size int) []byte {
	st := &n.state
	le := binary.LittleEndian
	b = le.AppendUint64(b, n.comm)
	b = le.AppendUint32(b, n.number)
	b = le.AppendUint32(b, st.Version)
	flags := byte(0)
	if st.Out {
		flags = 1
	}
	b = append(b, flags, byte(st.Calls), byte(st.Proposal.Calls), byte(len(n.ask)))
	b = le.AppendUint32(b, uint32(st.Term))
	b = le.AppendUint32(b, uint32(st.Accepted))
	b = le.AppendUint64(b, st.Bits)
	b = le.AppendUint64(b, st.Proposal.Bits)
	for _, r := range n.ask {
		b = le.AppendUint32(b, uint32(r))
	}
	for _, s := range []agreement.Set{st.Proposal.Side, st.Proposal.Members, st.Dead} {
		end := len(b) + setBytes(size)
		b = append(b, s...)
		for len(b) < end {
			b = append(b, 0)
		}
	}
	return b
}

// setBytes returns the length in bytes of an encoded set of members.
func setBytes(size int) int { return (size + 7) / 8 }

// parseAgreementID returns the communicator's id from the body of a notice.
func parseAgreementID(body []byte) (uint64, bool) {
	if len(body) < 8 {
		return 0, false
	}
	return binary.LittleEndian.Uint64(body), true
}

// parseAgreement decodes a notice for a communicator with the given number of members. It returns
// false for a body that no rank of this version sends.
func parseAgreement(body []byte, size int) (n agreementNotice, ok bool) {
	r := cursor.NewReader(body)
	st := &n.state
	n.comm = r.Uint64()
	n.number = r.Uint32()
	st.Version = r.Uint32()
	flags := r.Uint8()
	st.Out = flags == 1
	st.Calls, st.Proposal.Calls = agreement.Calls(r.Uint8()), agreement.Calls(r.Uint8())
	count := int(r.Uint8())
	st.Term, st.Accepted = r.Int32(), r.Int32()
	st.Bits, st.Proposal.Bits = r.Uint64(), r.Uint64()
	if flags > 1 || count > maxQuestions || st.Term < 0 || st.Term > size || st.Accepted < 0 || st.Accepted > st.Term {
		r.Fail()
		count = 0
	}
	for range count {
		n.ask = append(n.ask, r.Int32())
	}
	// A set must have no bit beyond the members, because equal sets of members must compare equal.
	all := agreement.All(size)
	for _, s := range []*agreement.Set{&st.Proposal.Side, &st.Proposal.Members, &st.Dead} {
		*s = agreement.Set(r.Bytes(setBytes(size)))
		if s.Minus(all).Len() > 0 {
			r.Fail()
		}
	}
	return n, r.Done()
}
