package tcp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/transport"
)

// A recordingSink is a Sink that checks the order of the decoder's calls, and keeps the frames.
type recordingSink struct {
	tb     testing.TB
	most   int // the maximum size of a body; larger bodies are dropped
	open   bool
	header transport.Header
	body   []byte
	n      int
	got    []string
}

func (j *recordingSink) Buffer(h transport.Header) []byte {
	if j.open {
		j.tb.Errorf("Place while %d of %d bytes of a body are in", j.n, j.header.Size)
	}
	if h.Size < 0 || len(h.Head) > transport.MaxHead {
		j.tb.Errorf("Place got a head of %d and a body of %d bytes", len(h.Head), h.Size)
	}
	j.open, j.header, j.n, j.body = true, h, -1, nil
	if h.Size <= j.most {
		j.body = make([]byte, h.Size)
	}
	return j.body
}

func (j *recordingSink) Arrived(h transport.Header, n int) {
	if !j.open || h.Size != j.header.Size || h.ID != j.header.ID || !bytes.Equal(h.Head, j.header.Head) {
		j.tb.Errorf("Arrived for %+v, want %+v (open: %v)", h, j.header, j.open)
	}
	if n <= j.n || n > h.Size {
		j.tb.Errorf("Arrived with %d of %d bytes, after %d", n, h.Size, j.n)
	}
	j.n = n
	if n == h.Size {
		j.open = false
		j.got = append(j.got, fmt.Sprintf("%d %q %q", h.ID, h.Head, j.body))
	}
}

// encode returns the bytes that a Conn writes for frame number id.
func encode(id uint32, head, body string) []byte {
	var b [prefixMax]byte
	n := preamble{body: len(body), head: len(head), id: id, seq: id}.put(b[:], []byte(head))
	return append(b[:n:n], body...)
}

// decodeAll decodes a stream in pieces of the given size, and stops at an error.
func decodeAll(d *decoder, in transport.Sink, stream []byte, piece int) error {
	for len(stream) > 0 {
		p := stream[:min(piece, len(stream))]
		stream = stream[len(p):]
		for len(p) > 0 {
			n, whole, err := d.decode(p, in)
			if err != nil {
				return err
			}
			if p = p[n:]; len(p) > 0 && !whole {
				return fmt.Errorf("take left %d bytes without a whole frame", len(p))
			}
		}
	}
	return nil
}

func TestFramesAreFoundHoweverTheStreamIsCut(t *testing.T) {
	long := strings.Repeat("body", 100)
	stream := []byte(magic)
	for _, f := range [][]byte{encode(0, "a", ""), encode(1, "", "b"), encode(2, "head", long), encode(3, "", ""),
		encode(4, strings.Repeat("h", transport.MaxHead), "c")} {
		stream = append(stream, f...)
	}
	want := []string{`0 "a" ""`, `1 "" "b"`, fmt.Sprintf(`2 "head" %q`, long), `3 "" ""`,
		fmt.Sprintf(`4 %q "c"`, strings.Repeat("h", transport.MaxHead))}
	for piece := 1; piece <= len(stream); piece++ {
		j := &recordingSink{tb: t, most: 1000}
		d := &decoder{magicLeft: len(magic), limit: pendingBody}
		if err := decodeAll(d, j, stream, piece); err != nil {
			t.Fatalf("pieces of %d bytes: %v", piece, err)
		}
		if strings.Join(j.got, "\n") != strings.Join(want, "\n") {
			t.Errorf("pieces of %d bytes: got %q, want %q", piece, j.got, want)
		}
		if d.midFrame() {
			t.Errorf("pieces of %d bytes: the end is taken for the middle of a frame", piece)
		}
	}
}

