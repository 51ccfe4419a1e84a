package pmix

import (
	"bytes"
	"math"
	"testing"
)

func TestNumbersSurviveInBothForms(t *testing.T) {
	for _, varints := range []bool{false, true} {
		for _, v := range []uint64{0, 1, 127, 128, 1 << 14, 1<<32 - 2, 1<<56 - 1, 1 << 56, 1<<63 - 1} {
			p := packer{varints: varints}
			p.size(int(v))
			p.uint16(uint16(v))
			p.uint32(uint32(v))
			u := unpacker{b: p.b, varints: varints}
			if a, b, c := u.size(), uint16(u.uint(2)), uint32(u.uint(4)); a != v || b != uint16(v) || c != uint32(v) || u.err != nil || len(u.b) > 0 {
				t.Errorf("varints %v: got %d, %d, %d and %d bytes more, %v; want %d", varints, a, b, c, len(u.b), u.err, v)
			}
		}
		for _, v := range []int32{0, -1, 1, -52, math.MaxInt32, math.MinInt32} {
			p := packer{varints: varints}
			p.int32(v)
			u := unpacker{b: p.b, varints: varints}
			if got := u.int32(); got != v || u.err != nil || len(u.b) > 0 {
				t.Errorf("varints %v: got %d, %v; want %d", varints, got, u.err, v)
			}
		}
	}
}

// The examples are from transcripts of libpmix 4.2.2.
func TestNumbersHaveTheFormOfLibpmix(t *testing.T) {
	p := packer{varints: true}
	p.int32(-52)
	p.uint32(allRanks)
	p.uint64(math.MaxUint64)
	if want := "g\xfe\xff\xff\xff\x0f\xff\xff\xff\xff\xff\xff\xff\xff\xff"; string(p.b) != want {
		t.Errorf("got %q, want %q", p.b, want)
	}
}

// Whatever a server sends, a value must not be longer than the answer, and reading must end.
func FuzzAnswer(f *testing.F) {
	for _, path := range transcripts(f) {
		tr := readTranscript(f, path)
		for _, e := range tr.entries[2:] {
			if !e.toServer {
				v, _ := tr.lookup("PMIX_SERVER_URI21")
				w, _ := tr.lookup("PMIX_SERVER_URI3")
				f.Add(e.bytes[16:], v+w == "")
			}
		}
	}
	f.Fuzz(func(t *testing.T, body []byte, varints bool) {
		u := &unpacker{b: body, varints: varints}
		if status, err := unpackStatus(u); err != nil || status != 0 {
			return
		}
		for _, nspace := range []string{"1891631105", ""} {
			for _, key := range []string{keyValue, keyLocalRanks, keySize, ""} {
				for _, rank := range []uint32{0, allRanks} {
					v, err := unpackValue(&unpacker{b: u.b, varints: varints}, nspace, rank, key)
					s, isString := v.(string)
					if _, isNumber := v.(uint32); v != nil && (err != nil || !isString && !isNumber) {
						t.Errorf("got %T and %v", v, err)
					}
					if !bytes.Contains(body, []byte(s)) {
						t.Errorf("got %q, which is no part of the answer", s)
					}
					localIndex(s, 3, 4)
				}
			}
		}
	})
}
