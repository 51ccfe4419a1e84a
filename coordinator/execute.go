package coordinator

import (
	"cmp"
	"context"
	"slices"
	"sync"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/coordinator/negotiate"
	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/tensor"
)

// An executor executes the jobs that the Coordinator has ordered, one after the other. It has its
// own goroutine, so negotiation continues while a job runs. All ranks have the same jobs in the
// same order, so the collectives of a job need no further agreement.
//
//	state      finishing  abandoned  next does
//	running    false      false      waits for a job; polls for the waiters meanwhile
//	finishing  true       false      executes what is queued, then exits
//	abandoned  true       true       exits; the communicators are closed, so a collective that
//	                                 is running fails
//
// The first error ends the executor, and the coordinator on all ranks.
type executor struct {
	co     *Coordinator
	wake   chan struct{}
	exited chan struct{} // closed when loop has returned

	mu          sync.Mutex // guards the next five fields
	queue       []job
	comms       []*comm.Comm // the communicators of process sets
	finishing   bool
	abandoned   bool
	transferErr error // the error of the first transfer that has failed

	transfers sync.WaitGroup // the transfers of PushPulls in flight

	// loop owns the remaining fields. Other goroutines read err only after exited is closed.
	sets map[uint32]*setComm
	// scratch is memory that is reused for each Bucket: the fusion buffer, and a second buffer for
	// operations that need a separate destination.
	scratch [2][]uint64
	counts  []int
	// These fields describe the Bucket that is being executed. items are its tensors. packedItems
	// are the items that are packed. list has the vectors that are reduced as a list.
	items       []item
	packedItems []item
	list        [][]byte
	// absent holds the ranks that contribute nothing to the Bucket.
	absent []int
	// times holds the times of the Bucket, for the timeline.
	times bucketTimes
	class uint8 // the class of algorithms, an index of classes()
	// tuned holds the settings that apply from the next Bucket on, until publishSettings publishes
	// them. It is nil if they have not changed.
	tuned *negotiate.Tunables
	err   error
}

// A job is one output of the Worker. Exactly one of bucket, set, joined and tuned is set.
type job struct {
	bucket     *negotiate.Bucket
	set        *negotiate.SetChanged
	joined     *negotiate.JoinDone
	tuned      *negotiate.Tunables
	negotiated int64 // when the order to execute the Bucket came, for the timeline
}

// A setComm is the communicator of a process set and the algorithms of its allreduces.
type setComm struct {
	c     *comm.Comm
	ranks []int // numbered as in the coordinator's communicator
	// foldAlgorithm names the allreduce algorithm in whose order the tensors of a Bucket are
	// folded. "" means that foldByReduceScatter is used; see algorithmOf.
	foldAlgorithm   string
	vectorAlgorithm string // the algorithm for one contiguous vector; see algorithmOf
}

// newSetComm returns the setComm of a communicator. The parameter c is nil on ranks outside the
// set.
func newSetComm(c *comm.Comm, ranks []int) *setComm {
	s := &setComm{c: c, ranks: ranks}
	if c != nil {
		s.foldAlgorithm, s.vectorAlgorithm = algorithmOf(c)
	}
	return s
}

// init initializes an executor before loop starts.
func (x *executor) init(co *Coordinator) {
	x.co, x.wake, x.exited = co, make(chan struct{}, 1), make(chan struct{})
	x.sets = map[uint32]*setComm{negotiate.World: newSetComm(co.data, ranks(co.size))}
}

// add queues a job. The Coordinator's credit bounds the queue; see WithCredit.
func (x *executor) add(j job) {
	x.mu.Lock()
	x.queue = append(x.queue, j)
	x.co.progress.set(executing)
	x.mu.Unlock()
	x.signal()
}

// signal wakes loop if it waits. The channel has room for one signal. One is enough, because loop
// checks all of its state after each signal.
func (x *executor) signal() {
	select {
	case x.wake <- struct{}{}:
	default:
	}
}

// abandon makes loop return soon. It closes the communicators, so that a running collective fails.
func (x *executor) abandon() {
	x.mu.Lock()
	x.finishing, x.abandoned = true, true
	x.co.progress.set(executing) // ends the polling of loop
	x.mu.Unlock()
	x.co.data.Close(context.Background())
	x.closeSets()
	x.signal()
}

// finish waits for the jobs in the queue and, unless the executor was abandoned, for all transfers.
// It returns the error that ended the executor.
func (x *executor) finish() error {
	x.mu.Lock()
	x.finishing = true
	x.co.progress.set(executing) // ends the polling of loop
	x.mu.Unlock()
	x.signal()
	<-x.exited
	x.mu.Lock()
	abandoned := x.abandoned
	x.mu.Unlock()
	if abandoned {
		return x.err
	}
	x.transfers.Wait()
	return cmp.Or(x.err, x.transferErr)
}

