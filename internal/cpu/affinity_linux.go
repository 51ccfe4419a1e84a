package cpu

import (
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Yield gives the core to another process. runtime.Gosched would only give it to another goroutine
// of this one.
func Yield() { syscall.RawSyscall(syscall.SYS_SCHED_YIELD, 0, 0, 0) }

// CurrentCore returns the core that the caller runs on, or -1 where the system does not report it.
func CurrentCore() int {
	var core uint32
	if _, _, errno := syscall.RawSyscall(unix.SYS_GETCPU, uintptr(unsafe.Pointer(&core)), 0, 0); errno != 0 {
		return -1
	}
	return int(core)
}

// AvoidCore moves the calling thread away from a core, if its affinity allows another one. It
// restores the affinity, so that the scheduler may move the thread back later.
func AvoidCore(core int) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var all unix.CPUSet
	if unix.SchedGetaffinity(0, &all) != nil || all.Count() < 2 {
		return
	}
	others := all
	others.Clear(core)
	if unix.SchedSetaffinity(0, &others) == nil {
		unix.SchedSetaffinity(0, &all)
	}
}
