package ps

import (
	"slices"
	"testing"

	"github.com/tutti-go/tutti/ps/internal/message"
)

// Messages of higher priority go first, and those of one priority in their order. The first message
// that does not fit the credit waits, also if a later one would fit: a small message must not delay a
// large one for ever. A message that is larger than the credit goes alone.
func TestAnOutletSendsByPriorityWithinItsCredit(t *testing.T) {
	o := newOutlet(nil, 0, tagRequest, tagRequestBody, 100)
	for _, m := range []outgoing{{cost: 60, priority: 0}, {cost: 30, priority: 2}, {cost: 71, priority: 2}, {cost: 5, priority: 1}, {cost: 500, priority: 3}} {
		o.add(&outgoing{cost: m.cost, priority: m.priority})
	}
	var got []int64
	next := func() int64 {
		m := o.next()
		got = append(got, m.cost)
		return m.cost
	}
	if o.grant(next()); o.inUse != 0 {
		t.Fatalf("after the large message: got %d bytes in use, want 0", o.inUse)
	}
	first := next() // 71 does not fit beside it
	if queued, inUse := o.load(); queued != 3 || inUse != first || o.fits(o.queue.first()) {
		t.Errorf("got %d queued and %d bytes in use, want 3, %d and a message that does not fit", queued, inUse, first)
	}
	o.grant(first)
	next()
	next()
	o.grant(76)
	next()
	if want := []int64{500, 30, 71, 5, 60}; !slices.Equal(got, want) {
		t.Errorf("order: got %v, want %v", got, want)
	}
}

// An engine carries out jobs by priority, and those of one priority in their order.
func TestAnEngineWorksByPriority(t *testing.T) {
	e := newEngine()
	for i, priority := range []int{0, 5, -3, 5, 0, 7, lowest, 5} {
		e.add(&job{priority: priority, q: message.Request{ID: uint64(i)}})
	}
	e.end()
	var got []uint64
	for j := e.next(); j != nil; j = e.next() {
		got = append(got, j.q.ID)
	}
	if want := []uint64{5, 1, 3, 7, 0, 4, 2, 6}; !slices.Equal(got, want) {
		t.Errorf("order: got %v, want %v", got, want)
	}
}

// A change of the members and an installation come after the earlier jobs of their part, and before
// the jobs of parts of lower priority.
func TestChangesOfAPartHaveItsPriority(t *testing.T) {
	for _, test := range []struct {
		what   string
		change func(*Server, *shard)
		is     func(*job) bool
	}{
		{"members", func(s *Server, _ *shard) { s.detach(1, nil) }, func(j *job) bool { return j.members }},
		{"install", func(s *Server, p *shard) {
			s.archive.token, s.archive.loaded = 7, map[partKey]*shard{p.key: {}}
			s.archive.install(&job{q: message.Request{Seq: 7}})
		}, func(j *job) bool { return j.install != nil }},
	} {
		t.Run(test.what, func(t *testing.T) {
			e := newEngine()
			p := &shard{key: partKey{1, 0}, engine: e, priority: 5}
			s := &Server{n: &node{members: []member{{works: true}, {works: true}}}, parts: map[partKey]*shard{p.key: p},
				clients: map[int]*presence{0: {}, 1: {}}}
			s.archive = newArchive(s)
			e.add(&job{part: &shard{}, priority: 4})
			e.add(&job{part: p, priority: p.priority})
			test.change(s, p)
			if j := e.next(); j.part != p || test.is(j) {
				t.Errorf("first: got %+v, want the earlier job of the part", j)
			}
			if j := e.next(); j.part != p || !test.is(j) {
				t.Errorf("second: got %+v, want the change of the part", j)
			}
		})
	}
}

func TestAPoolReusesBuffersOfTheSameSize(t *testing.T) {
	p := &pool{limit: 10_000}
	for _, n := range []int{0, 1, 63, 64, 65, 100, 4095, 4096, 4097, 4_096_000} {
		b := p.get(n)
		if got := len(b.Bytes()); got != n {
			t.Errorf("got %d bytes, want %d", got, n)
		}
		if size := roundSize(n); size < n || size > max(64, n+n/4) {
			t.Errorf("%d bytes: got memory of %d", n, size)
		}
		b.Release()
		if p.kept > p.limit {
			t.Errorf("got %d bytes that nobody uses, want at most %d", p.kept, p.limit)
		}
	}
	b := p.get(4090)
	at := &b.Bytes()[0]
	b.Release()
	if again := p.get(4096); &again.Bytes()[0] != at {
		t.Error("a released buffer was not used again")
	}
}
