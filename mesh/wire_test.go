package mesh

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/tutti-go/tutti/internal/test/golden"
	"github.com/tutti-go/tutti/internal/wire"
	"github.com/tutti-go/tutti/mesh/membership"
)

// samples returns one frame of each kind, by name, as head and body.
func samples() map[string][2][]byte {
	h := hello{
		version: version, order: 'L', channel: channelData, options: optionSecret | optionSums,
		incarnation: 2, rank: 3, size: 8, to: 5, instance: 0x0102030405060708, position: position{epoch: 6, received: 0x0708090a0b0c0d0e},
	}
	copy(h.job[:], "0123456789abcdef")
	copy(h.nonce[:], "nonce of dialler")
	var nonce [nonceSize]byte
	copy(nonce[:], "nonce of acceptor")
	w := welcome{instance: 0x1112131415161718, position: position{epoch: 0x21222324, received: 0x3132333435363738}}
	w.mac = proof([]byte("sesame"), labelAccept, h.append(nil), nonce, w)
	out := map[string][2][]byte{
		"hello":     {h.append(nil)},
		"challenge": {appendChallenge(nil, nonce)},
		"proof":     {appendProof(nil, proof([]byte("sesame"), labelDial, h.append(nil), nonce, welcome{}))},
		"welcome":   {w.append(nil)},
		"record":    {appendRecordHead(nil), record{"10.0.0.7:4000", "host-b", 9}.append(nil)},
	}
	refuse := refusal{reason: reasonSize, theirs: 8, text: "world size: accepting rank 5 has 8, dialling rank 3 has 4"}
	head, body := refuse.append(nil)
	out["refuse"] = [2][]byte{head, body}
	head, body = appendWait(nil, []int{2, 3})
	out["wait"] = [2][]byte{head, body}
	head, body, _ = appendTable(nil, []record{{"a:1", "host-a", 1}, {"b:2", "host-b", 2}}, 1)
	out["table"] = [2][]byte{head, body}
	m := membership.Message{
		Kind: membership.Answer, Code: 2, Origin: 3, Seq: 4, About: 5, Ref: 6,
		Age: 7 * membership.Second, Body: []byte("barrier #2"),
	}
	out["control"] = [2][]byte{appendControl(nil, m), m.Body}
	return out
}

func TestFramesMatchTheGoldenFiles(t *testing.T) {
	for name, frame := range samples() {
		file := filepath.Join("testdata", "wire", name+".hex")
		got := fmt.Sprintf("head\n%sbody\n%s", hex.Dump(frame[0]), hex.Dump(frame[1]))
		golden.Compare(t, file, got)
	}
}

// decodeAll runs every decoder over a frame. For each decoder that accepts the frame, the encoder
// must write the same bytes again.
func decodeAll(t *testing.T, head, body []byte) (accepted string) {
	t.Helper()
	same := func(what string, h, b []byte) {
		t.Helper()
		accepted += what + " "
		if !bytes.Equal(h, head) || !bytes.Equal(b, body) {
			t.Errorf("%s: %x %x becomes %x %x", what, head, body, h, b)
		}
	}
	if h, err := parseHello(head); err == nil && h.version == version {
		same("hello", h.append(nil), body)
	}
	if nonce, err := parseChallenge(head); err == nil {
		same("challenge", appendChallenge(nil, nonce), body)
	}
	if mac, err := parseProof(head); err == nil {
		same("proof", appendProof(nil, mac), body)
	}
	if w, err := parseWelcome(head, body); err == nil {
		same("welcome", w.append(nil), nil)
	}
	if r, err := parseRefusal(head, body); err == nil {
		if strings.ContainsFunc(r.text, func(c rune) bool { return c < ' ' || c == 0x7f }) {
			t.Errorf("a refusal's text holds control characters: %q", r.text)
		}
		accepted += "refuse "
	}
	if r, err := parseRecord(head, body); err == nil {
		if r.size() > maxRecord {
			t.Errorf("a record of %d bytes", r.size())
		}
		accepted += "record "
	}
	if ranks, err := parseWait(head, body, 100); err == nil {
		if len(ranks) > maxNamedRanks {
			t.Errorf("a wait names %d ranks", len(ranks))
		}
		accepted += "wait "
	}
	for first := range 3 {
		if records, err := parseTable(head, body, first, 2); err == nil {
			all := append(make([]record, first), records...)
			if len(all) > 2 {
				t.Errorf("a table of %d records for 2 ranks", len(all))
			}
			accepted += "table "
		}
	}
	if c, err := parseControl(head, 8); err == nil {
		if m, err := c.withBody(body); err == nil {
			same("control", appendControl(nil, m), m.Body)
			if m.Origin >= 8 || m.About >= 8 || m.Origin < 0 || m.About < 0 || m.Age < 0 {
				t.Errorf("a message with ranks or times that are not: %v", m)
			}
		}
	}
	return accepted
}

