package rendezvous

import (
	"math/rand/v2"
	"testing"
)

func recvFor(source, tag int32) *Op { return &Op{use: use{key: key{source: source, tag: tag}}} }

func msgOf(source, tag int32, id uint64) *message {
	return &message{key: key{source: source, tag: tag}, env: envelope{print: id}}
}

// A reference is the table's promise in its plainest form: two lists, scanned.
type reference struct {
	ops  []*Op
	msgs []*message
}

func (r *reference) post(op *Op) *message {
	for i, m := range r.msgs {
		if op.key.covers(m.key) {
			r.msgs = append(r.msgs[:i:i], r.msgs[i+1:]...)
			return m
		}
	}
	r.ops = append(r.ops, op)
	return nil
}

func (r *reference) arrive(m *message) *Op {
	for i, op := range r.ops {
		if op.key.covers(m.key) {
			r.ops = append(r.ops[:i:i], r.ops[i+1:]...)
			return op
		}
	}
	r.msgs = append(r.msgs, m)
	return nil
}

func TestTheTableMatchesAsTwoListsWould(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 1))
		var tb table
		var ref reference
		pick := func(n int32, wild bool) int32 {
			if wild && rng.IntN(4) == 0 {
				return Any
			}
			return rng.Int32N(n)
		}
		for step := range 300 {
			switch rng.IntN(5) {
			case 0, 1:
				op := recvFor(pick(3, true), pick(3, true))
				if got, want := tb.post(op), ref.post(op); got != want {
					t.Fatalf("seed %d step %d: receive %v met %v, want %v", seed, step, op.key, got, want)
				}
			case 2, 3:
				m := msgOf(pick(3, false), pick(3, false), uint64(step))
				op := tb.arrive(m.key)
				if op == nil {
					tb.add(m)
				}
				if want := ref.arrive(m); op != want {
					t.Fatalf("seed %d step %d: message %v met %v, want %v", seed, step, m.key, op, want)
				}
			case 4:
				if n := len(ref.ops); n > 0 {
					i := rng.IntN(n)
					op := ref.ops[i]
					ref.ops = append(ref.ops[:i:i], ref.ops[i+1:]...)
					tb.unpost(op)
					if rng.IntN(2) == 0 { // back to where it stood
						ref.ops = append(ref.ops[:i:i], append([]*Op{op}, ref.ops[i:]...)...)
						if m := tb.repost(op); m != nil {
							t.Fatalf("seed %d step %d: a receive met %v on its way back", seed, step, m.key)
						}
					}
				}
			}
		}
	}
}

func TestAnEmptyTableHoldsNextToNothing(t *testing.T) {
	var tb table
	for i := range 100 {
		m := msgOf(int32(i), 0, 0)
		tb.add(m)
		if got := tb.post(recvFor(int32(i), 0)); got != m {
			t.Fatalf("message %d was not found", i)
		}
	}
	if len(tb.tagged) > restMost || tb.arrivals.first != nil || tb.wild.first != nil {
		t.Errorf("%d slots are left", len(tb.tagged))
	}
}

func TestNamedTensorsNeverMeetTaggedMessages(t *testing.T) {
	var tb table
	named := &message{key: key{source: 1, tag: namedTag, step: 3, name: "w"}}
	tb.add(named)
	if m := tb.post(recvFor(Any, Any)); m != nil {
		t.Error("a wildcard receive took a named tensor")
	}
	want := &Op{use: use{key: key{source: 1, tag: namedTag, step: 3, name: "w"}}}
	if m := tb.post(want); m != named {
		t.Error("the tensor was not found by its name")
	}
}
