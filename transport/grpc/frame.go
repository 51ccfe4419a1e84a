package grpc

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/transport"
)

// preambleSize is the length of what precedes each frame's head. doc.go has the table.
const preambleSize = 16

// version is the first byte of every preamble.
const version = 1

// pendingBody is the most bytes of body that a peer may send before Admit.
const pendingBody = 4 << 10

// appendPreamble appends f's preamble and head to b.
func appendPreamble(b []byte, f *transport.Frame) []byte {
	b = append(b, version, byte(len(f.Head)), 0, 0)
	b = binary.LittleEndian.AppendUint32(b, f.ID)
	b = binary.LittleEndian.AppendUint64(b, uint64(f.Size()))
	return append(b, f.Head...)
}

// A decoder turns the bytes of a stream into calls of a Sink. The boundaries of gRPC messages mean
// nothing to it. Besides the Sink's buffers it holds one preamble and one head. It belongs to the
// goroutine in Progress. After an error it must not be used any more.
//
//	begun  have       meaning
//	no     0          between two frames
//	no     > 0        a preamble and head are arriving
//	yes    all of it  got of header.Size bytes of body are in, and Arrived has reported some of them
type decoder struct {
	admitted func() bool // nil or false: bodies are bounded by pendingBody

	prefix   [preambleSize + transport.MaxHead]byte // the arriving frame's preamble and head
	have     int                                    // bytes of prefix that are in
	begun    bool                                   // the prefix is complete, and Sink.Buffer was called
	header   transport.Header
	dst      []byte // nil drops the body
	got      int    // bytes of body that are in
	reported int    // bytes of body that Arrived has reported
}

// feed decodes bytes of b up to the end of one frame, and returns how many it used. whole means
// that the frame is complete, and that Arrived has been called for it. Otherwise all of b is used,
// and the caller calls report later.
//
// The state is reset before the last Arrived of a frame, so that the decoder stands between two
// frames whatever the Sink does there.
func (d *decoder) feed(b []byte, in transport.Sink) (used int, whole bool, err *fault.Error) {
	if !d.begun {
		used = d.appendPrefix(b)
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
	used += n
	if d.got < d.header.Size {
		return used, false, nil
	}
	h := d.header
	d.have, d.begun, d.header, d.dst, d.got, d.reported = 0, false, transport.Header{}, nil, 0, 0
	in.Arrived(h, h.Size)
	return used, true, nil
}

// report calls Arrived for bytes of the body that it has not reported yet.
//
// It is called once per message and not per piece: a Sink reduces better in larger steps.
func (d *decoder) report(in transport.Sink) {
	if d.begun && d.got > d.reported {
		d.reported = d.got
		in.Arrived(d.header, d.got)
	}
}

// prefixSize returns the length of preamble and head. The preamble must be in.
func (d *decoder) prefixSize() int { return preambleSize + int(d.prefix[1]) }

// appendPrefix adds bytes of b to the preamble and head, and returns how many. It uses the length
// of the head only after check has accepted it.
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

// check validates the part of the preamble that is in: the version from the first byte on, so that
// a peer of another protocol is refused at once, and the rest when it is complete.
//
// It is called for each piece of a preamble. A peer that sends a few bytes and then nothing is
// ended by the listener's timeout, not here.
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
	if d.prefix[2] != 0 || d.prefix[3] != 0 {
		return protocolError("got reserved bytes that are not 0")
	}
	size := binary.LittleEndian.Uint64(d.prefix[8:])
	if size > math.MaxInt {
		return protocolError("got a body of %d bytes, want at most %d", size, math.MaxInt)
	}
	if size > pendingBody && (d.admitted == nil || !d.admitted()) {
		return protocolError("got a body of %d bytes, want at most %d from a peer that is not authenticated yet", size, pendingBody)
	}
	return nil
}

// begin asks the Sink for the body's buffer.
func (d *decoder) begin(in transport.Sink) *fault.Error {
	if err := d.check(); err != nil {
		return err
	}
	d.header = transport.Header{
		Head: d.prefix[preambleSize:d.prefixSize():d.prefixSize()],
		ID:   binary.LittleEndian.Uint32(d.prefix[4:]),
		Size: int(binary.LittleEndian.Uint64(d.prefix[8:])),
	}
	d.begun = true
	d.dst = in.Buffer(d.header)
	if d.dst != nil && len(d.dst) < d.header.Size {
		return failure(fault.Misuse, "progress",
			fmt.Errorf("Sink.Buffer returned %d bytes, want at least %d", len(d.dst), d.header.Size))
	}
	return nil
}

// protocolError returns the error for bytes of the peer's that are no frame.
func protocolError(format string, args ...any) *fault.Error {
	return failure(fault.Refused, "progress",
		errors.Join(errMalformed, fmt.Errorf(format, args...)))
}

// errMalformed marks every error about the peer's bytes.
var errMalformed = errors.New("invalid frame")
