package negotiate

import (
	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/wire"
)

// A reader decodes a list. It adds to wire.Reader the methods for the forms that occur only in
// these lists. After a failure it returns only zero values, so a caller needs to check for an error
// only once, at the end.
type reader struct {
	wire.Reader
	responses int       // number of responses in the list
	idPool    []IDRange // memory for the IDs of the next responses
}

// version reads the version, and fails if the list has another version.
func (r *reader) version() {
	if r.Uint8() != wireVersion {
		r.Fail()
	}
}

// text reads a text of at most limit bytes.
func (r *reader) text(limit int) string { return r.String(r.Count(1), limit) }

// idRanges returns memory for the IDs of a response. Most responses have one range, so the first
// call allocates one range for each response of the list. If a response needs more ranges than are
// left, idRanges allocates new memory and leaves the rest unused.
func (r *reader) idRanges(n int) []IDRange {
	if len(r.idPool) < n {
		r.idPool = make([]IDRange, max(n, r.responses))
	}
	list := r.idPool[:n:n]
	r.idPool = r.idPool[n:]
	return list
}

// names reads a list of tensors that appendNames has written.
func (r *reader) names() []TensorName {
	list := make([]TensorName, r.Count(2))
	for i := range list {
		list[i] = TensorName{r.Uvarint32(), r.text(MaxName)}
	}
	return list
}

// ints reads a list of signed numbers. An empty list is nil.
func (r *reader) ints() []int {
	n := r.Count(1)
	if n == 0 {
		return nil
	}
	list := make([]int, n)
	for i := range list {
		list[i] = r.Varint()
	}
	return list
}

// bits reads a set that appendBits has written. An empty set is nil.
func (r *reader) bits() Bitset {
	raw := r.Bytes(r.Count(1))
	if len(raw) == 0 {
		return nil
	}
	set := make(Bitset, (len(raw)+7)/8)
	for i, b := range raw {
		set[i/8] |= uint64(b) << (i % 8 * 8)
	}
	return set
}

// fault reads an error.
func (r *reader) fault() *fault.Error {
	raw := r.Bytes(r.Count(1))
	if !r.OK() {
		return nil
	}
	e, err := fault.ParseWire(raw)
	if err != nil {
		r.Fail()
	}
	return e
}

// end returns an error if the list is malformed or has bytes left.
func (r *reader) end(what string) error {
	if !r.Done() {
		return fault.New(fault.Mismatch, "coordinator", -1, "%s: got a message that is malformed or of another version, want version %d; run the same version of the program on all ranks", what, wireVersion)
	}
	return nil
}
