package rendezvous

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	"github.com/tutti-go/tutti/transport"
)

// A frameKind says what a frame is for. The package comment has the fields of each kind.
type frameKind uint8

const (
	// kindEager to kindData carry messages; see "Exchanges" in the package comment.
	kindEager frameKind = iota + 1
	kindOffer
	kindRequest
	kindData

	// kindCredit returns credit when no other frame has carried it for a while. It also grants
	// envelopes beyond the credit.
	kindCredit

	// kindWithdraw, kindDrop and kindAbandon end a rendezvous early. The sender sends kindWithdraw
	// before it has received the request, and kindAbandon after that. The receiver sends kindDrop.
	kindWithdraw
	kindDrop
	kindAbandon

	// kindBye is a rank's last frame to a peer. kindByeAck answers it.
	kindBye
	kindByeAck

	// kindName assigns a number to a tensor's name. Headers then carry the 4-byte number instead of
	// the name.
	kindName

	// kindWake makes the goroutines of the peer that are in MatchContext.Await check their
	// conditions again. WakePeer sends it after the caller has set a flag in shared memory for
	// which the peer may wait.
	kindWake

	// kindPrepare to kindRelease are for direct writes; see PreparedRecv and remoteBuffer.
	kindPrepare
	kindUnprepare
	kindUnprepareAck
	kindWritten
	kindRelease

	kindEnd // one past the last
)

// The flags of a header.
const (
	flagNamed      = 1 << iota // a named tensor: step, name and dimensions follow
	flagDead                   // a dead tensor: its producer did not run
	flagToken                  // a token follows
	flagBodyCRC                // the body's CRC-32C follows; set with Config.Checksum
	flagExtra                  // an offer that takes a granted envelope instead of credit
	flagUnreceived             // a drop of a message that was not received
)

// maxDims is the most dimensions a named tensor may have. A header with maxDims dimensions fits
// into transport.MaxHead.
const maxDims = 8

// maxMessage is the largest message in bytes. A header with a larger size is invalid. The bound
// prevents overflow in sums of sizes and offsets.
const maxMessage = 1 << 46

