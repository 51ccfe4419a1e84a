package mesh

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"unicode/utf8"

	"github.com/tutti-go/tutti/internal/wire"
	"github.com/tutti-go/tutti/mesh/membership"
)

// The layouts of all frames are in doc.go. All numbers are little endian, and every head ends with
// its CRC-32C.

const (
	magic   = "tuti" // opens the head of every frame of the handshake
	version = 3      // the version of this package's protocol and of the protocols above it
)

// maxBody is the maximum size, in bytes, of the body of a handshake frame or a control message.
const maxBody = 4 << 10

// A frameKind is the kind of a frame of the handshake or of the address exchange.
//
//	frame      sent by             answered by
//	HELLO      the dialling rank   CHALLENGE, WELCOME or REFUSE
//	CHALLENGE  the accepting rank  PROOF or REFUSE
//	PROOF      the dialling rank   WELCOME or REFUSE
//	WELCOME    the accepting rank  the first frame of the channel
//	REFUSE     either              nothing: its sender closes; at a joining rank's deadline, WAIT
//	RECORD     a joining rank      WAIT, TABLE or REFUSE
//	WAIT       rank 0              nothing
//	TABLE      rank 0              nothing; the rank closes when it has all records
type frameKind uint8

const (
	kindHello frameKind = iota + 1
	kindChallenge
	kindProof
	kindWelcome
	kindRefuse
	kindRecord
	kindWait
	kindTable
)

// The lengths of the parts that all heads have, and of the head of a control message. doc.go has
// the lengths of handshake heads. A decoder checks the length: it must read all fields, and no byte
// may be left.
const (
	prefixSize  = 8  // magic, kind, version
	sumSize     = 4  // the CRC-32C at the end of a head
	controlSize = 40 // the whole head of a control message
)

const nonceSize, jobSize, macSize = 16, 16, 32

// The bits of a hello's options.
const (
	optionSecret = 1 << iota // the dialling rank has a secret
	optionSums               // bodies carry a checksum
	optionsKnown = optionSecret | optionSums
)

// The errors of frames that cannot be read. After errUnknownProtocol the peer gets no answer, since
// it would not understand one. errMalformed closes the connection, too, since nothing after a
// damaged frame can be trusted.
var (
	errUnknownProtocol = errors.New("the peer does not speak tutti's handshake")
	errMalformed       = errors.New("malformed frame")
	castagnoli         = crc32.MakeTable(crc32.Castagnoli)
)

// beginHead appends the prefix of a handshake head.
func beginHead(b []byte, k frameKind) []byte {
	b = append(b, magic...)
	b = append(b, byte(k), 0)
	return binary.LittleEndian.AppendUint16(b, version)
}

// sealHead appends the checksum of the head b[start:]. It is the last step of every append method.
func sealHead(b []byte, start int) []byte {
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b[start:], castagnoli))
}

// checksumOK reports whether a head's checksum is right.
func checksumOK(b []byte) bool {
	n := len(b) - 4
	return n >= 0 && binary.LittleEndian.Uint32(b[n:]) == crc32.Checksum(b[:n], castagnoli)
}

// kindOf returns the kind and the version of a handshake frame. Only magic, kind and version have
// the same place in all versions.
func kindOf(head []byte) (frameKind, uint16, error) {
	if len(head) < prefixSize || string(head[:4]) != magic {
		return 0, 0, errUnknownProtocol
	}
	return frameKind(head[4]), binary.LittleEndian.Uint16(head[6:]), nil
}

// openHead checks the kind, the version and the checksum of a handshake head. It returns a Reader
// of the fields between the prefix and the checksum. The checksum protects against damage and
// against frames of other programs. The HMACs protect against attacks.
func openHead(head []byte, k frameKind) (wire.Reader, error) {
	switch kind, v, err := kindOf(head); {
	case err != nil:
		return wire.Reader{}, err
	case kind != k || v != version || len(head) < prefixSize+sumSize || head[5] != 0 || !checksumOK(head):
		return wire.Reader{}, errMalformed
	}
	return wire.NewReader(head[prefixSize : len(head)-sumSize]), nil
}

// finish ends a decoder. It returns errMalformed unless the decoder has read r to its end without a
// failure.
func finish(r *wire.Reader) error {
	if !r.Done() {
		return errMalformed
	}
	return nil
}

