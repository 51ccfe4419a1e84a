package negotiate

import (
	"encoding/binary"
	"math"

	"github.com/tutti-go/tutti/fault"
)

// A reader takes a message apart. After the first thing that cannot be, all that
// it returns is zero.
type reader struct {
	b         []byte
	failed    bool
	responses int       // of the message
	idPool    []IDRange // memory for the next runs
}

func (r *reader) version() {
	if r.byte() != wireVersion {
		r.failed = true
	}
}

func (r *reader) byte() byte {
	b := r.next(1)
	if b == nil {
		return 0
	}
	return b[0]
}

func (r *reader) flag() bool {
	v := r.byte()
	r.failed = r.failed || v > 1
	return v == 1
}

func (r *reader) next(n int) []byte {
	if r.failed || n > len(r.b) {
		r.failed = true
		return nil
	}
	b := r.b[:n:n]
	r.b = r.b[n:]
	return b
}

func (r *reader) uvarint() uint64 {
	v, n := binary.Uvarint(r.b)
	if r.failed || n <= 0 {
		r.failed = true
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *reader) u32() uint32 {
	v := r.uvarint()
	if v > math.MaxUint32 {
		r.failed = true
		return 0
	}
	return uint32(v)
}

func (r *reader) u64() uint64 {
	b := r.next(8)
	if b == nil {
		return 0
	}
	return binary.LittleEndian.Uint64(b)
}

func (r *reader) int() int {
	v, n := binary.Varint(r.b)
	if r.failed || n <= 0 || int64(int(v)) != v {
		r.failed = true
		return 0
	}
	r.b = r.b[n:]
	return int(v)
}

// count is the length of a list whose entries have at least size bytes.
func (r *reader) count(size int) int {
	n := r.uvarint()
	if n > uint64(len(r.b)/size) {
		r.failed = true
	}
	if r.failed {
		return 0
	}
	return int(n)
}

func (r *reader) text(limit int) string {
	n := r.count(1)
	if n > limit {
		r.failed = true
	}
	return string(r.next(n))
}

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
	n := r.count(1)
	if n == 0 {
		return nil
	}
	list := make([]int, n)
	for i := range list {
		list[i] = r.int()
	}
	return list
}

func (r *reader) bits() Bitset {
	raw := r.next(r.count(1))
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
	raw := r.next(r.count(1))
	if r.failed {
		return nil
	}
	e, err := fault.ParseWire(raw)
	if err != nil {
		r.failed = true
	}
	return e
}

func (r *reader) end(what string) error {
	if r.failed || len(r.b) > 0 {
		return fault.New(fault.Mismatch, "coordinator", -1, "%s cannot be read: another version, or broken", what)
	}
	return nil
}
