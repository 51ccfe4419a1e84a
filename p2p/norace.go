//go:build !race

package p2p

// storeMark writes a mark, which others read once they have seen the flag that is
// stored after it: it needs no order of its own, and an atomic store is one of the
// dearest instructions there are.
func storeMark(mark *uint64, own uint64) { *mark = own }
