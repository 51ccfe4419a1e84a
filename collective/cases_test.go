package collective

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/tutti-go/tutti/internal/test/teamtest"
	"github.com/tutti-go/tutti/p2p"
	"github.com/tutti-go/tutti/reduce"
	"github.com/tutti-go/tutti/tensor"
)

// A testCase is one collective on all ranks of a team, with inputs whose result is known. All
// numbers are so small that sums in float32 are exact.
type testCase struct {
	a     Algorithm
	n     int
	count int // elements of the whole vector
	root  int
	dst   destination
	cut   int // index of the division into chunks, for v-variants
}

// A destination says in which memory the result is stored.
type destination int

const (
	outOfPlace destination = iota
	// With inPlace, dst is this rank's part of the input, or the input is this rank's part of dst.
	inPlace
	atStart // dst is the beginning of the input, for reduce_scatter
)

func (x testCase) String() string {
	return fmt.Sprintf("%v on %d ranks, %d elements, root %d, place %d, cut %d", x.a, x.n, x.count, x.root, x.dst, x.cut)
}

// cuts is the number of divisions that chunks knows.
const cuts = 4

// chunks returns the number of elements in each rank's chunk.
func (x testCase) chunks() []int {
	counts := make([]int, x.n)
	switch verb := x.a.Verb(); {
	case verb == VerbAllGather, verb == VerbGather, verb == VerbScatter, verb == VerbAllToAll:
		for i := range counts {
			counts[i] = (x.count + x.n - 1) / x.n
		}
	case verb == VerbReduceScatter, x.cut == 0:
		for i := range counts {
			lo, hi := tensor.Chunk(x.count, x.n, i)
			counts[i] = hi - lo
		}
	case x.cut == 1: // one rank has all elements
		counts[x.count%x.n] = x.count
	case x.cut == 2: // every second rank has no elements
		for i := 0; i < x.n; i += 2 {
			counts[i] = x.count / x.n
		}
	default: // the last ranks have more elements
		for i := range counts {
			counts[i] = x.count * i / (x.n * x.n)
		}
	}
	return counts
}

// number lists the element types of test vectors.
type number interface{ int32 | float32 }

// share returns element i of the given rank's vector.
func share[T number](rank, i int) T { return T((rank + 1) * (i%1009 + 1)) }

func shares[T number](rank, from, count int) []T {
	s := make([]T, count)
	for i := range s {
		s[i] = share[T](rank, from+i)
	}
	return s
}

// sums returns count elements of the sum of the vectors of n ranks. The parameter from is the index
// of the first element.
func sums[T number](n, from, count int) []T {
	return shares[T](n*(n+1)/2-1, from, count)
}

// junk returns memory with values that a collective must overwrite.
func junk[T number](count int) []T { return slices.Repeat([]T{-7}, count) }

// attempt makes one rank's call of x, and returns an error if its result is wrong.
func attempt[T number](ctx context.Context, r *p2p.Round, x testCase) error {
	var e T
	k, err := reduce.Sum.Kernel(tensor.TypeOf[T]())
	if err != nil {
		return err
	}
	switch x.a.Verb() {
	case VerbAllReduce:
		src := shares[T](r.Rank(), 0, x.count)
		dst := junk[T](x.count)
		if err := verify(AllReduce(ctx, r, x.a, tensor.Bytes(dst), tensor.Bytes(src), k), "dst", dst, sums[T](x.n, 0, x.count)); err != nil {
			return err
		}
		if err := verify(nil, "src", src, shares[T](r.Rank(), 0, x.count)); err != nil {
			return err
		}
		err := AllReduce(ctx, r, x.a, tensor.Bytes(src), tensor.Bytes(src), k)
		return verify(err, "buf", src, sums[T](x.n, 0, x.count))
	case VerbReduce:
		return attemptReduce[T](ctx, r, x, k)
	case VerbBroadcast:
		buf := junk[T](x.count)
		if r.Rank() == x.root {
			buf = shares[T](x.root, 0, x.count)
		}
		err := Broadcast(ctx, r, x.a, x.root, tensor.Bytes(buf))
		return verify(err, "buf", buf, shares[T](x.root, 0, x.count))
	case VerbAllGather, VerbAllGatherV, VerbGather, VerbGatherV:
		return attemptGather[T](ctx, r, x)
	case VerbScatter, VerbScatterV:
		return attemptScatter[T](ctx, r, x)
	case VerbReduceScatter, VerbReduceScatterV:
		return attemptReduceScatter[T](ctx, r, x, k)
	case VerbAllToAll:
		return attemptAllToAll[T](ctx, r, x)
	case VerbAllToAllV:
		return attemptAllToAllV[T](ctx, r, x)
	case VerbBarrier:
		return Barrier(ctx, r, x.a)
	case VerbScan, VerbExScan:
		return attemptScan[T](ctx, r, x, k)
	}
	return fmt.Errorf("no trial for %v of %T", x.a, e)
}

