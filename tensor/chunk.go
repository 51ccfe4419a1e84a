package tensor

// Chunk returns the half-open range [lo, hi) of elements that make up chunk i of a
// vector of count elements cut into n chunks, 0 <= i < n. The first count%n chunks
// have one element more than the others, and chunks are empty where count < n.
// Ten elements in four chunks are
//
//	chunk      0       1       2       3
//	elements   0 to 2  3 to 5  6 to 7  8 to 9
//
// All packages cut vectors with this rule: the order of a reduction's folds, and
// so its bits, depends on the chunk that an element lies in.
func Chunk(count, n, i int) (lo, hi int) {
	size, longer := count/n, count%n
	lo = i*size + min(i, longer)
	hi = lo + size
	if i < longer {
		hi++
	}
	return lo, hi
}
