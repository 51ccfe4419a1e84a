package grpc

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/transport"
)

// A recordingSink is a Sink that keeps what arrives.
type recordingSink struct {
	heads, bodies [][]byte
	ids           []uint32
	last          int
	drop          bool
}

func (t *recordingSink) Buffer(h transport.Header) []byte {
	t.heads, t.ids = append(t.heads, bytes.Clone(h.Head)), append(t.ids, h.ID)
	t.last = 0
	if t.drop {
		t.bodies = append(t.bodies, nil)
		return nil
	}
	t.bodies = append(t.bodies, make([]byte, h.Size))
	return t.bodies[len(t.bodies)-1]
}

func (t *recordingSink) Arrived(h transport.Header, n int) {
	if n < t.last || n > h.Size {
		panic("Arrived goes back, or too far")
	}
	t.last = n
}

// encode returns the bytes that a Conn sends for f as frame number seq.
func encode(f *transport.Frame, seq int) []byte {
	return append(appendPreamble(nil, f, uint32(seq), 0), f.Body...)
}

func admitted() bool { return true }

// feedAll feeds b in pieces of the given size, and counts the frames.
func feedAll(d *decoder, b []byte, step int, in transport.Sink) (frames int, err *fault.Error) {
	for len(b) > 0 {
		piece := b[:min(step, len(b))]
		n, whole, err := d.feed(piece, in)
		if err != nil {
			return frames, err
		}
		if whole {
			frames++
		} else if n != len(piece) {
			panic("bytes left without a whole frame")
		} else {
			d.report(in)
		}
		b = b[n:]
	}
	return frames, nil
}

func TestDecoderGivesBackFramesHoweverTheyAreCut(t *testing.T) {
	frames := []transport.Frame{
		{},
		{Head: []byte("h"), ID: 7},
		{Body: []byte("body"), ID: math.MaxUint32},
		{Head: bytes.Repeat([]byte("x"), transport.MaxHead), Body: bytes.Repeat([]byte("y"), 5000)},
		{Head: []byte("last")},
	}
	var stream []byte
	for i := range frames {
		stream = append(stream, encode(&frames[i], i)...)
	}
	for step := 1; step <= 300; step++ {
		var got recordingSink
		n, err := feedAll(&decoder{admitted: admitted}, stream, step, &got)
		if err != nil || n != len(frames) {
			t.Fatalf("in pieces of %d: %d frames and %v, want %d", step, n, err, len(frames))
		}
		for i, f := range frames {
			if !bytes.Equal(got.heads[i], f.Head) || !bytes.Equal(got.bodies[i], f.Body) || got.ids[i] != f.ID {
				t.Errorf("in pieces of %d: frame %d came out changed", step, i)
			}
		}
	}
}

func TestDecoderRefusesWhatIsNoFrame(t *testing.T) {
	good := encode(&transport.Frame{Head: []byte("head")}, 0)
	with := func(at int, b ...byte) []byte {
		c := bytes.Clone(good)
		copy(c[at:], b)
		return c
	}
	size := func(n uint64) []byte { return binary.LittleEndian.AppendUint64(nil, n)[:6] }
	for _, tc := range []struct {
		name, want string
		bytes      []byte
		admitted   bool
	}{
		{"another version", "version 1", with(0, 1), true},
		{"a long head", "head of 129 bytes", with(1, 129), true},
		{"a stranger's longest body", "body of 281474976710655 bytes", with(2, size(maxBody)...), false},
		{"a stranger's long body", "not authenticated yet", with(2, size(pendingBody+1)...), false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var got recordingSink
			d := &decoder{admitted: func() bool { return tc.admitted }}
			n, err := feedAll(d, tc.bytes, 1, &got)
			if err == nil || n > 0 || len(got.heads) > 0 {
				t.Fatalf("got %d frames and %v, want an error before Place", n, err)
			}
			if !errors.Is(err, fault.Refused) || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %q, want one of kind %v with %q", err, fault.Refused, tc.want)
			}
		})
	}
}

func TestDecoderAcceptsAnUnprovenPeersShortBody(t *testing.T) {
	var got recordingSink
	n, err := feedAll(new(decoder), encode(&transport.Frame{Body: make([]byte, pendingBody)}, 0), 1000, &got)
	if n != 1 || err != nil {
		t.Errorf("got %d frames and %v, want 1", n, err)
	}
}

// FuzzDecoder feeds arbitrary bytes to the decoder twice: all at once, and in pieces. Both runs
// must return the same number of frames. Either both runs or neither may return an error. The
// decoded frames, encoded again, must be a prefix of the input.
func FuzzDecoder(f *testing.F) {
	f.Add(encode(&transport.Frame{Head: []byte("head"), Body: []byte("body")}, 0), uint8(3))
	f.Add(encode(&transport.Frame{}, 0), uint8(1))
	f.Add([]byte{version, 129}, uint8(1))
	f.Fuzz(func(t *testing.T, b []byte, step uint8) {
		var atOnce, inPieces recordingSink
		// With the limits of an unauthenticated peer, the memory that Sink.Buffer allocates is
		// bounded.
		n, err := feedAll(new(decoder), b, len(b)+1, &atOnce)
		m, err2 := feedAll(new(decoder), b, int(step)+1, &inPieces)
		if n != m || (err == nil) != (err2 == nil) {
			t.Fatalf("%d frames and %v at once, %d and %v in pieces", n, err, m, err2)
		}
		var again []byte
		for i := range n {
			f := transport.Frame{Head: atOnce.heads[i], Body: atOnce.bodies[i], ID: atOnce.ids[i]}
			// The decoder does not pass the acknowledgement to the Sink.
			ack := binary.LittleEndian.Uint64(b[len(again)+16:])
			again = append(appendPreamble(again, &f, uint32(i), ack), f.Body...)
		}
		if !bytes.HasPrefix(b, again) {
			t.Error("frames came out that are not in the bytes")
		}
	})
}
