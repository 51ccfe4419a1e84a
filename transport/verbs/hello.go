package verbs

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/tutti-go/tutti/transport"
	"github.com/tutti-go/tutti/transport/verbs/internal/rdma"
)

// What two ends say to each other on the set-up link, beside their owners' frames,
// are frames whose head is setupMark and one of these.
const (
	setupOffer    = 1 // the accepting end's queue pair
	setupAnswer   = 2 // the dialling end's, which can receive
	setupReady    = 3 // the accepting end can receive, and sends over the queue pair from now on
	setupSwitched = 4 // so does the dialling end
	setupLiteral  = 5 // the next frame is an owner's, though it looks like one of these
	setupRefuse   = 6 // there will be no queue pair; the body says why
	setupRequest  = 7 // the dialling end asks for a queue pair, where it is for it to ask
)

const (
	setupMark    = "tuttiRC\x01"
	setupHead    = len(setupMark) + 1
	helloLen     = 44
	helloVersion = 2
	maxRefusal   = 400 // bytes of text
)

// The bounds on what a hello may say.
const (
	minDepth    = 3 // with two, credit could not reach the two that make an ACK
	maxDepth    = 1024
	minBuffer   = 256
	maxBuffer   = 1 << 20
	maxBody     = 1 << 40
	maxControls = 4 * maxSlots
	minRing     = 1 << 10
	maxRing     = 1 << 30
)

// A hello is what the peer needs to know of this end before the first message.
type hello struct {
	rdma.Address
	depth  uint32 // receives posted
	buffer uint32 // bytes of each
	salt   uint64 // what this end's Tokens carry
}

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
	case b[27] != helloVersion:
		return h, fmt.Errorf("hello: got version %d, want %d; both ends must run the same version of tutti", b[27], helloVersion)
	case h.MTU < 1 || h.MTU > 5 || h.QPN >= 1<<24 || h.PSN >= 1<<24:
		return h, fmt.Errorf("hello: got MTU %d, queue pair %#x and packet number %#x, want 1 to 5 and two below 1<<24", h.MTU, h.QPN, h.PSN)
	case h.depth < minDepth || h.depth > maxDepth || h.buffer < minBuffer || h.buffer > maxBuffer:
		return h, fmt.Errorf("hello: got %d buffers of %d bytes, want %d to %d of %d to %d", h.depth, h.buffer, minDepth, maxDepth, minBuffer, maxBuffer)
	}
	return h, nil
}

// setupFrame is a frame of this package's for the set-up link.
func setupFrame(kind byte, body []byte, done func(error)) *transport.Frame {
	return &transport.Frame{Head: append([]byte(setupMark), kind), Body: body, Done: done}
}

// looksLikeSetup reports whether a head could be taken for one of this package's.
func looksLikeSetup(head []byte) bool { return bytes.HasPrefix(head, []byte(setupMark)) }

// A setupSink is the Sink of the set-up link: it hands owners' frames through to the
// owner's Sink, and keeps what the two ends say to each other. Only Progress uses
// it.
type setupSink struct {
	c       *conn
	owner   transport.Sink // for the length of one Progress
	literal bool           // the next frame is an owner's
	isSetup bool           // the frame that is arriving is
	body    [max(helloLen, maxRefusal)]byte
	err     error // the peer broke the rules
}

// Buffer implements transport.Sink.
func (r *setupSink) Buffer(h transport.Header) []byte {
	r.isSetup = !r.literal && looksLikeSetup(h.Head)
	r.literal = false
	switch {
	case !r.isSetup && r.c.recvSwitched.Load():
		r.err = errors.New("got a frame after the peer had switched to the queue pair")
		r.isSetup = true
		return nil
	case !r.isSetup:
		return r.owner.Buffer(h)
	case h.Size > len(r.body) || len(h.Head) != setupHead:
		r.err = fmt.Errorf("set-up message: got a head of %d bytes and a body of %d", len(h.Head), h.Size)
		return nil
	}
	return r.body[:]
}

// Arrived implements transport.Sink.
func (r *setupSink) Arrived(h transport.Header, n int) {
	switch {
	case !r.isSetup:
		r.owner.Arrived(h, n)
	case n == h.Size && r.err == nil:
		r.err = r.c.handleSetup(h.Head[setupHead-1], r.body[:n])
	}
}
