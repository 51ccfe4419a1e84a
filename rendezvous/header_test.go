package rendezvous

import (
	"encoding/hex"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tutti-go/tutti/internal/test/golden"
	"github.com/tutti-go/tutti/transport"
)

// samples returns a header of every kind, with every field that the kind carries.
func samples() map[string]frameHeader {
	token := transport.Token{1, 2, 3, 31: 9}
	return map[string]frameHeader{
		"eager":         {kind: kindEager, credit: 7, context: 0x1122334455667788, tag: 5, size: 1000, fingerprint: 0xfeed},
		"eager named":   {kind: kindEager, flags: flagNamed | flagDead, dtype: 11, ndim: 3, context: 2, tag: namedTag, size: 24, step: 9, name: 4, dims: [maxDims]int64{2, 3, 4}},
		"eager sum":     {kind: kindEager, flags: flagBodyCRC, context: 1, tag: 0, size: 8, bodyCRC: 0xdeadbeef},
		"offer":         {kind: kindOffer, id: 3, context: 1, tag: 1 << 30, size: 1 << 40, fingerprint: 1},
		"request":       {kind: kindRequest, id: 3, recvID: 8, size: 1 << 20},
		"put":           {kind: kindRequest, flags: flagToken, id: 3, recvID: 8, size: 1 << 20, token: token},
		"data":          {kind: kindData, credit: 1, id: 8, offset: 262144, size: 4096},
		"credit":        {kind: kindCredit, credit: 1 << 20},
		"withdraw":      {kind: kindWithdraw, id: 3},
		"drop":          {kind: kindDrop, id: 3},
		"abandon":       {kind: kindAbandon, id: 8},
		"bye":           {kind: kindBye},
		"took":          {kind: kindByeAck},
		"nudge":         {kind: kindWake},
		"name":          {kind: kindName, id: 12},
		"prepare":       {kind: kindPrepare, flags: flagToken, id: 2, context: 6, size: 1 << 20, token: token},
		"unprepare":     {kind: kindUnprepare, id: 2},
		"unprepare ack": {kind: kindUnprepareAck, id: 2},
		"written":       {kind: kindWritten, flags: flagNamed, dtype: 11, ndim: 1, id: 5, context: 2, tag: namedTag, size: 1 << 20, step: 9, name: 4, dims: [maxDims]int64{1 << 18}},
		"release":       {kind: kindRelease, id: 2},
	}
}

// body returns the size of a body that a frame with this header may have.
func (h *frameHeader) body() int {
	switch h.kind {
	case kindEager, kindData:
		return int(h.size)
	case kindName, kindPrepare:
		return 1
	}
	return 0
}

func TestHeadersRoundTrip(t *testing.T) {
	for name, h := range samples() {
		t.Run(name, func(t *testing.T) {
			var room [transport.MaxHead]byte
			wire := room[:h.encode(&room)]
			var got frameHeader
			if err := got.decode(wire, h.body()); err != nil {
				t.Fatalf("decode: %v", err)
			}
			if got != h {
				t.Errorf("got %+v, want %+v", got, h)
			}
			golden.Compare(t, filepath.Join("testdata", strings.ReplaceAll(name, " ", "_")+".golden"), hex.EncodeToString(wire)+"\n")
		})
	}
}

func TestFlippedHeaderBitIsDetected(t *testing.T) {
	for name, h := range samples() {
		var room [transport.MaxHead]byte
		wire := room[:h.encode(&room)]
		for i := range wire {
			for bit := range 8 {
				wire[i] ^= 1 << bit
				var got frameHeader
				if got.decode(wire, h.body()) == nil {
					t.Errorf("%s: bit %d of byte %d was flipped unnoticed", name, bit, i)
				}
				wire[i] ^= 1 << bit
			}
		}
	}
}

func TestHeaderWithWrongBodySizeIsRefused(t *testing.T) {
	for name, h := range samples() {
		var room [transport.MaxHead]byte
		wire := room[:h.encode(&room)]
		var got frameHeader
		if got.decode(wire, h.body()+1) == nil && h.kind != kindName && h.kind != kindPrepare {
			t.Errorf("%s: a body of one byte too many was accepted", name)
		}
	}
}

func TestInvalidPreparedBufferIsRefused(t *testing.T) {
	good := frameHeader{kind: kindPrepare, flags: flagToken, id: 2, context: 6, size: 1 << 20}
	var raw [transport.MaxHead]byte
	for name, change := range map[string]func(h *frameHeader) (body int){
		"no id":           func(h *frameHeader) int { h.id = 0; return 1 },
		"no token":        func(h *frameHeader) int { h.flags = 0; return 1 },
		"no bytes":        func(h *frameHeader) int { h.size = 0; return 1 },
		"too many bytes":  func(h *frameHeader) int { h.size = maxMessage + 1; return 1 },
		"no name":         func(h *frameHeader) int { return 0 },
		"too long a name": func(h *frameHeader) int { return maxName + 1 },
	} {
		h := good
		body := change(&h)
		var got frameHeader
		if got.decode(raw[:h.encode(&raw)], body) == nil {
			t.Errorf("%s: %+v with %d bytes was accepted", name, h, body)
		}
	}
	if n := good.encode(&raw); good.decode(raw[:n], maxName) != nil {
		t.Error("the valid header was refused")
	}
}

func FuzzDecodeHeader(f *testing.F) {
	for _, h := range samples() {
		var room [transport.MaxHead]byte
		f.Add(append([]byte(nil), room[:h.encode(&room)]...), h.body())
	}
	f.Fuzz(func(t *testing.T, wire []byte, body int) {
		var h frameHeader
		if h.decode(wire, body) != nil {
			return
		}
		var room [transport.MaxHead]byte
		again := room[:h.encode(&room)]
		if string(again) != string(wire) {
			t.Errorf("decoded %x to %+v, which encodes to %x", wire, h, again)
		}
	})
}