func attemptScan[T number](ctx context.Context, r *p2p.Round, x testCase, k reduce.Kernel) error {
	src := shares[T](r.Rank(), 0, x.count)
	dst := junk[T](x.count)
	if x.dst != outOfPlace {
		dst = src
	}
	call, want := Scan, sums[T](r.Rank()+1, 0, x.count)
	if x.a.Verb() == VerbExScan {
		call, want = ExScan, sums[T](r.Rank(), 0, x.count)
		if r.Rank() == 0 {
			want = slices.Clone(dst) // dst must not change
		}
	}
	err := call(ctx, r, x.a, tensor.Bytes(dst), tensor.Bytes(src), k)
	err = verify(err, "dst", dst, want)
	if x.dst == outOfPlace {
		err = verify(err, "src", src, shares[T](r.Rank(), 0, x.count))
	}
	return err
}

func attemptReduce[T number](ctx context.Context, r *p2p.Round, x testCase, k reduce.Kernel) error {
	src := shares[T](r.Rank(), 0, x.count)
	root := r.Rank() == x.root
	var dst []T
	if root {
		dst = junk[T](x.count)
		if x.dst != outOfPlace {
			dst = src
		}
	}
	err := Reduce(ctx, r, x.a, x.root, tensor.Bytes(dst), tensor.Bytes(src), k)
	if root {
		err = verify(err, "dst", dst, sums[T](x.n, 0, x.count))
	}
	if !root || x.dst == outOfPlace {
		err = verify(err, "src", src, shares[T](r.Rank(), 0, x.count))
	}
	return err
}

// gathered returns the concatenated vectors of all ranks, with counts[i] elements from each rank i.
func gathered[T number](counts []int) []T {
	var all []T
	for rank, count := range counts {
		all = append(all, shares[T](rank, 0, count)...)
	}
	return all
}

// span returns the bounds of rank i's part in elements.
func span(counts []int, i int) (lo, hi int) {
	for _, c := range counts[:i] {
		lo += c
	}
	return lo, lo + counts[i]
}

func attemptGather[T number](ctx context.Context, r *p2p.Round, x testCase) error {
	counts := x.chunks()
	want := gathered[T](counts)
	toAll := x.a.Verb() == VerbAllGather || x.a.Verb() == VerbAllGatherV
	src := shares[T](r.Rank(), 0, counts[r.Rank()])
	own := slices.Clone(src)
	var dst []T
	if toAll || r.Rank() == x.root {
		dst = junk[T](len(want))
		if lo, hi := span(counts, r.Rank()); x.dst != outOfPlace {
			copy(dst[lo:hi], src)
			src = dst[lo:hi]
		}
	}
	d, s := tensor.Bytes(dst), tensor.Bytes(src)
	var err error
	switch x.a.Verb() {
	case VerbAllGather:
		err = AllGather(ctx, r, x.a, d, s)
	case VerbAllGatherV:
		err = AllGatherV(ctx, r, x.a, d, s, counts, 4)
	case VerbGather:
		err = Gather(ctx, r, x.a, x.root, d, s)
	default:
		err = GatherV(ctx, r, x.a, x.root, d, s, counts, 4)
	}
	if dst != nil {
		err = verify(err, "dst", dst, want)
	}
	return verify(err, "src", src, own)
}

