// Package wire reads the module's binary messages: a Reader is a cursor over one message that never
// reads beyond its end.
//
// All numbers are little endian, as everywhere in this module's protocols. The package does not
// know any message's layout. Each protocol documents its layout in its own doc.go, and writes
// messages with encoding/binary. Paths that decode a header per frame at a fixed layout
// (rendezvous, tcp, shm) index the bytes directly instead, after one check of the length.
package wire

import (
	"encoding/binary"
	"math"
)

// A Reader reads fields from the front of a message. The zero Reader is an empty message.
//
// Its error is sticky: the first field that is missing or out of bounds fails the Reader, and from
// then on every method returns zero. A decoder therefore reads all its fields and checks once, with
// Done. A Reader allocates nothing except the strings that it returns. Only one goroutine may use
// it.
//
//	state    OK     fields              Done
//	reading  true   as in the message   true when no byte is left
//	failed   false  zero, nil or ""     false, for good
type Reader struct {
	b      []byte // the bytes that are left
	failed bool
}

// NewReader returns a Reader of b. The byte slices that the Reader returns alias b, so the caller
// must not change b while they are in use.
func NewReader(b []byte) Reader { return Reader{b: b} }

// OK reports whether every field so far was present and in bounds.
func (r *Reader) OK() bool { return !r.failed }

// Done reports whether the whole message has been read, and every field was valid. A decoder must
// call Done last, so that trailing bytes are an error, too.
func (r *Reader) Done() bool { return !r.failed && len(r.b) == 0 }

// Len returns the number of bytes left.
func (r *Reader) Len() int { return len(r.b) }

// Fail fails the Reader. A decoder calls it for a field whose value it does not allow.
func (r *Reader) Fail() {
	r.failed, r.b = true, nil
}

// Bytes returns the next n bytes of the message itself, not a copy. It returns nil after a failure.
// A negative n, or an n beyond the end, is a failure. For n = 0 it returns an empty slice.
func (r *Reader) Bytes(n int) []byte {
	if r.failed || uint(n) > uint(len(r.b)) {
		r.Fail()
		return nil
	}
	field := r.b[:n:n]
	r.b = r.b[n:]
	return field
}

// Fill copies the next len(dst) bytes to dst. After a failure it leaves dst unchanged.
func (r *Reader) Fill(dst []byte) { copy(dst, r.Bytes(len(dst))) }

// String returns the next n bytes as a string. If n is more than limit, String fails, even if the
// message has n bytes. It does not check for UTF-8.
func (r *Reader) String(n, limit int) string {
	if n > limit {
		r.Fail()
	}
	return string(r.Bytes(n))
}

// Uint8 returns the next byte.
func (r *Reader) Uint8() uint8 {
	if b := r.Bytes(1); b != nil {
		return b[0]
	}
	return 0
}

// Uint16 returns the next 2 bytes as a number.
func (r *Reader) Uint16() uint16 {
	if b := r.Bytes(2); b != nil {
		return binary.LittleEndian.Uint16(b)
	}
	return 0
}

// Uint32 returns the next 4 bytes as a number.
func (r *Reader) Uint32() uint32 {
	if b := r.Bytes(4); b != nil {
		return binary.LittleEndian.Uint32(b)
	}
	return 0
}

// Uint64 returns the next 8 bytes as a number.
func (r *Reader) Uint64() uint64 {
	if b := r.Bytes(8); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

// Int32 returns the next 4 bytes as a signed number.
func (r *Reader) Int32() int { return int(int32(r.Uint32())) }

// Float64 returns the next 8 bytes as an IEEE 754 number.
func (r *Reader) Float64() float64 { return math.Float64frombits(r.Uint64()) }

// Bool returns the next byte as a flag. A byte other than 0 and 1 is a failure.
func (r *Reader) Bool() bool {
	v := r.Uint8()
	if v > 1 {
		r.Fail()
	}
	return v == 1
}

// Uvarint returns the next number in the variable-length form of encoding/binary. A number of more
// than 64 bits is a failure.
func (r *Reader) Uvarint() uint64 {
	v, n := binary.Uvarint(r.b)
	if n <= 0 {
		r.Fail()
		return 0
	}
	r.b = r.b[n:]
	return v
}

// Uvarint32 does the same as Uvarint, for a number that must fit in 32 bits.
func (r *Reader) Uvarint32() uint32 {
	v := r.Uvarint()
	if v > math.MaxUint32 {
		r.Fail()
		return 0
	}
	return uint32(v)
}

// Varint returns the next signed number in the variable-length form of encoding/binary. A number
// that does not fit an int is a failure.
func (r *Reader) Varint() int {
	v, n := binary.Varint(r.b)
	if n <= 0 || int64(int(v)) != v {
		r.Fail()
		return 0
	}
	r.b = r.b[n:]
	return int(v)
}

// Count returns the next Uvarint as the length of a list. Each entry of the list takes at least
// size bytes, and size must be at least 1. A length that the rest of the message cannot hold is a
// failure. The caller may therefore allocate Count entries, and a short message cannot cause a
// large allocation.
func (r *Reader) Count(size int) int {
	n := r.Uvarint()
	if n > uint64(len(r.b)/size) {
		r.Fail()
		return 0
	}
	return int(n)
}
