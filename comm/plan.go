package comm

import (
	"cmp"
	"context"
	"hash/fnv"
	"io"
	"math"

	"github.com/tutti-go/tutti/collective"
	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/p2p"
	"github.com/tutti-go/tutti/reduce"
	"github.com/tutti-go/tutti/tensor"
)

// A plan is one collective as the program called it. It goes through four steps. A
// builder in collectives.go sets the arguments, bind adds the options and finds the buffers,
// prepare checks the call and chooses the algorithm, and run carries the collective out.
type plan struct {
	verb        collective.Verb
	callName    string // the name of the exported call, such as "split", if not the verb's
	dtype       tensor.DType
	dst, src    []byte
	vectors     [][]byte // the vectors of a list; used instead of dst and src
	root        int      // -1 if the collective has no root
	counts      []int
	sends       []int
	counted     bool // the option Counts is given
	sendCounted bool // the option SendCounts is given
	inPlace     bool // the option From is not given
	persistent  bool // the option Persistent is given
	op          Op
	kernel      reduce.Kernel
	forced      string // the algorithm that the option Algorithm names; "" if the table chooses
	algo        collective.Algorithm
	segment     int // bytes of one segment of its messages
	// With noShared, other calls may run at the same time, so this call must not use the ranks'
	// shared memory.
	noShared   bool
	usesShared bool        // the call uses the ranks' shared memory
	cached     *cachedPlan // the plan's entry in the cache, or nil
}

// prepare checks the plan and completes it: it finds the operator's kernel and the algorithm, with
// the size of its segments, and decides whether the call uses shared memory. It sends nothing, so
// the communicator stays usable after an error.
//
// The algorithm is the one that the option Algorithm names, or else the choice of the table. It
// must be able to run here. An algorithm that needs shared memory runs only in blocking calls of
// ranks that share memory. An algorithm that reorders its input needs an operator that commutes.
func (pl *plan) prepare(c *Comm) error {
	name := pl.verb.String()
	if pl.root < -1 || pl.root >= c.Size() {
		return c.misuse(name, "root: got %d, want 0 to %d", rootGiven(pl.root), c.Size()-1)
	}
	if err := pl.checkBuffers(c); err != nil {
		return err
	}
	if err := pl.checkOverlap(c); err != nil {
		return err
	}
	order := reduce.Commutative
	if pl.reduces() {
		var err error
		if pl.kernel, err = pl.op.Kernel(pl.dtype); err != nil {
			return c.withOp(name, err)
		}
		if !pl.op.Commutative() {
			order = reduce.RankOrder
		}
	}
	// A call that may overlap other calls must not use the shared memory, whose slots hold one call
	// at a time.
	sharing := c.group.HasShared() && !pl.noShared
	_, bytes := pl.measure(c)
	chosen := c.chooser.Choose(pl.verb, bytes, order == reduce.Commutative, sharing)
	if pl.forced != "" && pl.forced != chosen.Algorithm.Name() {
		a, err := collective.Find(pl.verb, pl.forced)
		if err != nil {
			return c.withOp(name, err)
		}
		chosen = collective.Choice{Algorithm: a}
	}
	pl.algo, pl.segment = chosen.Algorithm, cmp.Or(chosen.Segment, c.rt.opt.params.Segment)
	pl.usesShared = pl.algo.NeedsShared()
	if pl.usesShared && !sharing {
		return c.misuse(name, "forced algorithm: got %v, which needs memory that the ranks share, want it only for blocking calls of ranks on one host over a transport that shares memory; force another algorithm, or none", pl.algo)
	}
	if order != reduce.Commutative && !pl.algo.SupportsOrderOn(order, c.group.Layout()) {
		return c.misuse(name, "operator: got %s, which does not commute, want one that commutes, because the forced algorithm %s folds out of rank order when the ranks are placed as %s; force another algorithm, or none", pl.op.Name(), pl.algo.Name(), c.Layout().String())
	}
	// A hierarchical algorithm uses the memory that the ranks of a host share, if any host has such
	// memory.
	if !pl.usesShared && !pl.noShared && c.group.HasHostShared() {
		pl.usesShared = pl.algo.Hierarchical()
	}
	return nil
}

