package fault

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/tutti-go/tutti/internal/test/golden"
)

// samples returns the errors of the golden file, in its order.
func samples() []struct {
	name string
	err  *Error
} {
	lost := Peer{Rank: 3, Host: "host-b", Call: "allreduce #41", At: "train.go:88"}
	return []struct {
		name string
		err  *Error
	}{
		{"least", &Error{Kind: Closed}},
		{"cause", New(Misuse, "bcast", 1, "root 9 of 4")},
		{"blame", &Error{Kind: PeerLost, Op: "allreduce grad/7", Rank: 2, Peers: []Peer{lost, {Rank: 0}}}},
		{"nested", &Error{Kind: Revoked, Op: "barrier", Rank: -1, Err: New(Mismatch, "allreduce", 0, "float32 × 8")}},
		{"deadline", &Error{Kind: Timeout, Op: "recv", Rank: 5, Peers: []Peer{{Rank: 1}}, Err: context.DeadlineExceeded}},
		{"silent cause", &Error{Kind: Canceled, Op: "recv", Err: silent{context.Canceled}}},
	}
}

// A silent error matches what it wraps and has no text.
type silent struct{ error }

func (silent) Error() string   { return "" }
func (s silent) Unwrap() error { return s.error }

// The wire form must equal the golden file, because a peer of the last release must be able to
// parse it.
func TestWireFormIsTheGoldenOne(t *testing.T) {
	var got strings.Builder
	for _, s := range samples() {
		fmt.Fprintf(&got, "%s: %s\n", s.name, hex.EncodeToString(s.err.AppendWire(nil)))
	}
	file := filepath.Join("testdata", "wire.golden")
	golden.Compare(t, file, got.String())
}

func TestParseGivesBackWhatWasAppended(t *testing.T) {
	for _, s := range samples() {
		t.Run(s.name, func(t *testing.T) {
			got := roundTrip(t, s.err)
			want := *s.err
			want.Err = got.Err // the texts are compared below; the concrete type does not travel
			if !reflect.DeepEqual(*got, want) {
				t.Errorf("got %+v, want %+v", *got, want)
			}
			if got.Error() != s.err.Error() {
				t.Errorf("got %q, want %q", got, s.err)
			}
		})
	}
}

func TestCausesStillMatchOnTheFarSide(t *testing.T) {
	targets := []error{context.Canceled, context.DeadlineExceeded, io.EOF}
	for _, k := range allKinds() {
		targets = append(targets, k)
	}
	targets = append(targets, Kind(0), Kind(200))
	causes := []error{
		io.EOF,
		context.Canceled,
		fmt.Errorf("waiting: %w", context.DeadlineExceeded),
		New(Mismatch, "allreduce", 0, "count"),
		fmt.Errorf("and: %w", New(Timeout, "recv", 0, "late: %w", context.DeadlineExceeded)),
		New(Revoked, "a", 0, "because: %w", New(PeerLost, "b", 1, "reset")),
	}
	for _, k := range allKinds() {
		causes = append(causes, k)
	}
	for _, cause := range causes {
		sent := &Error{Kind: Revoked, Op: "bcast", Rank: 1, Err: cause}
		got := roundTrip(t, sent)
		for _, target := range targets {
			want := errors.Is(sent, target) && target != io.EOF // only causes with a mark travel
			if found := errors.Is(got, target); found != want {
				t.Errorf("cause %q: errors.Is(%v) = %v on the far side, want %v", cause, target, found, want)
			}
		}
	}
}

func TestAppendWireKeepsThePrefix(t *testing.T) {
	prefix := []byte("front")
	e := samples()[2].err
	got := e.AppendWire(append(make([]byte, 0, 2*MaxWire), prefix...))
	if want := append(prefix, e.AppendWire(nil)...); !bytes.Equal(got, want) {
		t.Errorf("got %x, want %x", got, want)
	}
}

func TestWireIsBoundedWhateverTheErrorHolds(t *testing.T) {
	for _, unit := range []string{"x", "ü", "…", "\U0001f3b5", "\xff", "x\xc3"} {
		for _, textLen := range []int{0, 1, 8, 9, 255, 256, 257, 5000, 100_000} {
			for _, peers := range []int{0, 1, 3, 63, 64, 65, 1000} {
				text := strings.Repeat(unit, textLen/len(unit))
				e := &Error{Kind: Timeout, Op: text, Rank: 1, Err: errors.New(text)}
				for r := range peers {
					e.Peers = append(e.Peers, Peer{Rank: r, Host: text, Call: text, At: text})
				}
				b := e.AppendWire(nil)
				if len(b) > MaxWire {
					t.Fatalf("%d bytes of %q, %d peers: %d bytes on the wire", textLen, unit, peers, len(b))
				}
				got, err := ParseWire(b)
				if err != nil {
					t.Fatalf("%d bytes of %q, %d peers: %v", textLen, unit, peers, err)
				}
				checkCut(t, got.Op, text)
				for r, p := range got.Peers {
					if p.Rank != r {
						t.Fatalf("peer %d is rank %d", r, p.Rank)
					}
					checkCut(t, p.Host, text)
					checkCut(t, p.Call, text)
					checkCut(t, p.At, text)
				}
			}
		}
	}
}

// checkCut fails the test unless got equals full, or is a prefix of full followed by "…".
func checkCut(t *testing.T, got, full string) {
	t.Helper()
	full = strings.ToValidUTF8(full, "?")
	if got == full {
		return
	}
	kept, ok := strings.CutSuffix(got, "…")
	if !ok || !strings.HasPrefix(full, kept) || !utf8.ValidString(got) {
		t.Fatalf("got %q of a text of %d bytes", got, len(full))
	}
}

