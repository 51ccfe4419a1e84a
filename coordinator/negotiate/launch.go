package negotiate

import (
	"cmp"
	"slices"

	"github.com/tutti-go/tutti/tensor"
)

// A readyTensor is a ready tensor whose parts have not all been launched. It is in
// Coordinator.ready until its last part is launched. Then readyPool keeps the struct for another
// tensor, or the cache entry keeps it for the next step.
type readyTensor struct {
	id        uint32
	transient bool
	spec      *Spec
	absent    []int
	bytes     int
	parts     int
	next      int  // the next part to launch
	priority  int  // higher priorities first
	reused    bool // the cache entry keeps it
	key       fusionKey
}

// A fusionKey has the properties that all tensors of one Bucket share, so that one call can execute
// them.
type fusionKey struct {
	kind        Operation
	set         uint32
	dtype, wire tensor.DType
	op          uint64
	root        int
}

// tensorCost is the credit that a tensor needs in addition to its bytes, so that empty tensors need
// credit, too.
const tensorCost = 64

// Cost returns the credit in bytes that a part of a tensor needs; see Config.Credit.
func Cost(t *Spec, rows []int, part, parts int) int {
	return Size(t, rows, part, parts) + tensorCost
}

// Size returns the size of a part of a tensor in bytes. An AllToAll counts as 4 MiB, because its
// size differs from rank to rank.
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

// enqueue gives a resolved tensor its ID and makes it ready to be launched.
func (c *Coordinator) enqueue(p *pendingTensor, absent []int) {
	id, transient := c.assignID(p, absent)
	t := p.variants[0].spec
	u := c.newReady()
	c.initReady(u, id, t, p.rows)
	u.transient, u.absent = transient, absent
	c.queueReady(u)
}

// initReady initializes a readyTensor. Only AllReduces and Broadcasts are cut into parts, because
// their elements do not depend on each other.
func (c *Coordinator) initReady(u *readyTensor, id uint32, t *Spec, rows []int) {
	*u = readyTensor{
		id: id, spec: t, bytes: Size(t, rows, 0, 1), parts: 1, priority: t.Priority,
		key: fusionKey{t.Operation, t.Set, t.DType, t.Wire, t.OpID, t.Root},
	}
	if c.cfg.Partition > 0 && u.bytes > c.cfg.Partition && !t.Whole && (t.Operation == AllReduce || t.Operation == Broadcast) {
		u.parts = min((u.bytes+c.cfg.Partition-1)/c.cfg.Partition, t.Elements())
	}
}

// queueReady adds a tensor to the tensors to be launched.
func (c *Coordinator) queueReady(u *readyTensor) {
	if len(c.ready) == 0 {
		c.readySince = c.now
	}
	c.ready = append(c.ready, u)
	c.readyBytes += u.bytes
	if u.key.kind == Barrier {
		c.skipFusionWait = true // a goroutine of every rank waits for it
	}
}

// newReady returns an empty readyTensor, from the pool if possible.
func (c *Coordinator) newReady() *readyTensor {
	if n := len(c.readyPool); n > 0 {
		u := c.readyPool[n-1]
		c.readyPool = c.readyPool[:n-1]
		return u
	}
	return new(readyTensor)
}

