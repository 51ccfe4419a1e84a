package flaky

import (
	"slices"
	"testing"

	"github.com/tutti-go/tutti/transport"
)

// A tryConn accepts each frame of TrySend, unless its field refuse is set. It has no other methods
// of a Conn.
type tryConn struct {
	transport.Conn
	refuse bool
	heads  []string // of the accepted frames, in order
	closed bool
}

func (q *tryConn) TrySend(head, _ []byte) bool {
	if q.refuse || q.closed {
		return false
	}
	q.heads = append(q.heads, string(head))
	return true
}

func (q *tryConn) Send(f *transport.Frame) {
	q.heads = append(q.heads, string(f.Head))
	f.Done(nil)
}

func (q *tryConn) Close() error {
	q.closed = true
	return nil
}

// wrapTryConn wraps a tryConn.
func wrapTryConn(o Options) (*tryConn, *Script, transport.Conn) {
	s, q := New(o), new(tryConn)
	n := &node{script: s, death: new(death)}
	return q, s, n.newConn(q, 1)
}

// trySend sends like a layer above: if TrySend refuses, it calls Send.
func trySend(c transport.Conn, head string) (now bool, err error) {
	if c.TrySend([]byte(head), nil) {
		return true, nil
	}
	c.Send(&transport.Frame{Head: []byte(head), Done: func(e error) { err = e }})
	return false, err
}

func TestATriedFrameIsOneStepWhicheverWayItGoes(t *testing.T) {
	var kinds []StepKind
	q, s, c := wrapTryConn(Options{Counts: func(st Step) bool { kinds = append(kinds, st.Kind); return true }})
	for i, refuse := range []bool{false, true, false} {
		q.refuse = refuse
		if now, err := trySend(c, string(rune('a'+i))); now == refuse || err != nil {
			t.Errorf("frame %d went at once: %v, %v", i, now, err)
		}
	}
	if want := []StepKind{TrySend, TrySend, TrySend}; s.Steps() != 3 || !slices.Equal(kinds, want) {
		t.Errorf("%d steps, of kinds %v; want %v", s.Steps(), kinds, want)
	}
	if want := []string{"a", "b", "c"}; !slices.Equal(q.heads, want) {
		t.Errorf("sent %q, want %q", q.heads, want)
	}
}

func TestARuleIsAppliedToTheTriedFrameThatItIsFor(t *testing.T) {
	for _, tc := range []struct {
		rule Rule
		sent int // frames that reach the wire
	}{{Cut(Before, 2), 1}, {Cut(After, 2), 2}, {Die(Before, 2), 1}, {CorruptHead(2), 3}} {
		t.Run(tc.rule.String(), func(t *testing.T) {
			q, s, c := wrapTryConn(Options{Rules: []Rule{tc.rule}})
			for range 3 {
				trySend(c, "head")
			}
			if !s.Fired(0) || len(q.heads) != tc.sent {
				t.Errorf("fired: %v; %d frames were sent, want %d", s.Fired(0), len(q.heads), tc.sent)
			}
			if tc.rule.action == corruptHead && (q.heads[0] != "head" || q.heads[1] == "head" || q.heads[2] != "head") {
				t.Errorf("sent %q, want the second corrupted", q.heads)
			}
		})
	}
}
