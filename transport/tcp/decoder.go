package tcp

import (
	"fmt"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/transport"
)

// A decoder decodes a byte stream and calls a Sink. It does no I/O and stores at most one frame's
// prefix. Bodies go directly to the Sink's buffers. It belongs to the goroutine in Progress.
//
// It gets bytes in two ways. decode copies them from a buffer. With bodyBuffer and advance, a
// reader reads the rest of a body directly into its buffer, without a copy.
//
// Its states follow the stream:
//
//	magicLeft > 0        the magic is arriving (accepted Conns only)
//	have == 0, !inBody   between two frames
//	have > 0             a preamble and head are arriving; need is 0 until the preamble is in
//	inBody               got of header.Size bytes of body are in
type decoder struct {
	magicLeft int // bytes of the magic that are still to come
	limit     int // the maximum number of bytes of a body

	seq   uint32 // number of the next frame
	ack   uint64 // the acknowledgement of the last frame
	total uint64 // bytes of frames that have arrived

	prefix [prefixMax]byte // the prefix of the arriving frame; the Header points into it
	have   int             // bytes of the prefix that have arrived
	need   int             // bytes wanted before the next decision; 0 between frames
	header transport.Header
	inBody bool
	dst    []byte // where the body goes; nil: the body is dropped
	got    int    // bytes of body that are in
}

// decode decodes bytes of p until a frame is complete or p is used up. The result whole reports a
// complete frame. The decoder must not be used after an error.
//
// It returns after each frame, even if p holds more bytes, because Progress completes at most one
// frame per call.
func (d *decoder) decode(p []byte, in transport.Sink) (n int, whole bool, err error) {
	for n < len(p) && !whole {
		var k int
		switch {
		case d.magicLeft > 0:
			k, err = d.checkMagic(p[n:])
		case d.inBody:
			k = min(len(p)-n, d.header.Size-d.got)
			if d.dst != nil {
				copy(d.dst[d.got:], p[n:n+k])
			}
			whole = d.advance(k, in)
		default:
			k, whole, err = d.decodePrefix(p[n:], in)
		}
		n += k
		if err != nil {
			return n, false, err
		}
	}
	return n, whole, nil
}

// checkMagic compares p with the rest of the magic.
//
// The magic may arrive in pieces. So checkMagic compares each piece with the matching part of the
// magic.
func (d *decoder) checkMagic(p []byte) (int, error) {
	want := magic[len(magic)-d.magicLeft:]
	n := min(len(p), len(want))
	if string(p[:n]) != want[:n] {
		return n, failure(fault.Refused, "accept",
			fmt.Errorf("got %q as the first bytes, want %q: the peer is no rank, or of another version", p[:min(len(p), 16)], magic))
	}
	d.magicLeft -= n
	return n, nil
}

// decodePrefix collects preamble and head, and then asks the Sink for the body's buffer.
func (d *decoder) decodePrefix(p []byte, in transport.Sink) (n int, whole bool, err error) {
	if d.have < preambleLen {
		n = copy(d.prefix[d.have:preambleLen], p)
		d.have += n
		if d.have < preambleLen {
			return n, false, nil
		}
		pre, err := parsePreamble(d.prefix[:], d.limit)
		if err != nil {
			return n, false, err
		}
		if pre.seq != d.seq {
			return n, false, protocolError("got sequence number %d, want %d: something between the two ranks has dropped, doubled or reordered frames",
				pre.seq, d.seq)
		}
		d.seq, d.ack = pre.seq+1, pre.ack
		d.need = preambleLen + pre.head
		d.header = transport.Header{Head: d.prefix[preambleLen:d.need], ID: pre.id, Size: pre.body}
	}
	k := copy(d.prefix[d.have:d.need], p[n:])
	d.have += k
	n += k
	if d.have < d.need {
		return n, false, nil
	}
	d.total += uint64(d.need)
	whole, err = d.begin(in)
	return n, whole, err
}

// begin starts the body of the frame whose prefix is complete. An empty body is complete at once.
//
// A Sink that returns too small a buffer is a bug of the layer above. Such a buffer ends the Conn,
// because the rest of the stream cannot be read without writing past the buffer.
func (d *decoder) begin(in transport.Sink) (whole bool, err error) {
	d.have, d.got, d.inBody = 0, 0, true
	d.dst = in.Buffer(d.header)
	if d.dst != nil && len(d.dst) < d.header.Size {
		return false, failure(fault.Misuse, "progress",
			fmt.Errorf("Sink.Buffer returned %d bytes, want at least %d", len(d.dst), d.header.Size))
	}
	if d.header.Size == 0 {
		return d.advance(0, in), nil
	}
	return false, nil
}

// bodyBuffer returns the memory for the next bytes of the body. It returns nil when no body is
// arriving, or the body is being dropped.
func (d *decoder) bodyBuffer() []byte {
	if !d.inBody || d.dst == nil {
		return nil
	}
	return d.dst[d.got:d.header.Size]
}

// advance records that the next n bytes of the body have arrived, and reports whether they were the
// last.
func (d *decoder) advance(n int, in transport.Sink) (whole bool) {
	d.got += n
	d.total += uint64(n)
	whole = d.got == d.header.Size
	if whole {
		d.inBody, d.dst = false, nil
	}
	in.Arrived(d.header, d.got)
	return whole
}

// midFrame reports whether a frame would be cut if the stream ended here.
func (d *decoder) midFrame() bool { return d.inBody || d.have > 0 || d.magicLeft > 0 }
