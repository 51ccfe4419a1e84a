package negotiate

import (
	"cmp"
	"slices"

	"github.com/tutti-go/tutti/tensor"
)

// A unit is a tensor that is ready, or what is left of it.
type unit struct {
	id     uint32
	once   bool
	tensor *Tensor
	absent []int
	bytes  int
	parts  int
	next   int  // the part to be launched
	rank   int  // the tensor's priority
	kept   bool // the slot's own
	class  class
}

// A class is what tensors of one Bucket have in common.
type class struct {
	kind        Kind
	set         uint32
	dtype, wire tensor.DType
	op          uint64
	root        int
}

// perTensor is what launching a tensor costs beside its bytes.
const perTensor = 64

// Cost is what a part of a tensor counts for Config.Credit.
func Cost(t *Tensor, rows []int, part, parts int) int {
	return Size(t, rows, part, parts) + perTensor
}

// Size is how many bytes a part of a tensor has. An AllToAll's, which differs
// from rank to rank, is taken for large.
func Size(t *Tensor, rows []int, part, parts int) int {
	switch {
	case t.Kind == Barrier:
		return 0
	case t.Kind == AllToAll:
		return 4 << 20
	case t.Kind == AllGather:
		n := 0
		for _, r := range rows {
			n += r
		}
		return n * t.Bytes()
	}
	lo, hi := Chunk(t.Elements(), parts, part)
	return (hi - lo) * t.DType.Size()
}

// enqueue makes a tensor ready to be launched.
func (l *Leader) enqueue(p *pending, absent []int) {
	id, once := l.number(p, absent)
	t := p.variants[0].tensor
	u := l.newUnit()
	l.fill(u, id, t, p.rows)
	u.once, u.absent = once, absent
	l.push(u)
}

// fill prepares a unit.
func (l *Leader) fill(u *unit, id uint32, t *Tensor, rows []int) {
	*u = unit{
		id: id, tensor: t, bytes: Size(t, rows, 0, 1), parts: 1, rank: t.Priority,
		class: class{t.Kind, t.Set, t.DType, t.Wire, t.OpID, t.Root},
	}
	if l.cfg.Partition > 0 && u.bytes > l.cfg.Partition && !t.Whole && (t.Kind == AllReduce || t.Kind == Broadcast) {
		u.parts = min((u.bytes+l.cfg.Partition-1)/l.cfg.Partition, t.Elements())
	}
}

// push queues a unit.
func (l *Leader) push(u *unit) {
	if len(l.queue) == 0 {
		l.readyAt = l.now
	}
	l.queue = append(l.queue, u)
	l.bytes += u.bytes
	if u.class.kind == Barrier {
		l.hurry = true // somebody waits for it
	}
}

func (l *Leader) newUnit() *unit {
	if n := len(l.units); n > 0 {
		u := l.units[n-1]
		l.units = l.units[:n-1]
		return u
	}
	return new(unit)
}

// launch puts ready tensors into Buckets, the urgent ones first.
func (l *Leader) launch() {
	if len(l.queue) == 0 || l.ended {
		l.urgent, l.hurry = false, false
		return
	}
	if !l.urgent && !l.hurry && l.waiting > 0 && l.bytes < l.cfg.Fusion && !l.due(l.readyAt+Time(l.cfg.Cycle)) {
		return
	}
	if l.full && l.inflight > l.credit()/2 && !l.urgent && !l.hurry {
		return // one message for several parts, and not one for each that is done
	}
	l.full = false
	if !slices.IsSortedFunc(l.queue, first) { // they mostly are, and to look is cheap
		slices.SortStableFunc(l.queue, first)
	}
	bs := &l.making
	left := l.queue[:0]
	done := len(l.units)
	for _, u := range l.queue {
		switch {
		case !l.put(u, bs):
			left = append(left, u)
		case !u.kept:
			l.units = append(l.units, u)
		}
	}
	clear(l.queue[len(left):])
	l.queue = left
	l.urgent, l.hurry = false, false
	l.down.Items = slices.Grow(l.down.Items, len(bs.list))
	for _, b := range bs.list {
		l.down.Items = append(l.down.Items, b.item)
	}
	bs.clear()
	for _, u := range l.units[done:] {
		*u = unit{}
	}
	l.units = l.units[:min(len(l.units), maxSpare)]
}

// first orders units by urgency, then by number.
func first(a, b *unit) int {
	return cmp.Or(cmp.Compare(b.rank, a.rank), cmp.Compare(a.id, b.id))
}

