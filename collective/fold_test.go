package collective

import (
	"bytes"
	"context"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/tutti-go/tutti/internal/test/teamtest"
	"github.com/tutti-go/tutti/p2p"
	"github.com/tutti-go/tutti/reduce"
	"github.com/tutti-go/tutti/tensor"
)

// A fold is an expression that describes the order in which shares are folded. It is either the
// share of one rank, or op(earlier, later) of two folds.
type fold struct {
	rank           int
	earlier, later *fold
}

// serial returns the fold of a loop over the given ranks: op(op(first, second), third), and so on.
func serial(ranks ...int) *fold {
	f := &fold{rank: ranks[0]}
	for _, r := range ranks[1:] {
		f = &fold{earlier: f, later: &fold{rank: r}}
	}
	return f
}

// fromLast returns the fold of ranks lo to hi that begins at the last rank: op(lo, op(lo+1, …)).
func fromLast(lo, hi int) *fold {
	f := &fold{rank: hi}
	for r := hi - 1; r >= lo; r-- {
		f = &fold{earlier: &fold{rank: r}, later: f}
	}
	return f
}

// upTo lists n ranks in order. It begins with the given rank and wraps around.
func upTo(n, first int) []int {
	ranks := make([]int, n)
	for i := range ranks {
		ranks[i] = (first + i) % n
	}
	return ranks
}

// around returns the order in which pairwise algorithms fold chunk c.
func around(n, c int) *fold {
	if c == n-1 {
		return fromLast(0, c)
	}
	return &fold{earlier: fromLast(0, c), later: fromLast(c+1, n-1)}
}

// upTree returns the order in which a k-nomial tree with the given radix folds the subtree of a
// node. The subtree has at most width nodes.
func upTree(n, root, node, width, radix int) *fold {
	f := &fold{rank: (node + root) % n}
	for d := 1; d < width; d *= radix {
		for child := node + d; child < min(n, node+radix*d); child += d {
			f = &fold{earlier: f, later: upTree(n, root, child, d, radix)}
		}
	}
	return f
}

// lastOf returns the order in which recursive doubling folds a run of ranks that ends at rank upTo.
// The length of the run is a power of two. If there are fewer ranks up to upTo, the run begins at
// rank 0.
func lastOf(ranks, upTo int) *fold {
	if ranks == 1 {
		return &fold{rank: upTo}
	}
	half := ranks / 2
	if upTo < half {
		return lastOf(half, upTo)
	}
	return &fold{earlier: lastOf(half, upTo-half), later: lastOf(half, upTo)}
}

// lastBefore is like lastOf, without the given rank itself. It returns nil if no rank is left.
func lastBefore(ranks, rank int) *fold {
	if ranks == 1 || rank == 0 {
		return nil
	}
	half := ranks / 2
	later := lastBefore(half, rank)
	switch {
	case rank < half:
		return later
	case later == nil:
		return lastOf(half, rank-half)
	}
	return &fold{earlier: lastOf(half, rank-half), later: later}
}

// documentedScan returns the order that the header of a scan documents for a rank, or nil if there
// is nothing to fold.
func documentedScan(t testing.TB, a Algorithm, n, rank int) *fold {
	before := a.Verb() == VerbExScan
	width := 1 << bits.Len(uint(n-1))
	switch {
	case before && rank == 0:
		return nil
	case a.Name() == "recursive_doubling" && before:
		return lastBefore(width, rank)
	case a.Name() == "recursive_doubling":
		return lastOf(width, rank)
	case a.Name() != "linear" && a.Name() != "chain" && a.Name() != shared:
		t.Fatalf("no order is known of %v", a)
	case before:
		return serial(upTo(rank, 0)...)
	}
	return serial(upTo(rank+1, 0)...)
}

// isScan reports whether the algorithm's results differ from rank to rank.
func (a Algorithm) isScan() bool { return a.Verb() == VerbScan || a.Verb() == VerbExScan }

// doubled returns the order of recursive doubling: extra ranks are folded with their neighbours
// first, and then the halves.
func doubled(n int) *fold {
	power := 1 << (bits.Len(uint(n)) - 1)
	var blocks []*fold
	for r := 0; r < n; r++ {
		f := &fold{rank: r}
		if r < 2*(n-power) {
			r++
			f = &fold{earlier: f, later: &fold{rank: r}}
		}
		blocks = append(blocks, f)
	}
	for len(blocks) > 1 {
		var halves []*fold
		for i := 0; i < len(blocks); i += 2 {
			halves = append(halves, &fold{earlier: blocks[i], later: blocks[i+1]})
		}
		blocks = halves
	}
	return blocks[0]
}

