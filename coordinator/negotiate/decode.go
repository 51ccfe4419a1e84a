package negotiate

import (
	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/wire"
)

// A reader decodes a message: a wire.Reader, with the forms that only these messages have. After a
// failure all that it returns is zero.
type reader struct {
	wire.Reader
	responses int       // of the message
	idPool    []IDRange // memory for the next runs
}

func (r *reader) version() {
	if r.Uint8() != wireVersion {
		r.Fail()
	}
}

func (r *reader) text(limit int) string { return r.String(r.Count(1), limit) }

// idRanges is memory for the numbers of a Bucket. That of all is made at once, where
// they have one each; what is left over when there are more is less than these.
func (r *reader) idRanges(n int) []IDRange {
	if len(r.idPool) < n {
		r.idPool = make([]IDRange, max(n, r.responses))
	}
	list := r.idPool[:n:n]
	r.idPool = r.idPool[n:]
	return list
}

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

func (r *reader) end(what string) error {
	if !r.Done() {
		return fault.New(fault.Mismatch, "coordinator", -1, "%s: got a message that is malformed or of another version, want version %d; run the same version of the program on all ranks", what, wireVersion)
	}
	return nil
}