func attemptScatter[T number](ctx context.Context, r *p2p.Round, x testCase) error {
	counts := x.chunks()
	all := gathered[T](counts)
	dst := junk[T](counts[r.Rank()])
	var src []T
	if r.Rank() == x.root {
		src = slices.Clone(all)
		if lo, hi := span(counts, r.Rank()); x.dst != outOfPlace {
			dst = src[lo:hi]
		}
	}
	d, s := tensor.Bytes(dst), tensor.Bytes(src)
	var err error
	if x.a.Verb() == VerbScatter {
		err = Scatter(ctx, r, x.a, x.root, d, s)
	} else {
		err = ScatterV(ctx, r, x.a, x.root, d, s, counts, 4)
	}
	if r.Rank() == x.root {
		err = verify(err, "src", src, all)
	}
	return verify(err, "dst", dst, shares[T](r.Rank(), 0, counts[r.Rank()]))
}

func attemptReduceScatter[T number](ctx context.Context, r *p2p.Round, x testCase, k reduce.Kernel) error {
	counts := x.chunks()
	whole := 0
	for _, c := range counts {
		whole += c
	}
	lo, hi := span(counts, r.Rank())
	src := shares[T](r.Rank(), 0, whole)
	dst := junk[T](hi - lo)
	switch x.dst {
	case inPlace:
		dst = src[lo:hi]
	case atStart:
		dst = src[:hi-lo]
	}
	var err error
	if x.a.Verb() == VerbReduceScatter {
		err = ReduceScatter(ctx, r, x.a, tensor.Bytes(dst), tensor.Bytes(src), k)
	} else {
		err = ReduceScatterV(ctx, r, x.a, tensor.Bytes(dst), tensor.Bytes(src), counts, k)
	}
	if x.dst == outOfPlace {
		err = verify(err, "src", src, shares[T](r.Rank(), 0, whole))
	}
	return verify(err, "dst", dst, sums[T](x.n, lo, hi-lo))
}

// payload returns the elements that one rank (from) sends to another rank (to).
func payload[T number](from, to, count int) []T { return shares[T](from+9*to, 0, count) }

func attemptAllToAll[T number](ctx context.Context, r *p2p.Round, x testCase) error {
	count := x.chunks()[0]
	var src, want []T
	for i := range x.n {
		src = append(src, payload[T](r.Rank(), i, count)...)
		want = append(want, payload[T](i, r.Rank(), count)...)
	}
	dst, before := junk[T](len(src)), slices.Clone(src)
	if x.dst != outOfPlace {
		dst = src
	}
	err := AllToAll(ctx, r, x.a, tensor.Bytes(dst), tensor.Bytes(src))
	if x.dst == outOfPlace {
		err = verify(err, "src", src, before)
	}
	return verify(err, "dst", dst, want)
}

func attemptAllToAllV[T number](ctx context.Context, r *p2p.Round, x testCase) error {
	// The number of elements that rank i sends to rank j depends on i and j, and is 0 for some
	// pairs.
	size := func(i, j int) int { return (i*7 + j*3 + x.cut) % 5 * x.count / (4 * x.n) }
	var src, want []T
	var sends, recvs []int
	for i := range x.n {
		sends, recvs = append(sends, size(r.Rank(), i)), append(recvs, size(i, r.Rank()))
		src = append(src, payload[T](r.Rank(), i, sends[i])...)
		want = append(want, payload[T](i, r.Rank(), recvs[i])...)
	}
	dst, before := junk[T](len(want)), slices.Clone(src)
	err := AllToAllV(ctx, r, x.a, tensor.Bytes(dst), tensor.Bytes(src), recvs, sends, 4)
	return verify(verify(err, "src", src, before), "dst", dst, want)
}

// verify returns err if it is not nil. Otherwise it returns an error for the first wrong element,
// or nil.
func verify[T number](err error, what string, got, want []T) error {
	if err != nil {
		return err
	}
	if len(got) != len(want) {
		return fmt.Errorf("%s has %d elements, want %d", what, len(got), len(want))
	}
	for i := range got {
		if got[i] != want[i] {
			return fmt.Errorf("%s[%d] is %v, want %v", what, i, got[i], want[i])
		}
	}
	return nil
}

