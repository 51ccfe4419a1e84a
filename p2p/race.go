//go:build race

package p2p

import "sync/atomic"

// storeMark writes a fingerprint. A reader reads a fingerprint only after it has seen a flag that
// the same rank stored later. The flags of other ranks ensure that the fingerprint is not
// overwritten before it is read. The race detector may miss this second ordering, so the store is
// atomic.
func storeMark(mark *uint64, own uint64) { atomic.StoreUint64(mark, own) }
