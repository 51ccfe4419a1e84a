package tcp

import (
	"encoding/hex"
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/transport"
)

// The bytes on the wire must match the table in doc.go.
func TestPreambleBytes(t *testing.T) {
	for _, c := range []struct {
		p    preamble
		head string
		want string
	}{
		{preamble{}, "", "000000000000" + "00" + "00" + "00000000" + "00000000" + "0000000000000000"},
		{preamble{body: 0x010203, head: 2, id: 0xA1B2C3D4}, "hd",
			"030201000000" + "02" + "00" + "d4c3b2a1" + "00000000" + "0000000000000000" + "6864"},
		{preamble{body: 1 << 40, head: 1, id: 1, seq: 0x01020304, ack: 0x0102030405060708}, "x",
			"000000000001" + "01" + "00" + "01000000" + "04030201" + "0807060504030201" + "78"},
	} {
		if c.p.body > math.MaxInt32 && math.MaxInt == math.MaxInt32 {
			continue
		}
		var b [prefixMax]byte
		n := c.p.put(b[:], []byte(c.head))
		if got := hex.EncodeToString(b[:n]); got != c.want {
			t.Errorf("%+v: got %s, want %s", c.p, got, c.want)
		}
		back, err := parsePreamble(b[:], admittedBody)
		if err != nil || back != c.p {
			t.Errorf("parsed %+v, %v; want %+v", back, err, c.p)
		}
	}
}

func TestNonsenseIsRefused(t *testing.T) {
	for name, c := range map[string]struct {
		bytes string
		limit int
		want  string
		kind  fault.Kind
	}{
		"flags":          {"000000000000" + "00" + "01" + "00000000", admittedBody, "flags 0x1", fault.Refused},
		"head too long":  {"000000000000" + "81" + "00" + "00000000", admittedBody, "a head of 129 bytes", fault.Refused},
		"body too long":  {"010000000010" + "00" + "00" + "00000000", admittedBody, "a body of 17592186044417 bytes", fault.Refused},
		"all ones":       {strings.Repeat("ff", preambleLen), admittedBody, "flags", fault.Refused},
		"an HTTP answer": {hex.EncodeToString([]byte("HTTP/1.1 400")), admittedBody, "invalid frame", fault.Refused},
		"a guest's body": {"011000000000" + "00" + "00" + "00000000", pendingBody, "not authenticated yet", fault.Refused},
	} {
		t.Run(name, func(t *testing.T) {
			b, err := hex.DecodeString(c.bytes + strings.Repeat("00", preambleLen-len(c.bytes)/2))
			if err != nil {
				t.Fatal(err)
			}
			_, err = parsePreamble(b, c.limit)
			if !errors.Is(err, c.kind) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want kind %v with %q", err, c.kind, c.want)
			}
		})
	}
}

func TestLargestFramesAreAccepted(t *testing.T) {
	for _, c := range []struct{ body, limit int }{{pendingBody, pendingBody}, {int(min(MaxBody, math.MaxInt)), admittedBody}} {
		var b [prefixMax]byte
		preamble{body: c.body, head: transport.MaxHead}.put(b[:], make([]byte, transport.MaxHead))
		if p, err := parsePreamble(b[:], c.limit); err != nil || p.body != c.body {
			t.Errorf("a body of %d bytes: got %+v, %v", c.body, p, err)
		}
	}
}

// The magic must not begin like HTTP/2, TLS or text. Otherwise a listener could mistake the magic
// for one of these.
func TestMagicIsNobodyElses(t *testing.T) {
	tr := New(Options{})
	defer tr.Close()
	for _, first := range []string{"PRI * HTTP/2.0", "\x16\x03\x01\x02", "GET / HTTP/1.1", "SSH-2.0", "\x00\x00\x00\x00"} {
		if tr.Prefix([]byte(first)) {
			t.Errorf("%q is taken for our own", first)
		}
	}
	if !tr.Prefix([]byte(magic)) || !tr.Prefix([]byte(magic+"more")) {
		t.Errorf("%q is not taken for our own", magic)
	}
	if len(magic) != 4 || tr.Proto() != "tutti/1" {
		t.Errorf("got %d bytes of magic and ALPN name %q, want 4 and tutti/1", len(magic), tr.Proto())
	}
}
