package verbs

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/tutti-go/tutti/transport"
	"github.com/tutti-go/tutti/transport/verbs/internal/rdma"
)

// The kinds of messages on the set-up link: frames whose head is setupMark followed by one of
// these.
const (
	setupOffer    = 1 // accepting end: the address of its queue pair
	setupAnswer   = 2 // dialling end: the address of its queue pair, which can receive
	setupReady    = 3 // accepting end: its next frame goes over the queue pair
	setupSwitched = 4 // dialling end: its next frame goes over the queue pair
	setupLiteral  = 5 // the next frame is the caller's, though it looks like a set-up message
	setupRefuse   = 6 // there is no queue pair; the body is the reason
	setupRequest  = 7 // dialling end with OnRequest: requests an OFFER
)

const (
	setupMark    = "tuttiRC\x01"
	setupHead    = len(setupMark) + 1
	helloLen     = 44
	helloVersion = 2
	maxRefusal   = 400 // bytes of text
)

// The bounds of the values in a hello and in a message. If a peer exceeds them, the Conn fails.
const (
	minDepth    = 3 // with a depth of two, the two credits that an ACK needs could never accumulate
	maxDepth    = 1024
	minBuffer   = 256
	maxBuffer   = 1 << 20
	maxBody     = 1 << 40
	maxControls = 4 * maxSlots
	minRing     = 1 << 10
	maxRing     = 1 << 30
)

// A hello holds the data about this end that the peer needs before the first message.
type hello struct {
	rdma.Address
	depth  uint32 // receives posted
	buffer uint32 // bytes of each
	salt   uint64 // in this end's Tokens
}

// put encodes h into b, which has helloLen bytes.
func (h *hello) put(b []byte) {
	le := binary.LittleEndian
	copy(b, h.GID[:])
	le.PutUint32(b[16:], h.QPN)
	le.PutUint32(b[20:], h.PSN)
	le.PutUint16(b[24:], h.LID)
	b[26], b[27] = h.MTU, helloVersion
	le.PutUint32(b[28:], h.depth)
	le.PutUint32(b[32:], h.buffer)
	le.PutUint64(b[36:], h.salt)
}

// parseHello decodes and validates a hello.
func parseHello(b []byte) (hello, error) {
	if len(b) != helloLen {
		return hello{}, fmt.Errorf("hello: got %d bytes, want %d", len(b), helloLen)
	}
	le := binary.LittleEndian
	h := hello{
		Address: rdma.Address{QPN: le.Uint32(b[16:]), PSN: le.Uint32(b[20:]), LID: le.Uint16(b[24:]), MTU: b[26]},
		depth:   le.Uint32(b[28:]), buffer: le.Uint32(b[32:]), salt: le.Uint64(b[36:]),
	}
	copy(h.GID[:], b)
	switch {
	// The version is checked first, because in another version the other fields may have another
	// meaning.
	case b[27] != helloVersion:
		return h, fmt.Errorf("hello: got version %d, want %d; both ends must run the same version of tutti", b[27], helloVersion)
	case h.MTU < 1 || h.MTU > 5 || h.QPN >= 1<<24 || h.PSN >= 1<<24:
		return h, fmt.Errorf("hello: got MTU %d, queue pair %#x and packet number %#x, want an MTU of 1 to 5 and two numbers below 1<<24", h.MTU, h.QPN, h.PSN)
	case h.depth < minDepth || h.depth > maxDepth || h.buffer < minBuffer || h.buffer > maxBuffer:
		return h, fmt.Errorf("hello: got %d buffers of %d bytes, want %d to %d buffers of %d to %d bytes", h.depth, h.buffer, minDepth, maxDepth, minBuffer, maxBuffer)
	}
	return h, nil
}

// setupFrame returns a frame of this package for the set-up link.
func setupFrame(kind byte, body []byte, done func(error)) *transport.Frame {
	return &transport.Frame{Head: append([]byte(setupMark), kind), Body: body, Done: done}
}

// looksLikeSetup reports whether a head could be mistaken for the head of a set-up message.
func looksLikeSetup(head []byte) bool { return bytes.HasPrefix(head, []byte(setupMark)) }

// A setupSink is the Sink of the set-up link. It passes the caller's frames to the caller's Sink
// and handles the messages of this package. Only Progress uses it.
type setupSink struct {
	c       *conn
	caller  transport.Sink // the Sink of the current call of Progress
	literal bool           // the next frame is the caller's
	isSetup bool           // the arriving frame is a message of this package
	body    [max(helloLen, maxRefusal)]byte
	err     error // the peer has violated the protocol
}

// Buffer implements transport.Sink.
func (r *setupSink) Buffer(h transport.Header) []byte {
	r.isSetup = !r.literal && looksLikeSetup(h.Head)
	r.literal = false
	switch {
	// READY or OVER must be the peer's last frame on the set-up link. The order of a later frame
	// relative to frames on the queue pair would be undefined.
	case !r.isSetup && r.c.recvSwitched.Load():
		r.err = errors.New("got a frame after the peer had switched to the queue pair")
		r.isSetup = true
		return nil
	case !r.isSetup:
		return r.caller.Buffer(h)
	// A set-up message is small, so that a peer cannot make this end buffer more bytes.
	case h.Size > len(r.body) || len(h.Head) != setupHead:
		r.err = fmt.Errorf("set-up message: got a head of %d bytes and a body of %d, want %d and at most %d", len(h.Head), h.Size, setupHead, len(r.body))
		return nil
	}
	return r.body[:]
}

// Arrived implements transport.Sink.
func (r *setupSink) Arrived(h transport.Header, n int) {
	switch {
	case !r.isSetup:
		r.caller.Arrived(h, n)
	case n == h.Size && r.err == nil:
		r.err = r.c.handleSetup(h.Head[setupHead-1], r.body[:n])
	}
}