// launch orders ready tensors, in order of urgency. It launches nothing while all of these hold:
//
//   - some tensor is pending, which may become ready and then be fused with the ready tensors;
//   - less than Config.Fusion bytes are ready;
//   - the ready tensors have waited for less than Config.Cycle;
//   - no barrier and no fence requires a launch at once.
//
// Once the credit is spent, launch waits until half of the credit is available again. So rank 0
// sends one list for several parts, not one list for each part.
func (c *Coordinator) launch() {
	if len(c.ready) == 0 || c.ended {
		c.force, c.skipFusionWait = false, false
		return
	}
	if !c.force && !c.skipFusionWait && c.pendingCount > 0 && c.readyBytes < c.cfg.Fusion && !c.due(c.readySince+Time(c.cfg.Cycle)) {
		return
	}
	if c.creditSpent && c.inflight > c.credit()/2 && !c.force && !c.skipFusionWait {
		return // wait, so that one list has several parts
	}
	c.creditSpent = false
	if !slices.IsSortedFunc(c.ready, moreUrgent) { // mostly they are sorted, and checking is cheap
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

// moreUrgent orders by priority and then by ID. IDs are assigned in the first step, so later steps
// keep the order of the first.
func moreUrgent(a, b *readyTensor) int {
	return cmp.Or(cmp.Compare(b.priority, a.priority), cmp.Compare(a.id, b.id))
}

// A bucketBuilder is a Bucket that is being built. An example from testdata/fusion.txt, with
// Config.Fusion of 64 bytes, MaxFusedTensor of 32 and Partition of 40:
//
//	ready, in the order of launch                Bucket  why it ends there
//	h (16 bytes, priority 1), a (16)             h a     with b, several priorities would exceed 40
//	b (16), f (32), g (16)                       b f g   64 bytes
//	c (float64)                                  c       no other tensor of its type
//	d (by max)                                   d       no other tensor of its operator
//	e (40)                                       e       above MaxFusedTensor
//	i, j (broadcasts from rank 0)                i j     k is from rank 1
//	k                                            k
type bucketBuilder struct {
	key             fusionKey
	response        Response
	bytes           int
	first           *readyTensor
	mixedPriorities bool // the tensors of the Bucket have different priorities
}

// bucketBuilders holds the Buckets of one launch, in execution order. For each fusionKey, only the
// last Bucket is open for more tensors.
type bucketBuilders struct {
	list  []*bucketBuilder
	open  map[fusionKey]*bucketBuilder
	last  *bucketBuilder   // the last opened Bucket, which mostly has the key of the next tensor
	spare []*bucketBuilder // builders to be used again
}

// clear drops all Buckets after their responses have been added to the outgoing list.
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

// newBucket returns an empty bucketBuilder, a reused one if possible.
func (bs *bucketBuilders) newBucket() *bucketBuilder {
	if n := len(bs.spare); n > 0 {
		b := bs.spare[n-1]
		bs.spare = bs.spare[:n-1]
		return b
	}
	return new(bucketBuilder)
}

// find returns the open Bucket of a key, or nil.
func (bs *bucketBuilders) find(c fusionKey) *bucketBuilder {
	if bs.last != nil && bs.last.key == c {
		return bs.last
	}
	return bs.open[c]
}

// add appends a Bucket. If the Bucket is fusible, it becomes the open Bucket of its key.
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

// launchTensor launches as many parts of u as the credit allows. It reports whether all parts are
// launched. A tensor that fits into an open Bucket is launched even if the credit is spent. So a
// Bucket may exceed the credit by up to Config.Fusion bytes.
func (c *Coordinator) launchTensor(u *readyTensor, bs *bucketBuilders) bool {
	key := u.key
	fusible := u.parts == 1 && u.spec.Codec == Plain && u.bytes <= c.cfg.MaxFusedTensor && len(u.absent) == 0 && (key.kind == AllReduce || key.kind == Broadcast)
	// Only AllReduces and Broadcasts of whole tensors are fused. A tensor with absent ranks gets
	// its own Bucket, because Bucket.Absent applies to the whole Bucket.
	if b := bs.find(key); fusible && b != nil && c.fits(b, u) {
		b.bytes += u.bytes
		b.mixedPriorities = b.mixedPriorities || u.priority != b.first.priority
		b.response.IDs = appendID(b.response.IDs, u.id)
		c.charge(u, u.bytes+tensorCost)
		return true
	}
	for u.next < u.parts {
		if (c.inflight >= c.credit() || len(bs.list) >= maxBuckets) && !c.force && key.kind != Barrier {
			c.creditSpent = true // the rest of u keeps its position in the queue
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

// newIDs returns memory with one ID. It allocates memory for many calls at once, as
// Worker.newBucket does.
func (c *Coordinator) newIDs(id uint32) []IDRange {
	if len(c.idPool) == 0 {
		c.idPool = make([]IDRange, 64)
	}
	s := c.idPool[:1:1]
	c.idPool = c.idPool[1:]
	s[0] = IDRange{id, 1}
	return s
}

// credit returns the bound of inflight. A small bound makes ranks idle while they wait for the next
// orders. So it is used only if an urgent tensor could overtake other tensors.
func (c *Coordinator) credit() int {
	if c.prioritized {
		return c.cfg.Credit
	}
	return max(c.cfg.Credit, c.cfg.UnprioritizedCredit)
}

// maxBuckets bounds the number of Buckets of one launch.
const maxBuckets = 1 << 16

// fits reports whether a tensor may join a Bucket. Tensors of different priorities share a Bucket
// only up to the size of a partition, so that urgent tensors do not wait for many others:
//
//	the Bucket and the tensor      bytes together at most
//	of one priority                Config.Fusion
//	of several                     the lower one of Config.Fusion and Config.Partition
func (c *Coordinator) fits(b *bucketBuilder, u *readyTensor) bool {
	limit := c.cfg.Fusion
	if b.mixedPriorities || u.priority != b.first.priority {
		limit = min(limit, c.cfg.Partition)
	}
	return b.bytes+u.bytes <= limit
}

// charge counts a launched part against the credit. After the last part, a transient ID may be
// reused.
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

// appendID adds an ID to a list of ranges.
func appendID(runs []IDRange, id uint32) []IDRange {
	if n := len(runs); n > 0 && runs[n-1].First+runs[n-1].Count == id {
		runs[n-1].Count++
		return runs
	}
	return append(runs, IDRange{id, 1})
}
