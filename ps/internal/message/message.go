package message

import (
	"encoding/binary"
	"math"

	"github.com/tutti-go/tutti/internal/wire"
	"github.com/tutti-go/tutti/tensor"
)

// A RequestKind says what a request asks for.
type RequestKind uint8

// The kinds of requests.
const (
	Declare RequestKind = iota + 1 // to the lead: compare with an earlier declaration, or place the tensor
	Create                         // to a server with parts of a tensor: make them if they do not exist
	Push
	Pull
	PushPull
	Set   // replace the value
	Close // the client sends nothing more

	// Of snapshots. The client draws a random number for each, which is Seq in all requests about it.
	OpenSnapshot  // to a server: create its file in the directory that the body names; the lead answers with its Registry
	Save          // to a part: save it, at the version that a Pull would show
	CloseSnapshot // to a server: complete the file
	Load          // to a server: read its parts from a snapshot; the body is a LoadRequest
	Install       // to a server: replace the parts by those that it has loaded
	Drop          // to a server: give up what OpenSnapshot or Load has begun

	// Of the whole state of a dense part, in the form in which a snapshot has it.
	SetState  // replace it, as a Set does
	PullState // return it, as a Pull does

	// Between servers that hold copies of the same parts. Close says that the sender has no clients.
	Replicate  // from the primary: the next entry of the part's log
	Replicated // to the primary: the replica has applied the log up to ID; the body is the error of the last entry, if any
	last
)

// Pushes reports whether a request of this kind changes values.
func (k RequestKind) Pushes() bool { return k == Push || k == PushPull || k == Set }

// WholeState in the Entry of a Replicate says that a Set has the form of a SetState.
const WholeState = 0x80

// Sizes of messages in bytes.
const (
	RequestSize = 40
	ReplySize   = 32
	MaxMessage  = 8 << 10                  // of a head and its inline body
	Inline      = MaxMessage - RequestSize // of a body that follows its head
	MaxBody     = 1 << 30
)

// A Request is the head of a request.
type Request struct {
	Kind         RequestKind
	DType        tensor.DType
	Entry        uint8
	Origin       uint32
	ID           uint64
	Tensor, Part uint32
	Seq          uint64
	Rows, Size   int
}

// Append appends the head to b.
func (q *Request) Append(b []byte) []byte {
	b = append(b, byte(q.Kind), byte(q.DType), q.Entry, 0)
	b = binary.LittleEndian.AppendUint32(b, q.Origin)
	b = binary.LittleEndian.AppendUint64(b, q.ID)
	b = binary.LittleEndian.AppendUint32(b, q.Tensor)
	b = binary.LittleEndian.AppendUint32(b, q.Part)
	b = binary.LittleEndian.AppendUint64(b, q.Seq)
	b = binary.LittleEndian.AppendUint32(b, uint32(q.Rows))
	return binary.LittleEndian.AppendUint32(b, uint32(q.Size))
}

// ParseRequest parses a message: a head, and its body if that is inline. It returns false if the
// message is no request. The body aliases msg.
func ParseRequest(msg []byte) (q Request, body []byte, ok bool) {
	r := wire.NewReader(msg)
	q.Kind, q.DType = RequestKind(r.Uint8()), tensor.DType(r.Uint8())
	q.Entry = r.Uint8()
	zero := r.Uint8()
	q.Origin, q.ID = r.Uint32(), r.Uint64()
	q.Tensor, q.Part = r.Uint32(), r.Uint32()
	q.Seq = r.Uint64()
	rows, size := r.Uint32(), r.Uint32()
	if q.Kind == 0 || q.Kind >= last || zero != 0 || rows > math.MaxInt32 {
		r.Fail()
	}
	q.Rows = int(rows)
	q.Size, body, ok = parseBody(&r, size)
	return q, body, ok
}

// parseBody reads the body if it is inline, and ends the message.
func parseBody(r *wire.Reader, size uint32) (n int, body []byte, ok bool) {
	if size > MaxBody {
		r.Fail()
	}
	if size <= Inline {
		body = r.Bytes(int(size))
	}
	return int(size), body, r.Done()
}

// A ReplyKind says what a reply means.
type ReplyKind uint8

// The kinds of replies.
const (
	Done         ReplyKind = iota + 1
	Refused                // the body is the wire form of a fault.Error
	Acknowledged           // the push of a PushPull has been applied; another reply follows
	lastReply
)

// A ReplyHead is the head of a reply.
type ReplyHead struct {
	Kind    ReplyKind
	DType   tensor.DType
	ID      uint64
	Version uint64
	Size    int
}

// Append appends the head to b.
func (p *ReplyHead) Append(b []byte) []byte {
	b = append(b, byte(p.Kind), byte(p.DType), 0, 0, 0, 0, 0, 0)
	b = binary.LittleEndian.AppendUint64(b, p.ID)
	b = binary.LittleEndian.AppendUint64(b, p.Version)
	b = binary.LittleEndian.AppendUint32(b, uint32(p.Size))
	return binary.LittleEndian.AppendUint32(b, 0)
}

// ParseReply parses a message: a head, and its body if that is inline. It returns false if the
// message is no reply. The body aliases msg.
func ParseReply(msg []byte) (p ReplyHead, body []byte, ok bool) {
	r := wire.NewReader(msg)
	p.Kind, p.DType = ReplyKind(r.Uint8()), tensor.DType(r.Uint8())
	low, high := r.Uint16(), r.Uint32()
	p.ID, p.Version = r.Uint64(), r.Uint64()
	size := r.Uint32()
	if p.Kind == 0 || p.Kind >= lastReply || low != 0 || high != 0 || r.Uint32() != 0 {
		r.Fail()
	}
	p.Size, body, ok = parseBody(&r, size)
	return p, body, ok
}
