package tcp

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/transport"
)

// magic opens each connection. The dialling side sends it.
const magic = "\xF5tu2"

const (
	preambleLen = 24
	prefixMax   = preambleLen + transport.MaxHead // the maximum size of the bytes before a body

	// MaxBody is the maximum size of a frame's body, in bytes. It exceeds the memory of any
	// machine, so a greater length shows that the stream is damaged.
	MaxBody = int64(1) << 44

	pendingBody  = 4 << 10     // the maximum size of a body before Admit
	admittedBody = math.MaxInt // after Admit: MaxBody, if int can hold it
)

// A preamble is the fixed part of a frame on the wire.
type preamble struct {
	body int
	head int
	id   uint32
	seq  uint32 // the number of the frame
	ack  uint64 // how many bytes of frames its sender has received
}

// put writes the preamble and then head into b, which has room for prefixMax
// bytes, and returns how many bytes it wrote.
//
// Length and flags share the first eight bytes, and ID and sequence number the next eight, so that
// each pair is one store.
func (p preamble) put(b []byte, head []byte) int {
	binary.LittleEndian.PutUint64(b, uint64(p.body)|uint64(p.head)<<48)
	binary.LittleEndian.PutUint64(b[8:], uint64(p.id)|uint64(p.seq)<<32)
	binary.LittleEndian.PutUint64(b[16:], p.ack)
	return preambleLen + copy(b[preambleLen:], head)
}

// parsePreamble reads the first preambleLen bytes of b. The argument limit is the maximum size of a
// body that the Conn accepts now.
//
// parsePreamble trusts no field. A stream that has lost its frame boundaries fails here, at the
// latest because of its flags.
func parsePreamble(b []byte, limit int) (preamble, error) {
	word := binary.LittleEndian.Uint64(b)
	body, head, flags := int64(word&(1<<48-1)), int(word>>48&0xFF), word>>56
	switch {
	case flags != 0:
		return preamble{}, protocolError("got flags %#x, want 0", flags)
	case head > transport.MaxHead:
		return preamble{}, protocolError("got a head of %d bytes, want at most %d", head, transport.MaxHead)
	case body > MaxBody || body > math.MaxInt:
		return preamble{}, protocolError("got a body of %d bytes, want at most %d", body, min(MaxBody, math.MaxInt))
	case body > int64(limit):
		return preamble{}, failure(fault.Refused, "receive",
			fmt.Errorf("got a body of %d bytes, want at most %d from a peer that is not authenticated yet", body, limit))
	}
	p := preamble{body: int(body), head: head}
	p.id, p.seq, p.ack = binary.LittleEndian.Uint32(b[8:]), binary.LittleEndian.Uint32(b[12:]), binary.LittleEndian.Uint64(b[16:])
	return p, nil
}

// protocolError is the error for a stream of another protocol, or a stream whose frame boundaries
// are lost.
func protocolError(format string, args ...any) error {
	return failure(fault.Refused, "receive", fmt.Errorf("invalid frame: "+format, args...))
}

// failure returns an error of this package. Its Rank is -1, because a transport does not know
// ranks.
func failure(k fault.Kind, op string, err error) *fault.Error {
	return &fault.Error{Kind: k, Op: "tcp: " + op, Rank: -1, Err: err}
}
