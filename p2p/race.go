//go:build race

package p2p

import "sync/atomic"

// storeMark writes a mark. A mark that is read was written before a later flag of the
// same rank that the reader has seen; only that the mark is not overwritten before is
// ordered through the flags of others, which the race detector may miss.
func storeMark(mark *uint64, own uint64) { atomic.StoreUint64(mark, own) }
