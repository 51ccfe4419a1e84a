package tensor

// Chunk cuts a vector of count elements into n chunks. It returns the half-open range [lo, hi) of
// the elements of chunk i, where 0 <= i < n. The first count%n chunks have one element more than
// the others. If count < n, the last chunks are empty. Ten elements in four chunks are
//
//	chunk      0       1       2       3
//	elements   0 to 2  3 to 5  6 to 7  8 to 9
//
// All packages cut vectors with this rule, because the chunk of an element determines the order of
// its folds, and so the bits of its result.
func Chunk(count, n, i int) (lo, hi int) {
	size, longer := count/n, count%n
	lo = i*size + min(i, longer)
	hi = lo + size
	if i < longer {
		hi++
	}
	return lo, hi
}