// A frameHeader is a frame's header in decoded form. The package comment has its layout by kind;
// fields that a kind does not carry are zero.
type frameHeader struct {
	// Fields of every kind. id is the number of an offer, a receive, a name or a prepared buffer,
	// depending on the kind.
	kind   frameKind
	flags  uint8
	dtype  uint8
	ndim   uint8 // dims in use
	id     uint32
	credit uint32 // bytes returned to the receiver of this frame

	// Fields of messages: the envelope.
	context     uint64
	tag         int32
	size        uint64 // bytes of the message, of the data frame's body or of the prepared buffer
	fingerprint uint64

	// Fields of named tensors.
	step uint64
	name uint32
	dims [maxDims]int64

	// Fields of requests, data and prepared buffers.
	recvID uint32
	offset uint64
	token  transport.Token

	bodyCRC uint32 // with flagBodyCRC
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// commonHeaderSize is the size in bytes of the fields that every header begins with.
const commonHeaderSize = 12

// encode writes h to b, with its CRC, and returns the header's length. encode, headerSize and
// decodeFields must use the same fields for each kind; a test encodes and decodes one header of
// each kind.
func (h *frameHeader) encode(b *[transport.MaxHead]byte) int {
	le := binary.LittleEndian
	b[0], b[1], b[2], b[3] = byte(h.kind), h.flags, h.dtype, h.ndim
	le.PutUint32(b[4:], h.id)
	le.PutUint32(b[8:], h.credit)
	n := commonHeaderSize
	switch h.kind {
	case kindEager, kindOffer, kindWritten:
		le.PutUint64(b[12:], h.context)
		le.PutUint32(b[20:], uint32(h.tag))
		le.PutUint64(b[24:], h.size)
		le.PutUint64(b[32:], h.fingerprint)
		n = 40
		if h.flags&flagNamed != 0 {
			le.PutUint64(b[40:], h.step)
			le.PutUint32(b[48:], h.name)
			n = 52
			for _, d := range h.dims[:h.ndim] {
				le.PutUint64(b[n:], uint64(d))
				n += 8
			}
		}
	case kindRequest:
		le.PutUint32(b[12:], h.recvID)
		le.PutUint64(b[16:], h.size)
		n = 24
		if h.flags&flagToken != 0 {
			n += copy(b[24:], h.token[:])
		}
	case kindData:
		le.PutUint64(b[12:], h.offset)
		le.PutUint64(b[20:], h.size)
		n = 28
	case kindPrepare:
		le.PutUint64(b[12:], h.context)
		le.PutUint64(b[20:], h.size)
		n = 28 + copy(b[28:], h.token[:])
	}
	if h.flags&flagBodyCRC != 0 {
		le.PutUint32(b[n:], h.bodyCRC)
		n += 4
	}
	le.PutUint32(b[n:], crc32.Checksum(b[:n], castagnoli))
	return n + 4
}

// headerSize returns the length that h must have when encoded, without its CRC. The length depends
// only on the common fields of h.
func (h *frameHeader) headerSize() int {
	n := commonHeaderSize
	switch h.kind {
	case kindEager, kindOffer, kindWritten:
		n = 40
		if h.flags&flagNamed != 0 {
			n = 52 + 8*int(h.ndim)
		}
	case kindRequest:
		n = 24
		if h.flags&flagToken != 0 {
			n += len(h.token)
		}
	case kindData:
		n = 28
	case kindPrepare:
		n = 28 + len(h.token)
	}
	if h.flags&flagBodyCRC != 0 {
		n += 4
	}
	return n
}

// decode reads the header of a frame from b. The parameter body is the size of the frame's body in
// bytes. An error means that the peer or the wire is broken, so the link must not be used any more.
//
// The CRC is checked first. Not every wire has a checksum of its own, and a flipped bit in a
// context, tag or token would silently select the wrong receive or the wrong memory. decode runs
// for every frame, so it checks the length only once. decodeFields then indexes b without further
// checks.
func (h *frameHeader) decode(b []byte, body int) error {
	if len(b) < commonHeaderSize+4 || len(b) > transport.MaxHead {
		return fmt.Errorf("header: got %d bytes, want %d to %d", len(b), commonHeaderSize+4, transport.MaxHead)
	}
	le := binary.LittleEndian
	end := len(b) - 4
	if got, want := crc32.Checksum(b[:end], castagnoli), le.Uint32(b[end:]); got != want {
		return fmt.Errorf("header checksum: got %08x, want %08x", got, want)
	}
	*h = frameHeader{
		kind: frameKind(b[0]), flags: b[1], dtype: b[2], ndim: b[3],
		id: le.Uint32(b[4:]), credit: le.Uint32(b[8:]),
	}
	if h.kind == 0 || h.kind >= kindEnd {
		return fmt.Errorf("frame kind: got %d, want 1 to %d", h.kind, kindEnd-1)
	}
	if h.ndim > maxDims {
		return fmt.Errorf("tensor: got %d dimensions, want at most %d", h.ndim, maxDims)
	}
	if want := h.headerSize(); want != end {
		return fmt.Errorf("header of kind %d: got %d bytes, want %d", h.kind, len(b), want+4)
	}
	h.decodeFields(b)
	return h.check(body)
}

// decodeFields reads the fields after the common ones. The caller has checked the length of b.
func (h *frameHeader) decodeFields(b []byte) {
	le := binary.LittleEndian
	switch h.kind {
	case kindEager, kindOffer, kindWritten:
		h.context = le.Uint64(b[12:])
		h.tag = int32(le.Uint32(b[20:]))
		h.size = le.Uint64(b[24:])
		h.fingerprint = le.Uint64(b[32:])
		if h.flags&flagNamed != 0 {
			h.step = le.Uint64(b[40:])
			h.name = le.Uint32(b[48:])
			for i := range h.dims[:h.ndim] {
				h.dims[i] = int64(le.Uint64(b[52+8*i:]))
			}
		}
	case kindRequest:
		h.recvID = le.Uint32(b[12:])
		h.size = le.Uint64(b[16:])
		if h.flags&flagToken != 0 {
			copy(h.token[:], b[24:])
		}
	case kindData:
		h.offset = le.Uint64(b[12:])
		h.size = le.Uint64(b[20:])
	case kindPrepare:
		h.context = le.Uint64(b[12:])
		h.size = le.Uint64(b[20:])
		copy(h.token[:], b[28:])
	}
	if h.flags&flagBodyCRC != 0 {
		h.bodyCRC = le.Uint32(b[len(b)-8:])
	}
}

// check compares the header with the size of the frame's body, in bytes, and with the bounds of its
// kind.
func (h *frameHeader) check(body int) error {
	// The variable want is the body's size according to the header. The header of a name does not
	// contain the name's size, so any size within bounds is valid.
	want := uint64(0)
	switch h.kind {
	case kindEager, kindData:
		want = h.size
	case kindName:
		return checkNameSize(body)
	case kindPrepare:
		switch {
		case h.flags&flagToken == 0 || h.id == 0:
			return errors.New("prepared buffer: got no token or no id, want both")
		case h.size == 0 || h.size > maxMessage:
			return fmt.Errorf("prepared buffer: got %d bytes, want 1 to %d", h.size, int64(maxMessage))
		}
		return checkNameSize(body)
	}
	if h.kind == kindOffer && h.id == 0 {
		return errors.New("offer: got id 0, want 1 or more")
	}
	if h.kind == kindWritten && h.flags&flagNamed == 0 {
		return errors.New("direct write: got a message without a name, want a named tensor")
	}
	// These bounds prevent overflow in sums of sizes and offsets in every handler.
	if h.size > maxMessage || h.offset > maxMessage {
		return fmt.Errorf("message: got %d bytes at offset %d, want at most %d", h.size, h.offset, int64(maxMessage))
	}
	if want != uint64(body) {
		return fmt.Errorf("body: got %d bytes, want the header's %d", body, want)
	}
	for _, d := range h.dims[:h.ndim] {
		if d < 0 {
			return fmt.Errorf("tensor: got dimension %d, want 0 or more", d)
		}
	}
	return nil
}

// checkNameSize checks the size of a frame's body that is a tensor's name.
func checkNameSize(n int) error {
	if n < 1 || n > maxName {
		return fmt.Errorf("tensor name: got %d bytes, want 1 to %d", n, maxName)
	}
	return nil
}
