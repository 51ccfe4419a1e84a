package grpc

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/transport"
)

// preambleSize is the length of the preamble, which precedes each frame's head. doc.go has its
// layout.
const preambleSize = 24

// version is the first byte of every preamble.
const version = 2

// pendingBody is the maximum size of a body before Admit.
const pendingBody = 4 << 10

// maxBody is the maximum size of a body that the preamble can hold.
const maxBody = 1<<48 - 1

// appendPreamble appends the preamble and the head of frame number seq to b. The argument ack is
// how many bytes of frames have arrived.
func appendPreamble(b []byte, f *transport.Frame, seq uint32, ack uint64) []byte {
	b = binary.LittleEndian.AppendUint64(b, version|uint64(len(f.Head))<<8|uint64(f.Size())<<16)
	b = binary.LittleEndian.AppendUint64(b, uint64(f.ID)|uint64(seq)<<32)
	b = binary.LittleEndian.AppendUint64(b, ack)
	return append(b, f.Head...)
}

// A decoder decodes the bytes of a stream and calls a Sink. It ignores the boundaries of gRPC
// messages. Besides the Sink's buffers it holds one preamble and one head. It belongs to the
// goroutine in Progress. It must not be used after an error.
//
//	begun  have       meaning
//	no     0          between two frames
//	no     > 0        a preamble and head are arriving
//	yes    all of it  got of header.Size bytes of body are in, and Arrived has reported some of them
type decoder struct {
	admitted func() bool // nil or false: bodies are bounded by pendingBody

	prefix   [preambleSize + transport.MaxHead]byte // the arriving frame's preamble and head
	have     int                                    // bytes of prefix that have arrived
	begun    bool                                   // the prefix is complete; Buffer was called
	header   transport.Header
	dst      []byte // nil drops the body
	got      int    // bytes of body that have arrived
	reported int    // bytes of body that Arrived has reported

	seq   uint32 // number of the next frame
	ack   uint64 // the acknowledgement of the last frame
	total uint64 // bytes of frames that have been fed
}

// feed decodes bytes of b up to the end of one frame, and returns how many bytes it used. If whole
// is true, the frame is complete and Arrived has been called for it. Otherwise feed has used all of
// b, and the caller calls report later.
//
// feed resets the state before it calls the last Arrived of a frame. So the decoder is between two
// frames during that call.
func (d *decoder) feed(b []byte, in transport.Sink) (used int, whole bool, err *fault.Error) {
	if !d.begun {
		used = d.appendPrefix(b)
		d.total += uint64(used)
		if d.have < preambleSize || d.have < d.prefixSize() {
			return used, false, d.check()
		}
		if err := d.begin(in); err != nil {
			return used, false, err
		}
	}
	n := min(len(b)-used, d.header.Size-d.got)
	if d.dst != nil {
		copy(d.dst[d.got:d.got+n], b[used:])
	}
	d.got += n
	d.total += uint64(n)
	used += n
	if d.got < d.header.Size {
		return used, false, nil
	}
	h := d.header
	d.have, d.begun, d.header, d.dst, d.got, d.reported = 0, false, transport.Header{}, nil, 0, 0
	in.Arrived(h, h.Size)
	return used, true, nil
}

// report calls Arrived for the bytes of the body that have not been reported yet.
//
// It is called once per message and not once per piece, because a Sink reduces data faster in
// larger steps.
func (d *decoder) report(in transport.Sink) {
	if d.begun && d.got > d.reported {
		d.reported = d.got
		in.Arrived(d.header, d.got)
	}
}

// prefixSize returns the length of preamble and head. The preamble must have arrived.
func (d *decoder) prefixSize() int { return preambleSize + int(d.prefix[1]) }

// appendPrefix appends bytes of b to the preamble and head, and returns how many bytes it used. It
// uses the length of the head only after check has accepted it.
func (d *decoder) appendPrefix(b []byte) int {
	used := 0
	if d.have < preambleSize {
		used = copy(d.prefix[d.have:preambleSize], b)
		d.have += used
	}
	if d.have >= preambleSize && d.check() == nil {
		n := copy(d.prefix[d.have:d.prefixSize()], b[used:])
		d.have += n
		used += n
	}
	return used
}

// check validates the part of the preamble that has arrived. It checks the version as soon as the
// first byte has arrived, so that a peer with another protocol is refused at once. It checks the
// rest when the preamble is complete.
//
// check is called for each piece of a preamble. If a peer sends a few bytes and then nothing, the
// listener's timeout ends the connection.
func (d *decoder) check() *fault.Error {
	if d.have > 0 && d.prefix[0] != version {
		return protocolError("got a frame of version %d, want %d", d.prefix[0], version)
	}
	if d.have < preambleSize {
		return nil
	}
	if n := d.prefix[1]; n > transport.MaxHead {
		return protocolError("got a head of %d bytes, want at most %d", n, transport.MaxHead)
	}
	size := d.bodySize()
	if size > math.MaxInt {
		return protocolError("got a body of %d bytes, want at most %d", size, math.MaxInt)
	}
	if size > pendingBody && (d.admitted == nil || !d.admitted()) {
		return protocolError("got a body of %d bytes, want at most %d from a peer that is not authenticated yet", size, pendingBody)
	}
	if seq := binary.LittleEndian.Uint32(d.prefix[12:]); seq != d.seq {
		return protocolError("got sequence number %d, want %d: something between the two ranks has dropped, doubled or reordered frames",
			seq, d.seq)
	}
	return nil
}

// bodySize returns the length of the body. The preamble must have arrived.
func (d *decoder) bodySize() uint64 { return binary.LittleEndian.Uint64(d.prefix[:]) >> 16 }

// begin asks the Sink for the body's buffer.
func (d *decoder) begin(in transport.Sink) *fault.Error {
	if err := d.check(); err != nil {
		return err
	}
	d.header = transport.Header{
		Head: d.prefix[preambleSize:d.prefixSize():d.prefixSize()],
		ID:   binary.LittleEndian.Uint32(d.prefix[8:]),
		Size: int(d.bodySize()),
	}
	d.begun = true
	d.seq, d.ack = d.seq+1, binary.LittleEndian.Uint64(d.prefix[16:])
	d.dst = in.Buffer(d.header)
	if d.dst != nil && len(d.dst) < d.header.Size {
		return failure(fault.Misuse, "progress",
			fmt.Errorf("Sink.Buffer returned %d bytes, want at least %d", len(d.dst), d.header.Size))
	}
	return nil
}

// protocolError returns the error for bytes from the peer that are not a valid frame.
func protocolError(format string, args ...any) *fault.Error {
	return failure(fault.Refused, "progress",
		errors.Join(errMalformed, fmt.Errorf(format, args...)))
}

// errMalformed marks every error about the peer's bytes.
var errMalformed = errors.New("invalid frame")
