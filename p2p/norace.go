//go:build !race

package p2p

// storeMark writes a fingerprint, which others read once they have seen the flag that is stored after
// it. So it needs no order of its own, and an atomic store is one of the most expensive instructions.
func storeMark(mark *uint64, own uint64) { *mark = own }
