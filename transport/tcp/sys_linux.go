package tcp

import (
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/tutti-go/tutti/internal/race"
	"github.com/tutti-go/tutti/internal/tlsopt"
)

// shortCall is the maximum size, in bytes, of a system call that is made without telling the Go
// scheduler. Telling the scheduler costs more than a short copy. But a long call that the scheduler
// does not know would delay the garbage collector, which waits until all goroutines stop.
const shortCall = 32 << 10

// shortWrite is the maximum number of bytes that are joined by a copy. Joining pays for short
// pieces, because a write of one piece costs the kernel less than a writev.
const shortWrite = 512

// ownDescriptor duplicates a connection's descriptor and closes the original, which removes it from
// Go's poller. The duplicate stays non-blocking.
func ownDescriptor(tc *net.TCPConn) (int, error) {
	fd, err := duplicate(tc)
	if err != nil {
		return -1, err
	}
	return replaceOriginal(tc, fd)
}

// duplicate returns a new descriptor for the connection, closed on exec.
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

// replaceOriginal closes the original of a duplicate. If another goroutine has closed the original
// meanwhile, it meant to close the connection. Then replaceOriginal closes the duplicate, too.
func replaceOriginal(original net.Conn, fd int) (int, error) {
	if err := original.Close(); err != nil {
		syscall.Close(fd)
		return -1, err
	}
	return fd, nil
}

// readVector reads into a and then into b. Either may be empty.
func readVector(fd int, a, b []byte) (int, syscall.Errno) {
	if len(a) == 0 {
		a, b = b, nil
	}
	if len(b) == 0 {
		return recordRead(ioCall(syscall.SYS_READ, fd, unsafe.Pointer(unsafe.SliceData(a)), len(a), len(a)))
	}
	// Two entries fit on the stack, so that a read allocates nothing.
	iov := [2]syscall.Iovec{{Base: &a[0]}, {Base: &b[0]}}
	iov[0].SetLen(len(a))
	iov[1].SetLen(len(b))
	return recordRead(ioCall(syscall.SYS_READV, fd, unsafe.Pointer(&iov), len(iov), len(a)+len(b)))
}

// recordRead returns the results of a read, and tells the race detector that bytes have arrived
// from another goroutine.
func recordRead(n int, errno syscall.Errno) (int, syscall.Errno) {
	if n > 0 {
		race.Acquire()
	}
	return n, errno
}

// writeVector writes parts, which have size bytes in all and at least one part. It uses iov as
// scratch memory and keeps no reference in it.
//
// writeVector passes one piece to write. It joins a few short pieces on the stack and passes them
// to write. It passes all other lists of pieces to writev.
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
	// The garbage collector must not see the frames' memory through iov.
	clear(iov[:len(parts)])
	return n, errno
}

// ioCall makes one non-blocking system call that moves at most size bytes. If the call fails, it
// has moved no bytes.
//
// A call that moves at most shortCall bytes uses RawSyscall, which skips the scheduler. EINTR is
// retried; EAGAIN is returned.
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

// unacknowledged returns how many written bytes the peer's kernel has not acknowledged.
func unacknowledged(fd int) int {
	n, err := unix.IoctlGetInt(fd, unix.SIOCOUTQ)
	if err != nil {
		return 0
	}
	return n
}

// diagnose returns a text about the bytes that the kernel has accepted for a connection.
func diagnose(fd int) string {
	info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	switch n := unacknowledged(fd); {
	case err != nil:
		return ""
	case n == 0:
		return "the kernel at the other end of this connection has acknowledged everything, so something between that kernel and the peer has lost the bytes"
	default:
		return fmt.Sprintf("%d bytes are not acknowledged by the kernel at the other end of this connection, after %d retransmissions in a row (path MTU %d)",
			n, info.Retransmits, info.Pmtu)
	}
}

// unackedBytes is like unacknowledged, but for a connection of package net. The result known is
// false if the system does not report the count.
func unackedBytes(nc net.Conn) (n int, known bool) {
	sc, ok := nc.(syscall.Conn)
	if !ok {
		return 0, false
	}
	conn, err := sc.SyscallConn()
	if err != nil {
		return 0, true // the connection is closed
	}
	err = conn.Control(func(fd uintptr) { n = unacknowledged(int(fd)) })
	return n, err == nil
}

// initialReceiveBuffer lets the first large message arrive at full speed. Without it, the kernel
// has to grow the buffer, and a first message of 4 MiB takes twice as long.
const initialReceiveBuffer = 4 << 20

// setReceiveBuffer applies Options.ReceiveBuffer. SO_RCVBUF has an upper limit that is often low,
// and it stops the kernel from adapting the buffer. So by default, setReceiveBuffer raises
// SO_RCVLOWAT and lowers it again. The kernel grows the buffer for the raised value (Linux 4.18,
// tcp_set_rcvlowat) and keeps adapting it afterwards.
func setReceiveBuffer(fd, size int) {
	switch { // best effort
	case size > 0:
		syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_RCVBUF, size)
	case size == 0:
		syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_RCVLOWAT, initialReceiveBuffer)
		syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_RCVLOWAT, 1)
	}
}

// avoidBBR switches a connection inside this host from BBR to Reno. Many systems choose BBR for
// their links, and every system has Reno. BBR limits the rate to the rate that it has measured on
// the path. Inside a host, the measured rate is the rate at which the two processes copy, which
// depends on how they are scheduled. With BBR, large messages took up to a third longer.
// Connections to other hosts, and other choices of the system, stay as they are.
func avoidBBR(fd int, local, remote net.Addr) {
	if !tlsopt.SameHost(local, remote) {
		return
	}
	name, err := unix.GetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION)
	if err == nil && strings.HasPrefix(name, "bbr") {
		unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION, "reno") // best effort
	}
}
