package agent

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
)

func TestATextArrivesWholeAndAlone(t *testing.T) {
	for _, text := range []string{"", "remote", strings.Repeat("x", maxText)} {
		var wire bytes.Buffer
		if err := writeText(&wire, text); err != nil {
			t.Fatal(err)
		}
		wire.WriteString("rest")
		got, err := readText(&wire)
		if err != nil || got != text || wire.String() != "rest" {
			t.Errorf("got %q, %v, and %q after it, want %q and the rest", got, err, wire.String(), text)
		}
	}
	var wire bytes.Buffer
	writeText(&wire, strings.Repeat("x", maxText+1))
	if got, err := readText(&wire); err != nil || len(got) != maxText {
		t.Errorf("a long text: got %d bytes, %v, want %d", len(got), err, maxText)
	}
}

func FuzzReadText(f *testing.F) {
	f.Add([]byte("\x06remote"))
	f.Add([]byte("\x06rem"))
	f.Add([]byte{0})
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, wire []byte) {
		r := bytes.NewReader(wire)
		text, err := readText(r)
		switch {
		case len(wire) == 0:
			if err != io.EOF {
				t.Errorf("nothing: got %v, want EOF", err)
			}
		case len(wire) <= int(wire[0]):
			if !errors.Is(err, io.ErrUnexpectedEOF) || text != "" {
				t.Errorf("%q: got %q, %v, want an error", wire, text, err)
			}
		case err != nil || text != string(wire[1:1+int(wire[0])]) || r.Len() != len(wire)-1-len(text):
			t.Errorf("%q: got %q, %v, and %d bytes left", wire, text, err, r.Len())
		}
	})
}
