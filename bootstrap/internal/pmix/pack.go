package pmix

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
)

// The PMIx types of the values that this package reads and writes.
const (
	typeBool   = 1
	typeString = 3
	typeUint64 = 15
	typeUint32 = 14
)

// A packer appends values in the form of a dialect:
//
//	value    v21, v3                        v4 and later
//	string   int32 length with its NUL, the bytes, NUL (all dialects)
//	byte     itself (all dialects)
//	uint16   2 bytes, big-endian            base 128, low digits first
//	uint32   4 bytes, big-endian            the same
//	int32    4 bytes, big-endian            the same, zig-zag: 0, -1, 1, -2, ...
//	size     uint16 15, 8 bytes big-endian  the same, as uint64
type packer struct {
	b       []byte
	varints bool // v4 and later
}

// uint64 appends a number in base 128. The ninth byte carries eight bits.
func (p *packer) uint64(v uint64) {
	for range 8 {
		if v < 0x80 {
			break
		}
		p.b = append(p.b, byte(v)|0x80)
		v >>= 7
	}
	p.b = append(p.b, byte(v))
}

func (p *packer) byte(v byte) { p.b = append(p.b, v) }

func (p *packer) uint16(v uint16) {
	if p.varints {
		p.uint64(uint64(v))
		return
	}
	p.b = binary.BigEndian.AppendUint16(p.b, v)
}

func (p *packer) uint32(v uint32) {
	if p.varints {
		p.uint64(uint64(v))
		return
	}
	p.b = binary.BigEndian.AppendUint32(p.b, v)
}

func (p *packer) int32(v int32) {
	if p.varints {
		p.uint64(uint64(uint32(v<<1 ^ v>>31)))
		return
	}
	p.uint32(uint32(v))
}

func (p *packer) size(v int) {
	if p.varints {
		p.uint64(uint64(v))
		return
	}
	p.uint16(typeUint64)
	p.b = binary.BigEndian.AppendUint64(p.b, uint64(v))
}

func (p *packer) string(s string) {
	p.int32(int32(len(s) + 1))
	p.b = append(p.b, s...)
	p.byte(0)
}

// item begins a value of the outermost level. There, a count precedes each value.
func (p *packer) item() *packer {
	p.int32(1)
	return p
}

// errShort is the error of an answer that ends within a value.
var errShort = errors.New("the answer ends within a value")

// An unpacker reads what a packer writes. After an error, all that it reads is zero.
type unpacker struct {
	b       []byte
	varints bool
	err     error
}

// bytes returns the next n bytes. The result is a part of the answer, so a wrong length in the
// answer cannot make this process allocate more memory.
func (u *unpacker) bytes(n uint64) []byte {
	if u.err == nil && n > uint64(len(u.b)) {
		u.err = errShort
	}
	if u.err != nil {
		return nil
	}
	b := u.b[:n]
	u.b = u.b[n:]
	return b
}

// fixed reads a big-endian number of n bytes.
func (u *unpacker) fixed(n uint64) (v uint64) {
	for _, c := range u.bytes(n) {
		v = v<<8 | uint64(c)
	}
	return v
}

// uint reads a number. In the dialects without varints the number has n bytes.
func (u *unpacker) uint(n uint64) (v uint64) {
	if !u.varints {
		return u.fixed(n)
	}
	for shift := 0; shift < 56; shift += 7 {
		c := u.fixed(1)
		v |= c & 0x7f << shift
		if c < 0x80 {
			return v
		}
	}
	return v | u.fixed(1)<<56
}

// int32 reads a signed number.
func (u *unpacker) int32() int32 {
	v := uint32(u.uint(4))
	if u.varints {
		return int32(v>>1) ^ -int32(v&1)
	}
	return int32(v)
}

// size reads a length. The dialects without varints say first whether it has 4 or 8 bytes.
func (u *unpacker) size() uint64 {
	if !u.varints && u.fixed(2) == typeUint32 {
		return u.fixed(4)
	}
	return u.uint(8)
}

// string reads a string, without the NUL at its end.
func (u *unpacker) string() string {
	n := u.int32()
	if n < 0 && u.err == nil {
		u.err = fmt.Errorf("got a string of %d bytes", n)
	}
	return strings.TrimSuffix(string(u.bytes(uint64(n))), "\x00")
}

// value reads a value with its type. An unknown type is an error, because an answer does
// not contain the lengths of values, so the reader cannot skip the value.
func (u *unpacker) value() any {
	switch t := u.uint(2); t {
	case typeString:
		return u.string()
	case typeUint32:
		return uint32(u.uint(4))
	default:
		if u.err == nil {
			u.err = fmt.Errorf("got a value of PMIx type %d, want %d or %d", t, typeString, typeUint32)
		}
		return nil
	}
}

// unpackStatus reads the status that each answer begins with. The status 0 means success.
func unpackStatus(u *unpacker) (int32, error) {
	u.int32() // the count
	status := u.int32()
	return status, u.err
}

// unpackValue returns the value of a key of a rank from the rest of an answer to get, or nil if the
// answer does not have it. The rest is a list of blobs, each of one rank and with a list of pairs.
func unpackValue(u *unpacker, nspace string, rank uint32, key string) (any, error) {
	for len(u.b) > 0 && u.err == nil {
		u.int32()
		blob := unpacker{b: u.bytes(u.size()), varints: u.varints}
		blob.int32()
		space, of := blob.string(), uint32(blob.uint(4))
		for len(blob.b) > 0 && blob.err == nil {
			blob.int32()
			k := blob.string()
			v := blob.value()
			if blob.err == nil && k == key && of == rank && space == nspace {
				return v, nil
			}
		}
		if blob.err != nil {
			return nil, blob.err
		}
	}
	return nil, u.err
}
