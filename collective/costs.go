package collective

import (
	"math"
	"math/bits"
)

// Each cost function below belongs to one algorithm, or to one family of algorithms.

// power returns the largest power of two that is at most n.
func power(n float64) float64 { return math.Exp2(math.Floor(math.Log2(n))) }

// rabenseifnerCost returns the cost of recursive halving followed by recursive doubling. If the
// number of ranks is not a power of two, the cost includes the given numbers of additional messages
// and of whole vectors.
func rabenseifnerCost(steps, vectors float64) cost {
	return func(n, m, _ float64) (alpha, beta, gamma float64) {
		p := power(n)
		alpha, beta, gamma = 2*math.Log2(p), 2*m*(p-1)/p, m*(p-1)/p
		if p != n {
			alpha, beta, gamma = alpha+steps, beta+vectors*m, gamma+m
		}
		return alpha, beta, gamma
	}
}

const halvingFold = "⌊log₂n⌋α + m(n-1)/n (β+γ) for a power of two. Else 2α more, and in all at most m(2+2/n)β + 2mγ"

// halvingFoldCost counts the chunks that a vertex moves and folds. Each step moves one half of the
// remaining chunks. The cost assumes the half with more vertices that stand for two ranks, because
// that half is longer.
func halvingFoldCost(n, m, _ float64) (alpha, beta, gamma float64) {
	p := power(n)
	extra := n - p
	for vertices, twos := p/2, extra; vertices >= 1; vertices /= 2 {
		twos = math.Ceil(twos / 2)
		beta += m * (vertices + twos) / n
	}
	alpha, gamma = math.Log2(p), beta
	if extra > 0 {
		alpha, beta, gamma = alpha+2, beta+m+m/n, gamma+m
	}
	return alpha, beta, gamma
}

const doublingMove = "⌈log₂n⌉α + m(n-1)/n β for a power of two. Else ⌊log₂n⌋α + 2α, and in all at most 3mβ"

// doublingMoveCost counts the chunks that the first vertices send. These vertices send most,
// because each of them stands for two ranks.
func doublingMoveCost(n, m, _ float64) (alpha, beta, gamma float64) {
	p := power(n)
	extra := n - p
	for held := 1.0; held < p; held *= 2 {
		beta += m * (held + min(held, extra)) / n
	}
	alpha = math.Log2(p)
	if extra > 0 {
		alpha, beta = alpha+2, beta+m+m/n
	}
	return alpha, beta, 0
}

const neighborMove = "n/2 α + m(n-1)/n β; for odd n, (n-1)α + m(n-1)/n β"

// neighborMoveCost counts n/2 exchanges. The first exchange moves one chunk, and every later
// exchange moves two chunks. An odd number of ranks uses the ring.
func neighborMoveCost(n, m, _ float64) (alpha, beta, gamma float64) {
	if math.Mod(n, 2) != 0 {
		return linearMoveCost(n, m, 0)
	}
	return n / 2, m * (n - 1) / n, 0
}

// bruckMoveCost counts one message per jump, and the chunks that move in each jump.
func bruckMoveCost(n, m, _ float64) (alpha, beta, gamma float64) {
	for jump := 1; jump < int(n); jump *= 2 {
		whole, rest := int(n)/(2*jump), int(n)%(2*jump)
		chunks := whole*jump + max(rest-jump, 0)
		beta += m * float64(chunks) / n
	}
	return log2Ceil(n), beta, 0
}

// knomialSteps returns the number of messages on the critical path of a k-nomial broadcast. It
// counts the messages that the root sends to its children of each level, and then the messages in
// the subtree of its last child.
func knomialSteps(n float64) float64 {
	steps, width := 0, 1
	for width < int(n) {
		width *= radix
	}
	for left := int(n); left > 1; {
		width /= radix
		children := (left - 1) / width
		steps += children
		left = max(left-children*width, min(left, width))
	}
	return float64(steps)
}

// segmentedRingCost is like the cost of the ring, but each message counts once for every subrange
// of the longest chunk.
func segmentedRingCost(n, m, s float64) (alpha, beta, gamma float64) {
	subranges := max(1, math.Ceil(m/n/(ringSubrangeSegments*s)))
	return 2 * (n - 1) * subranges, 2 * m * (n - 1) / n, m * (n - 1) / n
}

// pipelined returns the cost until the last segment has arrived. The parameter steps is the number
// of steps of the first segment. The parameter each is the number of steps between two successive
// segments.
func pipelined(steps, each, m, s float64) (alpha, beta float64) {
	segments := max(1, math.Ceil(m/s))
	steps += each * (segments - 1)
	return steps, steps * m / segments
}

// chainMoveCost counts the steps until the last segment reaches the last rank. A segment takes n-1
// hops, and one segment starts in each step.
func chainMoveCost(n, m, s float64) (alpha, beta, gamma float64) {
	if n == 1 {
		return 0, 0, 0
	}
	alpha, beta = pipelined(n-1, 1, m, s)
	return alpha, beta, 0
}

// chainFoldCost is chainMoveCost plus a fold of every segment.
func chainFoldCost(n, m, s float64) (alpha, beta, gamma float64) {
	alpha, beta, _ = chainMoveCost(n, m, s)
	return alpha, beta, beta
}

// chainExScanCost is chainFoldCost without the fold of the last rank.
func chainExScanCost(n, m, s float64) (alpha, beta, gamma float64) {
	alpha, beta, _ = chainMoveCost(n, m, s)
	if n > 2 {
		_, gamma = pipelined(n-2, 1, m, s)
	}
	return alpha, beta, gamma
}

// binaryTreeCost counts the steps until the last segment has arrived everywhere. The root first
// sends all earlier segments, each twice. Then the last segment goes down the tree: a hop to a left
// child takes one step, and a hop to a right child takes two steps.
func binaryTreeCost(n, m, s float64) (alpha, beta, gamma float64) {
	if n <= 2 {
		return chainMoveCost(n, m, s)
	}
	// The binary digits of v+1 after the first digit are the path to node v: 0 is left and 1 is
	// right. The level above the last level is full. Its last node may be farther from the root
	// than every node of the last level.
	last := uint(n)
	levels := bits.Len(last) - 1
	depth := max(2*(levels-1), levels+bits.OnesCount(last)-1)
	for digit := range levels {
		if last>>digit&1 == 1 {
			depth = max(depth, levels+bits.OnesCount(last>>digit)-2+digit)
		}
	}
	alpha, beta = pipelined(float64(depth), 2, m, s)
	return alpha, beta, 0
}

// recursiveDoublingExScanCost counts the folds of the busiest rank. The number of this rank is a
// power of two. In each step it folds twice: into the vector that it sends later, and into its
// result.
func recursiveDoublingExScanCost(n, m, _ float64) (alpha, beta, gamma float64) {
	most := 0
	for rank, results := 1, 0; rank < int(n); rank, results = rank*2, results+1 {
		folds := results
		for distance := 1; distance <= rank && rank+2*distance < int(n); distance *= 2 {
			folds++
		}
		most = max(most, folds)
	}
	return log2Ceil(n), log2Ceil(n) * m, float64(most) * m
}
