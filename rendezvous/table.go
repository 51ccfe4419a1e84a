package rendezvous

import "sync/atomic"

// Any stands for every source, or every tag, in a receive.
const Any = -1

// key finds messages and receives within one space. Named tensors have their
// own tag, so the two kinds never meet.
type key struct {
	source, tag int32
	step        uint64
	name        string
}

// namedTag marks the keys of named tensors.
const namedTag = -2

// strandedTag is that of a receive in an ordered space that is to meet nothing.
const strandedTag = -3

func (k key) wild() bool { return k.source == Any || k.tag == Any }

// covers reports whether a receive for k takes a message with key m.
func (k key) covers(m key) bool {
	if k.tag == namedTag || m.tag == namedTag {
		return k == m
	}
	return (k.source == Any || k.source == m.source) && (k.tag == Any || k.tag == m.tag)
}

// A slot holds what waits under one exact key: receives or messages, never both.
type slot struct {
	key     key
	ops     opList
	msgs    msgList
	resting bool  // it is among the table's resting slots
	next    *slot // of the spare ones
}

func (s *slot) empty() bool { return s.ops.first == nil && s.msgs.first == nil }

// table matches messages with receives. It decides and remembers, and does
// nothing else: no bytes move here, nothing blocks, and its owner locks it.
//
// Receives match messages in the order posted, messages receives in the order of
// arrival; a wildcard receive takes its turn by the order of posting.
//
// An exchange mostly goes on under the key that it has just used. So the slot of
// the last look is tried first, and slots that become empty stay for a while:
// then a message costs no look into a map, and changes none.
type table struct {
	tagged   map[uint64]*slot // by source and tag
	named    map[key]*slot
	recent   *slot           // found or made last; it is in a map
	resting  [restMost]*slot // slots in a map that have become empty, and may have been filled again
	turn     int             // in resting: the longest
	wild     opList          // wildcard receives, in posting order
	arrivals msgList         // all messages without a receive, in arrival order
	order    uint64          // of the last receive posted
	free     *slot           // spare slots, so that a steady exchange allocates none

	tells bool        // whether there are arrivals is told without the owner's lock, too, by some
	some  atomic.Bool // there are
}

// restMost is how many empty slots stay in a table.
const restMost = 4

// exact is the key of a tagged message as a number.
func (k *key) exact() uint64 { return uint64(uint32(k.source))<<32 | uint64(uint32(k.tag)) }

// lookup is the slot of a key, or nil.
func (t *table) lookup(k *key) *slot {
	s := t.recent
	if s != nil && s.key == *k {
		return s
	}
	if k.tag == namedTag {
		s = t.named[*k]
	} else {
		s = t.tagged[k.exact()]
	}
	if s != nil {
		t.recent = s
	}
	return s
}

// slot is the slot of a key, which is made if there is none.
func (t *table) slot(k *key) *slot {
	if s := t.lookup(k); s != nil {
		return s
	}
	s := t.free
	if s == nil {
		s = &slot{}
	}
	t.free, s.next = s.next, nil
	s.key = *k
	t.recent = s
	if t.tagged == nil {
		t.tagged, t.named = make(map[uint64]*slot), make(map[key]*slot)
	}
	if k.tag == namedTag {
		t.named[*k] = s
	} else {
		t.tagged[k.exact()] = s
	}
	return s
}

// rest lets a slot go if it is empty, when some others have become so after it.
func (t *table) rest(s *slot) {
	if !s.empty() || s.resting {
		return
	}
	old := t.resting[t.turn]
	t.resting[t.turn], s.resting = s, true
	t.turn = (t.turn + 1) % restMost
	if old == nil {
		return
	}
	old.resting = false
	if old.empty() {
		t.forget(old)
	}
}

// forget takes an empty slot out of its map.
func (t *table) forget(s *slot) {
	if s.key.tag == namedTag {
		delete(t.named, s.key)
	} else {
		delete(t.tagged, s.key.exact())
	}
	if t.recent == s {
		t.recent = nil
	}
	s.key = key{}
	s.next, t.free = t.free, s
}

// arrive finds the receive that a message with key k belongs to, and takes it
// out; nil when none is posted.
func (t *table) arrive(k key) *Op {
	var exact *Op
	if s := t.lookup(&k); s != nil {
		exact = s.ops.first
	}
	op := exact
	for w := t.wild.first; w != nil; w = w.next {
		if w.key.covers(k) {
			if exact == nil || w.order < exact.order {
				op = w
			}
			break
		}
	}
	if op != nil {
		t.unpost(op)
	}
	return op
}