// next returns the next job. The result ok is false when no further job will come. While next waits
// for a job, it polls for goroutines of the program that also wait.
func (x *executor) next(ctx context.Context) (j job, ok bool) {
	for {
		x.mu.Lock()
		if x.abandoned || x.finishing && len(x.queue) == 0 {
			x.mu.Unlock()
			return job{}, false
		}
		if len(x.queue) > 0 {
			j = x.queue[0]
			x.queue = slices.Delete(x.queue, 0, 1)
			x.mu.Unlock()
			return j, true
		}
		// mu is held since the check of the queue. So add, which locks mu, too, cannot set
		// executing between the check and this clear.
		x.co.progress.clear(executing)
		x.mu.Unlock()
		if x.co.progress.waiters() > 0 {
			x.co.poll(ctx, nil)
		}
		if !x.co.progress.has(executing) {
			<-x.wake
		}
	}
}

// loop executes jobs until no more jobs come or a job fails.
func (x *executor) loop() {
	defer close(x.exited)
	ctx := context.Background() // abandon interrupts blocked calls
	for {
		j, ok := x.next(ctx)
		if !ok {
			return
		}
		if err := x.execute(ctx, j); err != nil {
			x.err = err
			x.co.post(event{err: err})
			x.co.processEvents()
			return
		}
	}
}

// execute executes one job. A transfer is only begun, and ends the Bucket when it is done.
func (x *executor) execute(ctx context.Context, j job) error {
	switch {
	case j.tuned != nil:
		x.setClass(j.tuned.Class)
		x.tuned = j.tuned
		return nil
	case j.set != nil:
		return x.changeSet(ctx, j.set)
	case j.joined != nil:
		if h := x.co.lookup(j.joined.Submission); h != nil {
			h.last = x.co.worldRank(j.joined.Last)
		}
		x.co.complete(j.joined.Submission, nil)
		return nil
	}
	b := j.bucket
	transfers := false
	if !b.Outside {
		x.times = bucketTimes{negotiated: j.negotiated, started: x.co.timestamp()}
		transfers = b.Entries[0].Spec.Operation == negotiate.PushPull
		if err := x.run(ctx, b); err != nil {
			return err
		}
	}
	if x.tuned != nil {
		x.co.publishSettings(*x.tuned)
		x.tuned = nil
	}
	if !transfers {
		x.finished(b)
	}
	return nil
}

// finished ends a Bucket. The steps must happen in this order:
//
//	1  the Worker learns that the Bucket is finished, and accepts its names again
//	2  the handles are done, and the program may submit the names at once
//	3  the Worker gets the memory of the Bucket back, which step 2 has read
func (x *executor) finished(b *negotiate.Bucket) {
	x.co.post(event{in: negotiate.Finished{Bucket: b}})
	if b.Part+1 == b.Parts {
		x.co.completeAll(b.Entries)
	}
	// From here on, nothing reads the entries.
	x.co.post(event{in: negotiate.Released{Bucket: b}})
	x.co.processEvents()
}

// run executes a Bucket on a rank that is a member of the Bucket's process set.
func (x *executor) run(ctx context.Context, b *negotiate.Bucket) error {
	defer x.clearItems()
	t := b.Entries[0].Spec
	if t.Operation == negotiate.PushPull {
		return x.transfer(b, x.times)
	}
	s := x.sets[t.Set]
	if s == nil {
		return fault.New(fault.Misuse, t.Call(), x.co.rank, "process set %d has no communicator on this rank", t.Set)
	}
	items, err := x.lookup(b)
	if err != nil {
		return err
	}
	x.absent = b.Absent
	contributors := len(s.ranks)
	for _, r := range s.ranks {
		if slices.Contains(b.Absent, r) {
			contributors--
		}
	}
	if err := x.runOperation(ctx, s, items, contributors); err != nil {
		return err
	}
	x.record(b, items, x.times)
	return nil
}

// clearItems drops the references to the handles of a Bucket, because the handles may have large
// buffers.
func (x *executor) clearItems() {
	clear(x.items)
	clear(x.packedItems)
}

// lookup returns items with the handles of a Bucket's tensors.
func (x *executor) lookup(b *negotiate.Bucket) ([]item, error) {
	x.items = slices.Grow(x.items[:0], len(b.Entries))[:len(b.Entries)]
	x.co.mu.Lock()
	defer x.co.mu.Unlock()
	for i := range b.Entries {
		it := &x.items[i]
		it.BucketEntry, it.h = b.Entries[i], x.co.handles.at(b.Entries[i].Submission)
		it.lo, it.hi = tensor.Chunk(it.Spec.Elements(), b.Parts, b.Part)
		if it.h == nil && it.Submission != 0 {
			return nil, fault.New(fault.Misuse, it.Spec.Call(), x.co.rank, "submission %d is not in flight on this rank", it.Submission)
		}
	}
	return x.items, nil
}

