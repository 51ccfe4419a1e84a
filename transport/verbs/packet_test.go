package verbs

import (
	"bytes"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tutti-go/tutti/transport"
	"github.com/tutti-go/tutti/transport/verbs/internal/rdma"
)

// golden lists messages whose encoded bytes are in testdata. The test fails if the wire format
// changes.
var golden = []struct {
	name string
	p    packet
	rest string // head and body
}{
	{"ack", packet{kind: ack, credit: 17}, ""},
	{"buffer-idle", packet{kind: bufferIdle, credit: 1, handle: handleOf(5, 3)}, ""},
	{"buffer-request", packet{kind: bufferRequest, head: 4, id: 0xA1B2C3D4, size: 1 << 33}, "head"},
	{"buffer-response", packet{kind: bufferResponse, handle: handleOf(4095, 1<<19-1), size: 1 << 33, addr: 0x7F0102030405, rkey: 0xCAFE}, ""},
	{"buffer-response-declined", packet{kind: bufferResponse, flag: flagDeclined}, ""},
	{"tensor-request", packet{kind: tensorRequest, id: 7, handle: handleOf(0, 1), size: 4096, addr: 0x10000, rkey: 9}, ""},
	{"tensor-request-nonotify", packet{kind: tensorRequest, flag: flagNoNotify, id: transport.NoNotify, handle: handleOf(0, 1), size: 4096, addr: 0x10000, rkey: 9}, ""},
	{"tensor-request-ring", packet{kind: tensorRequest, flag: flagInRing, size: 2 << 20, addr: 0x20000, rkey: 0xBEEF}, ""},
	{"tensor-write-ring", packet{kind: tensorWrite, flag: flagInRing, head: 4, id: 3, size: 245760, addr: 0x3C000, freed: 0x78000}, "head"},
	{"buffer-request-renew", packet{kind: bufferRequest, flag: flagRenew, handle: handleOf(5, 3)}, ""},
	{"tensor-write", packet{kind: tensorWrite, head: 2, id: 1, size: 5}, "hdbytes"},
}

func TestMessageBytes(t *testing.T) {
	for _, g := range golden {
		b := make([]byte, packetLen+len(g.rest))
		g.p.put(b)
		copy(b[packetLen:], g.rest)
		text, err := os.ReadFile(filepath.Join("testdata", g.name+".hex"))
		if err != nil {
			t.Fatal(err)
		}
		want := strings.Join(strings.Fields(string(text)), "")
		if got := hex.EncodeToString(b); got != want {
			t.Errorf("%s: got %s, want %s", g.name, got, want)
		}
		back, err := parse(b)
		if err != nil || back != g.p {
			t.Errorf("%s: parsed %+v, %v; want %+v", g.name, back, err, g.p)
		}
	}
}

func TestNonsenseMessagesAreRefused(t *testing.T) {
	good := packet{kind: tensorWrite, head: 2, size: 5}
	for name, c := range map[string]struct {
		at   int
		b    byte
		cut  int
		want string
	}{
		"too short":                      {cut: 47 - 39, want: "got 39 bytes, want at least 40"},
		"another version":                {at: 0, b: 1, want: "got version 1, want 3"},
		"no kind":                        {at: 1, b: 0, want: "got kind 0, want 1 to 6"},
		"a kind too many":                {at: 1, b: 7, want: "got kind 7"},
		"flags":                          {at: 2, b: 16, want: "got flag 0x10"},
		"two flags":                      {at: 2, b: 3, want: "got flag 0x3"},
		"in the ring and in the message": {at: 2, b: flagInRing, want: "want the header, 2 of head and 0 of body"},
		"head too long":                  {at: 3, b: 129, want: "got a head of 129"},
		"another head":                   {at: 3, b: 3, want: "want the header, 3 of head"},
		"huge body":                      {at: 23, b: 0xFF, want: "of body"},
		"flag elsewhere":                 {at: 2, b: 1, want: "TENSOR_WRITE: got flag 0x1"},
		"head on an ACK":                 {at: 1, b: 1, want: "a head of 2 bytes, want none"},
		"body on a request":              {at: 1, b: byte(bufferRequest), want: "and 0 of body"},
		"a byte too few":                 {cut: 1, want: "and 5 of body"},
	} {
		b := make([]byte, packetLen+7)
		good.put(b)
		if c.cut == 0 {
			b[c.at] = c.b
		}
		if _, err := parse(b[:len(b)-c.cut]); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, g := range golden {
		b := make([]byte, packetLen+len(g.rest))
		g.p.put(b)
		f.Add(append(b[:packetLen], g.rest...))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := parse(b)
		if err != nil {
			return
		}
		again := make([]byte, packetLen)
		p.put(again)
		if !bytes.Equal(again, b[:packetLen]) {
			t.Errorf("%x was read as %+v, which is written as %x", b, p, again)
		}
		// A flow must accept or refuse any packet, without a panic.
		newFlow(4, 4, 200, 100).step(input{op: inMessage, packet: p})
	})
}

func TestHandlesOfOneSlotAreOrdered(t *testing.T) {
	for _, c := range []struct {
		a, b uint32
		want bool
	}{
		{handleOf(3, 2), handleOf(3, 1), true}, {handleOf(3, 1), handleOf(3, 2), false},
		{handleOf(3, 1), handleOf(3, 1), false}, {handleOf(3, 1<<19), handleOf(3, 1<<19-1), true},
	} {
		if got := newer(c.a, c.b); got != c.want || slotOf(c.a) != 3 || c.a&more != 0 {
			t.Errorf("newer(%#x, %#x) = %v, want %v", c.a, c.b, got, c.want)
		}
	}
}

func TestHelloSurvivesTheTrip(t *testing.T) {
	h := hello{Address: rdma.Address{GID: [16]byte{10: 0xFF, 11: 0xFF, 12: 10, 15: 1}, QPN: 0x123456, PSN: 0xABCDEF, LID: 7, MTU: 5},
		depth: 32, buffer: 8192, salt: 0x0102030405060708}
	b := make([]byte, helloLen)
	h.put(b)
	const want = "00000000000000000000ffff0a000001" + "56341200" + "efcdab00" + "0700" + "05" + "02" + "20000000" + "00200000" + "0807060504030201"
	if got := hex.EncodeToString(b); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if back, err := parseHello(b); err != nil || back != h {
		t.Errorf("parsed %+v, %v", back, err)
	}
}

func FuzzParseHello(f *testing.F) {
	f.Add(make([]byte, helloLen))
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := parseHello(b)
		if err != nil {
			return
		}
		again := make([]byte, helloLen)
		if h.put(again); !bytes.Equal(again, b) {
			t.Errorf("%x was read as %+v, which is written as %x", b, h, again)
		}
	})
}
