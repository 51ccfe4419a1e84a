package relay

import (
	"bytes"
	"errors"
	"io"
	"net"
	"syscall"
	"testing"
)

// letters describes a stream of letters. A frame is a capital, a digit, and as many further letters
// as the digit says. Frames that begin with X are not counted.
var letters = Framing{
	First: 1, Preamble: 2,
	Size:   func(p []byte) int { return 2 + int(p[1]-'0') },
	Counts: func(frame []byte) bool { return frame[0] != 'X' },
}

func TestAlterChangesOneCountedFrame(t *testing.T) {
	const stream = "-A0X1xB2bbC3cccD0"
	for _, c := range []struct {
		fault Fault
		k     int
		want  string
	}{
		{Drop, 1, "-A0X1xC3cccD0"},
		{Double, 1, "-A0X1xB2bbB2bbC3cccD0"},
		{Swap, 1, "-A0X1xC3cccB2bbD0"},
		{Swap, 3, "-A0X1xB2bbC3ccc"},
		{Corrupt, 1, "-A0X1xB2cbC3cccD0"},
		{Silence, 2, "-A0X1xB2bb"},
		{Drop, 4, stream},
	} {
		for size := 1; size <= len(stream); size++ { // whatever the reads are
			alter, got := letters.Alter(c.fault, c.k), []byte(nil)
			for rest := []byte(stream); len(rest) > 0; rest = rest[min(size, len(rest)):] {
				got = append(got, alter(bytes.Clone(rest[:min(size, len(rest))]))...)
			}
			if string(got) != c.want {
				t.Errorf("%s %d in reads of %d: got %s, want %s", c.fault, c.k, size, got, c.want)
			}
		}
	}
}

func TestFramingsFindTheFrames(t *testing.T) {
	for name, c := range map[string]struct {
		framing Framing
		preface string
		frames  []string
		counted []bool
	}{
		"tcp":   {TCP(true), "tutt", []string{"\x05\x00\x00\x00\x00\x00\x02\x00" + string(make([]byte, 16+2+5))}, []bool{true}},
		"HTTP2": {HTTP2(true), "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", []string{"\x00\x00\x02\x04\x00\x00\x00\x00\x00ab", "\x00\x00\x01\x00\x00\x00\x00\x00\x01a"}, []bool{false, true}},
		"TLS":   {TLS(), "", []string{"\x16\x03\x01\x00\x03abc", "\x17\x03\x03\x00\x01a"}, []bool{false, true}},
	} {
		if got := c.framing.First; got != len(c.preface) {
			t.Errorf("%s: got %d bytes before the first frame, want %d", name, got, len(c.preface))
		}
		for i, f := range c.frames {
			if got := c.framing.Size([]byte(f[:c.framing.Preamble])); got != len(f) {
				t.Errorf("%s, frame %d: got %d bytes, want %d", name, i, got, len(f))
			}
			if got := c.framing.Counts == nil || c.framing.Counts([]byte(f)); got != c.counted[i] {
				t.Errorf("%s, frame %d: counted is %v", name, i, got)
			}
		}
	}
}

// A Relay must forward both ways, reset the connections that it cuts, and forward the next one.
func TestARelayForwardsAndCuts(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go io.Copy(c, c)
		}
	}()
	r, err := New(l.Addr().String(), func(int) (up, down Filter) { return nil, bytes.ToUpper })
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for range 2 {
		c, err := net.Dial("tcp", r.Addr())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := c.Write([]byte("hello")); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, 5)
		if _, err := io.ReadFull(c, got); err != nil || string(got) != "HELLO" {
			t.Fatalf("got %q and %v", got, err)
		}
		r.Cut()
		if _, err := c.Read(got); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("after the cut: got %v, want a reset", err)
		}
	}
}
