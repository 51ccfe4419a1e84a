package negotiate

import (
	"cmp"
	"slices"

	"github.com/tutti-go/tutti/tensor"
)

// A readyTensor is a tensor that is ready, or what is left of it.
type readyTensor struct {
	id        uint32
	transient bool
	spec      *Spec
	absent    []int
	bytes     int
	parts     int
	next      int  // the part to be launched
	priority  int  // the tensor's priority
	reused    bool // the slot's own
	key       fusionKey
}

// A fusionKey is what tensors of one Bucket have in common.
type fusionKey struct {
	kind        Operation
	set         uint32
	dtype, wire tensor.DType
	op          uint64
	root        int
}

// tensorCost is what launching a tensor costs beside its bytes.
const tensorCost = 64

// Cost is what a part of a tensor counts for Config.Credit.
func Cost(t *Spec, rows []int, part, parts int) int {
	return Size(t, rows, part, parts) + tensorCost
}

// Size is how many bytes a part of a tensor has. An AllToAll's, which differs
// from rank to rank, is taken for large.
func Size(t *Spec, rows []int, part, parts int) int {
	switch {
	case t.Operation == Barrier:
		return 0
	case t.Operation == AllToAll:
		return 4 << 20
	case t.Operation == AllGather:
		n := 0
		for _, r := range rows {
			n += r
		}
		return n * t.Bytes()
	}
	lo, hi := tensor.Chunk(t.Elements(), parts, part)
	return (hi - lo) * t.DType.Size()
}

// enqueue makes a tensor ready to be launched.
func (c *Coordinator) enqueue(p *pendingTensor, absent []int) {
	id, transient := c.assignID(p, absent)
	t := p.variants[0].spec
	u := c.newReady()
	c.initReady(u, id, t, p.rows)
	u.transient, u.absent = transient, absent
	c.queueReady(u)
}

// initReady prepares a unit.
func (c *Coordinator) initReady(u *readyTensor, id uint32, t *Spec, rows []int) {
	*u = readyTensor{
		id: id, spec: t, bytes: Size(t, rows, 0, 1), parts: 1, priority: t.Priority,
		key: fusionKey{t.Operation, t.Set, t.DType, t.Wire, t.OpID, t.Root},
	}
	if c.cfg.Partition > 0 && u.bytes > c.cfg.Partition && !t.Whole && (t.Operation == AllReduce || t.Operation == Broadcast) {
		u.parts = min((u.bytes+c.cfg.Partition-1)/c.cfg.Partition, t.Elements())
	}
}

// queueReady queues a unit.
func (c *Coordinator) queueReady(u *readyTensor) {
	if len(c.ready) == 0 {
		c.readySince = c.now
	}
	c.ready = append(c.ready, u)
	c.readyBytes += u.bytes
	if u.key.kind == Barrier {
		c.skipFusionWait = true // somebody waits for it
	}
}

func (c *Coordinator) newReady() *readyTensor {
	if n := len(c.readyPool); n > 0 {
		u := c.readyPool[n-1]
		c.readyPool = c.readyPool[:n-1]
		return u
	}
	return new(readyTensor)
}

// launch puts ready tensors into Buckets, the urgent ones first.
func (c *Coordinator) launch() {
	if len(c.ready) == 0 || c.ended {
		c.force, c.skipFusionWait = false, false
		return
	}
	if !c.force && !c.skipFusionWait && c.pendingCount > 0 && c.readyBytes < c.cfg.Fusion && !c.due(c.readySince+Time(c.cfg.Cycle)) {
		return
	}
	if c.creditSpent && c.inflight > c.credit()/2 && !c.force && !c.skipFusionWait {
		return // one message for several parts, and not one for each that is done
	}
	c.creditSpent = false
	if !slices.IsSortedFunc(c.ready, moreUrgent) { // they mostly are, and to look is cheap
		slices.SortStableFunc(c.ready, moreUrgent)
	}
	bs := &c.building
	left := c.ready[:0]
	done := len(c.readyPool)
	for _, u := range c.ready {
		switch {
		case !c.launchTensor(u, bs):
			left = append(left, u)
		case !u.reused:
			c.readyPool = append(c.readyPool, u)
		}
	}
	clear(c.ready[len(left):])
	c.ready = left
	c.force, c.skipFusionWait = false, false
	c.outgoing.Responses = slices.Grow(c.outgoing.Responses, len(bs.list))
	for _, b := range bs.list {
		c.outgoing.Responses = append(c.outgoing.Responses, b.response)
	}
	bs.clear()
	for _, u := range c.readyPool[done:] {
		*u = readyTensor{}
	}
	c.readyPool = c.readyPool[:min(len(c.readyPool), maxPool)]
}

// moreUrgent orders units by urgency, then by number.
func moreUrgent(a, b *readyTensor) int {
	return cmp.Or(cmp.Compare(b.priority, a.priority), cmp.Compare(a.id, b.id))
}

