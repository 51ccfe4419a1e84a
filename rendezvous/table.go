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

// unmatchableTag is that of a receive in an ordered space that is to meet nothing.
const unmatchableTag = -3

func (k key) wildcard() bool { return k.source == Any || k.tag == Any }

// matches reports whether a receive for k takes a message with key m.
func (k key) matches(m key) bool {
	if k.tag == namedTag || m.tag == namedTag {
		return k == m
	}
	return (k.source == Any || k.source == m.source) && (k.tag == Any || k.tag == m.tag)
}

// A bucket holds what waits under one exact key: receives or messages, never both.
type bucket struct {
	key   key
	recvs requestList
	msgs  msgList
	idle  bool    // it is among the table's resting slots
	next  *bucket // of the spare ones
}

func (s *bucket) empty() bool { return s.recvs.first == nil && s.msgs.first == nil }

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
	tagged   map[uint64]*bucket // by source and tag
	named    map[key]*bucket
	recent   *bucket                 // found or made last; it is in a map
	idle     [maxIdleBuckets]*bucket // slots in a map that have become empty, and may have been filled again
	nextIdle int                     // in resting: the longest
	wild     requestList             // wildcard receives, in posting order
	arrivals msgList                 // all messages without a receive, in arrival order
	order    uint64                  // of the last receive posted
	free     *bucket                 // spare slots, so that a steady exchange allocates none

	publishes bool        // whether there are arrivals is told without the owner's lock, too, by some
	nonEmpty  atomic.Bool // there are
}

// maxIdleBuckets is how many empty slots stay in a table.
const maxIdleBuckets = 4

// packed is the key of a tagged message as a number.
func (k *key) packed() uint64 { return uint64(uint32(k.source))<<32 | uint64(uint32(k.tag)) }

// lookup is the slot of a key, or nil.
func (t *table) lookup(k *key) *bucket {
	s := t.recent
	if s != nil && s.key == *k {
		return s
	}
	if k.tag == namedTag {
		s = t.named[*k]
	} else {
		s = t.tagged[k.packed()]
	}
	if s != nil {
		t.recent = s
	}
	return s
}

// bucketFor is the slot of a key, which is made if there is none.
func (t *table) bucketFor(k *key) *bucket {
	if s := t.lookup(k); s != nil {
		return s
	}
	s := t.free
	if s == nil {
		s = &bucket{}
	}
	t.free, s.next = s.next, nil
	s.key = *k
	t.recent = s
	if t.tagged == nil {
		t.tagged, t.named = make(map[uint64]*bucket), make(map[key]*bucket)
	}
	if k.tag == namedTag {
		t.named[*k] = s
	} else {
		t.tagged[k.packed()] = s
	}
	return s
}

// keepIdle lets a slot go if it is empty, when some others have become so after it.
func (t *table) keepIdle(s *bucket) {
	if !s.empty() || s.idle {
		return
	}
	old := t.idle[t.nextIdle]
	t.idle[t.nextIdle], s.idle = s, true
	t.nextIdle = (t.nextIdle + 1) % maxIdleBuckets
	if old == nil {
		return
	}
	old.idle = false
	if old.empty() {
		t.deleteBucket(old)
	}
}

// deleteBucket takes an empty slot out of its map.
func (t *table) deleteBucket(s *bucket) {
	if s.key.tag == namedTag {
		delete(t.named, s.key)
	} else {
		delete(t.tagged, s.key.packed())
	}
	if t.recent == s {
		t.recent = nil
	}
	s.key = key{}
	s.next, t.free = t.free, s
}

// popRecv finds the receive that a message with key k belongs to, and takes it
// out; nil when none is posted.
func (t *table) popRecv(k key) *Request {
	var exact *Request
	if s := t.lookup(&k); s != nil {
		exact = s.recvs.first
	}
	req := exact
	for w := t.wild.first; w != nil; w = w.next {
		if w.key.matches(k) {
			if exact == nil || w.order < exact.order {
				req = w
			}
			break
		}
	}
	if req != nil {
		t.unpost(req)
	}
	return req
}

