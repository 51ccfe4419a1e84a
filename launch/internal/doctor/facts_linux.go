package doctor

import (
	"fmt"
	"math"
	"net"

	"golang.org/x/sys/unix"
)

// addLimits adds the facts that need system calls: limits, /dev/shm, and the cores.
func addLimits(f *Facts) {
	f.LockedMemory, f.OpenFiles = limit(unix.RLIMIT_MEMLOCK), limit(unix.RLIMIT_NOFILE)
	f.Shm = shm("/dev/shm")
	var cores unix.CPUSet
	if unix.SchedGetaffinity(0, &cores) != nil {
		return
	}
	for c := range 64 * len(cores) {
		if cores.IsSet(c) {
			f.UsableCores = append(f.UsableCores, c)
		}
	}
}

// limit returns this process's soft limit on a resource. It returns -1 if there is no limit, and
// nil if the limit is unknown. The Go runtime raises the soft limit on open files to the hard limit
// when a program starts. So the value holds for a rank, too, if the rank is a Go program.
func limit(resource int) *int64 {
	var l unix.Rlimit
	if unix.Getrlimit(resource, &l) != nil {
		return nil
	}
	n := int64(-1)
	if l.Cur <= math.MaxInt64 {
		n = int64(l.Cur)
	}
	return &n
}

// shm returns the state of a file system for shared memory.
func shm(dir string) *Shm {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return &Shm{Error: err.Error()}
	}
	at := &Shm{Size: int64(s.Blocks) * int64(s.Bsize), Free: int64(s.Bavail) * int64(s.Bsize)}
	if err := unix.Access(dir, unix.W_OK); err != nil {
		at.Error = err.Error()
	} else if s.Type != unix.TMPFS_MAGIC && s.Type != unix.RAMFS_MAGIC {
		at.Error = fmt.Sprintf("got a file system of type %#x, want a tmpfs", s.Type)
	}
	return at
}

// pathMTU returns the size in bytes of the largest packet that the kernel sends on a connection. It
// returns 0 if the size is unknown, as on a connection that is not TCP.
func pathMTU(c net.Conn) (mtu int) {
	t, ok := c.(*net.TCPConn)
	if !ok {
		return 0
	}
	raw, err := t.SyscallConn()
	if err != nil {
		return 0
	}
	raw.Control(func(fd uintptr) { // an error leaves 0
		if info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO); err == nil {
			mtu = int(info.Pmtu)
		}
	})
	return mtu
}