// runOperation calls the collective of the Bucket's operation:
//
//	operation       tensors of a Bucket  how
//	AllReduce       one or more          see allReduce
//	Broadcast       one or more          where it is if alone, else packed
//	ReduceScatter,  one                  where it is; the negotiation has fixed the row counts
//	AllGather
//	AllToAll        one                  where it is, after an exchange of the row counts
//	Barrier         one                  nothing: it is ordered once all ranks have submitted it
//
// A PushPull is no collective; see transfer.
func (x *executor) runOperation(ctx context.Context, s *setComm, items []item, contributors int) error {
	switch items[0].Spec.Operation {
	case negotiate.AllReduce:
		return x.allReduce(ctx, s, items, contributors)
	case negotiate.ReduceScatter:
		return x.reduceScatter(ctx, s, items[0], contributors)
	case negotiate.Broadcast:
		return x.broadcast(ctx, s, items)
	case negotiate.AllGather:
		return x.allGather(ctx, s, items[0])
	case negotiate.AllToAll:
		return x.allToAll(ctx, s, items[0])
	}
	return nil
}

// An item is one tensor of a Bucket and its buffers. The field h is nil if this rank is absent.
type item struct {
	negotiate.BucketEntry
	h      *Handle
	lo, hi int // the range of its elements in this Bucket: the whole tensor, or one part
}

// bytes returns the size of an item's elements in its Bucket.
func (it *item) bytes() int { return (it.hi - it.lo) * it.Spec.DType.Size() }

// scratchBuffer returns buffer 0 or 1 of the executor, aligned for every element type. The buffer
// is valid until the next call with the same number.
func (x *executor) scratchBuffer(which, bytes int) []byte {
	words := (bytes + 7) / 8
	if cap(x.scratch[which]) < words {
		x.scratch[which] = make([]uint64, words)
	}
	return tensor.Bytes(x.scratch[which][:words])[:bytes:bytes]
}

// perRank returns n zeros. The slice is valid until the next call.
func (x *executor) perRank(n int) []int {
	if cap(x.counts) < n {
		x.counts = make([]int, n)
	}
	x.counts = x.counts[:n]
	clear(x.counts)
	return x.counts
}

// broadcast broadcasts the tensors of a Bucket. It moves a single tensor in the tensor's own
// memory, unless this rank is absent. It packs several tensors first.
func (x *executor) broadcast(ctx context.Context, s *setComm, items []item) error {
	root := items[0].Spec.Root
	if len(items) == 1 && items[0].h != nil {
		es := items[0].Spec.DType.Size()
		return comm.Broadcast(ctx, s.c, items[0].h.dst[items[0].lo*es:items[0].hi*es], root)
	}
	total := 0
	for i := range items {
		total += items[i].bytes()
	}
	buf := x.scratchBuffer(0, total)
	mine := s.ranks[root] == x.co.rank
	at := 0
	for i := range items {
		if mine && items[i].h != nil {
			at += copy(buf[at:], items[i].h.src)
		}
	}
	x.times.packed = x.co.timestamp()
	if err := comm.Broadcast(ctx, s.c, buf, root); err != nil {
		return err
	}
	x.times.transferred = x.co.timestamp()
	at = 0
	for i := range items {
		if !mine && items[i].h != nil {
			at += copy(items[i].h.dst, buf[at:])
		}
	}
	return nil
}

// allGather gathers rows. The Bucket has every rank's row count, so the ranks need not exchange
// them.
func (x *executor) allGather(ctx context.Context, s *setComm, it item) error {
	row := rowSize(it.Spec)
	counts := x.perRank(len(s.ranks))
	total := 0
	for i, n := range it.Rows {
		counts[i] = n * row
		total += counts[i]
	}
	if it.h == nil {
		return comm.AllGather(ctx, s.c, x.scratchBuffer(0, total), comm.From([]byte(nil)), comm.Counts(counts))
	}
	return comm.AllGather(ctx, s.c, it.h.result(total, slices.Clone(it.Rows)), comm.From(it.h.src), comm.Counts(counts))
}

// allToAll first exchanges the row counts. Unlike the row counts of an AllGather, they are not part
// of the negotiation.
func (x *executor) allToAll(ctx context.Context, s *setComm, it item) error {
	n, row := len(s.ranks), rowSize(it.Spec)
	sends, recvs := make([]int, n), make([]int, n)
	var src []byte
	if it.h != nil {
		copy(sends, it.h.splits)
		src = it.h.src
	}
	if err := comm.AllToAll(ctx, s.c, recvs, comm.From(sends)); err != nil {
		return err
	}
	rows := slices.Clone(recvs)
	total := 0
	for i := range n {
		sends[i] *= row
		recvs[i] *= row
		total += recvs[i]
	}
	if it.h == nil {
		return comm.AllToAll(ctx, s.c, x.scratchBuffer(0, total), comm.From(src), comm.Counts(recvs), comm.SendCounts(sends))
	}
	return comm.AllToAll(ctx, s.c, it.h.result(total, rows), comm.From(src), comm.Counts(recvs), comm.SendCounts(sends))
}