// testCases returns the test cases of an algorithm on n ranks and count elements. If the parameter
// few is true, testCases omits most roots and divisions.
func testCases(a Algorithm, n, count int, few bool) []testCase {
	roots, destinations, divisions := 1, 2, 1
	switch a.Verb() {
	case VerbReduce, VerbGather, VerbScatter:
		roots = n
	case VerbBroadcast:
		roots, destinations = n, 1
	case VerbGatherV, VerbScatterV:
		roots, divisions = n, cuts
	case VerbAllGatherV:
		divisions = cuts
	case VerbReduceScatter:
		destinations = 3
	case VerbReduceScatterV:
		destinations, divisions = 3, cuts
	case VerbAllToAllV:
		destinations, divisions = 1, cuts
	case VerbAllReduce, VerbBarrier:
		destinations = 1
	}
	var all []testCase
	for root := range roots {
		for p := range destinations {
			for cut := range divisions {
				if few && (root != 0 && root != n/2 || p != 0 && root != 0 || cut%3 != 0) {
					continue
				}
				all = append(all, testCase{a, n, count, root, destination(p), cut})
			}
		}
	}
	return all
}

// everyAlgorithm calls a function for each algorithm.
func everyAlgorithm(do func(a Algorithm)) {
	for _, verb := range Verbs() {
		for _, a := range Algorithms(verb) {
			do(a)
		}
	}
}

func TestEveryAlgorithmIsRightForAnyRanksAndCounts(t *testing.T) {
	for n := 1; n <= 9; n++ {
		t.Run(fmt.Sprintf("%d ranks", n), func(t *testing.T) {
			tm := teamtest.New(t, n, smallSegment)
			everyAlgorithm(func(a Algorithm) {
				for _, count := range []int{0, 1, n - 1, n, n + 1, 1000} {
					for _, x := range testCases(a, n, count, count == 1000) {
						x.run(t, tm)
					}
				}
			})
		})
	}
}

func TestEveryAlgorithmIsRightInManySegments(t *testing.T) {
	ranks := []int{1, 2, 3, 4, 5, 6, 7, 8, 9}
	if underRace() {
		ranks = []int{3, 5} // larger teams would find no further races
	}
	for _, n := range ranks {
		t.Run(fmt.Sprintf("%d ranks", n), func(t *testing.T) {
			tm := teamtest.New(t, n, 64)
			everyAlgorithm(func(a Algorithm) {
				// A segment has 16 elements.
				for _, count := range []int{16, 17, 16 * n, 64*n + 1, 1000} {
					for _, x := range testCases(a, n, count, true) {
						x.run(t, tm)
					}
				}
			})
		})
	}
}

func TestEveryAlgorithmIsRightForLargeVectors(t *testing.T) {
	ranks := []int{1, 2, 3, 4, 5, 6, 7, 8, 9}
	if underRace() {
		// With the race detector, tests take fifteen times as long, and larger teams would find no
		// further races.
		ranks = []int{2, 5}
	}
	for _, n := range ranks {
		t.Run(fmt.Sprintf("%d ranks", n), func(t *testing.T) {
			tm := teamtest.New(t, n, 0)
			everyAlgorithm(func(a Algorithm) {
				for _, x := range testCases(a, n, 100_003, true) {
					x.run(t, tm)
				}
			})
		})
	}
}

// smallSegment is a segment size in bytes. It cuts 1000 elements of four bytes into three segments,
// and is a multiple of every element size.
const smallSegment = 1600

// run runs x with both types of number.
func (x testCase) run(t testing.TB, tm *teamtest.Team) {
	t.Helper()
	tm.Run(t, func(ctx context.Context, r *p2p.Round) error { return named(x, attempt[int32](ctx, r, x)) })
	tm.Run(t, func(ctx context.Context, r *p2p.Round) error { return named(x, attempt[float32](ctx, r, x)) })
}

func named(x testCase, err error) error {
	if err != nil {
		return fmt.Errorf("%v: %w", x, err)
	}
	return nil
}

func TestABarrierReturnsAfterAllRanksHaveCalledIt(t *testing.T) {
	for n := 1; n <= 9; n++ {
		tm := teamtest.New(t, n, 0)
		for _, a := range Algorithms(VerbBarrier) {
			for round := 1; round <= 20; round++ {
				var come atomic.Int32
				tm.Run(t, func(ctx context.Context, r *p2p.Round) error {
					come.Add(1)
					if err := Barrier(ctx, r, a); err != nil {
						return err
					}
					if got := int(come.Load()); got != n {
						return fmt.Errorf("left when %d of %d ranks had come", got, n)
					}
					return nil
				})
			}
		}
	}
}