// A bucket is a Bucket in the making.
type bucket struct {
	class class
	item  Item
	bytes int
	first *unit
	mixed bool // tensors of different priorities
}

// buckets are those of one launch. Of each class one is open for more.
type buckets struct {
	list  []*bucket
	open  map[class]*bucket
	last  *bucket   // that was opened
	spare []*bucket // for reuse
}

// clear forgets all, once they have been told.
func (bs *buckets) clear() {
	for _, b := range bs.list {
		*b = bucket{}
		if len(bs.spare) < maxSpare {
			bs.spare = append(bs.spare, b)
		}
	}
	clear(bs.list)
	clear(bs.open)
	bs.list, bs.last = bs.list[:0], nil
}

func (bs *buckets) take() *bucket {
	if n := len(bs.spare); n > 0 {
		b := bs.spare[n-1]
		bs.spare = bs.spare[:n-1]
		return b
	}
	return new(bucket)
}

// find is the open one of a class, or nil.
func (bs *buckets) find(c class) *bucket {
	if bs.last != nil && bs.last.class == c {
		return bs.last
	}
	return bs.open[c]
}

func (bs *buckets) add(b *bucket, fusible bool) {
	bs.list = append(bs.list, b)
	if !fusible {
		return
	}
	if bs.open == nil {
		bs.open = make(map[class]*bucket)
	}
	bs.open[b.class], bs.last = b, b
}

// put launches what it can of u, and reports whether that was all.
func (l *Leader) put(u *unit, bs *buckets) bool {
	c := u.class
	fusible := u.parts == 1 && u.tensor.Codec == Plain && u.bytes <= l.cfg.Alone && len(u.absent) == 0 && (c.kind == AllReduce || c.kind == Broadcast)
	if b := bs.find(c); fusible && b != nil && l.fits(b, u) {
		b.bytes += u.bytes
		b.mixed = b.mixed || u.rank != b.first.rank
		b.item.Runs = appendRun(b.item.Runs, u.id)
		l.launched(u, u.bytes+perTensor)
		return true
	}
	for u.next < u.parts {
		if (l.inflight >= l.credit() || len(bs.list) >= maxBuckets) && !l.urgent && c.kind != Barrier {
			l.full = true
			return false
		}
		b := bs.take()
		*b = bucket{class: c, item: Item{Kind: ItemRun, Part: u.next, Parts: u.parts, Ranks: u.absent, Runs: l.span(u.id)}, bytes: u.bytes, first: u}
		bs.add(b, fusible)
		cost := u.bytes + perTensor
		if u.parts > 1 {
			cost = Cost(u.tensor, nil, u.next, u.parts)
		}
		u.next++
		l.launched(u, cost)
	}
	return true
}

// span is one number. Memory for many is made at once, as by Member.newBucket.
func (l *Leader) span(id uint32) []Span32 {
	if len(l.spans) == 0 {
		l.spans = make([]Span32, 64)
	}
	s := l.spans[:1:1]
	l.spans = l.spans[1:]
	s[0] = Span32{id, 1}
	return s
}

// credit is how many bytes are launched ahead. Who waits for more orders idles, so
// they may be few only where a tensor that comes later may be more urgent.
func (l *Leader) credit() int {
	if l.ranked {
		return l.cfg.Credit
	}
	return max(l.cfg.Credit, l.cfg.Unranked)
}

// maxBuckets bounds what is launched ahead in one message.
const maxBuckets = 1 << 16

func (l *Leader) fits(b *bucket, u *unit) bool {
	limit := l.cfg.Fusion
	if b.mixed || u.rank != b.first.rank {
		limit = min(limit, l.cfg.Partition)
	}
	return b.bytes+u.bytes <= limit
}

// launched charges a part of u, and ends its number's use with the last one.
func (l *Leader) launched(u *unit, cost int) {
	l.inflight += cost
	if u.parts > 1 && u.next < u.parts {
		return
	}
	l.bytes -= u.bytes
	l.used++
	if u.once {
		l.spent = append(l.spent, u.id)
		return
	}
	l.slots[u.id].busy = false
	l.slots[u.id].used = l.used
}

// appendRun adds a number to runs of them.
func appendRun(runs []Span32, id uint32) []Span32 {
	if n := len(runs); n > 0 && runs[n-1].First+runs[n-1].Count == id {
		runs[n-1].Count++
		return runs
	}
	return append(runs, Span32{id, 1})
}