// post finds the oldest message that op's key covers, and takes it out; when
// there is none, op waits in the table.
func (t *table) post(req *Request) *message {
	if m := t.find(req.key); m != nil {
		t.removeMessage(m)
		return m
	}
	t.order++
	req.order = t.order
	t.insert(req)
	return nil
}

// repost puts op back where it stood: its match was taken back by the sender.
func (t *table) repost(req *Request) *message {
	if m := t.find(req.key); m != nil {
		t.removeMessage(m)
		return m
	}
	t.insert(req)
	return nil
}

func (t *table) insert(req *Request) {
	req.posted = true
	if req.key.wildcard() {
		t.wild.insert(req)
		return
	}
	t.bucketFor(&req.key).recvs.insert(req)
}

// posted are all receives that wait, in no particular order.
func (t *table) posted() (reqs []*Request) {
	add := func(l *requestList) {
		for req := l.first; req != nil; req = req.next {
			reqs = append(reqs, req)
		}
	}
	add(&t.wild)
	for _, s := range t.tagged {
		add(&s.recvs)
	}
	for _, s := range t.named {
		add(&s.recvs)
	}
	return reqs
}

// unpost takes a waiting receive out.
func (t *table) unpost(req *Request) {
	req.posted = false
	if req.key.wildcard() {
		t.wild.remove(req)
		return
	}
	s := t.lookup(&req.key)
	s.recvs.remove(req)
	t.keepIdle(s)
}

// find is the oldest message that k covers; it stays.
func (t *table) find(k key) *message {
	if !k.wildcard() {
		if s := t.lookup(&k); s != nil {
			return s.msgs.first
		}
		return nil
	}
	for m := t.arrivals.first; m != nil; m = m.later {
		if k.matches(m.key) {
			return m
		}
	}
	return nil
}

// isIdle reports whether nothing waits that a message with key k, or a receive for
// it, would have to let go first.
func (t *table) isIdle(k key) bool {
	s := t.lookup(&k)
	return t.wild.first == nil && (s == nil || s.empty())
}

// addMessage lets a message that no receive awaits wait in the table.
func (t *table) addMessage(m *message) {
	t.bucketFor(&m.key).msgs.pushBack(m)
	m.earlier, m.later = t.arrivals.last, nil
	if t.arrivals.last == nil {
		t.arrivals.first = m
		if t.publishes {
			t.nonEmpty.Store(true)
		}
	} else {
		t.arrivals.last.later = m
	}
	t.arrivals.last = m
	m.inTable = true
}

// removeMessage takes a message out.
func (t *table) removeMessage(m *message) {
	s := t.lookup(&m.key)
	s.msgs.remove(m)
	t.keepIdle(s)
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
	m.earlier, m.later, m.inTable = nil, nil, false
	if t.publishes && t.arrivals.first == nil {
		t.nonEmpty.Store(false)
	}
}

// requestList is a doubly linked list of receives, ordered by Op.order.
type requestList struct{ first, last *Request }

// insert keeps the order; new receives have the highest and go to the end.
func (l *requestList) insert(req *Request) {
	at := l.last
	for at != nil && at.order > req.order {
		at = at.prev
	}
	req.prev = at
	if at == nil {
		req.next, l.first = l.first, req
	} else {
		req.next, at.next = at.next, req
	}
	if req.next == nil {
		l.last = req
	} else {
		req.next.prev = req
	}
}

// pushBack puts op at the end, whatever its order.
func (l *requestList) pushBack(req *Request) {
	req.prev, req.next = l.last, nil
	if l.last == nil {
		l.first = req
	} else {
		l.last.next = req
	}
	l.last = req
}

func (l *requestList) remove(req *Request) {
	if req.prev == nil {
		l.first = req.next
	} else {
		req.prev.next = req.next
	}
	if req.next == nil {
		l.last = req.prev
	} else {
		req.next.prev = req.prev
	}
	req.prev, req.next = nil, nil
}

// msgList is a doubly linked list of messages in arrival order.
type msgList struct{ first, last *message }

func (l *msgList) pushBack(m *message) {
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
