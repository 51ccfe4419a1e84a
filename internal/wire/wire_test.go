package wire

import (
	"bytes"
	"encoding/binary"
	"math"
	"testing"
)

// message returns a message with one field of each form, in the order in which
// TestFieldsAreReadInOrder reads them.
func message() []byte {
	le := binary.LittleEndian
	b := []byte{7, 1}
	b = le.AppendUint16(b, 0x1234)
	b = le.AppendUint32(b, 0x12345678)
	b = le.AppendUint64(b, 0x123456789abcdef0)
	b = le.AppendUint32(b, math.MaxUint32) // -1
	b = le.AppendUint64(b, math.Float64bits(-2.5))
	b = binary.AppendUvarint(b, 300)
	b = binary.AppendUvarint(b, math.MaxUint32)
	b = binary.AppendVarint(b, -300)
	b = binary.AppendUvarint(b, 3)
	return append(b, "abcdefgh"...)
}

func TestFieldsAreReadInOrder(t *testing.T) {
	r := NewReader(message())
	check := func(what string, got, want any) {
		t.Helper()
		if got != want {
			t.Errorf("%s: got %v, want %v", what, got, want)
		}
	}
	check("Uint8", r.Uint8(), uint8(7))
	check("Bool", r.Bool(), true)
	check("Uint16", r.Uint16(), uint16(0x1234))
	check("Uint32", r.Uint32(), uint32(0x12345678))
	check("Uint64", r.Uint64(), uint64(0x123456789abcdef0))
	check("Int32", r.Int32(), -1)
	check("Float64", r.Float64(), -2.5)
	check("Uvarint", r.Uvarint(), uint64(300))
	check("Uvarint32", r.Uvarint32(), uint32(math.MaxUint32))
	check("Varint", r.Varint(), -300)
	check("String", r.String(r.Count(1), 3), "abc")
	check("Bytes", string(r.Bytes(2)), "de")
	var rest [3]byte
	check("Done before the end", r.Done(), false)
	check("Len", r.Len(), 3)
	r.Fill(rest[:])
	check("Fill", string(rest[:]), "fgh")
	check("Done", r.Done(), true)
	check("OK", r.OK(), true)
	check("Bytes(0) at the end", r.Bytes(0) != nil && r.Done(), true)
}

func TestAFailureIsSticky(t *testing.T) {
	for name, read := range map[string]func(*Reader){
		"Uint8 at the end":          func(r *Reader) { r.Bytes(16); r.Uint8() },
		"Uint16 beyond the end":     func(r *Reader) { r.Bytes(15); r.Uint16() },
		"Uint32 beyond the end":     func(r *Reader) { r.Bytes(13); r.Uint32() },
		"Uint64 beyond the end":     func(r *Reader) { r.Bytes(9); r.Uint64() },
		"Bytes beyond the end":      func(r *Reader) { r.Bytes(17) },
		"Bytes of a negative count": func(r *Reader) { r.Bytes(-1) },
		"String beyond the end":     func(r *Reader) { r.String(17, 99) },
		"String beyond the limit":   func(r *Reader) { r.String(4, 3) },
		"Fill beyond the end":       func(r *Reader) { r.Fill(make([]byte, 17)) },
		"Bool of 2":                 func(r *Reader) { r.Bool() },
		"Uvarint without an end":    func(r *Reader) { r.Bytes(6); r.Uvarint() },
		"Varint without an end":     func(r *Reader) { r.Bytes(6); r.Varint() },
		"Uvarint32 of 33 bits":      func(r *Reader) { r.Bytes(1); r.Uvarint32() },
		"Count beyond the rest":     func(r *Reader) { r.Count(8) },
		"Fail":                      (*Reader).Fail,
	} {
		t.Run(name, func(t *testing.T) {
			b := append([]byte{2, 0x80, 0x80, 0x80, 0x80, 0x10}, bytes.Repeat([]byte{0xff}, 10)...)
			r := NewReader(b)
			read(&r)
			if r.OK() || r.Done() || r.Len() != 0 {
				t.Fatalf("OK %v, Done %v, Len %d; want a failed Reader", r.OK(), r.Done(), r.Len())
			}
			dst := []byte("kept")
			r.Fill(dst)
			if r.Bytes(0) != nil || r.Uint8() != 0 || r.Uint16() != 0 || r.Uint32() != 0 || r.Uint64() != 0 ||
				r.Int32() != 0 || r.Float64() != 0 || r.Bool() || r.Uvarint() != 0 || r.Uvarint32() != 0 ||
				r.Varint() != 0 || r.Count(1) != 0 || r.String(0, 9) != "" || string(dst) != "kept" {
				t.Error("a failed Reader returned something")
			}
			if r.OK() {
				t.Error("the failure is gone")
			}
		})
	}
}