// reduces reports whether the collective has an operator.
func (pl *plan) reduces() bool {
	switch pl.verb {
	case collective.VerbAllReduce, collective.VerbReduce, collective.VerbReduceScatter, collective.VerbReduceScatterV,
		collective.VerbScan, collective.VerbExScan:
		return true
	}
	return false
}

// checkBuffers compares the lengths of the buffers that this rank uses. Package collective relies
// on this check: it slices buffers without checking them again.
func (pl *plan) checkBuffers(c *Comm) error {
	es, n := pl.dtype.Size(), c.Size()
	atRoot := pl.root < 0 || pl.root == c.Rank()
	switch pl.verb {
	case collective.VerbReduce:
		if atRoot {
			return pl.checkLength(c, "buf", pl.dst, len(pl.src))
		}
	case collective.VerbAllReduce, collective.VerbScan, collective.VerbExScan:
		return pl.checkLength(c, "buf", pl.dst, len(pl.src))
	case collective.VerbAllGather, collective.VerbGather:
		if atRoot {
			return cmp.Or(pl.checkEqualParts(c, "buf", pl.dst), pl.checkLength(c, "buf", pl.dst, n*len(pl.src)))
		}
	case collective.VerbScatter:
		if atRoot {
			return cmp.Or(pl.checkEqualParts(c, pl.input(), pl.src), pl.checkLength(c, pl.input(), pl.src, n*len(pl.dst)))
		}
	case collective.VerbAllToAll:
		return cmp.Or(pl.checkEqualParts(c, pl.input(), pl.src), pl.checkLength(c, "buf", pl.dst, len(pl.src)))
	case collective.VerbReduceScatter:
		lo, hi := tensor.Chunk(len(pl.src)/es, n, c.Rank())
		return pl.checkLength(c, "buf", pl.dst, (hi-lo)*es)
	case collective.VerbAllGatherV, collective.VerbReduceScatterV, collective.VerbAllToAllV:
		return pl.checkCounts(c)
	case collective.VerbGatherV, collective.VerbScatterV:
		if atRoot {
			return pl.checkCounts(c)
		}
		return pl.checkCountsFit(c)
	}
	return nil
}

// input returns the name that errors give to the buffer that the collective reads. The caller knows
// the buffer as buf, or as the argument of From.
func (pl *plan) input() string {
	if pl.inPlace {
		return "buf"
	}
	return "the src of From"
}

// checkLength returns an error unless b has the wanted number of bytes. The error gives lengths in
// elements.
func (pl *plan) checkLength(c *Comm, name string, b []byte, want int) error {
	if len(b) == want {
		return nil
	}
	es := pl.dtype.Size()
	return c.misuse(pl.verb.String(), "%s: got %d elements, want %d", name, len(b)/es, want/es)
}

// checkEqualParts returns an error unless b divides into equal parts, one for each rank.
func (pl *plan) checkEqualParts(c *Comm, name string, b []byte) error {
	count := len(b) / pl.dtype.Size()
	if count%c.Size() == 0 {
		return nil
	}
	return c.misuse(pl.verb.String(), "%s: got %d elements, want a multiple of %d, a part for each rank; Counts allows unequal parts", name, count, c.Size())
}

// checkOverlap returns an error if the two buffers share memory in a way that would give a wrong
// result; see buffersOverlap.
func (pl *plan) checkOverlap(c *Comm) error {
	if pl.inPlace || !pl.buffersOverlap(c) {
		return nil
	}
	return c.overlap(pl.verb.String(), pl.dtype, "buf", pl.dst, pl.input(), pl.src, "leave From out to work in place")
}

// overlap returns the error of a call whose two buffers share memory.
func (c *Comm) overlap(op string, d tensor.DType, name string, b []byte, otherName string, other []byte, remedy string) error {
	return c.misuse(op, "buffers overlap: got %s of %d elements, %d bytes at %p, and %s of %d elements, %d bytes at %p, want separate buffers; %s",
		name, len(b)/d.Size(), len(b), b, otherName, len(other)/d.Size(), len(other), other, remedy)
}

