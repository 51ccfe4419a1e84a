package fault

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strings"
	"unicode/utf8"
)

// Bounds of the wire form.
const (
	MaxWire  = 4096 // bytes of one error
	MaxPeers = 64   // peers named in it
)

const (
	wireVersion = 1
	wireFixed   = 10 // bytes before the first text

	// An op and a cause keep up to this many bytes whatever else there is; the
	// peers' texts share the rest, so that a long list shortens itself only.
	opLimit    = 256
	causeLimit = 1536

	ellipsis = "…"
)

// AppendWire appends e's wire form, at most MaxWire bytes, and returns the
// longer slice. What does not fit is cut where it is least missed: a text ends
// in "…", and peers beyond MaxPeers become a note in the cause.
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

	// Halving ends: 64 peers with three texts of 8 bytes fit beside a full op
	// and a full cause.
	head := len(b)
	for limit := 1024; ; limit /= 2 {
		b = appendPeers(b[:head], peers, limit)
		if len(b)-start <= MaxWire {
			return b
		}
	}
}

func appendPeers(b []byte, peers []Peer, limit int) []byte {
	for _, p := range peers {
		b = appendInt(b, p.Rank)
		b = appendText(b, p.Host, limit)
		b = appendText(b, p.Call, limit)
		b = appendText(b, p.At, limit)
	}
	return b
}

// appendInt saturates: a rank beyond int32 is a bug elsewhere, not here.
func appendInt(b []byte, n int) []byte {
	n = max(math.MinInt32, min(n, math.MaxInt32))
	return binary.LittleEndian.AppendUint32(b, uint32(int32(n)))
}

func appendText(b []byte, s string, limit int) []byte {
	s = cut(s, limit)
	b = binary.LittleEndian.AppendUint16(b, uint16(len(s)))
	return append(b, s...)
}

// cut returns s as valid UTF-8 of at most limit bytes, ending in "…" when some
// of it is missing. A text of an error goes to terminals and logs.
func cut(s string, limit int) string {
	if len(s) > limit {
		n := limit - len(ellipsis)
		for n > 0 && !utf8.RuneStart(s[n]) {
			n--
		}
		s = s[:n] + ellipsis
	}
	return strings.ToValidUTF8(s, "?") // never longer
}

// ParseWire reads what AppendWire wrote, and takes all of b. It keeps no part of
// b. Bytes that are not a wire form of this version get fault.Mismatch: the two
// ranks run different programs, or something between them is broken.
func ParseWire(b []byte) (*Error, error) {
	if len(b) > MaxWire {
		return nil, malformed("%d bytes, of at most %d", len(b), MaxWire)
	}
	if len(b) < wireFixed {
		return nil, malformed("%d bytes, of at least %d", len(b), wireFixed)
	}
	if b[0] != wireVersion {
		return nil, malformed("version %d, want %d", b[0], wireVersion)
	}
	e := &Error{Kind: Kind(b[1])}
	if !e.Kind.Valid() {
		return nil, malformed("unknown kind %d", b[1])
	}
	r := reader{b: b[2:]}
	e.Rank = r.int()
	seen := r.uint32()
	e.Op = r.text()
	cause := r.text()
	e.Peers = r.peers()
	switch {
	case r.bad:
		return nil, malformed("cut short, or a text that is not UTF-8")
	case len(r.b) > 0:
		return nil, malformed("%d bytes too many", len(r.b))
	case seen&^knownMarks != 0:
		return nil, malformed("unknown marks %#x", seen&^knownMarks)
	}
	if cause != "" || seen != 0 {
		e.Err = &wireCause{text: cause, marks: seen}
	}
	return e, nil
}

func malformed(format string, args ...any) error {
	return New(Mismatch, "fault.ParseWire", -1, format, args...)
}

// A reader takes fields off b. After the first that is not there, bad stays set
// and every field is zero, so that only the end needs a check.
type reader struct {
	b   []byte
	bad bool
}

func (r *reader) next(n int) []byte {
	if r.bad || n > len(r.b) {
		r.bad = true
		return nil
	}
	field := r.b[:n]
	r.b = r.b[n:]
	return field
}

func (r *reader) uint32() uint32 {
	if f := r.next(4); f != nil {
		return binary.LittleEndian.Uint32(f)
	}
	return 0
}

func (r *reader) int() int { return int(int32(r.uint32())) }

func (r *reader) text() string {
	n := r.next(2)
	if n == nil {
		return ""
	}
	s := r.next(int(binary.LittleEndian.Uint16(n)))
	if !utf8.Valid(s) {
		r.bad = true
		return ""
	}
	return string(s)
}

// peers trusts no count: it stops at the first peer that is not there.
func (r *reader) peers() []Peer {
	n := r.next(1)
	if n == nil || n[0] > MaxPeers {
		r.bad = true
		return nil
	}
	var peers []Peer
	for range n[0] {
		p := Peer{Rank: r.int(), Host: r.text(), Call: r.text(), At: r.text()}
		if r.bad {
			return nil
		}
		peers = append(peers, p)
	}
	return peers
}

// The marks of causes that programs ask for besides Kinds.
const (
	markCanceled = 1 << 30
	markDeadline = 1 << 31
	knownMarks   = (1<<len(kindNames) - 2) | markCanceled | markDeadline
)

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

// A wireCause is a cause that came over the wire: its words, and what it
// answers to errors.Is.
type wireCause struct {
	text  string
	marks uint32
}

func (c *wireCause) Error() string { return c.text }

// Is makes errors.Is see through the wire.
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
