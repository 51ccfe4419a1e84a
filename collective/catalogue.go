package collective

import (
	"math"

	"github.com/tutti-go/tutti/reduce"
)

//go:generate go test -run TestTheAlgorithmsPageIsUpToDate . -update

// An entry describes one algorithm in the catalogue. The type of run must be one of the function
// types that the exported function of the verb accepts. An entry is all that an algorithm needs:
// the table may choose the algorithm, docs/algorithms.md lists it, tuttibench times it, and the
// tests run it, redraw its drawing and compare its cost.
type entry struct {
	verb Verb
	name string
	// order is Commutative if operators must commute, RankOrder for any operator, and 0 if the
	// algorithm does not reduce.
	order    reduce.Order
	costText string // the cost, in the words of the header
	cost     cost
	run      any // a function of the type that the verb needs
}

// A cost returns the number of messages started (alpha), bytes moved (beta) and bytes folded
// (gamma) on the critical path, for n ranks, m bytes and segments of s bytes. For an algorithm in
// shared memory, alpha counts hand-overs of fragments, and beta counts copied bytes. The cost of a
// hierarchical algorithm covers n hosts, as if each host had one rank. m may be any number. n is at
// least 1.
type cost func(n, m, s float64) (alpha, beta, gamma float64)

// catalogue lists every algorithm. The first algorithm of each verb has no conditions, so that any
// table can fall back on it. No format contains the position of an entry.
var catalogue = [...]entry{
	{VerbAllReduce, "linear", reduce.RankOrder,
		"2(n-1)(α + mβ) + (n-1)mγ", func(n, m, _ float64) (_, _, _ float64) { return 2 * (n - 1), 2 * (n - 1) * m, (n - 1) * m },
		allReduceInPlace(linearAllReduce)},
	{VerbAllReduce, "reduce_broadcast", reduce.RankOrder,
		"2⌈log₂n⌉(α + mβ) + ⌈log₂n⌉mγ", func(n, m, _ float64) (_, _, _ float64) { return 2 * log2Ceil(n), 2 * log2Ceil(n) * m, log2Ceil(n) * m },
		allReduceInPlace(reduceBroadcastAllReduce)},
	{VerbAllReduce, "recursive_doubling", reduce.RankOrder,
		"⌊log₂n⌋(α + mβ + mγ), and 2α + 2mβ + mγ more unless n is a power of two", recursiveDoublingCost,
		allReduceInPlace(recursiveDoublingAllReduce)},
	{VerbAllReduce, "ring", reduce.Commutative, reduceScatterAllGather, reduceScatterAllGatherCost, allReduce(ringAllReduce)},
	{VerbAllReduce, "pairwise", reduce.RankOrder, reduceScatterAllGather, reduceScatterAllGatherCost, allReduceInPlace(pairwiseAllReduce)},
	{VerbAllReduce, "segmented_ring", reduce.Commutative,
		"2t(n-1)α + 2m(n-1)/n β + m(n-1)/n γ, for t subranges", segmentedRingCost,
		allReduce(segmentedRingAllReduce)},
	{VerbAllReduce, "rabenseifner", reduce.RankOrder,
		"2⌊log₂n⌋α + 2m(p-1)/p β + m(p-1)/p γ, where p is the power of two up to n, and 2α + 2mβ + mγ more unless n is one", rabenseifnerCost(2, 2),
		allReduceInPlace(rabenseifnerAllReduce)},
	{VerbAllReduce, "allgather_reduce", reduce.RankOrder,
		"⌈log₂n⌉α + (n-1)mβ + (n-1)mγ", func(n, m, _ float64) (_, _, _ float64) { return log2Ceil(n), (n - 1) * m, (n - 1) * m },
		allReduceInPlace(allGatherReduceAllReduce)},
	{VerbAllReduce, shared, reduce.RankOrder, "2α + m(2-1/n)β + m(n-1)/n γ, in cache", sharedAllReduceCost, allReduce(sharedAllReduce)},
	{VerbAllReduce, hierarchical, reduce.RankOrder,
		"between h hosts ⌊log₂h⌋(α + mβ + mγ), and 2α + 2mβ + mγ more unless h is a power of two", recursiveDoublingCost,
		allReduceInPlace(hierarchicalAllReduce)},
	{VerbAllReduce, hierarchicalSplit, reduce.Commutative, "between h hosts 2(h-1)α + 2m(h-1)/h β + m(h-1)/h γ", reduceScatterAllGatherCost,
		allReduceInPlace(hierarchicalSplitAllReduce)},

	{VerbReduce, "linear", reduce.RankOrder,
		"(n-1)(α + mβ + mγ)", func(n, m, _ float64) (_, _, _ float64) { return n - 1, (n - 1) * m, (n - 1) * m },
		reduceToRoot(linearReduce)},
	{VerbReduce, "binomial", reduce.Commutative,
		"⌈log₂n⌉(α + mβ + mγ)", func(n, m, _ float64) (_, _, _ float64) { return log2Ceil(n), log2Ceil(n) * m, log2Ceil(n) * m },
		reduceToRoot(binomialReduce)},
	{VerbReduce, "pairwise", reduce.RankOrder, reduceScatterAllGather, reduceScatterAllGatherCost, reduceToRoot(pairwiseReduce)},
	{VerbReduce, "knomial4", reduce.Commutative,
		"at most 3⌈log₄n⌉(α + mβ + mγ)", func(n, m, _ float64) (_, _, _ float64) { t := knomialSteps(n); return t, t * m, t * m },
		reduceToRoot(knomial4Reduce)},
	{VerbReduce, "rabenseifner", reduce.RankOrder,
		"2⌊log₂n⌋α + 2m(p-1)/p β + m(p-1)/p γ, where p is the power of two up to n, and α + mβ + mγ more unless n is one", rabenseifnerCost(1, 1),
		reduceToRoot(rabenseifnerReduce)},
	{VerbReduce, shared, reduce.RankOrder, "2α + m(2-1/n)β + m(n-1)/n γ, in cache", sharedReduceCost, reduceToRoot(sharedReduce)},
	{VerbReduce, hierarchical, reduce.Commutative,
		"between h hosts ⌈log₂h⌉(α + mβ + mγ)", func(h, m, _ float64) (_, _, _ float64) { return log2Ceil(h), log2Ceil(h) * m, log2Ceil(h) * m },
		reduceToRoot(hierarchicalReduce)},

	{VerbBroadcast, "binomial", 0,
		"⌈log₂n⌉(α + mβ)", func(n, m, _ float64) (_, _, _ float64) { return log2Ceil(n), log2Ceil(n) * m, 0 },
		broadcast(binomialBroadcast)},
	{VerbBroadcast, "knomial4", 0,
		"at most 3⌈log₄n⌉(α + mβ)", func(n, m, _ float64) (_, _, _ float64) { t := knomialSteps(n); return t, t * m, 0 },
		broadcast(knomial4Broadcast)},
	{VerbBroadcast, "scatter_allgather", 0,
		"(⌈log₂n⌉ + n-1)α + 2m(n-1)/n β", func(n, m, _ float64) (_, _, _ float64) { return log2Ceil(n) + n - 1, 2 * m * (n - 1) / n, 0 },
		broadcast(scatterAllGatherBroadcast)},
	{VerbBroadcast, "chain", 0,
		"(n-2+s)(α + m/s β), for s segments", chainMoveCost, broadcast(chainBroadcast)},
	{VerbBroadcast, "binary_tree", 0,
		"(2(s-1) + d)(α + m/s β), for s segments, where d is at most 2⌊log₂n⌋; two ranks are a chain", binaryTreeCost, broadcast(binaryTreeBroadcast)},
	{VerbBroadcast, shared, 0, "α + mβ, in cache", sharedBroadcastCost, broadcast(sharedBroadcast)},
	{VerbBroadcast, hierarchical, 0,
		"between h hosts ⌈log₂h⌉(α + mβ)", func(h, m, _ float64) (_, _, _ float64) { return log2Ceil(h), log2Ceil(h) * m, 0 },
		broadcast(hierarchicalBroadcast)},

	{VerbAllGather, "ring", 0, linearMove, linearMoveCost, allGatherInPlace(ringAllGather)},
	{VerbAllGather, "bruck", 0, treeMove, treeMoveCost, allGatherInPlace(bruckAllGather)},
	{VerbAllGather, "recursive_doubling", 0, doublingMove, doublingMoveCost, allGatherInPlace(recursiveDoublingAllGather)},
	{VerbAllGather, "neighbor_exchange", 0, neighborMove, neighborMoveCost, allGatherInPlace(neighborExchangeAllGather)},
	{VerbAllGather, shared, 0, "α + mβ, in cache", sharedAllGatherCost, allGather(sharedAllGather)},
	{VerbAllGather, hierarchical, 0, moveBetweenHosts, linearMoveCost, allGatherInPlace(hierarchicalAllGather)},
	{VerbAllGatherV, "ring", 0, linearMove, linearMoveCost, allGatherInPlace(ringAllGather)},
	{VerbAllGatherV, "recursive_doubling", 0, doublingMove, doublingMoveCost, allGatherInPlace(recursiveDoublingAllGather)},
	{VerbAllGatherV, "neighbor_exchange", 0, neighborMove, neighborMoveCost, allGatherInPlace(neighborExchangeAllGather)},
	{VerbAllGatherV, shared, 0, "α + mβ, in cache", sharedAllGatherCost, allGather(sharedAllGather)},
	{VerbAllGatherV, hierarchical, 0, moveBetweenHosts, linearMoveCost, allGatherInPlace(hierarchicalAllGather)},

	{VerbGather, "linear", 0, linearMove, linearMoveCost, gather(linearGather)},
	{VerbGather, "binomial", 0, treeMove, treeMoveCost, gather(binomialGather)},
	{VerbGatherV, "linear", 0, linearMove, linearMoveCost, gather(linearGather)},

	{VerbScatter, "linear", 0, linearMove, linearMoveCost, scatter(linearScatter)},
	{VerbScatter, "binomial", 0, treeMove, treeMoveCost, scatter(binomialScatter)},
	{VerbScatterV, "linear", 0, linearMove, linearMoveCost, scatter(linearScatter)},

	{VerbReduceScatter, "linear", reduce.RankOrder, gatherThenScatter, gatherThenScatterCost, reduceScatter(linearReduceScatter)},
	{VerbReduceScatter, "ring", reduce.Commutative, linearFold, linearFoldCost, reduceScatter(ringReduceScatterTo)},
	{VerbReduceScatter, "pairwise", reduce.RankOrder, linearFold, linearFoldCost, reduceScatter(pairwiseReduceScatter)},
	{VerbReduceScatter, "recursive_halving", reduce.RankOrder, halvingFold, halvingFoldCost, reduceScatter(recursiveHalvingReduceScatter)},
	{VerbReduceScatter, shared, reduce.RankOrder, "α + m(n-1)/n (β+γ), in cache", sharedReduceScatterCost, reduceScatter(sharedReduceScatter)},
	{VerbReduceScatter, hierarchical, reduce.Commutative, foldBetweenHosts, linearFoldCost, reduceScatter(hierarchicalReduceScatter)},
	{VerbReduceScatterV, "linear", reduce.RankOrder, gatherThenScatter, gatherThenScatterCost, reduceScatter(linearReduceScatter)},
	{VerbReduceScatterV, "ring", reduce.Commutative, linearFold, linearFoldCost, reduceScatter(ringReduceScatterTo)},
	{VerbReduceScatterV, "pairwise", reduce.RankOrder, linearFold, linearFoldCost, reduceScatter(pairwiseReduceScatter)},
	{VerbReduceScatterV, "recursive_halving", reduce.RankOrder, halvingFold, halvingFoldCost, reduceScatter(recursiveHalvingReduceScatter)},
	{VerbReduceScatterV, shared, reduce.RankOrder, "α + m(n-1)/n (β+γ), in cache", sharedReduceScatterCost, reduceScatter(sharedReduceScatter)},
	{VerbReduceScatterV, hierarchical, reduce.Commutative, foldBetweenHosts, linearFoldCost, reduceScatter(hierarchicalReduceScatter)},

	{VerbAllToAll, "pairwise", 0, linearMove, linearMoveCost, allToAll(pairwiseAllToAll)},
	{VerbAllToAll, "bruck", 0, "⌈log₂n⌉α, and at most ⌈log₂n⌉m/2 β", bruckMoveCost, allToAll(bruckAllToAll)},
	{VerbAllToAll, shared, 0, "α + 2m(n-1)/n β, in cache", sharedAllToAllCost, allToAll(sharedAllToAll)},
	{VerbAllToAllV, "pairwise", 0, linearMove, linearMoveCost, allToAll(pairwiseAllToAll)},

	{VerbScan, "linear", reduce.RankOrder,
		"(n-1)(α + mβ + mγ)", func(n, m, _ float64) (_, _, _ float64) { return n - 1, (n - 1) * m, (n - 1) * m },
		inclusiveScan(linearScan)},
	{VerbScan, "chain", reduce.RankOrder, "(n-2+s)(α + m/s (β+γ)), for s segments", chainFoldCost, inclusiveScan(chainScan)},
	{VerbScan, "recursive_doubling", reduce.RankOrder,
		"⌈log₂n⌉(α + mβ + mγ)", func(n, m, _ float64) (_, _, _ float64) { return log2Ceil(n), log2Ceil(n) * m, log2Ceil(n) * m },
		inclusiveScan(recursiveDoublingScan)},
	{VerbScan, shared, reduce.RankOrder, "α + mβ + m(n-1)γ, in cache", sharedScanCost, inclusiveScan(sharedScan)},

	{VerbExScan, "linear", reduce.RankOrder,
		"(n-1)(α + mβ) + (n-2)mγ", func(n, m, _ float64) (_, _, _ float64) { return n - 1, (n - 1) * m, max(n-2, 0) * m },
		inclusiveScan(linearExScan)},
	{VerbExScan, "chain", reduce.RankOrder, "(n-2+s)(α + m/s β) + (n-3+s)m/s γ, for s segments", chainExScanCost, inclusiveScan(chainExScan)},
	{VerbExScan, "recursive_doubling", reduce.RankOrder,
		"⌈log₂n⌉(α + mβ), and at most 2⌈log₂n⌉mγ", recursiveDoublingExScanCost,
		inclusiveScan(recursiveDoublingExScan)},
	{VerbExScan, shared, reduce.RankOrder, "α + mβ + m(n-2)γ, in cache", sharedExScanCost, inclusiveScan(sharedExScan)},

	{VerbBarrier, "dissemination", 0,
		"⌈log₂n⌉α", func(n, _, _ float64) (_, _, _ float64) { return log2Ceil(n), 0, 0 },
		barrier(disseminationBarrier)},
	{VerbBarrier, shared, 0, "α", func(_, _, _ float64) (_, _, _ float64) { return 1, 0, 0 }, barrier(sharedBarrier)},
	{VerbBarrier, hierarchical, 0, "between h hosts ⌈log₂h⌉α", func(h, _, _ float64) (_, _, _ float64) { return log2Ceil(h), 0, 0 }, barrier(hierarchicalBarrier)},
}

