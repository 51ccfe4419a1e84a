//go:build race

package reduce

import (
	"runtime"
	"unsafe"
)

// raceRead and raceWrite report memory that assembly reads or writes to the race detector,
// which does not see it otherwise.
func raceRead(b []byte)  { runtime.RaceReadRange(unsafe.Pointer(unsafe.SliceData(b)), len(b)) }
func raceWrite(b []byte) { runtime.RaceWriteRange(unsafe.Pointer(unsafe.SliceData(b)), len(b)) }
