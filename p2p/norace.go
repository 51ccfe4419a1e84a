//go:build !race

package p2p

// storeMark writes a fingerprint. Other ranks read it only after they have seen the flag that is
// stored after it, so the store need not be atomic. An atomic store would be much more expensive.
func storeMark(mark *uint64, own uint64) { *mark = own }
