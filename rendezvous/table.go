package rendezvous

import "sync/atomic"

// Any stands for every source, or every tag, in a receive.
const Any = -1

// A key identifies messages and receives within one context. Named tensors have the tag namedTag,
// so the two kinds never match each other. A receive's key may hold Any.
type key struct {
	source, tag int32 // Any in a receive's wildcard key

	step uint64 // of a named tensor, or the number of a reservation; else 0
	name string // of a named tensor
}

// namedTag is the tag of every named tensor.
const namedTag = -2

// unmatchableTag is the tag of a receive in an ordered context that must not match anything any
// more.
const unmatchableTag = -3

// wildcard reports whether k leaves the source or the tag open.
func (k key) wildcard() bool { return k.source == Any || k.tag == Any }

// whole reports whether k is the key of a named tensor or of a reserved message. Only an equal key
// matches it.
func (k *key) whole() bool { return k.tag == namedTag || k.tag == reservedTag }

// matches reports whether a receive with key k may receive a message with key m.
func (k key) matches(m key) bool {
	if k.whole() || m.whole() {
		return k == m
	}
	return (k.source == Any || k.source == m.source) && (k.tag == Any || k.tag == m.tag)
}

// A bucket holds the receives or the messages that wait under one exact key. It never holds both,
// because they would have matched.
type bucket struct {
	key   key
	recvs requestList
	msgs  msgList
	idle  bool    // it is in table.idle
	next  *bucket // in table.free
}

// empty reports whether nothing waits in the bucket.
func (s *bucket) empty() bool { return s.recvs.first == nil && s.msgs.first == nil }

// A table matches messages with receives. It is a pure data structure: no bytes move here, nothing
// blocks, and its owner holds the lock.
//
// Receives match messages in the order of posting, and messages match receives in the order of
// arrival. A wildcard receive takes its turn by the order of posting: popRecv compares the oldest
// exact receive with the oldest wildcard one.
//
// Successive messages mostly have the same key. So lookup tries the bucket of the last lookup
// first, and the last few buckets that became empty stay in their map. In a steady exchange a
// message then needs no map lookup and no map change.
type table struct {
	// tagged maps the results of key.packed to the buckets of tagged messages. named holds the
	// buckets of named tensors and of reserved messages.
	tagged map[uint64]*bucket
	named  map[key]*bucket

	// recent is the last bucket that lookup found or bucketFor made. It is in one of the maps.
	recent *bucket

	// idle is a ring of buckets that became empty and stay in their map. Some of them may have been
	// filled again. nextIdle is the index of the oldest entry.
	idle     [maxIdleBuckets]*bucket
	nextIdle int

	// wild are the wildcard receives, in the order of posting.
	wild requestList

	// arrivals are all messages without a receive, in the order of arrival. Wildcard receives
	// search it.
	arrivals msgList

	order uint64 // of the last receive posted

	// free are spare buckets, so that a steady exchange allocates none.
	free *bucket

	// nonEmpty says whether arrivals has messages, for readers without the owner's lock. It is
	// maintained only if publishes is set, because every atomic store takes time.
	publishes bool
	nonEmpty  atomic.Bool
}

// maxIdleBuckets is the number of empty buckets that stay in a table's maps.
const maxIdleBuckets = 4

// packed returns the key of a tagged message as one number, because a map hashes that faster.
func (k *key) packed() uint64 { return uint64(uint32(k.source))<<32 | uint64(uint32(k.tag)) }

// lookup returns the bucket of a key, or nil.
func (t *table) lookup(k *key) *bucket {
	s := t.recent
	if s != nil && s.key == *k {
		return s
	}
	if k.whole() {
		s = t.named[*k]
	} else {
		s = t.tagged[k.packed()]
	}
	if s != nil {
		t.recent = s
	}
	return s
}

// bucketFor returns the bucket of a key, and makes one if there is none.
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
	if k.whole() {
		t.named[*k] = s
	} else {
		t.tagged[k.packed()] = s
	}
	return s
}

// keepIdle is called after a removal from s. If s is empty, keepIdle puts it into the ring of idle
// buckets. The bucket that s replaces there is deleted if it is empty.
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
	if old.empty() { // it has not been filled again meanwhile
		t.deleteBucket(old)
	}
}

// deleteBucket removes an empty bucket from its map.
func (t *table) deleteBucket(s *bucket) {
	if s.key.whole() {
		delete(t.named, s.key)
	} else {
		delete(t.tagged, s.key.packed())
	}
	if t.recent == s {
		t.recent = nil
	}
	s.key = key{} // the key may hold a name, which the garbage collector can then free
	s.next, t.free = t.free, s
}

// popRecv removes and returns the receive that a message with key k matches: the one posted first,
// exact or wildcard. It returns nil when none is posted.
//
// For example, with receives posted in the order A(1, tag 7), B(any source, tag 7), C(1, tag 7),
// three messages from rank 1 with tag 7 match A, B and C in turn. But if the first message with tag
// 7 comes from rank 2, it matches B.
func (t *table) popRecv(k key) *Request {
	var exact *Request
	if s := t.lookup(&k); s != nil {
		exact = s.recvs.first
	}
	req := exact
	for w := t.wild.first; w != nil; w = w.next {
		if w.key.matches(k) { // the oldest wildcard receive that matches
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

// post removes and returns the oldest message that req's key matches. If there is none, req waits
// in the table.
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

// repost is like post, for a receive whose message the sender has withdrawn. The receive keeps its
// position in the order of posting.
func (t *table) repost(req *Request) *message {
	if m := t.find(req.key); m != nil {
		t.removeMessage(m)
		return m
	}
	t.insert(req)
	return nil
}

// insert puts req into the table, by req.order.
func (t *table) insert(req *Request) {
	req.posted = true
	if req.key.wildcard() {
		t.wild.insert(req)
		return
	}
	t.bucketFor(&req.key).recvs.insert(req)
}

// posted returns all receives that wait, in no particular order. It allocates memory, so it is
// called only when a context or peer ends.
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

// unpost removes a waiting receive.
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

// find returns the oldest message that k matches, or nil. The message stays.
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

// isIdle reports whether nothing has precedence over a message with key k, or over a receive for
// it: no message or receive waits under k, and no wildcard receive waits at all.
func (t *table) isIdle(k key) bool {
	s := t.lookup(&k)
	return t.wild.first == nil && (s == nil || s.empty())
}

// addMessage puts a message that no receive matches into the table.
func (t *table) addMessage(m *message) {
	t.bucketFor(&m.key).msgs.addLast(m)
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

// removeMessage removes a waiting message.
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

// A requestList is a doubly linked list of requests. A list of receives in a table is sorted by
// Request.order. Other lists are in the order of insertion.
type requestList struct{ first, last *Request }

// insert keeps the list sorted. It searches from the end, where a new receive belongs.
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

// addLast puts req at the end, whatever its order.
func (l *requestList) addLast(req *Request) {
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

// A msgList is a doubly linked list of messages in arrival order.
type msgList struct{ first, last *message }

func (l *msgList) addLast(m *message) {
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
