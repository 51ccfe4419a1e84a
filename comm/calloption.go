package comm

import (
	"github.com/tutti-go/tutti/collective"
	"github.com/tutti-go/tutti/tensor"
)

// A CallOption changes one call. From gives the call a separate input, Counts gives it unequal
// parts, Algorithm names the algorithm, and Persistent makes it a request that can be started many
// times. A CallOption is a value, so it costs no allocation. It refers to the caller's slices until
// the call returns.
//
// A CallOption has four words, because the compiler keeps a struct of at most four words in
// registers. With nine words, each option of a call took 13 ns longer.
type CallOption struct {
	kind  callOptionKind
	dtype tensor.DType // the element type of From
	data  []byte       // the memory of the option's slice or text
}

// A callOptionKind says which option a CallOption is.
type callOptionKind uint8

const (
	optionFrom callOptionKind = iota + 1
	optionCounts
	optionSendCounts
	optionAlgorithm
	optionPersistent
)

// String returns the name of the function that makes the option.
func (k callOptionKind) String() string {
	names := [...]string{"none", "From", "Counts", "SendCounts", "Algorithm", "Persistent"}
	return names[k]
}

// From makes a collective out of place: it reads src and writes buf.
//
//	comm.AllGather(ctx, c, all, comm.From(mine))
//
// Without From a collective works in place, as MPI does with MPI_IN_PLACE: it reads its input from
// buf. The table in collectives.go lists which part of buf holds the input. The collective does not
// change src. The slice src must have the element type of buf. It must not overlap buf, with one
// exception: it may be exactly the part of buf that the call in place would read. Any other overlap
// is fault.Misuse. The buffers belong to the library until the call returns or its request is done.
func From[T Element](src []T) CallOption {
	return CallOption{kind: optionFrom, dtype: tensor.TypeOf[T](), data: tensor.Bytes(src)}
}

// Counts gives each rank i a part of counts[i] elements. Without it, parts are equal; in
// ReduceScatter, they may differ by one element. It makes a call the equivalent of MPI's
// Allgatherv, Gatherv, Scatterv, Reduce_scatter or Alltoallv.
//
//	comm.Gather(ctx, c, all, 0, comm.From(mine), comm.Counts(counts))
//
// All ranks must give the option. In AllGather and ReduceScatter, all ranks must pass the same
// counts. Gather and Scatter use only the root's counts, and other ranks may pass nil. In AllToAll,
// counts[i] is the number of elements that this rank receives from rank i. A count may be 0.
// Negative counts, and counts whose sum exceeds the address space, are fault.Misuse on every rank
// that passes them. The caller must not change the slice until the call returns or its request is
// done. A persistent request copies the slice.
func Counts(counts []int) CallOption {
	return CallOption{kind: optionCounts, data: tensor.Bytes(counts)}
}

// SendCounts sets how many elements AllToAll sends to each rank. It is used together with Counts,
// which sets how many elements AllToAll receives. Without SendCounts, AllToAll sends each rank as
// many elements as it receives from that rank. If two ranks disagree on the count of a message
// between them, both get fault.Mismatch.
func SendCounts(counts []int) CallOption {
	return CallOption{kind: optionSendCounts, data: tensor.Bytes(counts)}
}

// Algorithm forces the algorithm of the given name in place of the table's choice. Comm.Explain
// lists the names. A forced algorithm fixes the order of a reduction's steps for vectors of all
// sizes. An algorithm that does not exist or cannot run here gives fault.Misuse. Ranks that name
// different algorithms get fault.Mismatch. In Dup the parameter name is a list for all collectives
// of the new communicator, in the form of WithAlgorithm.
func Algorithm(name string) CallOption {
	return CallOption{kind: optionAlgorithm, data: tensor.TextBytes(name)}
}

// Persistent turns a non-blocking call into a persistent one (MPI's Send_init, Allreduce_init). The
// call returns an inactive Request. Request.Start starts it, any number of times.
//
//	r := comm.IAllReduce(c, grads, comm.Sum, comm.Persistent())
//	for range steps {
//		r.Start(ctx)
//		...
//		r.Wait(ctx)
//	}
//
// The call checks its arguments and chooses its algorithm once, when it makes the request. Start
// reports wrong arguments.
func Persistent() CallOption { return CallOption{kind: optionPersistent} }

// vectorVerb returns the form of v that has a count for each rank, or 0 if v has no such form.
func vectorVerb(v collective.Verb) collective.Verb {
	switch v {
	case collective.VerbAllGather:
		return collective.VerbAllGatherV
	case collective.VerbGather:
		return collective.VerbGatherV
	case collective.VerbScatter:
		return collective.VerbScatterV
	case collective.VerbReduceScatter:
		return collective.VerbReduceScatterV
	case collective.VerbAllToAll:
		return collective.VerbAllToAllV
	}
	return 0
}