// A hello says which rank dials, which rank it dials, and for which channel. Both sides compare its
// fields, so a wrong configuration is detected at the first connection, and not by wrong results
// later.
type hello struct {
	version     uint16
	order       byte // the byte order of the numbers in bodies: 'L' or 'B'
	channel     channel
	options     uint16
	incarnation uint32
	rank, size  uint32
	to          uint32 // the rank that is dialled
	instance    uint64 // random: distinguishes processes of the same rank
	job         [jobSize]byte
	nonce       [nonceSize]byte
	position    position // of the dialling rank on a data Conn
}

// append appends the head.
func (h *hello) append(b []byte) []byte {
	start := len(b)
	b = beginHead(b, kindHello)
	binary.LittleEndian.PutUint16(b[start+6:], h.version)
	b = append(b, h.order, byte(h.channel))
	b = binary.LittleEndian.AppendUint16(b, h.options)
	for _, n := range []uint32{h.incarnation, h.rank, h.size, h.to} {
		b = binary.LittleEndian.AppendUint32(b, n)
	}
	b = binary.LittleEndian.AppendUint64(b, h.instance)
	b = append(b, h.job[:]...)
	b = append(b, h.nonce[:]...)
	b = h.position.append(b)
	return sealHead(b, start)
}

// append appends the 12 bytes of a position.
func (p position) append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint32(b, p.epoch)
	return binary.LittleEndian.AppendUint64(b, p.received)
}

// readPosition reads a position.
func readPosition(r *wire.Reader) position {
	return position{epoch: r.Uint32(), received: r.Uint64()}
}

// parseHello reads a hello. From a hello of another version it reads only the version, since the
// rest may have another layout. The caller then refuses with a text that both versions understand.
func parseHello(b []byte) (h hello, err error) {
	_, v, err := kindOf(b)
	if err != nil {
		return h, err
	}
	if h.version = v; v != version {
		return h, nil
	}
	r, err := openHead(b, kindHello)
	if err != nil {
		return hello{}, err
	}
	h.order, h.channel, h.options = r.Uint8(), channel(r.Uint8()), r.Uint16()
	h.incarnation, h.rank, h.size, h.to = r.Uint32(), r.Uint32(), r.Uint32(), r.Uint32()
	h.instance = r.Uint64()
	r.Fill(h.job[:])
	r.Fill(h.nonce[:])
	h.position = readPosition(&r)
	if !r.Done() || h.channel < channelControl || h.channel > channelJoin || h.options&^optionsKnown != 0 {
		return hello{}, errMalformed
	}
	return h, nil
}

// appendChallenge appends the head of a CHALLENGE, which asks the dialling rank for a proof over
// the nonce.
func appendChallenge(b []byte, nonce [nonceSize]byte) []byte {
	start := len(b)
	b = beginHead(b, kindChallenge)
	b = append(b, nonce[:]...)
	return sealHead(b, start)
}

// parseChallenge reads a CHALLENGE.
func parseChallenge(b []byte) (nonce [nonceSize]byte, err error) {
	r, err := openHead(b, kindChallenge)
	if err != nil {
		return nonce, err
	}
	r.Fill(nonce[:])
	return nonce, finish(&r)
}

// appendProof appends the head of a PROOF.
func appendProof(b []byte, mac [macSize]byte) []byte {
	start := len(b)
	b = beginHead(b, kindProof)
	b = append(b, mac[:]...)
	return sealHead(b, start)
}

// parseProof reads a PROOF. The caller must compare the HMAC.
func parseProof(b []byte) (mac [macSize]byte, err error) {
	r, err := openHead(b, kindProof)
	if err != nil {
		return mac, err
	}
	r.Fill(mac[:])
	return mac, finish(&r)
}

// A welcome accepts the peer, names this process's instance, and proves that this process knows the
// secret.
type welcome struct {
	instance uint64        // 0 on the join channel
	position position      // of the accepting rank on a data Conn
	mac      [macSize]byte // zero without a secret
}

// append appends the head.
func (w *welcome) append(b []byte) []byte {
	start := len(b)
	b = beginHead(b, kindWelcome)
	b = binary.LittleEndian.AppendUint64(b, w.instance)
	b = w.position.append(b)
	b = append(b, w.mac[:]...)
	return sealHead(b, start)
}

// parseWelcome reads a WELCOME. The caller must compare the HMAC.
func parseWelcome(head, body []byte) (w welcome, err error) {
	r, err := openHead(head, kindWelcome)
	if err != nil || len(body) != 0 {
		return w, errMalformed
	}
	w.instance = r.Uint64()
	w.position = readPosition(&r)
	r.Fill(w.mac[:])
	return w, finish(&r)
}

