package tcp

import (
	"net"
	"os"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/tutti-go/tutti/internal/race"
)

// shortCall is the most bytes moved by a system call that the scheduler is not
// told of. Telling it costs more than a short copy; not telling it makes the
// garbage collector wait for a long one.
const shortCall = 32 << 10

// shortWrite is the most bytes that are copied together to spare the system the
// work of gathering them.
const shortWrite = 512

// ownDescriptor duplicates a connection's descriptor and closes the original,
// which takes it out of Go's poller. It stays non-blocking.
func ownDescriptor(tc *net.TCPConn) (int, error) {
	fd, err := duplicate(tc)
	if err != nil {
		return -1, err
	}
	return replaceOriginal(tc, fd)
}

func duplicate(tc *net.TCPConn) (int, error) {
	conn, err := tc.SyscallConn()
	if err != nil {
		return -1, err
	}
	fd, dupErr := -1, error(nil)
	err = conn.Control(func(original uintptr) {
		fd, dupErr = unix.FcntlInt(original, unix.F_DUPFD_CLOEXEC, 0)
	})
	if err == nil {
		err = os.NewSyscallError("fcntl", dupErr)
	}
	if err != nil {
		return -1, err
	}
	return fd, nil
}

// replaceOriginal closes the original of a duplicate. Whoever it came from may have done
// so in between, and meant the connection, which the duplicate must not outlive.
func replaceOriginal(original net.Conn, fd int) (int, error) {
	if err := original.Close(); err != nil {
		syscall.Close(fd)
		return -1, err
	}
	return fd, nil
}

// readVector reads into a and then b, either of which may be empty.
func readVector(fd int, a, b []byte) (int, syscall.Errno) {
	if len(a) == 0 {
		a, b = b, nil
	}
	if len(b) == 0 {
		return recordRead(ioCall(syscall.SYS_READ, fd, unsafe.Pointer(unsafe.SliceData(a)), len(a), len(a)))
	}
	iov := [2]syscall.Iovec{{Base: &a[0]}, {Base: &b[0]}}
	iov[0].SetLen(len(a))
	iov[1].SetLen(len(b))
	return recordRead(ioCall(syscall.SYS_READV, fd, unsafe.Pointer(&iov), len(iov), len(a)+len(b)))
}

// recordRead is what a read returned, once the race detector has been told.
func recordRead(n int, errno syscall.Errno) (int, syscall.Errno) {
	if n > 0 {
		race.Acquire()
	}
	return n, errno
}

// writeVector writes parts, which have size bytes in all and at least one. iov
// is room for it to work in; it keeps nothing.
func writeVector(fd int, parts [][]byte, size int, iov *[2 * batchFrames]syscall.Iovec) (int, syscall.Errno) {
	race.Release()
	if len(parts) == 1 {
		return ioCall(syscall.SYS_WRITE, fd, unsafe.Pointer(unsafe.SliceData(parts[0])), size, size)
	}
	if size <= shortWrite {
		var b [shortWrite]byte
		n := 0
		for _, p := range parts {
			n += copy(b[n:], p)
		}
		return ioCall(syscall.SYS_WRITE, fd, unsafe.Pointer(&b), size, size)
	}
	for i, p := range parts {
		iov[i].Base = unsafe.SliceData(p)
		iov[i].SetLen(len(p))
	}
	n, errno := ioCall(syscall.SYS_WRITEV, fd, unsafe.Pointer(iov), len(parts), size)
	clear(iov[:len(parts)])
	return n, errno
}

// ioCall is one non-blocking system call that moves at most size bytes. Where it
// fails it has moved none.
func ioCall(trap uintptr, fd int, p unsafe.Pointer, n, size int) (int, syscall.Errno) {
	for {
		var moved uintptr
		var errno syscall.Errno
		if size <= shortCall {
			moved, _, errno = syscall.RawSyscall(trap, uintptr(fd), uintptr(p), uintptr(n))
		} else {
			moved, _, errno = syscall.Syscall(trap, uintptr(fd), uintptr(p), uintptr(n))
		}
		switch errno {
		case 0:
			return int(moved), 0
		case syscall.EINTR:
		default:
			return 0, errno
		}
	}
}

// unacknowledged is how many bytes were written that the peer's system has not
// taken yet.
func unacknowledged(fd int) int {
	n, err := unix.IoctlGetInt(fd, unix.SIOCOUTQ)
	if err != nil {
		return 0
	}
	return n
}

// unackedBytes is unacknowledged for a connection of package net.
func unackedBytes(nc net.Conn) (n int, known bool) {
	sc, ok := nc.(syscall.Conn)
	if !ok {
		return 0, false
	}
	conn, err := sc.SyscallConn()
	if err != nil {
		return 0, true // it is closed
	}
	err = conn.Control(func(fd uintptr) { n = unacknowledged(int(fd)) })
	return n, err == nil
}

// initialReceiveBuffer is a receive buffer that takes a large message at once: a first message
// of 4 MiB takes half the time of one for which the buffer has to grow.
const initialReceiveBuffer = 4 << 20

// setReceiveBuffer sets the receive buffer by Options.ReceiveBuffer. A size set by SO_RCVBUF
// is capped by a limit that is often low, and is never adapted again. So ample
// room is had in another way: asking to be woken for no fewer bytes than that
// makes the system prepare for them (Linux 4.18, tcp_set_rcvlowat), and stays
// adapted when the wish is taken back.
func setReceiveBuffer(fd, size int) {
	switch { // each is worth trying only
	case size > 0:
		syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_RCVBUF, size)
	case size == 0:
		syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_RCVLOWAT, initialReceiveBuffer)
		syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_RCVLOWAT, 1)
	}
}

// avoidBBR takes a connection inside this host from BBR, which many systems choose
// for their links, to Reno, which each has. BBR sends at the rate that it has seen
// the path take; here the path is the two processes' own copying, whose rate is
// that of whoever had the core, and large messages took up to a third longer.
// What the system chose for connections to other hosts, or chose otherwise, stays.
func avoidBBR(fd int, local, remote net.Addr) {
	if !sameHost(local, remote) {
		return
	}
	name, err := unix.GetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION)
	if err == nil && strings.HasPrefix(name, "bbr") {
		unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION, "reno") // worth trying only
	}
}

// sameHost reports whether bytes between two addresses stay on this host: then
// both ends are the same one, or are loopback's.
func sameHost(local, remote net.Addr) bool {
	l, ok := local.(*net.TCPAddr)
	r, too := remote.(*net.TCPAddr)
	return ok && too && (l.IP.Equal(r.IP) || l.IP.IsLoopback() && r.IP.IsLoopback())
}
