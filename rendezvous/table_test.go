package rendezvous

import (
	"math/rand/v2"
	"testing"
)

func newRecv(source, tag int32) *Request {
	return &Request{requestState: requestState{key: key{source: source, tag: tag}}}
}

func newMessage(source, tag int32, id uint64) *message {
	return &message{key: key{source: source, tag: tag}, env: envelope{fingerprint: id}}
}

// A referenceTable is the specification of a table: two lists that are searched in order.
type referenceTable struct {
	recvs []*Request
	msgs  []*message
}

func (r *referenceTable) post(req *Request) *message {
	for i, m := range r.msgs {
		if req.key.matches(m.key) {
			r.msgs = append(r.msgs[:i:i], r.msgs[i+1:]...)
			return m
		}
	}
	r.recvs = append(r.recvs, req)
	return nil
}

func (r *referenceTable) arrive(m *message) *Request {
	for i, req := range r.recvs {
		if req.key.matches(m.key) {
			r.recvs = append(r.recvs[:i:i], r.recvs[i+1:]...)
			return req
		}
	}
	r.msgs = append(r.msgs, m)
	return nil
}

func TestTableMatchesLikeTwoLists(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 1))
		var tb table
		var ref referenceTable
		pick := func(n int32, wild bool) int32 {
			if wild && rng.IntN(4) == 0 {
				return Any
			}
			return rng.Int32N(n)
		}
		for step := range 300 {
			switch rng.IntN(5) {
			case 0, 1:
				req := newRecv(pick(3, true), pick(3, true))
				if got, want := tb.post(req), ref.post(req); got != want {
					t.Fatalf("seed %d step %d: receive %v matched %v, want %v", seed, step, req.key, got, want)
				}
			case 2, 3:
				m := newMessage(pick(3, false), pick(3, false), uint64(step))
				req := tb.popRecv(m.key)
				if req == nil {
					tb.addMessage(m)
				}
				if want := ref.arrive(m); req != want {
					t.Fatalf("seed %d step %d: message %v matched %v, want %v", seed, step, m.key, req, want)
				}
			case 4:
				if n := len(ref.recvs); n > 0 {
					i := rng.IntN(n)
					req := ref.recvs[i]
					ref.recvs = append(ref.recvs[:i:i], ref.recvs[i+1:]...)
					tb.unpost(req)
					if rng.IntN(2) == 0 { // back to its place in the order of posting
						ref.recvs = append(ref.recvs[:i:i], append([]*Request{req}, ref.recvs[i:]...)...)
						if m := tb.repost(req); m != nil {
							t.Fatalf("seed %d step %d: a receive matched %v when it was reposted", seed, step, m.key)
						}
					}
				}
			}
		}
	}
}

func TestEmptyTableKeepsFewBuckets(t *testing.T) {
	var tb table
	for i := range 100 {
		m := newMessage(int32(i), 0, 0)
		tb.addMessage(m)
		if got := tb.post(newRecv(int32(i), 0)); got != m {
			t.Fatalf("message %d was not found", i)
		}
	}
	if len(tb.tagged) > maxIdleBuckets || tb.arrivals.first != nil || tb.wild.first != nil {
		t.Errorf("%d slots are left", len(tb.tagged))
	}
}

func TestNamedTensorsNeverMatchTaggedMessages(t *testing.T) {
	var tb table
	named := &message{key: key{source: 1, tag: namedTag, step: 3, name: "w"}}
	tb.addMessage(named)
	if m := tb.post(newRecv(Any, Any)); m != nil {
		t.Error("a wildcard receive took a named tensor")
	}
	want := &Request{requestState: requestState{key: key{source: 1, tag: namedTag, step: 3, name: "w"}}}
	if m := tb.post(want); m != named {
		t.Error("the tensor was not found by its name")
	}
}