// log2Ceil returns the number of steps of a binomial tree over n ranks.
func log2Ceil(n float64) float64 { return math.Ceil(math.Log2(n)) }

// Cost texts that several algorithms share.
const (
	linearMove             = "(n-1)α + m(n-1)/n β"
	treeMove               = "⌈log₂n⌉α + m(n-1)/n β"
	linearFold             = "(n-1)α + m(n-1)/n (β+γ)"
	reduceScatterAllGather = "2(n-1)α + 2m(n-1)/n β + m(n-1)/n γ"
	moveBetweenHosts       = "between h hosts (h-1)α + m(h-1)/h β"
	foldBetweenHosts       = "between h hosts (h-1)α + m(h-1)/h (β+γ)"
	gatherThenScatter      = "2(n-1)α + m(n-1)(n+1)/n β + m(n-1)γ"
)

// linearMoveCost counts n-1 messages of one chunk each.
func linearMoveCost(n, m, _ float64) (alpha, beta, gamma float64) { return n - 1, m * (n - 1) / n, 0 }

// treeMoveCost counts the messages of a binomial tree through which the root scatters or gathers
// chunks. In total m(n-1)/n bytes pass the root.
func treeMoveCost(n, m, _ float64) (alpha, beta, gamma float64) {
	return log2Ceil(n), m * (n - 1) / n, 0
}