// buffersOverlap reports whether the two buffers of a call with From share memory in a way that
// would give wrong results without an error. The src of From may be the input of the same call in
// place; see the table. The lengths of the buffers have been checked. A buffer that the rank does
// not use may overlap anything.
//
//	verb                               the input of a call in place
//	AllReduce, Reduce, Scan, ExScan    buf
//	AllToAll                           begins where buf begins
//	AllGather, Gather                  this rank's part of buf
//	Scatter, ReduceScatter             the vector of which buf is this rank's part
func (pl *plan) buffersOverlap(c *Comm) bool {
	if !tensor.Overlap(pl.dst, pl.src) {
		return false
	}
	atRoot := pl.root < 0 || pl.root == c.Rank()
	switch pl.verb {
	case collective.VerbAllGather, collective.VerbAllGatherV, collective.VerbGather, collective.VerbGatherV:
		return atRoot && !sameSlice(pl.ownPart(c, pl.dst), pl.src)
	case collective.VerbScatter, collective.VerbScatterV, collective.VerbReduceScatter, collective.VerbReduceScatterV:
		return atRoot && !sameSlice(pl.ownPart(c, pl.src), pl.dst)
	}
	return atRoot && &pl.dst[0] != &pl.src[0]
}

// sameSlice reports whether a and b are the same slice. b is not empty.
func sameSlice(a, b []byte) bool { return len(a) == len(b) && &a[0] == &b[0] }

// checkCounts compares counts per rank with the buffers that they describe. In AllToAll the counts
// that a rank gives for itself must be equal on both sides, because no message would reveal a
// difference.
func (pl *plan) checkCounts(c *Comm) error {
	switch pl.verb {
	case collective.VerbAllToAllV:
		if err := cmp.Or(pl.checkSum(c, pl.input(), pl.sends, pl.src), pl.checkSum(c, "buf", pl.counts, pl.dst)); err != nil {
			return err
		}
		if me := c.Rank(); pl.sends[me] != pl.counts[me] {
			return c.misuse(pl.verb.String(), "counts of this rank for itself: got %d elements to send and %d to receive, want equal counts", pl.sends[me], pl.counts[me])
		}
		return nil
	case collective.VerbReduceScatterV, collective.VerbScatterV:
		return cmp.Or(pl.checkSum(c, pl.input(), pl.counts, pl.src), pl.checkOwnCount(c, "buf", pl.dst))
	}
	return cmp.Or(pl.checkSum(c, "buf", pl.counts, pl.dst), pl.checkOwnCount(c, pl.input(), pl.src))
}

// checkSum returns an error unless there is one count for each rank and the counts add up to the
// number of elements in b.
func (pl *plan) checkSum(c *Comm, name string, counts []int, b []byte) error {
	if len(counts) != c.Size() {
		return c.misuse(pl.verb.String(), "counts for %s: got %d, want %d, one for each rank", name, len(counts), c.Size())
	}
	total, es := 0, pl.dtype.Size()
	for r, n := range counts {
		if left := len(b)/es - total; n < 0 || n > left { // the sum of counts may overflow
			return c.misuse(pl.verb.String(), "count for rank %d: got %d, want 0 to %d, the elements of %s that are left", r, n, left, name)
		}
		total += n
	}
	return pl.checkLength(c, name, b, total*es)
}

// checkCountsFit returns an error if a count is negative, or if the sum of the counts exceeds the
// address space. It is for ranks that do not use their counts. If all ranks pass the same wrong
// counts, the root refuses them, and without this check the other ranks would wait for the root.
func (pl *plan) checkCountsFit(c *Comm) error {
	left := math.MaxInt / pl.dtype.Size()
	for r, n := range pl.counts {
		if n < 0 || n > left {
			return c.misuse(pl.verb.String(), "count for rank %d: got %d, want 0 to %d", r, n, left)
		}
		left -= n
	}
	return nil
}

