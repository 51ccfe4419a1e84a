//go:build race

package reduce

import (
	"runtime"
	"unsafe"
)

// raceRead and raceWrite tell the race detector which memory assembly code reads or writes, because
// the race detector does not see such accesses.
func raceRead(b []byte)  { runtime.RaceReadRange(unsafe.Pointer(unsafe.SliceData(b)), len(b)) }
func raceWrite(b []byte) { runtime.RaceWriteRange(unsafe.Pointer(unsafe.SliceData(b)), len(b)) }