// documented returns the order that the algorithm's header documents for a chunk.
func documented(t testing.TB, a Algorithm, n, root, chunk int) *fold {
	switch a.Name() {
	case "linear", "allgather_reduce", shared, hierarchical: // on one host
		return serial(upTo(n, 0)...)
	case hierarchicalSplit: // on one host, where each rank folds one part
		return serial(upTo(n, 0)...)
	case "ring", "segmented_ring":
		return serial(upTo(n, (chunk+1)%n)...)
	case "pairwise":
		return around(n, chunk)
	case "recursive_doubling", "rabenseifner", "recursive_halving":
		return doubled(n)
	case "binomial":
		return upTree(n, root, 0, n, 2)
	case "knomial4":
		return upTree(n, root, 0, n, 4)
	case "reduce_broadcast":
		return upTree(n, 0, 0, n, 2)
	}
	t.Fatalf("no order is known of %v", a)
	return nil
}

// of computes the fold.
func (f *fold) of(k reduce.Kernel, share func(rank int) []byte) []byte {
	if f.earlier == nil {
		return bytes.Clone(share(f.rank))
	}
	earlier, later := f.earlier.of(k, share), f.later.of(k, share)
	k.Fold(earlier, earlier, later)
	return earlier
}

// reducing calls a function for each algorithm that folds.
func reducing(do func(a Algorithm)) {
	everyAlgorithm(func(a Algorithm) {
		if a.entry().order != 0 {
			do(a)
		}
	})
}

// A folding is a test case: a reduction of arbitrary elements. The result must have the bits of the
// documented order.
type folding struct {
	a      Algorithm
	k      reduce.Kernel
	root   int
	inputs [][]byte // by rank
}

// run makes the reduction, and compares every rank's result with the expected one, bit for bit.
func (x folding) run(t testing.TB, tm *teamtest.Team) {
	t.Helper()
	n, size := len(x.inputs), x.k.DType().Size()
	whole := cutEvenly(x.inputs[0], n, size)
	if x.a.isScan() {
		x.scan(t, tm)
		return
	}
	var want []byte
	for c := range n {
		f := documented(t, x.a, n, x.root, c)
		part := f.of(x.k, func(rank int) []byte {
			share := whole.withBuffer(x.inputs[rank])
			return share.of(c)
		})
		x.k.Finish(part, n)
		want = append(want, part...)
	}
	tm.Run(t, func(ctx context.Context, r *p2p.Round) error {
		got, expected, err := x.call(ctx, r, whole.withBuffer(want))
		if err != nil {
			return err
		}
		if got, expected := value(x.k.DType(), got), value(x.k.DType(), expected); !bytes.Equal(got, expected) {
			return fmt.Errorf("%v, %s of %v on %d ranks, root %d: got %x, want %x", x.a, x.k.Op().Name(), x.k.DType(), n, x.root, got, expected)
		}
		return nil
	})
}

// scan is like run, for scans, where each rank has a different result.
func (x folding) scan(t testing.TB, tm *teamtest.Team) {
	t.Helper()
	n := len(x.inputs)
	want := slices.Clone(x.inputs)
	for rank := range want {
		if f := documentedScan(t, x.a, n, rank); f != nil {
			want[rank] = f.of(x.k, func(rank int) []byte { return x.inputs[rank] })
			x.k.Finish(want[rank], f.shares())
		}
	}
	tm.Run(t, func(ctx context.Context, r *p2p.Round) error {
		got := aligned8(x.inputs[r.Rank()])
		call := Scan
		if x.a.Verb() == VerbExScan {
			call = ExScan
		}
		if err := call(ctx, r, x.a, got, got, x.k); err != nil {
			return err
		}
		if got, want := value(x.k.DType(), got), value(x.k.DType(), want[r.Rank()]); !bytes.Equal(got, want) {
			return fmt.Errorf("%v, %s of %v on rank %d of %d: got %x, want %x", x.a, x.k.Op().Name(), x.k.DType(), r.Rank(), n, got, want)
		}
		return nil
	})
}

