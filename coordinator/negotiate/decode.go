package negotiate

import (
	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/wire"
)

// A reader decodes a list: a wire.Reader with the forms that only these lists have. After a failure
// everything that it returns is zero, so callers check once, at the end.
type reader struct {
	wire.Reader
	responses int       // of the list
	idPool    []IDRange // memory for the IDs of the next responses
}

// version fails a list of another version.
func (r *reader) version() {
	if r.Uint8() != wireVersion {
		r.Fail()
	}
}

// text reads a text of at most limit bytes.
func (r *reader) text(limit int) string { return r.String(r.Count(1), limit) }

// idRanges returns memory for the IDs of a response. Most responses have one range, so memory for
// the ranges of all responses is made at once. When a response has more, the rest of it is given
// up.
func (r *reader) idRanges(n int) []IDRange {
	if len(r.idPool) < n {
		r.idPool = make([]IDRange, max(n, r.responses))
	}
	list := r.idPool[:n:n]
	r.idPool = r.idPool[n:]
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

// bits reads what appendBits has written. An empty set is nil.
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

// end is the error of a list that was malformed or longer than its contents.
func (r *reader) end(what string) error {
	if !r.Done() {
		return fault.New(fault.Mismatch, "coordinator", -1, "%s: got a message that is malformed or of another version, want version %d; run the same version of the program on all ranks", what, wireVersion)
	}
	return nil
}
