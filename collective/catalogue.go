package collective

import (
	"math"

	"github.com/tutti-go/tutti/reduce"
)

//go:generate go test -run TestTheAlgorithmsPageIsUpToDate . -update

// A variant is what there is to know about one algorithm.
type variant struct {
	verb  Verb
	name  string
	order reduce.Order // Commutative: of operators it needs that; RankOrder: it takes all; 0: it takes none
	text  string       // the cost, as the header has it
	cost  cost
	run   any // a function of the kind that the verb needs
}

// A cost counts, for n ranks, m bytes and segments of s bytes, the messages
// started, and the bytes moved and folded, one after the other. Algorithms that
// work in shared memory count hand-overs of a piece for messages, and copies for
// bytes moved. Hierarchical ones count what moves and is folded between n hosts,
// which is all where each has one rank. m may be any number; n is 1 at least.
type cost func(n, m, s float64) (alpha, beta, gamma float64)

// catalogue lists every algorithm; of each verb the most modest comes first,
// which any table can fall back on. An entry's place is not part of any format.
var catalogue = [...]variant{
	{VerbAllReduce, "linear", reduce.RankOrder,
		"2(n-1)(α + mβ) + (n-1)mγ", func(n, m, _ float64) (_, _, _ float64) { return 2 * (n - 1), 2 * (n - 1) * m, (n - 1) * m },
		foldToAll(linearAllReduce)},
	{VerbAllReduce, "reduce_broadcast", reduce.RankOrder,
		"2⌈log₂n⌉(α + mβ) + ⌈log₂n⌉mγ", func(n, m, _ float64) (_, _, _ float64) { return 2 * up(n), 2 * up(n) * m, up(n) * m },
		foldToAll(reduceBroadcastAllReduce)},
	{VerbAllReduce, "recursive_doubling", reduce.RankOrder,
		"⌊log₂n⌋(α + mβ + mγ), and 2α + 2mβ + mγ more unless n is a power of two", recursiveDoublingCost,
		foldToAll(recursiveDoublingAllReduce)},
	{VerbAllReduce, "ring", reduce.Commutative, foldAndSpread, foldAndSpreadCost, foldAcross(ringAllReduce)},
	{VerbAllReduce, "pairwise", reduce.RankOrder, foldAndSpread, foldAndSpreadCost, foldToAll(pairwiseAllReduce)},
	{VerbAllReduce, "segmented_ring", reduce.Commutative,
		"2t(n-1)α + 2m(n-1)/n β + m(n-1)/n γ, for t stretches", segmentedRingCost,
		foldAcross(segmentedRingAllReduce)},
	{VerbAllReduce, "rabenseifner", reduce.RankOrder,
		"2⌊log₂n⌋α + 2m(p-1)/p β + m(p-1)/p γ, where p is the power of two up to n, and 2α + 2mβ + mγ more unless n is one", rabenseifnerCost(2, 2),
		foldToAll(rabenseifnerAllReduce)},
	{VerbAllReduce, "allgather_reduce", reduce.RankOrder,
		"⌈log₂n⌉α + (n-1)mβ + (n-1)mγ", func(n, m, _ float64) (_, _, _ float64) { return up(n), (n - 1) * m, (n - 1) * m },
		foldToAll(allGatherReduceAllReduce)},
	{VerbAllReduce, shared, reduce.RankOrder, "2α + m(2-1/n)β + m(n-1)/n γ, in cache", sharedAllReduceCost, foldAcross(sharedAllReduce)},
	{VerbAllReduce, hierarchical, reduce.RankOrder,
		"between h hosts ⌊log₂h⌋(α + mβ + mγ), and 2α + 2mβ + mγ more unless h is a power of two", recursiveDoublingCost,
		foldToAll(hierarchicalAllReduce)},
	{VerbAllReduce, hierarchicalSplit, reduce.Commutative, "between h hosts 2(h-1)α + 2m(h-1)/h β + m(h-1)/h γ", foldAndSpreadCost,
		foldToAll(hierarchicalSplitAllReduce)},

	{VerbReduce, "linear", reduce.RankOrder,
		"(n-1)(α + mβ + mγ)", func(n, m, _ float64) (_, _, _ float64) { return n - 1, (n - 1) * m, (n - 1) * m },
		foldToRoot(linearReduce)},
	{VerbReduce, "binomial", reduce.Commutative,
		"⌈log₂n⌉(α + mβ + mγ)", func(n, m, _ float64) (_, _, _ float64) { return up(n), up(n) * m, up(n) * m },
		foldToRoot(binomialReduce)},
	{VerbReduce, "pairwise", reduce.RankOrder, foldAndSpread, foldAndSpreadCost, foldToRoot(pairwiseReduce)},
	{VerbReduce, "knomial4", reduce.Commutative,
		"at most 3⌈log₄n⌉(α + mβ + mγ)", func(n, m, _ float64) (_, _, _ float64) { t := knomialSteps(n); return t, t * m, t * m },
		foldToRoot(knomial4Reduce)},
	{VerbReduce, "rabenseifner", reduce.RankOrder,
		"2⌊log₂n⌋α + 2m(p-1)/p β + m(p-1)/p γ, where p is the power of two up to n, and α + mβ + mγ more unless n is one", rabenseifnerCost(1, 1),
		foldToRoot(rabenseifnerReduce)},
	{VerbReduce, shared, reduce.RankOrder, "2α + m(2-1/n)β + m(n-1)/n γ, in cache", sharedFoldCost, foldToRoot(sharedReduce)},
	{VerbReduce, hierarchical, reduce.Commutative,
		"between h hosts ⌈log₂h⌉(α + mβ + mγ)", func(h, m, _ float64) (_, _, _ float64) { return up(h), up(h) * m, up(h) * m },
		foldToRoot(hierarchicalReduce)},

	{VerbBroadcast, "binomial", 0,
		"⌈log₂n⌉(α + mβ)", func(n, m, _ float64) (_, _, _ float64) { return up(n), up(n) * m, 0 },
		spread(binomialBroadcast)},
	{VerbBroadcast, "knomial4", 0,
		"at most 3⌈log₄n⌉(α + mβ)", func(n, m, _ float64) (_, _, _ float64) { t := knomialSteps(n); return t, t * m, 0 },
		spread(knomial4Broadcast)},
	{VerbBroadcast, "scatter_allgather", 0,
		"(⌈log₂n⌉ + n-1)α + 2m(n-1)/n β", func(n, m, _ float64) (_, _, _ float64) { return up(n) + n - 1, 2 * m * (n - 1) / n, 0 },
		spread(scatterAllGatherBroadcast)},
	{VerbBroadcast, "chain", 0,
		"(n-2+s)(α + m/s β), for s segments", chainMoveCost, spread(chainBroadcast)},
	{VerbBroadcast, "binary_tree", 0,
		"(2(s-1) + d)(α + m/s β), for s segments, where d is at most 2⌊log₂n⌋; two ranks are a chain", binaryTreeCost, spread(binaryTreeBroadcast)},
	{VerbBroadcast, shared, 0, "α + mβ, in cache", sharedSpreadCost, spread(sharedBroadcast)},
	{VerbBroadcast, hierarchical, 0,
		"between h hosts ⌈log₂h⌉(α + mβ)", func(h, m, _ float64) (_, _, _ float64) { return up(h), up(h) * m, 0 },
		spread(hierarchicalBroadcast)},

	{VerbAllGather, "ring", 0, linearMove, linearMoveCost, shareAll(ringAllGather)},
	{VerbAllGather, "bruck", 0, treeMove, treeMoveCost, shareAll(bruckAllGather)},
	{VerbAllGather, "recursive_doubling", 0, doublingMove, doublingMoveCost, shareAll(recursiveDoublingAllGather)},
	{VerbAllGather, "neighbor_exchange", 0, neighborMove, neighborMoveCost, shareAll(neighborExchangeAllGather)},
	{VerbAllGather, shared, 0, "α + mβ, in cache", sharedShareCost, shareAcross(sharedAllGather)},
	{VerbAllGather, hierarchical, 0, moveBetween, linearMoveCost, shareAll(hierarchicalAllGather)},
	{VerbAllGatherV, "ring", 0, linearMove, linearMoveCost, shareAll(ringAllGather)},
	{VerbAllGatherV, "recursive_doubling", 0, doublingMove, doublingMoveCost, shareAll(recursiveDoublingAllGather)},
	{VerbAllGatherV, "neighbor_exchange", 0, neighborMove, neighborMoveCost, shareAll(neighborExchangeAllGather)},
	{VerbAllGatherV, shared, 0, "α + mβ, in cache", sharedShareCost, shareAcross(sharedAllGather)},
	{VerbAllGatherV, hierarchical, 0, moveBetween, linearMoveCost, shareAll(hierarchicalAllGather)},

	{VerbGather, "linear", 0, linearMove, linearMoveCost, collect(linearGather)},
	{VerbGather, "binomial", 0, treeMove, treeMoveCost, collect(binomialGather)},
	{VerbGatherV, "linear", 0, linearMove, linearMoveCost, collect(linearGather)},

	{VerbScatter, "linear", 0, linearMove, linearMoveCost, deal(linearScatter)},
	{VerbScatter, "binomial", 0, treeMove, treeMoveCost, deal(binomialScatter)},
	{VerbScatterV, "linear", 0, linearMove, linearMoveCost, deal(linearScatter)},

	{VerbReduceScatter, "linear", reduce.RankOrder, foldAndDeal, foldAndDealCost, foldToOwners(linearReduceScatter)},
	{VerbReduceScatter, "ring", reduce.Commutative, linearFold, linearFoldCost, foldToOwners(ringReduceScatterTo)},
	{VerbReduceScatter, "pairwise", reduce.RankOrder, linearFold, linearFoldCost, foldToOwners(pairwiseReduceScatter)},
	{VerbReduceScatter, "recursive_halving", reduce.RankOrder, halvingFold, halvingFoldCost, foldToOwners(recursiveHalvingReduceScatter)},
	{VerbReduceScatter, shared, reduce.RankOrder, "α + m(n-1)/n (β+γ), in cache", sharedDealCost, foldToOwners(sharedReduceScatter)},
	{VerbReduceScatter, hierarchical, reduce.Commutative, foldBetween, linearFoldCost, foldToOwners(hierarchicalReduceScatter)},
	{VerbReduceScatterV, "linear", reduce.RankOrder, foldAndDeal, foldAndDealCost, foldToOwners(linearReduceScatter)},
	{VerbReduceScatterV, "ring", reduce.Commutative, linearFold, linearFoldCost, foldToOwners(ringReduceScatterTo)},
	{VerbReduceScatterV, "pairwise", reduce.RankOrder, linearFold, linearFoldCost, foldToOwners(pairwiseReduceScatter)},
	{VerbReduceScatterV, "recursive_halving", reduce.RankOrder, halvingFold, halvingFoldCost, foldToOwners(recursiveHalvingReduceScatter)},
	{VerbReduceScatterV, shared, reduce.RankOrder, "α + m(n-1)/n (β+γ), in cache", sharedDealCost, foldToOwners(sharedReduceScatter)},
	{VerbReduceScatterV, hierarchical, reduce.Commutative, foldBetween, linearFoldCost, foldToOwners(hierarchicalReduceScatter)},

	{VerbAllToAll, "pairwise", 0, linearMove, linearMoveCost, swap(pairwiseAllToAll)},
	{VerbAllToAll, "bruck", 0, "⌈log₂n⌉α, and at most ⌈log₂n⌉m/2 β", bruckMoveCost, swap(bruckAllToAll)},
	{VerbAllToAll, shared, 0, "α + 2m(n-1)/n β, in cache", sharedSwapCost, swap(sharedAllToAll)},
	{VerbAllToAllV, "pairwise", 0, linearMove, linearMoveCost, swap(pairwiseAllToAll)},

	{VerbScan, "linear", reduce.RankOrder,
		"(n-1)(α + mβ + mγ)", func(n, m, _ float64) (_, _, _ float64) { return n - 1, (n - 1) * m, (n - 1) * m },
		foldSoFar(linearScan)},
	{VerbScan, "chain", reduce.RankOrder, "(n-2+s)(α + m/s (β+γ)), for s segments", chainFoldCost, foldSoFar(chainScan)},
	{VerbScan, "recursive_doubling", reduce.RankOrder,
		"⌈log₂n⌉(α + mβ + mγ)", func(n, m, _ float64) (_, _, _ float64) { return up(n), up(n) * m, up(n) * m },
		foldSoFar(recursiveDoublingScan)},
	{VerbScan, shared, reduce.RankOrder, "α + mβ + m(n-1)γ, in cache", sharedScanCost, foldSoFar(sharedScan)},

	{VerbExScan, "linear", reduce.RankOrder,
		"(n-1)(α + mβ) + (n-2)mγ", func(n, m, _ float64) (_, _, _ float64) { return n - 1, (n - 1) * m, max(n-2, 0) * m },
		foldSoFar(linearExScan)},
	{VerbExScan, "chain", reduce.RankOrder, "(n-2+s)(α + m/s β) + (n-3+s)m/s γ, for s segments", chainBeforeCost, foldSoFar(chainExScan)},
	{VerbExScan, "recursive_doubling", reduce.RankOrder,
		"⌈log₂n⌉(α + mβ), and at most 2⌈log₂n⌉mγ", doublingBeforeCost,
		foldSoFar(recursiveDoublingExScan)},
	{VerbExScan, shared, reduce.RankOrder, "α + mβ + m(n-2)γ, in cache", sharedExScanCost, foldSoFar(sharedExScan)},

	{VerbBarrier, "dissemination", 0,
		"⌈log₂n⌉α", func(n, _, _ float64) (_, _, _ float64) { return up(n), 0, 0 },
		meet(disseminationBarrier)},
	{VerbBarrier, shared, 0, "α", func(_, _, _ float64) (_, _, _ float64) { return 1, 0, 0 }, meet(sharedBarrier)},
	{VerbBarrier, hierarchical, 0, "between h hosts ⌈log₂h⌉α", func(h, _, _ float64) (_, _, _ float64) { return up(h), 0, 0 }, meet(hierarchicalBarrier)},
}

