package verbs

import (
	"encoding/binary"
	"fmt"

	"github.com/tutti-go/tutti/transport"
)

// A kind is one of the six messages of the protocol. The names and their order come from TensorFlow
// (contrib/verbs/README.md of TensorFlow 1.3). doc.go describes what each message means here.
type kind uint8

const (
	ack kind = iota + 1
	bufferIdle
	bufferRequest
	bufferResponse
	tensorRequest
	tensorWrite
)

// kindNames are indexed by kind.
var kindNames = [...]string{
	ack: "ACK", bufferIdle: "BUFFER_IDLE", bufferRequest: "BUFFER_REQUEST",
	bufferResponse: "BUFFER_RESPONSE", tensorRequest: "TENSOR_REQUEST", tensorWrite: "TENSOR_WRITE",
}

// String returns the name that TensorFlow gave the message.
func (k kind) String() string {
	if k < ack || k > tensorWrite {
		return fmt.Sprintf("message %d", uint8(k))
	}
	return kindNames[k]
}

// The layout of a packet, and the flags of its kinds.
const (
	packetVersion = 3
	packetLen     = 40 // bytes before head and body
	flagDeclined  = 1  // BUFFER_RESPONSE: the body is declined
	flagInRing    = 2  // TENSOR_REQUEST: announces the ring; TENSOR_WRITE: the body is in it
	flagRenew     = 4  // BUFFER_REQUEST and its answer: renew memory that has been filled
	flagNoNotify  = 8  // TENSOR_REQUEST: the memory is exposed without notification
)

// allows reports whether the message may have the flag. A message has at most one.
func (k kind) allows(flag byte) bool {
	switch flag {
	case 0:
		return true
	case flagDeclined:
		return k == bufferResponse
	case flagInRing:
		return k == tensorRequest || k == tensorWrite
	case flagRenew:
		return k == bufferRequest || k == bufferResponse
	case flagNoNotify:
		return k == tensorRequest
	}
	return false
}

// A packet is the header of a message. Head and body follow it in the message buffer. The table
// in doc.go describes its bytes. Kind and flag determine which fields have a meaning; all other
// fields are 0.
type packet struct {
	kind   kind
	flag   byte   // 0, or a flag that the kind allows
	head   int    // bytes of head that follow
	credit uint32 // receives that the sender has posted again
	freed  uint32 // bytes of the sender's ring that are free again
	id     uint32 // ID of the frame or of the exposure
	handle uint32 // names memory; see handleOf
	size   uint64 // bytes of body, or of memory
	addr   uint64
	rkey   uint32
}

// put encodes p into b, which has at least packetLen bytes.
func (p *packet) put(b []byte) {
	b[0], b[1], b[2], b[3] = packetVersion, byte(p.kind), p.flag, byte(p.head)
	le := binary.LittleEndian
	le.PutUint32(b[4:], p.credit)
	le.PutUint32(b[8:], p.id)
	le.PutUint32(b[12:], p.handle)
	le.PutUint64(b[16:], p.size)
	le.PutUint64(b[24:], p.addr)
	le.PutUint32(b[32:], p.rkey)
	le.PutUint32(b[36:], p.freed)
}

// parse decodes and validates a message that fills b. Head and body follow the first packetLen
// bytes.
func parse(b []byte) (packet, error) {
	if len(b) < packetLen {
		return packet{}, fmt.Errorf("message: got %d bytes, want at least %d", len(b), packetLen)
	}
	le := binary.LittleEndian
	p := packet{
		kind: kind(b[1]), flag: b[2], head: int(b[3]),
		credit: le.Uint32(b[4:]), id: le.Uint32(b[8:]), handle: le.Uint32(b[12:]),
		size: le.Uint64(b[16:]), addr: le.Uint64(b[24:]), rkey: le.Uint32(b[32:]), freed: le.Uint32(b[36:]),
	}
	body := uint64(0)
	if p.kind == tensorWrite && p.flag != flagInRing {
		body = p.size
	}
	switch {
	case b[0] != packetVersion:
		return p, fmt.Errorf("message: got version %d, want %d", b[0], packetVersion)
	case p.kind < ack || p.kind > tensorWrite:
		return p, fmt.Errorf("message: got kind %d, want %d to %d", uint8(p.kind), ack, tensorWrite)
	case !p.kind.allows(p.flag):
		return p, fmt.Errorf("%v: got flag %#x, which belongs to another kind or is unknown", p.kind, p.flag)
	case p.head > transport.MaxHead:
		return p, fmt.Errorf("%v: got a head of %d bytes, want at most %d", p.kind, p.head, transport.MaxHead)
	case p.head > 0 && p.kind != tensorWrite && p.kind != bufferRequest:
		return p, fmt.Errorf("%v: got a head of %d bytes, want none", p.kind, p.head)
	case body > uint64(len(b)) || uint64(len(b)) != packetLen+uint64(p.head)+body:
		return p, fmt.Errorf("%v: got %d bytes, want the header, %d of head and %d of body", p.kind, len(b), p.head, body)
	}
	return p, nil
}

// A handle names memory by 31 bits: the slot in the table of the receiver, and the generation of
// that slot. The generation makes a stale handle detectable. In the immediate value of a write,
// the top bit means that more writes of the same frame follow.
const (
	more           = 1 << 31
	maxSlots       = 1 << 12
	generationMask = 1<<19 - 1
)

// handleOf returns the handle of a slot in the given generation. It uses the low 19 bits of the
// generation.
func handleOf(slot int, generation uint32) uint32 {
	return generation&generationMask<<12 | uint32(slot)
}

// slotOf returns the slot of a handle, or of an immediate value.
func slotOf(handle uint32) int { return int(handle & (maxSlots - 1)) }

// newer reports whether a is a later generation of the same slot than b. Generations wrap
// around and are compared as serial numbers (RFC 1982).
func newer(a, b uint32) bool {
	d := (a>>12 - b>>12) & generationMask
	return d != 0 && d < 1<<18
}