// apply adds the options of a call to its plan. Without From, it then calls findParts to find the
// input and the output.
func (pl *plan) apply(c *Comm, opts []CallOption) error {
	for i := range opts {
		o := &opts[i]
		switch o.kind {
		case optionFrom:
			if o.dtype != pl.dtype {
				return c.misuse(pl.verb.String(), "element type of From: got %v, want that of buf, %v", o.dtype, pl.dtype)
			}
			pl.src, pl.inPlace = o.data, false
		case optionCounts:
			pl.counts, pl.counted = tensor.Elements[int](o.data), true
		case optionSendCounts:
			pl.sends, pl.sendCounted = tensor.Elements[int](o.data), true
		case optionAlgorithm:
			pl.forced = tensor.Text(o.data)
		case optionPersistent:
			pl.persistent = true
		}
	}
	if pl.counted || pl.sendCounted {
		switch withCounts := vectorVerb(pl.verb); {
		case pl.sendCounted && (!pl.counted || pl.verb != collective.VerbAllToAll):
			return c.misuse(pl.verb.String(), "options: got SendCounts, want it only in AllToAll and together with Counts")
		case withCounts == 0:
			return c.misuse(pl.verb.String(), "options: got Counts, want it only in AllGather, Gather, Scatter, ReduceScatter and AllToAll")
		default:
			pl.verb = withCounts
		}
	}
	switch pl.verb {
	case collective.VerbBroadcast, collective.VerbBarrier:
		if !pl.inPlace {
			return c.misuse(pl.verb.String(), "options: got From, want it only in collectives that have an input and an output")
		}
	case collective.VerbAllToAllV:
		if !pl.sendCounted {
			pl.sends = pl.counts
		}
	}
	if pl.inPlace {
		pl.findParts(c)
	}
	return nil
}

// verbsWithParts is the set of the verbs for which findParts changes something.
const verbsWithParts = 1<<collective.VerbAllGather | 1<<collective.VerbGather | 1<<collective.VerbScatter | 1<<collective.VerbReduceScatter

// bind completes the plan with the options of the call. It runs before prepare. The compiler
// inlines bind, so calls without options and parts, which are the most frequent, do not call apply.
func (pl *plan) bind(c *Comm, opts []CallOption) error {
	if len(opts) > 0 || 1<<pl.verb&verbsWithParts != 0 {
		return pl.apply(c, opts)
	}
	return nil
}

// findParts sets the input and the output of a call in place to the parts of buf that the verb
// reads and writes. The builder has set both to all of buf, which is right for verbs without parts.
func (pl *plan) findParts(c *Comm) {
	atRoot := pl.root < 0 || pl.root == c.Rank()
	switch pl.verb {
	case collective.VerbAllGather, collective.VerbAllGatherV:
		pl.src = pl.ownPart(c, pl.dst)
	case collective.VerbGather, collective.VerbGatherV:
		if atRoot {
			pl.src = pl.ownPart(c, pl.dst)
		} else {
			pl.dst = nil
		}
	case collective.VerbScatter, collective.VerbScatterV, collective.VerbReduceScatter, collective.VerbReduceScatterV:
		if atRoot {
			pl.dst = pl.ownPart(c, pl.dst)
		} else {
			pl.src = nil
		}
	}
}

// measure returns count, the number of elements that ranks must agree on, and bytes, the size by
// which the table chooses the algorithm:
//
//	verb                      count                bytes
//	AllReduce, Reduce, Scan,  of the input         of the input
//	ExScan, ReduceScatter,
//	AllToAll, Broadcast
//	AllGather                 of one part          of the whole vector
//	AllGather with Counts     of the whole vector  of the whole vector
//	Gather, Scatter           of one part          of all parts together
//	Gather, Scatter and       none (-1)            0
//	AllToAll with Counts
//	Barrier                   0                    0
//
// Gather, Scatter and AllToAll with Counts have neither, because a rank does not know the counts of
// the others, and all ranks must choose the same algorithm.
func (pl *plan) measure(c *Comm) (count, bytes int) {
	es, n := pl.dtype.Size(), c.Size()
	switch pl.verb {
	case collective.VerbAllGather:
		return len(pl.src) / es, len(pl.dst)
	case collective.VerbAllGatherV:
		return len(pl.dst) / es, len(pl.dst)
	case collective.VerbGather:
		return len(pl.src) / es, n * len(pl.src)
	case collective.VerbScatter:
		return len(pl.dst) / es, n * len(pl.dst)
	case collective.VerbGatherV, collective.VerbScatterV, collective.VerbAllToAllV:
		return -1, 0
	}
	bytes = len(pl.src)
	for _, v := range pl.vectors {
		bytes += len(v)
	}
	return bytes / es, bytes
}

// ownPart returns this rank's part of b, a vector with a part for each rank. Parts have the lengths
// in Counts, if the call has that option. Otherwise they have the lengths of tensor.Chunk for
// ReduceScatter, and equal lengths for other collectives. ownPart returns nil if the counts do not
// fit the vector; checkBuffers reports that error later.
func (pl *plan) ownPart(c *Comm, b []byte) []byte {
	es, n, rank := pl.dtype.Size(), c.Size(), c.Rank()
	var lo, hi int
	switch {
	case pl.counted:
		if len(pl.counts) != n {
			return nil
		}
		for _, count := range pl.counts[:rank] {
			lo += count
		}
		hi = lo + pl.counts[rank]
	case pl.verb == collective.VerbReduceScatter:
		lo, hi = tensor.Chunk(len(b)/es, n, rank)
	default:
		part := len(b) / es / n
		lo, hi = rank*part, (rank+1)*part
	}
	if lo < 0 || hi < lo || hi > len(b)/es {
		return nil
	}
	return b[lo*es : hi*es]
}