// shares returns the number of shares that f folds.
func (f *fold) shares() int {
	if f.earlier == nil {
		return 1
	}
	return f.earlier.shares() + f.later.shares()
}

// call makes one rank's call. It returns the result and the expected one.
func (x folding) call(ctx context.Context, r *p2p.Round, want chunks) (got, expected []byte, err error) {
	src := aligned8(x.inputs[r.Rank()])
	switch x.a.Verb() {
	case VerbAllReduce:
		return src, want.buf, AllReduce(ctx, r, x.a, src, src, x.k)
	case VerbReduce:
		if r.Rank() != x.root {
			return nil, nil, Reduce(ctx, r, x.a, x.root, nil, src, x.k)
		}
		dst := aligned8(src)
		clear(dst)
		return dst, want.buf, Reduce(ctx, r, x.a, x.root, dst, src, x.k)
	case VerbReduceScatter:
		dst := aligned8(want.of(r.Rank()))
		clear(dst)
		return dst, want.of(r.Rank()), ReduceScatter(ctx, r, x.a, dst, src, x.k)
	}
	dst := aligned8(want.of(r.Rank()))
	clear(dst)
	counts := make([]int, want.n)
	for i := range counts {
		counts[i] = len(want.of(i)) / want.elem
	}
	return dst, want.of(r.Rank()), ReduceScatterV(ctx, r, x.a, dst, src, counts, x.k)
}

// aligned8 returns a copy of b in memory that is aligned for every element type.
func aligned8(b []byte) []byte {
	words := make([]uint64, (len(b)+7)/8)
	c := tensor.Bytes(words)[:len(b)]
	copy(c, b)
	return c
}

// value returns the elements in b. If d is a Loc type, it leaves out the padding after each value.
func value(d tensor.DType, b []byte) []byte {
	if !d.IsLoc() {
		return b
	}
	b = bytes.Clone(b)
	for i := 0; i < len(b); i += d.Size() {
		clear(b[i+d.Base().Size() : i+d.Size()-8])
	}
	return b
}

// random returns count elements of type d without NaNs.
func random(rng *rand.Rand, d tensor.DType, count int) []byte {
	b := tensor.Bytes(make([]uint64, (count*d.Size()+7)/8))[:count*d.Size()]
	if d.IsLoc() {
		values := random(rng, d.Base(), count)
		size := d.Base().Size()
		for i := range count {
			elem := b[i*d.Size():][:d.Size()]
			copy(elem, values[i*size:][:size])
			elem[len(elem)-8] = byte(rng.IntN(100))
		}
		return b
	}
	switch d {
	case tensor.Float32, tensor.Complex64:
		fill(b, func() float32 { return float32(rng.NormFloat64()) })
	case tensor.Float64, tensor.Complex128:
		fill(b, rng.NormFloat64)
	case tensor.F16:
		fill(b, func() tensor.Float16 { return tensor.Float16From(float32(rng.NormFloat64())) })
	case tensor.BF16:
		fill(b, func() tensor.BFloat16 { return tensor.BFloat16From(float32(rng.NormFloat64())) })
	case tensor.Bool:
		fill(b, func() bool { return rng.IntN(2) == 1 })
	default:
		fill(b, func() byte { return byte(rng.Uint32()) })
	}
	return b
}

func fill[T tensor.Element](b []byte, next func() T) {
	for i, elems := 0, tensor.Elements[T](b); i < len(elems); i++ {
		elems[i] = next()
	}
}

func randomInputs(rng *rand.Rand, d tensor.DType, n, count int) [][]byte {
	inputs := make([][]byte, n)
	for i := range inputs {
		inputs[i] = random(rng, d, count)
	}
	return inputs
}

func builtins() []reduce.Op {
	return []reduce.Op{
		reduce.Sum, reduce.Prod, reduce.Min, reduce.Max, reduce.Mean, reduce.LogicalAnd, reduce.LogicalOr, reduce.LogicalXor,
		reduce.BitAnd, reduce.BitOr, reduce.BitXor, reduce.MinLoc, reduce.MaxLoc,
	}
}