// checkOwnCount returns an error unless the length of b is this rank's count.
func (pl *plan) checkOwnCount(c *Comm, name string, b []byte) error {
	n := len(pl.counts)
	if n != c.Size() {
		return nil // checkSum has reported this error
	}
	return pl.checkLength(c, name, b, pl.counts[c.Rank()]*pl.dtype.Size())
}

// noSharedFlag is a bit of signature.callID. It marks a call of a hierarchical algorithm that uses
// messages within hosts instead of shared memory.
const noSharedFlag = 1 << 16

// describe sets all fields of sig to describe the call in the form that ranks compare. Ranks agree
// on a call if they agree on the name, the element type, the count, the root, the operator, the
// algorithm, the segment size and, where all ranks have them, the counts. If ranks may differ in a
// value, as in the counts of AllToAll, sig leaves it out. The messages of the algorithm are checked
// instead.
func (pl *plan) describe(c *Comm, sig *signature) {
	sig.callName, sig.algorithm = pl.verb.String(), pl.algo.Name()
	sig.dtype, sig.root = pl.dtype, c.jobRank(pl.root)
	sig.count, _ = pl.measure(c)
	sig.peer, sig.tag, sig.segment = noPeer, 0, pl.segment
	sig.callID = uint64(pl.verb)<<8 | uint64(pl.algo.Number())
	if pl.callName != "" {
		sig.callName = pl.callName
		sig.callID ^= hashText(pl.callName)
	}
	// The call uses messages within hosts, so it does not match a call that uses shared memory.
	if pl.noShared && pl.algo.Hierarchical() {
		sig.callID |= noSharedFlag
	}
	sig.operator, sig.operatorID, sig.lists = "", 0, len(pl.vectors)
	if pl.reduces() {
		sig.operator, sig.operatorID = pl.op.Name(), pl.op.ID()
	}
	switch pl.verb {
	case collective.VerbAllReduce:
		for _, v := range pl.vectors { // two lists with the same total length may still differ
			sig.operatorID = (sig.operatorID ^ uint64(len(v))) * 0x9e3779b97f4a7c15
		}
	case collective.VerbBarrier: // a barrier's element type means nothing
		sig.dtype = tensor.Invalid
	// The counts are equal on all ranks.
	case collective.VerbAllGatherV, collective.VerbReduceScatterV:
		for _, n := range pl.counts {
			sig.operatorID = (sig.operatorID ^ uint64(n)) * 0x9e3779b97f4a7c15
		}
	}
}

// record sets r to the call. If r already holds a call of the same cached plan, record writes
// nothing, so a program that repeats its calls rarely touches the memory of the history. On the
// fast path, record and the fingerprint take most of the time of the checks.
func (pl *plan) record(c *Comm, r *callRecord) {
	switch cp := pl.cached; {
	case cp == nil:
		pl.describe(c, &r.signature)
		r.fingerprint, r.planNumber = r.hash(), 0
	case r.planNumber != cp.number:
		r.signature, r.fingerprint, r.planNumber = cp.sig, cp.fingerprint, cp.number
	}
}

// hashText returns a hash of a text on which ranks must agree. Ranks compare the hashes.
func hashText(s string) uint64 {
	h := fnv.New64a()
	io.WriteString(h, s) // writing to a hash cannot fail
	return h.Sum64()
}