// A refusal says why a peer is refused: a reason for programs, and a text for people. It is an
// error.
type refusal struct {
	reason reason
	theirs uint64 // the refusing rank's value of the field that differs, if it is a number
	text   string
}

// Error returns the text.
func (r *refusal) Error() string { return r.text }

// maxRefusal is the maximum size, in bytes, of a refusal's text.
const maxRefusal = 512

// append builds a REFUSE frame.
func (r *refusal) append(b []byte) (head, body []byte) {
	start := len(b)
	b = beginHead(b, kindRefuse)
	b = binary.LittleEndian.AppendUint16(b, uint16(r.reason))
	b = append(b, 0, 0)
	b = binary.LittleEndian.AppendUint64(b, r.theirs)
	return sealHead(b, start), []byte(truncate(r.text, maxRefusal))
}

// parseRefusal reads a REFUSE. The sender may have proven nothing, and the text goes to logs and
// terminals, so parseRefusal sanitizes the text. From a refusal of another version it reads only
// the text.
func parseRefusal(head, body []byte) (*refusal, error) {
	kind, v, err := kindOf(head)
	if err != nil || kind != kindRefuse || len(body) > maxRefusal {
		return nil, errMalformed
	}
	no := &refusal{reason: reasonVersion, theirs: uint64(v), text: sanitize(body)}
	if v == version {
		r, err := openHead(head, kindRefuse)
		if err != nil {
			return nil, err
		}
		no.reason = reason(r.Uint16())
		r.Uint16() // zero in this version
		no.theirs = r.Uint64()
		if !r.Done() {
			return nil, errMalformed
		}
	}
	return no, nil
}

// truncate cuts a text to at most n bytes. It never cuts within a character.
func truncate[S string | []byte](s S, n int) S {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}

// sanitize replaces control characters and invalid UTF-8 by '?', so that a text cannot control a
// terminal.
func sanitize(b []byte) string {
	text := []rune(string(b))
	for i, r := range text {
		if r < ' ' || r >= 0x7f && r < 0xa0 || r == utf8.RuneError {
			text[i] = '?'
		}
	}
	return string(text)
}

// appendControl appends the head of a control message. The body is sent beside the head and is not
// copied. The head holds a checksum of the body, because control messages decide which ranks have
// failed, and not every transport has checksums.
func appendControl(b []byte, m membership.Message) []byte {
	start := len(b)
	le := binary.LittleEndian
	b = append(b, byte(m.Kind), m.Code, 0, 0)
	b = le.AppendUint32(b, uint32(m.Origin))
	b = le.AppendUint32(b, m.Seq)
	b = le.AppendUint32(b, uint32(m.About))
	b = le.AppendUint32(b, m.Ref)
	b = le.AppendUint64(b, uint64(m.Age))
	b = le.AppendUint32(b, uint32(len(m.Body)))
	b = le.AppendUint32(b, crc32.Checksum(m.Body, castagnoli))
	return sealHead(b, start)
}

// A controlHead holds a control message without its body. It also holds the size and the checksum
// that the body must have. The head arrives first, so that the body's memory can be chosen by the
// kind of the message.
type controlHead struct {
	msg  membership.Message
	size int
	sum  uint32
}

// parseControl reads a head for a job of size ranks. It rejects a head that names a rank outside
// the job, so that the machine can use ranks as indices.
func parseControl(b []byte, size int) (c controlHead, err error) {
	if len(b) != controlSize || !checksumOK(b) || b[2] != 0 || b[3] != 0 {
		return c, errMalformed
	}
	r := wire.NewReader(b[:controlSize-sumSize])
	m := &c.msg
	m.Kind, m.Code = membership.MessageKind(r.Uint8()), r.Uint8()
	r.Uint16() // zero, as checked above
	origin := r.Uint32()
	m.Seq = r.Uint32()
	about := r.Uint32()
	m.Ref = r.Uint32()
	age := r.Uint64()
	n := r.Uint32()
	c.sum = r.Uint32()
	if !m.Kind.Valid() || uint64(origin) >= uint64(size) || uint64(about) >= uint64(size) || n > maxBody || age >= 1<<63 {
		return controlHead{}, errMalformed
	}
	m.Origin, m.About, m.Age, c.size = int(origin), int(about), membership.Span(age), int(n)
	return c, nil
}

// withBody returns the message with its body, which must match the head.
func (c controlHead) withBody(body []byte) (membership.Message, error) {
	if len(body) != c.size || crc32.Checksum(body, castagnoli) != c.sum {
		return membership.Message{}, errMalformed
	}
	c.msg.Body = body
	return c.msg, nil
}