// A reader that uses bodyBuffer must get the same frames.
func TestBodiesMayBeReadIntoTheirBuffers(t *testing.T) {
	stream := append(encode(0, "x", strings.Repeat("0123456789", 10)), encode(1, "y", "z")...)
	j := &recordingSink{tb: t, most: 1000}
	d := &decoder{limit: admittedBody}
	for len(stream) > 0 {
		if room := d.bodyBuffer(); len(room) > 0 {
			n := copy(room[:min(7, len(room))], stream)
			stream = stream[n:]
			d.advance(n, j)
			continue
		}
		n, _, err := d.decode(stream[:1], j)
		if err != nil {
			t.Fatal(err)
		}
		stream = stream[n:]
	}
	want := fmt.Sprintf("[0 \"x\" %q 1 \"y\" \"z\"]", strings.Repeat("0123456789", 10))
	if got := fmt.Sprint(j.got); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestStreamsThatEndWithinAFrameAreCut(t *testing.T) {
	stream := append([]byte(magic), encode(0, "head", "body")...)
	for n := range len(stream) {
		d := &decoder{magicLeft: len(magic), limit: pendingBody}
		if err := decodeAll(d, &recordingSink{tb: t, most: 100}, stream[:n], 3); err != nil {
			t.Fatal(err)
		}
		if want := n != len(magic); d.midFrame() != want {
			t.Errorf("after %d bytes: midFrame is %v, want %v", n, d.midFrame(), want)
		}
	}
}

// tooSmall is a Sink whose buffers are too small.
type tooSmall struct{ recordingSink }

func (s *tooSmall) Buffer(h transport.Header) []byte { return make([]byte, h.Size-1) }

func TestBufferThatIsTooSmallIsMisuse(t *testing.T) {
	err := decodeAll(&decoder{limit: 100}, &tooSmall{}, encode(0, "", "0123456789"), 5)
	if !errors.Is(err, fault.Misuse) || !strings.Contains(err.Error(), "returned 9 bytes, want at least 10") {
		t.Errorf("got %v, want a misuse", err)
	}
}

func TestForeignProtocolsAreRecognisedByTheirFirstBytes(t *testing.T) {
	for _, first := range []string{"GET / HTTP/1.1\r\n", "\xF5tux", "\x00"} {
		d := &decoder{magicLeft: len(magic), limit: pendingBody}
		err := decodeAll(d, &recordingSink{tb: t}, []byte(first), len(first))
		if !errors.Is(err, fault.Refused) || !strings.Contains(err.Error(), fmt.Sprintf("%q", first)) {
			t.Errorf("%q: got %v, want a refusal that quotes it", first, err)
		}
	}
}

// FuzzDecode decodes random bytes, in pieces of random size. Whatever a peer writes, the decoder
// must call the Sink's methods in the promised order. It must not allocate memory only because the
// peer announces a large size.
func FuzzDecode(f *testing.F) {
	f.Add(append([]byte(magic), encode(0, "head", "body")...), uint16(3), true)
	f.Add(encode(0, "", strings.Repeat("x", 5000)), uint16(100), false)
	f.Add([]byte("GET / HTTP/1.1\r\nHost: tutti\r\n\r\n"), uint16(1), true)
	f.Add(bytes.Repeat([]byte{0xFF}, 64), uint16(64), false)
	f.Fuzz(func(t *testing.T, stream []byte, piece uint16, pending bool) {
		j := &recordingSink{tb: t, most: 1 << 16}
		d := &decoder{limit: admittedBody}
		if pending {
			d.magicLeft, d.limit = len(magic), pendingBody
		}
		err := decodeAll(d, j, stream, int(piece)+1)
		var ours *fault.Error
		if err != nil && !errors.As(err, &ours) {
			t.Errorf("got %v, want a *fault.Error", err)
		}
		if pending && len(j.got) > 0 && !strings.HasPrefix(string(stream), magic) {
			t.Errorf("a stranger's frames were taken: %q", j.got)
		}
	})
}

// FuzzRoundTrip cuts random bytes into frames, writes the frames through an outbox with writes of
// random length, and reads them back.
func FuzzRoundTrip(f *testing.F) {
	f.Add([]byte("\x03\x04headbody\x00\x00\x01\x00h"), uint16(5), uint16(7))
	f.Add(bytes.Repeat([]byte{9, 200}, 300), uint16(1), uint16(1000))
	f.Fuzz(func(t *testing.T, plan []byte, write, read uint16) {
		var want []string
		var frames []*transport.Frame
		for id := uint32(0); len(plan) >= 2; id++ {
			h, b := int(plan[0])%(transport.MaxHead+1), int(binary.LittleEndian.Uint16(plan))%1000
			plan = plan[2:]
			head := plan[:min(h, len(plan))]
			body := plan[:min(b, len(plan))]
			plan = plan[min(h, len(plan)):]
			frames = append(frames, &transport.Frame{Head: head, Body: body, ID: id})
			want = append(want, fmt.Sprintf("%d %q %q", id, head, body))
		}
		stream := writeAll(t, frames, int(write)+1)
		j := &recordingSink{tb: t, most: 1000}
		if err := decodeAll(&decoder{limit: admittedBody}, j, stream, int(read)+1); err != nil {
			t.Fatal(err)
		}
		if fmt.Sprint(j.got) != fmt.Sprint(want) {
			t.Errorf("got %q, want %q", j.got, want)
		}
	})
}
