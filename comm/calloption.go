package comm

import (
	"github.com/tutti-go/tutti/collective"
	"github.com/tutti-go/tutti/tensor"
)

// A CallOption changes one call: From gives it a separate input, Counts unequal parts,
// Algorithm the algorithm that runs, Persistent makes it a request that can be started
// many times. It is a value, costs no allocation, and holds what it was made of until the
// call returns.
type CallOption struct {
	kind   callOptionKind
	dtype  tensor.DType // of src
	src    []byte
	counts []int
	name   string
}

// A callOptionKind tells which field of a CallOption counts.
type callOptionKind uint8

const (
	optionFrom callOptionKind = iota + 1
	optionCounts
	optionSendCounts
	optionAlgorithm
	optionPersistent
)

// String is the name of the option's function.
func (k callOptionKind) String() string {
	names := [...]string{"none", "From", "Counts", "SendCounts", "Algorithm", "Persistent"}
	return names[k]
}

// From makes a collective out of place: it reads src and writes buf.
//
//	comm.AllGather(ctx, c, all, comm.From(mine))
//
// Without From a collective works in place: it reads its input where buf holds it, as MPI does
// with MPI_IN_PLACE; the table of the collectives says where. src stays as it is. It has the
// element type of buf, and does not overlap buf, unless it is the very input that the call in
// place would read. The buffers belong to the library until the call returns, or its request
// is done.
func From[T Element](src []T) CallOption {
	return CallOption{kind: optionFrom, dtype: tensor.TypeOf[T](), src: tensor.Bytes(src)}
}

// Counts gives each rank i a part of counts[i] elements in place of equal parts: MPI's
// Allgatherv, Gatherv, Scatterv, Reduce_scatter and Alltoallv.
//
//	comm.Gather(ctx, c, all, 0, comm.From(mine), comm.Counts(counts))
//
// All ranks give it. AllGather and ReduceScatter need equal counts on all ranks. Gather and
// Scatter read those of the root only, and those of other ranks may be nil. In AllToAll they
// are what this rank receives from each. A count may be 0. The counts are the caller's again
// when the call returns, or when its request is done; a persistent request copies them.
func Counts(counts []int) CallOption { return CallOption{kind: optionCounts, counts: counts} }

// SendCounts says how many elements AllToAll sends to each rank, beside Counts, which says how
// many it receives. Without SendCounts it sends as many as it receives. What a rank sends
// another must be what that one receives: else both get fault.Mismatch.
func SendCounts(counts []int) CallOption { return CallOption{kind: optionSendCounts, counts: counts} }

// Algorithm runs the algorithm of that name, as Comm.Algorithm returns it, whatever the
// table would choose. It fixes the order of a reduction's steps for vectors of all sizes.
// An algorithm that cannot run here, or does not exist, is fault.Misuse. Ranks that name
// different ones get fault.Mismatch. Dup takes a list for all collectives of the new
// communicator, as WithAlgorithm does.
func Algorithm(name string) CallOption { return CallOption{kind: optionAlgorithm, name: name} }

// Persistent makes a non-blocking call a persistent one (MPI's Send_init, Allreduce_init): it
// returns an inactive Request, which Request.Start starts, any number of times.
//
//	r := comm.IAllReduce(c, grads, comm.Sum, comm.Persistent())
//	for range steps {
//	r.Start(ctx)
//	...
//	r.Wait(ctx)
//	}
//
// What can be decided beforehand is decided once. Wrong arguments are reported by Start.
func Persistent() CallOption { return CallOption{kind: optionPersistent} }

// vectorVerb is the verb with a count for each rank; 0 when there is none.
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

