//go:build race

package reduce

import (
	"runtime"
	"unsafe"
)

// The race detector does not see what assembly does, so it is told.

func raceRead(b []byte)  { runtime.RaceReadRange(unsafe.Pointer(unsafe.SliceData(b)), len(b)) }
func raceWrite(b []byte) { runtime.RaceWriteRange(unsafe.Pointer(unsafe.SliceData(b)), len(b)) }
