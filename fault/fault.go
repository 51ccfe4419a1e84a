package fault

import (
	"context"
	"errors"
	"fmt"
	"strings"
)

// A Kind is itself an error, so errors.Is(err, fault.PeerLost) holds however
// deep the Error carrying it has been wrapped.
type Kind uint8

// The zero Kind is left out on purpose: an Error without a Kind is a bug.
const (
	Misuse    Kind = iota + 1 // this call is wrong; fix the program
	Mismatch                  // the ranks disagree about the call; fix the program
	PeerLost                  // a rank is gone for good; build a new communicator
	LinkLost                  // two live ranks cannot reach each other
	Timeout                   // the deadline passed; the blamed ranks had not answered
	Canceled                  // a caller's context was cancelled
	Revoked                   // an earlier fault, in Err, ended this communicator
	Exhausted                 // a stated bound is reached
	Refused                   // handshake or bootstrap turned down
	Closed                    // this rank, or the peer named, has closed
)

var kindNames = [...]string{
	Misuse:    "misuse",
	Mismatch:  "mismatch between ranks",
	PeerLost:  "peer lost",
	LinkLost:  "link lost",
	Timeout:   "timeout",
	Canceled:  "canceled",
	Revoked:   "communicator revoked",
	Exhausted: "exhausted",
	Refused:   "refused",
	Closed:    "closed",
}

// Valid reports whether k is one of the kinds above.
func (k Kind) Valid() bool { return k != 0 && int(k) < len(kindNames) }

// Error is the kind in words.
func (k Kind) Error() string {
	if !k.Valid() {
		return fmt.Sprintf("fault kind %d", uint8(k))
	}
	return kindNames[k]
}

// An Error says what failed, where it was noticed, and who is to blame. It is
// immutable once returned, and may be read by any number of goroutines.
type Error struct {
	Kind  Kind
	Op    string // the exported call: "allreduce grad/7", not the helper inside it
	Rank  int    // the rank that noticed; negative where ranks are not known
	Peers []Peer // the ranks to blame; nil when nobody else is
	Err   error  // the cause; nil when the Kind says it all
}

// New makes an Error of kind k, noticed by rank in the exported call op, with
// the cause that format and args give; %w keeps a cause that can be matched. An
// empty format means no cause. Whoever has Peers to blame writes an Error
// literal instead.
func New(k Kind, op string, rank int, format string, args ...any) *Error {
	e := &Error{Kind: k, Op: op, Rank: rank}
	if format != "" {
		e.Err = fmt.Errorf(format, args...)
	}
	return e
}

// A Peer is a rank as the blamed see it: where it runs, its last call, and the
// file:line it is in. Unknown fields are empty.
type Peer struct {
	Rank           int
	Host, Call, At string
}

// String reads "rank 3 on host-b, last in allreduce #41 at train.go:88".
func (p Peer) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "rank %d", p.Rank)
	if p.Host != "" {
		fmt.Fprintf(&b, " on %s", p.Host)
	}
	if p.Call != "" {
		fmt.Fprintf(&b, ", last in %s", p.Call)
	}
	if p.At != "" {
		fmt.Fprintf(&b, " at %s", p.At)
	}
	return b.String()
}

// Error reads as one line: operation, place, kind, blame, cause.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.Op)
	if e.Rank >= 0 {
		fmt.Fprintf(&b, ": rank %d", e.Rank)
	}
	fmt.Fprintf(&b, ": %v", e.Kind)
	if len(e.Peers) > 0 {
		open := " ["
		for _, p := range e.Peers {
			b.WriteString(open + p.String())
			open = "; "
		}
		b.WriteByte(']')
	}
	if e.Err != nil {
		fmt.Fprintf(&b, ": %v", e.Err)
	}
	return b.String()
}

// Unwrap exposes the Kind and the cause as siblings: both can be matched, and a
// context.DeadlineExceeded below a Timeout is still found.
func (e *Error) Unwrap() []error {
	if e.Err == nil {
		return []error{e.Kind}
	}
	return []error{e.Kind, e.Err}
}

// ContextKind is the Kind of an error whose cause is the end of a context or of a time
// limit: Timeout, or Canceled.
func ContextKind(err error) Kind {
	if errors.Is(err, context.DeadlineExceeded) {
		return Timeout
	}
	return Canceled
}

// Cause is what err says apart from its kind and from who failed at what, for a
// layer that tells that in words of its own: the Err of an *Error, where it has
// one, and else err itself.
func Cause(err error) error {
	var e *Error
	if errors.As(err, &e) && e.Err != nil {
		return e.Err
	}
	return err
}