// apply adds the options of a call to its plan.
func (pl *plan) apply(c *Comm, opts []CallOption) error {
	for i := range opts {
		o := &opts[i]
		switch o.kind {
		case optionFrom:
			if o.dtype != pl.dtype {
				return c.misuse(pl.verb.String(), "element type of From: got %v, want that of buf, %v", o.dtype, pl.dtype)
			}
			pl.src, pl.inPlace = o.src, false
		case optionCounts:
			pl.counts, pl.counted = o.counts, true
		case optionSendCounts:
			pl.sends = o.counts
		case optionAlgorithm:
			pl.forced = o.name
		case optionPersistent:
			pl.persistent = true
		}
	}
	switch withCounts := vectorVerb(pl.verb); {
	case pl.sends != nil && (!pl.counted || pl.verb != collective.VerbAllToAll):
		return c.misuse(pl.verb.String(), "SendCounts: want it only in AllToAll, beside Counts")
	case pl.counted && withCounts == 0:
		return c.misuse(pl.verb.String(), "Counts: want it only in AllGather, Gather, Scatter, ReduceScatter and AllToAll")
	case pl.counted:
		pl.verb = withCounts
	}
	switch pl.verb {
	case collective.VerbBroadcast, collective.VerbBarrier:
		if !pl.inPlace {
			return c.misuse(pl.verb.String(), "From: want it only in collectives that have an input and an output")
		}
	case collective.VerbAllToAllV:
		if pl.sends == nil {
			pl.sends = pl.counts
		}
	}
	return nil
}

// bind completes a plan by the options of its call, and finds input and output within buf,
// which pl.dst holds, where the call is in place. It comes before prepare.
func (pl *plan) bind(c *Comm, opts []CallOption) error {
	if len(opts) > 0 {
		if err := pl.apply(c, opts); err != nil {
			return err
		}
	}
	atRoot := pl.root < 0 || pl.root == c.Rank()
	switch pl.verb {
	case collective.VerbAllGather, collective.VerbAllGatherV:
		if pl.inPlace {
			pl.src = pl.ownPart(c, pl.dst)
		}
	case collective.VerbGather, collective.VerbGatherV:
		switch {
		case pl.inPlace && atRoot:
			pl.src = pl.ownPart(c, pl.dst)
		case pl.inPlace:
			pl.dst, pl.src = nil, pl.dst
		}
	case collective.VerbScatter, collective.VerbScatterV, collective.VerbReduceScatter, collective.VerbReduceScatterV:
		if pl.inPlace && atRoot {
			pl.dst, pl.src = pl.ownPart(c, pl.dst), pl.dst
		}
	default:
		if pl.inPlace {
			pl.src = pl.dst
		}
	}
	pl.measure(c)
	return nil
}

// measure sets the elements that ranks must agree on (count) and the bytes by which the
// algorithm is chosen (bytes):
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
//	Barrier                   none                 0
//
// The last two rows have neither, because a rank does not know the counts of the others; all
// ranks must make the same choice.
func (pl *plan) measure(c *Comm) {
	es, n := pl.dtype.Size(), c.Size()
	switch pl.verb {
	case collective.VerbAllGather:
		pl.count, pl.bytes = len(pl.src)/es, len(pl.dst)
	case collective.VerbAllGatherV:
		pl.count, pl.bytes = len(pl.dst)/es, len(pl.dst)
	case collective.VerbGather:
		pl.count, pl.bytes = len(pl.src)/es, n*len(pl.src)
	case collective.VerbScatter:
		pl.count, pl.bytes = len(pl.dst)/es, n*len(pl.dst)
	case collective.VerbGatherV, collective.VerbScatterV, collective.VerbAllToAllV:
		pl.count, pl.bytes = -1, 0
	case collective.VerbAllReduce, collective.VerbScan, collective.VerbExScan:
		pl.bytes = len(pl.src) // its builder has set count: the most frequent calls spare a division
	case collective.VerbBarrier:
	default:
		pl.count, pl.bytes = len(pl.src)/es, len(pl.src)
	}
}

// ownPart returns this rank's part of a vector that has one for each rank: by counts, else,
// for ReduceScatter, by tensor.Chunk, else an equal one. It returns nil where the counts do
// not fit the vector, which checkBuffers reports: bind comes before prepare, so the counts are
// not checked yet.
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