// post finds the oldest message that op's key covers, and takes it out; when
// there is none, op waits in the table.
func (t *table) post(op *Op) *message {
	if m := t.find(op.key); m != nil {
		t.remove(m)
		return m
	}
	t.order++
	op.order = t.order
	t.enlist(op)
	return nil
}

// repost puts op back where it stood: its match was taken back by the sender.
func (t *table) repost(op *Op) *message {
	if m := t.find(op.key); m != nil {
		t.remove(m)
		return m
	}
	t.enlist(op)
	return nil
}

func (t *table) enlist(op *Op) {
	op.posted = true
	if op.key.wild() {
		t.wild.insert(op)
		return
	}
	t.slot(&op.key).ops.insert(op)
}

// posted are all receives that wait, in no particular order.
func (t *table) posted() (ops []*Op) {
	add := func(l *opList) {
		for op := l.first; op != nil; op = op.next {
			ops = append(ops, op)
		}
	}
	add(&t.wild)
	for _, s := range t.tagged {
		add(&s.ops)
	}
	for _, s := range t.named {
		add(&s.ops)
	}
	return ops
}

// unpost takes a waiting receive out.
func (t *table) unpost(op *Op) {
	op.posted = false
	if op.key.wild() {
		t.wild.remove(op)
		return
	}
	s := t.lookup(&op.key)
	s.ops.remove(op)
	t.rest(s)
}

// find is the oldest message that k covers; it stays.
func (t *table) find(k key) *message {
	if !k.wild() {
		if s := t.lookup(&k); s != nil {
			return s.msgs.first
		}
		return nil
	}
	for m := t.arrivals.first; m != nil; m = m.later {
		if k.covers(m.key) {
			return m
		}
	}
	return nil
}

// idle reports whether nothing waits that a message with key k, or a receive for
// it, would have to let go first.
func (t *table) idle(k key) bool {
	s := t.lookup(&k)
	return t.wild.first == nil && (s == nil || s.empty())
}

// add lets a message that no receive awaits wait in the table.
func (t *table) add(m *message) {
	t.slot(&m.key).msgs.push(m)
	m.earlier, m.later = t.arrivals.last, nil
	if t.arrivals.last == nil {
		t.arrivals.first = m
		if t.tells {
			t.some.Store(true)
		}
	} else {
		t.arrivals.last.later = m
	}
	t.arrivals.last = m
	m.listed = true
}

// remove takes a message out.
func (t *table) remove(m *message) {
	s := t.lookup(&m.key)
	s.msgs.remove(m)
	t.rest(s)
	if m.earlier == nil {
		t.arrivals.first = m.later
	} else {
		m.earlier.later = m.later
	}
	if m.later == nil {
		t.arrivals.last = m.earlier
	} else {
		m.later.earlier = m.earlier
	}
	m.earlier, m.later, m.listed = nil, nil, false
	if t.tells && t.arrivals.first == nil {
		t.some.Store(false)
	}
}

// opList is a doubly linked list of receives, ordered by Op.order.
type opList struct{ first, last *Op }

// insert keeps the order; new receives have the highest and go to the end.
func (l *opList) insert(op *Op) {
	at := l.last
	for at != nil && at.order > op.order {
		at = at.prev
	}
	op.prev = at
	if at == nil {
		op.next, l.first = l.first, op
	} else {
		op.next, at.next = at.next, op
	}
	if op.next == nil {
		l.last = op
	} else {
		op.next.prev = op
	}
}

// push puts op at the end, whatever its order.
func (l *opList) push(op *Op) {
	op.prev, op.next = l.last, nil
	if l.last == nil {
		l.first = op
	} else {
		l.last.next = op
	}
	l.last = op
}

func (l *opList) remove(op *Op) {
	if op.prev == nil {
		l.first = op.next
	} else {
		op.prev.next = op.next
	}
	if op.next == nil {
		l.last = op.prev
	} else {
		op.next.prev = op.prev
	}
	op.prev, op.next = nil, nil
}

// msgList is a doubly linked list of messages in arrival order.
type msgList struct{ first, last *message }

func (l *msgList) push(m *message) {
	m.prev, m.next = l.last, nil
	if l.last == nil {
		l.first = m
	} else {
		l.last.next = m
	}
	l.last = m
}

func (l *msgList) remove(m *message) {
	if m.prev == nil {
		l.first = m.next
	} else {
		m.prev.next = m.next
	}
	if m.next == nil {
		l.last = m.prev
	} else {
		m.next.prev = m.prev
	}
	m.prev, m.next = nil, nil
}