// up is the steps of a binomial tree.
func up(n float64) float64 { return math.Ceil(math.Log2(n)) }

// The costs that several algorithms have.
const (
	linearMove    = "(n-1)α + m(n-1)/n β"
	treeMove      = "⌈log₂n⌉α + m(n-1)/n β"
	linearFold    = "(n-1)α + m(n-1)/n (β+γ)"
	foldAndSpread = "2(n-1)α + 2m(n-1)/n β + m(n-1)/n γ"
	moveBetween   = "between h hosts (h-1)α + m(h-1)/h β"
	foldBetween   = "between h hosts (h-1)α + m(h-1)/h (β+γ)"
	foldAndDeal   = "2(n-1)α + m(n-1)(n+1)/n β + m(n-1)γ"
)

func linearMoveCost(n, m, _ float64) (alpha, beta, gamma float64) { return n - 1, m * (n - 1) / n, 0 }

func treeMoveCost(n, m, _ float64) (alpha, beta, gamma float64) { return up(n), m * (n - 1) / n, 0 }

func linearFoldCost(n, m, _ float64) (alpha, beta, gamma float64) {
	return n - 1, m * (n - 1) / n, m * (n - 1) / n
}

func foldAndSpreadCost(n, m, _ float64) (alpha, beta, gamma float64) {
	return 2 * (n - 1), 2 * m * (n - 1) / n, m * (n - 1) / n
}

func foldAndDealCost(n, m, _ float64) (alpha, beta, gamma float64) {
	return 2 * (n - 1), m * (n - 1) * (n + 1) / n, m * (n - 1)
}

func recursiveDoublingCost(n, m, _ float64) (alpha, beta, gamma float64) {
	down := math.Floor(math.Log2(n))
	if down == up(n) {
		return down, down * m, down * m
	}
	return down + 2, (down + 2) * m, (down + 1) * m
}