func TestEachFrameIsAcceptedByItsOwnDecoderOnly(t *testing.T) {
	for name, frame := range samples() {
		if got := decodeAll(t, frame[0], frame[1]); got != name+" " {
			t.Errorf("%s is taken for: %s", name, got)
		}
	}
}

func TestDamagedHeadsAreRejected(t *testing.T) {
	for name, frame := range samples() {
		for bit := range 8 * len(frame[0]) {
			head := bytes.Clone(frame[0])
			head[bit/8] ^= 1 << (bit % 8)
			// If the frame has another version, the decoders read only the version, and the text of
			// a refusal.
			if got := decodeAll(t, head, frame[1]); got != "" && !(got == "refuse " && bit/8 >= 6 && bit/8 < 8) {
				t.Errorf("%s with bit %d flipped is taken for: %s", name, bit, got)
			}
		}
		for n := range len(frame[0]) {
			if got := decodeAll(t, frame[0][:n], frame[1]); got != "" {
				t.Errorf("%s cut to %d bytes is taken for: %s", name, n, got)
			}
		}
	}
}

// FuzzFrames gives random heads and bodies to every decoder.
func FuzzFrames(f *testing.F) {
	for _, frame := range samples() {
		f.Add(frame[0], frame[1], false)
	}
	f.Fuzz(func(t *testing.T, head, body []byte, mend bool) {
		if n := len(head) - 4; mend && n >= 0 {
			// Without a valid checksum, nearly all heads would be rejected at once.
			head = sealHead(bytes.Clone(head[:n]), 0)
		}
		decodeAll(t, head, body)
	})
}

// FuzzRecord reads records from random bodies of TABLE frames.
func FuzzRecord(f *testing.F) {
	f.Add(record{"10.0.0.7:4000", "host-b", 9}.append(nil))
	f.Add([]byte{0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 1})
	f.Fuzz(func(t *testing.T, b []byte) {
		in := wire.NewReader(b)
		r := readRecord(&in)
		if !in.OK() {
			return
		}
		if in.Len() >= len(b) || r.size() > maxRecord {
			t.Errorf("%x: record %+v, %d bytes left", b, r, in.Len())
		}
		in = wire.NewReader(r.append(nil))
		if again := readRecord(&in); !in.Done() || again.addr != r.addr || again.instance != r.instance {
			t.Errorf("%+v becomes %+v", r, again)
		}
	})
}

func TestATableTravelsInSeveralFrames(t *testing.T) {
	var records, got []record
	for i := range 300 {
		records = append(records, record{strings.Repeat("a", i), fmt.Sprintf("host-%d", i), uint64(i)})
	}
	frames := 0
	for first := 0; first < len(records); frames++ {
		head, body, n := appendTable(nil, records, first)
		if len(body) > maxBody || n == 0 {
			t.Fatalf("a frame of %d bytes with %d records", len(body), n)
		}
		more, err := parseTable(head, body, len(got), len(records))
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, more...)
		first += n
	}
	if !reflect.DeepEqual(got, records) || frames < 10 {
		t.Errorf("%d records in %d frames, want %d", len(got), frames, len(records))
	}
}

func TestAWaitNamesTheFirstOfMany(t *testing.T) {
	head, body := appendWait(nil, upTo(500))
	got, err := parseWait(head, body, 500)
	if err != nil || len(got) != maxNamedRanks || got[63] != 63 {
		t.Errorf("got %v, %v", got, err)
	}
	if _, err := parseWait(head, body, 400); err == nil {
		t.Error("500 ranks are missing of 400")
	}
}

func TestTextsOfUnauthenticatedPeersAreSanitized(t *testing.T) {
	r := refusal{reason: reasonJob, text: "\x1b[2Jyou\nare \xff\u009bmine" + strings.Repeat("é", 600)}
	head, body := r.append(nil)
	if len(body) > maxRefusal {
		t.Errorf("a text of %d bytes", len(body))
	}
	got, err := parseRefusal(head, body)
	if err != nil || !strings.HasPrefix(got.text, "?[2Jyou?are ??mineé") {
		t.Errorf("got %q, %v", got.text, err)
	}
}