// A bucketBuilder is a Bucket in the making.
type bucketBuilder struct {
	key             fusionKey
	response        Response
	bytes           int
	first           *readyTensor
	mixedPriorities bool // tensors of different priorities
}

// bucketBuilders are those of one launch. Of each class one is open for more.
type bucketBuilders struct {
	list  []*bucketBuilder
	open  map[fusionKey]*bucketBuilder
	last  *bucketBuilder   // that was opened
	spare []*bucketBuilder // for reuse
}

// clear forgets all, once they have been told.
func (bs *bucketBuilders) clear() {
	for _, b := range bs.list {
		*b = bucketBuilder{}
		if len(bs.spare) < maxPool {
			bs.spare = append(bs.spare, b)
		}
	}
	clear(bs.list)
	clear(bs.open)
	bs.list, bs.last = bs.list[:0], nil
}

func (bs *bucketBuilders) newBucket() *bucketBuilder {
	if n := len(bs.spare); n > 0 {
		b := bs.spare[n-1]
		bs.spare = bs.spare[:n-1]
		return b
	}
	return new(bucketBuilder)
}

// find is the open one of a class, or nil.
func (bs *bucketBuilders) find(c fusionKey) *bucketBuilder {
	if bs.last != nil && bs.last.key == c {
		return bs.last
	}
	return bs.open[c]
}

func (bs *bucketBuilders) add(b *bucketBuilder, fusible bool) {
	bs.list = append(bs.list, b)
	if !fusible {
		return
	}
	if bs.open == nil {
		bs.open = make(map[fusionKey]*bucketBuilder)
	}
	bs.open[b.key], bs.last = b, b
}

// launchTensor launches what it can of u, and reports whether that was all.
func (c *Coordinator) launchTensor(u *readyTensor, bs *bucketBuilders) bool {
	key := u.key
	fusible := u.parts == 1 && u.spec.Codec == Plain && u.bytes <= c.cfg.MaxFusedTensor && len(u.absent) == 0 && (key.kind == AllReduce || key.kind == Broadcast)
	if b := bs.find(key); fusible && b != nil && c.fits(b, u) {
		b.bytes += u.bytes
		b.mixedPriorities = b.mixedPriorities || u.priority != b.first.priority
		b.response.IDs = appendID(b.response.IDs, u.id)
		c.charge(u, u.bytes+tensorCost)
		return true
	}
	for u.next < u.parts {
		if (c.inflight >= c.credit() || len(bs.list) >= maxBuckets) && !c.force && key.kind != Barrier {
			c.creditSpent = true
			return false
		}
		b := bs.newBucket()
		*b = bucketBuilder{key: key, response: Response{Kind: ResponseRun, Part: u.next, Parts: u.parts, Ranks: u.absent, IDs: c.newIDs(u.id)}, bytes: u.bytes, first: u}
		bs.add(b, fusible)
		cost := u.bytes + tensorCost
		if u.parts > 1 {
			cost = Cost(u.spec, nil, u.next, u.parts)
		}
		u.next++
		c.charge(u, cost)
	}
	return true
}

// newIDs is one number. Memory for many is made at once, as by Member.newBucket.
func (c *Coordinator) newIDs(id uint32) []IDRange {
	if len(c.idPool) == 0 {
		c.idPool = make([]IDRange, 64)
	}
	s := c.idPool[:1:1]
	c.idPool = c.idPool[1:]
	s[0] = IDRange{id, 1}
	return s
}

// credit is how many bytes are launched ahead. Who waits for more orders idles, so
// they may be few only where a tensor that comes later may be more urgent.
func (c *Coordinator) credit() int {
	if c.prioritized {
		return c.cfg.Credit
	}
	return max(c.cfg.Credit, c.cfg.UnprioritizedCredit)
}

// maxBuckets bounds what is launched ahead in one message.
const maxBuckets = 1 << 16

func (c *Coordinator) fits(b *bucketBuilder, u *readyTensor) bool {
	limit := c.cfg.Fusion
	if b.mixedPriorities || u.priority != b.first.priority {
		limit = min(limit, c.cfg.Partition)
	}
	return b.bytes+u.bytes <= limit
}

// charge charges a part of u, and ends its number's use with the last one.
func (c *Coordinator) charge(u *readyTensor, cost int) {
	c.inflight += cost
	if u.parts > 1 && u.next < u.parts {
		return
	}
	c.readyBytes -= u.bytes
	c.launches++
	if u.transient {
		c.releasedTransient = append(c.releasedTransient, u.id)
		return
	}
	c.cache[u.id].queued = false
	c.cache[u.id].lastUsed = c.launches
}

// appendID adds a number to runs of them.
func appendID(runs []IDRange, id uint32) []IDRange {
	if n := len(runs); n > 0 && runs[n-1].First+runs[n-1].Count == id {
		runs[n-1].Count++
		return runs
	}
	return append(runs, IDRange{id, 1})
}
