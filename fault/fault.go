package fault

import (
	"context"
	"errors"
	"fmt"
	"strings"
)

// A Kind says what the caller should do now. It is itself an error. If an error wraps an Error of a
// Kind, errors.Is finds the Kind, for example errors.Is(err, fault.PeerLost).
//
//	the caller should                           kinds
//	fix the program                             Misuse, Mismatch
//	build a new communicator of the live ranks  PeerLost, LinkLost, Revoked
//	retry, or look at the blamed ranks          Timeout
//	stop: this rank or a peer asked for it      Canceled, Closed
//	stop: others may go on without this rank    NoQuorum
//	raise a bound, or use less                  Exhausted
//	fix the environment                         Refused
type Kind uint8

// The kinds. Zero is not a kind, so an Error without a Kind is a bug.
const (
	Misuse    Kind = iota + 1 // this call is wrong; fix the program
	Mismatch                  // the ranks disagree about the call; fix the program
	PeerLost                  // a rank is gone for good; build a new communicator
	LinkLost                  // two live ranks cannot reach each other
	Timeout                   // the deadline passed; the blamed ranks had not answered
	Canceled                  // a caller's context was cancelled
	Revoked                   // an earlier fault, in Err, ended this communicator
	Exhausted                 // a stated bound is reached
	Refused                   // the handshake or the bootstrap was refused
	Closed                    // this rank, or the peer named, has closed
	NoQuorum                  // too few members are left to go on safely; others may go on
)

// kindNames are the names of the kinds, as logs and errors show them.
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
	NoQuorum:  "no quorum",
}

// Valid reports whether k is one of the kinds above.
func (k Kind) Valid() bool { return k != 0 && int(k) < len(kindNames) }

// Error returns the kind in words.
func (k Kind) Error() string {
	if !k.Valid() {
		return fmt.Sprintf("fault kind %d", uint8(k))
	}
	return kindNames[k]
}

// An Error says what failed, which rank noticed, and which ranks are to blame. It is immutable once
// returned, and any number of goroutines may read it. A layer wraps an error once, in its exported
// call, so that a message names one operation.
type Error struct {
	Kind  Kind
	Op    string // the exported call: "allreduce grad/7", not the helper inside it
	Rank  int    // the rank that noticed; negative where ranks are not known
	Peers []Peer // the ranks to blame; nil if no other rank is to blame
	Err   error  // the cause; nil if the Kind says everything
}

// New returns an Error of kind k, noticed by the given rank in the exported call op. The parameters
// format and args give the cause; %w keeps a cause that can be matched. An empty format means no
// cause. For an Error that blames Peers, write a literal instead.
func New(k Kind, op string, rank int, format string, args ...any) *Error {
	e := &Error{Kind: k, Op: op, Rank: rank}
	if format != "" {
		e.Err = fmt.Errorf(format, args...)
	}
	return e
}

// A Peer is a blamed rank: where it runs, its last call, and the file:line of that call. Unknown
// fields are empty.
type Peer struct {
	Rank           int
	Host, Call, At string
}

// String returns text such as "rank 3 on host-b, last in allreduce #41 at train.go:88".
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

// Error returns one line: operation, rank, kind, blamed ranks, cause.
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

// Unwrap returns the Kind and the cause as siblings: both can be matched, and a
// context.DeadlineExceeded below a Timeout is still found.
func (e *Error) Unwrap() []error {
	if e.Err == nil {
		return []error{e.Kind}
	}
	return []error{e.Kind, e.Err}
}

// ContextKind returns the Kind of an error that was caused by the end of a context or of a time
// limit: Timeout, or Canceled.
func ContextKind(err error) Kind {
	if errors.Is(err, context.DeadlineExceeded) {
		return Timeout
	}
	return Canceled
}

// Cause returns the Err of an *Error, if it has one, and otherwise err itself. A layer uses it to
// report the cause with a different kind, operation and rank.
func Cause(err error) error {
	var e *Error
	if errors.As(err, &e) && e.Err != nil {
		return e.Err
	}
	return err
}
