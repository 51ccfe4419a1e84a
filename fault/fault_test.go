package fault

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
)

func allKinds() []Kind {
	var all []Kind
	for k := Misuse; k.Valid(); k++ {
		all = append(all, k)
	}
	return all
}

func TestEveryKindHasItsOwnWords(t *testing.T) {
	seen := map[string]Kind{}
	for _, k := range allKinds() {
		words := k.Error()
		if words == "" {
			t.Errorf("kind %d has no words", k)
		}
		if other, twice := seen[words]; twice {
			t.Errorf("kinds %d and %d are both %q", other, k, words)
		}
		seen[words] = k
	}
	if got, want := len(seen), int(NoQuorum); got != want {
		t.Errorf("%d kinds, want %d", got, want)
	}
}

func TestKindOutsideTheListIsInvalidAndStillPrints(t *testing.T) {
	for _, k := range []Kind{0, NoQuorum + 1, 255} {
		if k.Valid() {
			t.Errorf("kind %d is valid", k)
		}
		if got, want := k.Error(), fmt.Sprintf("fault kind %d", uint8(k)); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestErrorReadsAsOneLine(t *testing.T) {
	for _, c := range []struct {
		name string
		err  *Error
		want string
	}{
		{"kind only", &Error{Kind: Closed, Op: "send", Rank: 2}, "send: rank 2: closed"},
		{"rank unknown", New(Misuse, "tensor.ParseDType", -1, "unknown"), "tensor.ParseDType: misuse: unknown"},
		{"cause", New(Misuse, "bcast", 0, "root %d of %d", 9, 4), "bcast: rank 0: misuse: root 9 of 4"},
		{
			"blame",
			&Error{Kind: PeerLost, Op: "allreduce", Rank: 1, Peers: []Peer{{Rank: 3, Host: "b", Call: "allreduce #41", At: "train.go:88"}}},
			"allreduce: rank 1: peer lost [rank 3 on b, last in allreduce #41 at train.go:88]",
		},
		{
			"blame of little-known peers, and cause",
			&Error{Kind: Timeout, Op: "barrier", Rank: 0, Peers: []Peer{{Rank: 0}, {Rank: 7, Host: "c"}}, Err: io.EOF},
			"barrier: rank 0: timeout [rank 0; rank 7 on c]: EOF",
		},
	} {
		if got := c.err.Error(); got != c.want {
			t.Errorf("%s:\n got %q\nwant %q", c.name, got, c.want)
		}
	}
}

func TestKindAndCauseBothMatchHoweverDeep(t *testing.T) {
	inner := New(Mismatch, "allreduce", 2, "count 3 against 4: %w", io.ErrUnexpectedEOF)
	outer := fmt.Errorf("epoch 3: %w", &Error{Kind: Revoked, Op: "bcast", Rank: 1, Err: inner})

	for _, want := range []error{Revoked, Mismatch, io.ErrUnexpectedEOF} {
		if !errors.Is(outer, want) {
			t.Errorf("%v is not found in %v", want, outer)
		}
	}
	for _, other := range []error{Timeout, PeerLost, context.Canceled} {
		if errors.Is(outer, other) {
			t.Errorf("%v is found in %v", other, outer)
		}
	}
	var e *Error
	if !errors.As(outer, &e) || e.Kind != Revoked {
		t.Errorf("errors.As found %v, want the outermost Error", e)
	}
}

func TestErrorWithoutCauseMatchesItsKindOnly(t *testing.T) {
	for _, k := range allKinds() {
		e := New(k, "op", 0, "")
		if e.Err != nil {
			t.Errorf("an empty format gave the cause %v", e.Err)
		}
		for _, other := range allKinds() {
			if got, want := errors.Is(e, other), k == other; got != want {
				t.Errorf("errors.Is(%v, %v) = %v, want %v", k, other, got, want)
			}
		}
	}
}

func TestTheEndOfAContextIsATimeoutOrACancel(t *testing.T) {
	for err, want := range map[error]Kind{
		context.DeadlineExceeded:                                Timeout,
		fmt.Errorf("close: %w", context.DeadlineExceeded):       Timeout,
		context.Canceled:                                        Canceled,
		errors.New("the user's cause of a context.CancelCause"): Canceled,
	} {
		if got := ContextKind(err); got != want {
			t.Errorf("%v: got %v, want %v", err, got, want)
		}
	}
}

func TestCauseIsTheErrorWithoutItsKind(t *testing.T) {
	bare := New(Misuse, "op", 0, "")
	for _, c := range []struct{ err, want error }{
		{New(Misuse, "op", 0, "%w", io.EOF), io.EOF},
		{fmt.Errorf("around: %w", New(Misuse, "op", 0, "%w", io.EOF)), io.EOF},
		{bare, bare},
		{io.EOF, io.EOF},
		{nil, nil},
	} {
		got := Cause(c.err)
		if got != c.want && errors.Unwrap(got) != c.want {
			t.Errorf("%v: got %v, want %v", c.err, got, c.want)
		}
	}
}
