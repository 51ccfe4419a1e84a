package fault

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strings"
	"unicode/utf8"

	"github.com/tutti-go/tutti/internal/wire"
)

// Bounds of the wire form.
const (
	MaxWire  = 4096 // the most bytes of one error
	MaxPeers = 64   // the most peers of one error
)

const (
	wireVersion = 1
	wireFixed   = 10 // bytes before the first text

	// An op and a cause keep up to this many bytes in any case. The texts of the peers share the
	// rest, so a long list of peers shortens only the texts of the peers.
	opLimit    = 256
	causeLimit = 1536

	ellipsis = "…"
)

// AppendWire appends e's wire form, at most MaxWire bytes, and returns the extended slice. What
// does not fit is cut where it matters least:
//
//	part         keeps at most     when cut
//	Op           opLimit bytes     ends in "…"
//	cause        causeLimit bytes  ends in "…"
//	peers        MaxPeers          "(and N more peers)" is added to the cause
//	their texts  what is left      the limit per text is halved until all fit; a cut text ends in "…"
func (e *Error) AppendWire(b []byte) []byte {
	peers, text := e.Peers, ""
	if e.Err != nil {
		text = e.Err.Error()
	}
	text = cut(text, causeLimit)
	if extra := len(peers) - MaxPeers; extra > 0 {
		peers = peers[:MaxPeers]
		text = strings.TrimSpace(fmt.Sprintf("%s (and %d more peers)", text, extra))
	}

	start := len(b)
	b = append(b, wireVersion, byte(e.Kind))
	b = appendInt(b, e.Rank)
	b = binary.LittleEndian.AppendUint32(b, marks(e.Err))
	b = appendText(b, e.Op, opLimit)
	b = appendText(b, text, len(text)+1)
	b = append(b, byte(len(peers)))

	// The loop ends, because 64 peers with three texts of 8 bytes fit together with an op and a
	// cause of the largest size.
	head := len(b)
	for limit := 1024; ; limit /= 2 {
		b = appendPeers(b[:head], peers, limit)
		if len(b)-start <= MaxWire {
			return b
		}
	}
}

// appendPeers appends the peers, with at most limit bytes of each text.
func appendPeers(b []byte, peers []Peer, limit int) []byte {
	for _, p := range peers {
		b = appendInt(b, p.Rank)
		b = appendText(b, p.Host, limit)
		b = appendText(b, p.Call, limit)
		b = appendText(b, p.At, limit)
	}
	return b
}

// appendInt appends n as an int32. It saturates, because only a bug in another package makes a rank
// beyond int32.
func appendInt(b []byte, n int) []byte {
	n = max(math.MinInt32, min(n, math.MaxInt32))
	return binary.LittleEndian.AppendUint32(b, uint32(int32(n)))
}

// appendText appends a text with its length. It cuts the text to limit bytes.
func appendText(b []byte, s string, limit int) []byte {
	s = cut(s, limit)
	b = binary.LittleEndian.AppendUint16(b, uint16(len(s)))
	return append(b, s...)
}

// cut returns s as valid UTF-8 of at most limit bytes. If it shortens s, the result ends in "…".
// The result is valid UTF-8 because texts of errors go to terminals and logs.
func cut(s string, limit int) string {
	if len(s) > limit {
		n := limit - len(ellipsis)
		for n > 0 && !utf8.RuneStart(s[n]) {
			n--
		}
		s = s[:n] + ellipsis
	}
	return strings.ToValidUTF8(s, "?") // the result is never longer than s
}

// ParseWire parses what AppendWire wrote; b must contain nothing else. It keeps no part of b. If
// the bytes are not a wire form of this version, the error is fault.Mismatch: the two ranks run
// different programs, or a component between them is broken.
func ParseWire(b []byte) (*Error, error) {
	if len(b) > MaxWire {
		return nil, malformed("length: got %d bytes, want at most %d", len(b), MaxWire)
	}
	if len(b) < wireFixed {
		return nil, malformed("length: got %d bytes, want at least %d", len(b), wireFixed)
	}
	if b[0] != wireVersion {
		return nil, malformed("version: got %d, want %d", b[0], wireVersion)
	}
	e := &Error{Kind: Kind(b[1])}
	if !e.Kind.Valid() {
		return nil, malformed("kind: got %d, want 1 to %d", b[1], len(kindNames)-1)
	}
	r := wire.NewReader(b[2:])
	e.Rank = r.Int32()
	seen := r.Uint32()
	e.Op = text(&r)
	cause := text(&r)
	e.Peers = peers(&r)
	switch {
	case !r.OK():
		return nil, malformed("got an error that is cut short, has more than %d peers, or has a text that is not UTF-8", MaxPeers)
	case r.Len() > 0:
		return nil, malformed("length: got %d bytes after the last peer, want none", r.Len())
	case seen&^knownMarks != 0:
		return nil, malformed("marks: got unknown bits %#x", seen&^knownMarks)
	}
	if cause != "" || seen != 0 {
		e.Err = &wireCause{text: cause, marks: seen}
	}
	return e, nil
}

// malformed returns the error of bytes that are not a wire form.
func malformed(format string, args ...any) error {
	return New(Mismatch, "fault.ParseWire", -1, format, args...)
}

// text reads a text, which must be UTF-8.
func text(r *wire.Reader) string {
	s := r.String(int(r.Uint16()), MaxWire)
	if !utf8.ValidString(s) {
		r.Fail()
		return ""
	}
	return s
}

// peers reads the list of peers. It does not trust the count: it stops at the first peer that is
// missing.
func peers(r *wire.Reader) []Peer {
	n := r.Uint8()
	if n > MaxPeers {
		r.Fail()
	}
	var list []Peer
	for range n {
		p := Peer{Rank: r.Int32(), Host: text(r), Call: text(r), At: text(r)}
		if !r.OK() {
			return nil
		}
		list = append(list, p)
	}
	return list
}

// The marks of context errors, which programs match besides Kinds.
const (
	markCanceled = 1 << 30
	markDeadline = 1 << 31
	knownMarks   = (1<<len(kindNames) - 2) | markCanceled | markDeadline
)

// marks returns the bits of the Kinds and context errors that err matches anywhere in its tree. The
// rank that sends the error computes them once.
func marks(err error) uint32 {
	var m uint32
	if err == nil {
		return m
	}
	for k := Misuse; k.Valid(); k++ {
		if errors.Is(err, k) {
			m |= 1 << k
		}
	}
	if errors.Is(err, context.Canceled) {
		m |= markCanceled
	}
	if errors.Is(err, context.DeadlineExceeded) {
		m |= markDeadline
	}
	return m
}

// A wireCause is a cause that came over the wire: its text, and the targets that errors.Is finds in
// it. The concrete type of the cause does not travel, so errors.As finds nothing below it.
type wireCause struct {
	text  string
	marks uint32
}

func (c *wireCause) Error() string { return c.text }

// Is reports whether the cause matched target on the rank that sent it.
func (c *wireCause) Is(target error) bool {
	switch target {
	case context.Canceled:
		return c.marks&markCanceled != 0
	case context.DeadlineExceeded:
		return c.marks&markDeadline != 0
	}
	k, ok := target.(Kind)
	return ok && k.Valid() && c.marks&(1<<k) != 0
}