// linearFoldCost is linearMoveCost plus one fold of each arriving chunk.
func linearFoldCost(n, m, _ float64) (alpha, beta, gamma float64) {
	return n - 1, m * (n - 1) / n, m * (n - 1) / n
}

// reduceScatterAllGatherCost is the cost of a reduce-scatter and an allgather, each with n-1
// messages of one chunk.
func reduceScatterAllGatherCost(n, m, _ float64) (alpha, beta, gamma float64) {
	return 2 * (n - 1), 2 * m * (n - 1) / n, m * (n - 1) / n
}

// gatherThenScatterCost counts n-1 messages of a whole vector to rank 0, and n-1 messages of a
// chunk back.
func gatherThenScatterCost(n, m, _ float64) (alpha, beta, gamma float64) {
	return 2 * (n - 1), m * (n - 1) * (n + 1) / n, m * (n - 1)
}

// recursiveDoublingCost counts one exchange per step. If the number of ranks is not a power of two,
// it also counts the two messages of an extra rank.
func recursiveDoublingCost(n, m, _ float64) (alpha, beta, gamma float64) {
	floor := math.Floor(math.Log2(n))
	if floor == log2Ceil(n) {
		return floor, floor * m, floor * m
	}
	return floor + 2, (floor + 2) * m, (floor + 1) * m
}