func TestShortTextsTravelWholeBesideLongOnes(t *testing.T) {
	long := strings.Repeat("y", 10_000)
	e := &Error{Kind: Mismatch, Op: "allreduce", Rank: 1, Err: errors.New(long)}
	for r := range MaxPeers {
		e.Peers = append(e.Peers, Peer{Rank: r, Host: "h", Call: "bcast"})
	}
	e.Peers[5].At = long
	got := roundTrip(t, e)
	for r, p := range got.Peers {
		if p.Host != "h" || p.Call != "bcast" {
			t.Errorf("peer %d arrived as %v", r, p)
		}
	}
	if got, least := len(got.Err.Error()), causeLimit-utf8.UTFMax; got < least {
		t.Errorf("%d bytes of the cause arrived, want at least %d", got, least)
	}
}

func TestPeersBeyondTheBoundBecomeANote(t *testing.T) {
	for _, c := range []struct {
		peers int
		cause error
		want  string
	}{
		{MaxPeers, nil, ""},
		{MaxPeers + 1, nil, "(and 1 more peers)"},
		{MaxPeers + 36, io.EOF, "EOF (and 36 more peers)"},
	} {
		e := &Error{Kind: Timeout, Op: "barrier", Peers: make([]Peer, c.peers), Err: c.cause}
		got := roundTrip(t, e)
		if len(got.Peers) != MaxPeers {
			t.Errorf("%d peers: %d arrived, want %d", c.peers, len(got.Peers), MaxPeers)
		}
		if c.want == "" {
			if got.Err != nil {
				t.Errorf("%d peers: cause %v, want none", c.peers, got.Err)
			}
			continue
		}
		if got.Err == nil || got.Err.Error() != c.want {
			t.Errorf("%d peers: cause %v, want %q", c.peers, got.Err, c.want)
		}
		if len(e.Peers) != c.peers {
			t.Errorf("the error itself was changed")
		}
	}
}

func TestRanksBeyondTheFieldSaturate(t *testing.T) {
	for _, c := range []struct{ rank, want int }{
		{math.MaxInt, math.MaxInt32}, {math.MinInt, math.MinInt32}, {-1, -1}, {0, 0}, {math.MaxInt32, math.MaxInt32},
	} {
		e := roundTrip(t, &Error{Kind: Closed, Rank: c.rank, Peers: []Peer{{Rank: c.rank}}})
		if e.Rank != c.want || e.Peers[0].Rank != c.want {
			t.Errorf("rank %d arrived as %d and %d, want %d", c.rank, e.Rank, e.Peers[0].Rank, c.want)
		}
	}
}

func TestParseRefusesWhatIsNotTheWireForm(t *testing.T) {
	good := samples()[2].err.AppendWire(nil)
	change := func(at int, v byte) []byte {
		b := bytes.Clone(good)
		b[at] = v
		return b
	}
	textAt := wireFixed + 2 // the first byte of Op
	peersAt := bytes.Index(good, []byte("host-b")) - 7
	cases := map[string][]byte{
		"nothing":            nil,
		"another version":    change(0, 2),
		"kind 0":             change(1, 0),
		"kind after the end": change(1, byte(NoQuorum)+1),
		"mark of kind 0":     change(6, 1),
		"unknown mark":       change(8, 0x80),
		"broken UTF-8":       change(textAt, 0xff),
		"a long text":        change(wireFixed+1, 0xff),
		"a byte too many":    append(bytes.Clone(good), 0),
		"65 peers":           change(peersAt, MaxPeers+1),
		"fewer peers":        change(peersAt, 1),
		"more peers":         change(peersAt, 3),
		"too long":           append(bytes.Clone(good), make([]byte, MaxWire)...),
	}
	for n := range good {
		cases[fmt.Sprintf("the first %d bytes", n)] = good[:n]
	}
	for name, b := range cases {
		if e, err := ParseWire(b); e != nil || !errors.Is(err, Mismatch) {
			t.Errorf("%s: got %v and %v, want fault.Mismatch", name, e, err)
		}
	}
	if _, err := ParseWire(good); err != nil {
		t.Errorf("the untouched form: %v", err)
	}
}

func TestParsedErrorKeepsNoPartOfTheBytes(t *testing.T) {
	b := samples()[2].err.AppendWire(nil)
	e, err := ParseWire(b)
	if err != nil {
		t.Fatal(err)
	}
	before := e.Error()
	clear(b)
	if after := e.Error(); after != before {
		t.Errorf("after the buffer changed: %q, before: %q", after, before)
	}
}

// FuzzParseWire checks that ParseWire either refuses any bytes, or parses them to an error that can
// be sent again. Sending the error again must not change it.
func FuzzParseWire(f *testing.F) {
	for _, s := range samples() {
		f.Add(s.err.AppendWire(nil))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		e, err := ParseWire(b)
		if err != nil {
			if e != nil || !errors.Is(err, Mismatch) {
				t.Fatalf("refused with %v and %v", e, err)
			}
			return
		}
		_ = e.Error()
		once := e.AppendWire(nil)
		if len(once) > MaxWire {
			t.Fatalf("%d bytes on the wire", len(once))
		}
		if twice := roundTrip(t, e).AppendWire(nil); !bytes.Equal(once, twice) {
			t.Fatalf("sent on:    %x\nand again: %x", once, twice)
		}
	})
}

func roundTrip(t *testing.T, e *Error) *Error {
	t.Helper()
	got, err := ParseWire(e.AppendWire(nil))
	if err != nil {
		t.Fatalf("parsing %v: %v", e, err)
	}
	return got
}