// This test runs every pair of operator and type once with every algorithm. Package reduce tests
// the operators themselves.
func TestEveryOperatorAndTypeGivesTheBitsOfTheDocumentedOrder(t *testing.T) {
	const n, count = 5, 23
	tm := teamtest.New(t, n, 64)
	rng := rand.New(rand.NewPCG(1, 2))
	pairs := 0
	for _, d := range tensor.DTypes() {
		for _, op := range builtins() {
			k, err := op.Kernel(d)
			if err != nil {
				continue // package reduce does not support this pair
			}
			pairs++
			inputs := randomInputs(rng, d, n, count)
			reducing(func(a Algorithm) { folding{a, k, 3, inputs}.run(t, tm) })
		}
	}
	if pairs < 100 {
		t.Errorf("only %d pairs of operator and type were tried", pairs)
	}
}

func TestFloatsHaveTheBitsOfTheDocumentedOrder(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for n := 1; n <= 9; n++ {
		tm := teamtest.New(t, n, smallSegment)
		for _, c := range []struct {
			op    reduce.Op
			d     tensor.DType
			count int
		}{
			{reduce.Sum, tensor.Float32, 1},
			{reduce.Sum, tensor.Float32, 2*n + 1},
			{reduce.Sum, tensor.Float64, 600},
			{reduce.Mean, tensor.BF16, 3*n - 1},
			{reduce.Mean, tensor.Float32, 1000},
		} {
			k, err := c.op.Kernel(c.d)
			if err != nil {
				t.Fatal(err)
			}
			inputs := randomInputs(rng, c.d, n, c.count)
			reducing(func(a Algorithm) {
				for root := range n {
					if root == 0 || a.Verb() == VerbReduce {
						folding{a, k, root, inputs}.run(t, tm)
					}
				}
			})
		}
	}
}

// A uint64 stands for an affine map x ↦ ax + b modulo 2^32, with a in the upper half and b in the
// lower half. compose returns the map that applies earlier first and later second. It is
// associative and does not commute.
func compose(earlier, later uint64) uint64 {
	a1, b1 := uint32(earlier>>32), uint32(earlier)
	a2, b2 := uint32(later>>32), uint32(later)
	return uint64(a2*a1)<<32 | uint64(a2*b1+b2)
}

func TestOperatorsThatDoNotCommuteGetRankOrder(t *testing.T) {
	k, err := reduce.Func("compose", reduce.RankOrder, compose).Kernel(tensor.Uint64)
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(5, 6))
	for n := 1; n <= 9; n++ {
		tm := teamtest.New(t, n, smallSegment)
		for _, count := range []int{0, 1, n - 1, n, n + 1, 500} {
			inputs := randomInputs(rng, tensor.Uint64, n, count)
			want := serial(upTo(n, 0)...).of(k, func(rank int) []byte { return inputs[rank] })
			reducing(func(a Algorithm) {
				if !a.SupportsOrder(reduce.RankOrder) {
					return
				}
				if a.isScan() {
					checkScan(t, tm, folding{a, k, 0, inputs})
					return
				}
				for root := range n {
					if root == 0 || a.Verb() == VerbReduce {
						checkExactly(t, tm, folding{a, k, root, inputs}, want)
					}
				}
			})
		}
	}
}

// checkScan compares a scan, element by element, with a loop over the ranks.
func checkScan(t testing.TB, tm *teamtest.Team, x folding) {
	t.Helper()
	tm.Run(t, func(ctx context.Context, r *p2p.Round) error {
		got := aligned8(x.inputs[r.Rank()])
		call, before := Scan, r.Rank()+1
		if x.a.Verb() == VerbExScan {
			call, before = ExScan, max(1, r.Rank()) // rank 0's result is its own share
		}
		if err := call(ctx, r, x.a, got, got, x.k); err != nil {
			return err
		}
		want := serial(upTo(before, 0)...).of(x.k, func(rank int) []byte { return x.inputs[rank] })
		if !bytes.Equal(got, want) {
			return fmt.Errorf("%v on rank %d of %d: got %x, want %x", x.a, r.Rank(), r.Size(), got, want)
		}
		return nil
	})
}

func checkExactly(t testing.TB, tm *teamtest.Team, x folding, want []byte) {
	t.Helper()
	tm.Run(t, func(ctx context.Context, r *p2p.Round) error {
		got, expected, err := x.call(ctx, r, cutEvenly(want, r.Size(), 8))
		if err == nil && !bytes.Equal(got, expected) {
			err = fmt.Errorf("%v on %d ranks, root %d: got %x, want %x", x.a, r.Size(), x.root, got, expected)
		}
		return err
	})
}