func TestAFieldHasNoRoomToGrowIntoTheNext(t *testing.T) {
	b := []byte("abcd")
	r := NewReader(b)
	first := r.Bytes(2)
	_ = append(first, 'X')
	if string(b) != "abcd" {
		t.Errorf("appending to a field changed the message to %q", b)
	}
}

func TestReadingNumbersDoesNotAllocate(t *testing.T) {
	b := message()
	var sum uint64
	if n := testing.AllocsPerRun(100, func() {
		r := NewReader(b)
		sum += uint64(r.Uint8()) + uint64(r.Uint8()) + uint64(r.Uint16()) + uint64(r.Uint32()) + r.Uint64() + uint64(len(r.Bytes(4)))
	}); n != 0 {
		t.Errorf("%v allocations, want none (sum %d)", n, sum)
	}
}

// FuzzReader calls the methods in any order on any bytes. The Reader must not panic. It must move
// only forward, by the length of the fields that it returns. Once failed, it must stay failed.
func FuzzReader(f *testing.F) {
	f.Add(message(), []byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12})
	f.Add([]byte{0xff, 0xff, 0xff}, []byte{8, 0, 9, 4})
	f.Fuzz(func(t *testing.T, b, script []byte) {
		kept := bytes.Clone(b)
		r := NewReader(b)
		for _, op := range script {
			left, ok := r.Len(), r.OK()
			size := -1 // bytes that the field must take; -1: a varint, or what follows one
			switch op % 13 {
			case 0:
				r.Uint8()
				size = 1
			case 1:
				r.Uint16()
				size = 2
			case 2:
				r.Uint32()
				size = 4
			case 3:
				r.Uint64()
				size = 8
			case 4:
				size = int(op / 13)
				if got := r.Bytes(size); got != nil && len(got) != size {
					t.Fatalf("Bytes(%d) has %d bytes", size, len(got))
				}
			case 5:
				r.Uvarint()
			case 6:
				r.Uvarint32()
			case 7:
				r.Varint()
			case 8:
				if n := r.Count(int(op/13) + 1); n*(int(op/13)+1) > r.Len() {
					t.Fatalf("Count allows %d entries in %d bytes", n, r.Len())
				}
			case 9:
				if s := r.String(int(op/13), 8); len(s) > 8 {
					t.Fatalf("a string of %d bytes, of at most 8", len(s))
				}
			case 10:
				r.Bool()
				size = 1
			case 11:
				r.Fill(make([]byte, op/13))
				size = int(op / 13)
			case 12:
				r.Float64()
				size = 8
			}
			switch {
			case !ok && r.OK():
				t.Fatal("a failure is gone")
			case r.OK() && size >= 0 && left-r.Len() != size:
				t.Fatalf("a field of %d bytes took %d", size, left-r.Len())
			case r.Len() > left:
				t.Fatal("the Reader went backwards")
			case r.Done() != (r.OK() && r.Len() == 0):
				t.Fatal("Done contradicts OK and Len")
			}
		}
		if !bytes.Equal(b, kept) {
			t.Fatal("the message was changed")
		}
	})
}
