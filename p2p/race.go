//go:build race

package p2p

import "sync/atomic"

// storeMark writes a fingerprint. A fingerprint that is read was written before a later flag of the
// same rank, which the reader has seen. That it is not overwritten earlier is ordered through the
// flags of others only, which the race detector may miss: hence the atomic store.
func storeMark(mark *uint64, own uint64) { atomic.StoreUint64(mark, own) }