// dispatch calls the algorithm in a round. The arguments depend on the verb. Package collective
// finds the function that implements the algorithm.
func (pl *plan) dispatch(ctx context.Context, r *p2p.Round) error {
	es := pl.dtype.Size()
	switch pl.verb {
	// Sender and receiver each give a count, and the two counts may differ.
	case collective.VerbGatherV, collective.VerbScatterV, collective.VerbAllToAllV:
		r.MarkEnds()
	}
	switch pl.verb {
	case collective.VerbAllReduce:
		if pl.vectors != nil {
			return collective.AllReduceList(ctx, r, pl.algo, pl.vectors, pl.kernel)
		}
		return collective.AllReduce(ctx, r, pl.algo, pl.dst, pl.src, pl.kernel)
	case collective.VerbScan:
		return collective.Scan(ctx, r, pl.algo, pl.dst, pl.src, pl.kernel)
	case collective.VerbExScan:
		return collective.ExScan(ctx, r, pl.algo, pl.dst, pl.src, pl.kernel)
	case collective.VerbReduce:
		return collective.Reduce(ctx, r, pl.algo, pl.root, pl.dst, pl.src, pl.kernel)
	case collective.VerbBroadcast:
		return collective.Broadcast(ctx, r, pl.algo, pl.root, pl.dst)
	case collective.VerbAllGather:
		return collective.AllGather(ctx, r, pl.algo, pl.dst, pl.src)
	case collective.VerbAllGatherV:
		return collective.AllGatherV(ctx, r, pl.algo, pl.dst, pl.src, pl.counts, es)
	case collective.VerbGather:
		return collective.Gather(ctx, r, pl.algo, pl.root, pl.dst, pl.src)
	case collective.VerbGatherV:
		return collective.GatherV(ctx, r, pl.algo, pl.root, pl.dst, pl.src, pl.counts, es)
	case collective.VerbScatter:
		return collective.Scatter(ctx, r, pl.algo, pl.root, pl.dst, pl.src)
	case collective.VerbScatterV:
		return collective.ScatterV(ctx, r, pl.algo, pl.root, pl.dst, pl.src, pl.counts, es)
	case collective.VerbReduceScatter:
		return collective.ReduceScatter(ctx, r, pl.algo, pl.dst, pl.src, pl.kernel)
	case collective.VerbReduceScatterV:
		return collective.ReduceScatterV(ctx, r, pl.algo, pl.dst, pl.src, pl.counts, pl.kernel)
	case collective.VerbAllToAll:
		return collective.AllToAll(ctx, r, pl.algo, pl.dst, pl.src)
	case collective.VerbAllToAllV:
		return collective.AllToAllV(ctx, r, pl.algo, pl.dst, pl.src, pl.counts, pl.sends, es)
	}
	return collective.Barrier(ctx, r, pl.algo)
}

// run carries the plan out in its round. If a message is left after the algorithm, a rank has sent
// more than this rank expected, which is a mismatch.
func (pl *plan) run(ctx context.Context, c *Comm, r *p2p.Round) error {
	if err := pl.dispatch(ctx, r); err != nil {
		return err
	}
	if rank, ok := r.Unreceived(); ok {
		return &fault.Error{Kind: fault.Mismatch, Op: pl.verb.String(), Rank: c.rt.rank, Peers: []fault.Peer{{Rank: rank}}}
	}
	return nil
}

// execute carries out a blocking collective: it applies the options to the plan, runs the plan, and
// returns when this rank's part is done. The package comment lists the steps.
func (c *Comm) execute(ctx context.Context, pl *plan, opts []CallOption) error {
	if ctx == nil {
		return checkContext(cmp.Or(pl.callName, pl.verb.String()), ctx)
	}
	if err := pl.bind(c, opts); err != nil {
		return err
	}
	if pl.persistent {
		return c.misuse(pl.verb.String(), "options: got Persistent, want it only in non-blocking calls, such as IAllReduce")
	}
	if !pl.cacheable() {
		if err := pl.prepare(c); err != nil {
			return err
		}
	}
	cl := &c.blocking
	if err := c.begin(ctx, pl, cl); err != nil {
		return err
	}
	r := c.group.ReuseRound(c.round, cl.seq, cl.fingerprint, cl)
	c.round = r
	r.SetHistoryHash(cl.historyHash)
	r.SetSegment(pl.segment)
	var err error
	if pl.usesShared {
		err = pl.runShared(ctx, c, r)
	} else {
		err = pl.run(ctx, c, r)
	}
	r.Clear()
	return c.finish(cl, err)
}

// runShared does the same as run, for a call that uses shared memory. An operator that panics
// bypasses finish, so runShared itself then removes the call. Otherwise Close would wait for the
// call for ever.
func (pl *plan) runShared(ctx context.Context, c *Comm, r *p2p.Round) error {
	panics := true
	defer func() {
		if panics {
			c.unlist(&c.blocking)
		}
	}()
	err := pl.run(ctx, c, r)
	panics = false
	return err
}
