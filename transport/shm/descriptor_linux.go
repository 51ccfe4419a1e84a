package shm

import (
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/tutti-go/tutti/fault"
)

// passDescriptor writes b to a socket, with the descriptor fd beside the first byte. When the peer
// reads that byte, the kernel gives it a new descriptor for the same memory. passDescriptor does
// not block.
func passDescriptor(socket int, b []byte, fd int) error {
	for {
		err := unix.Sendmsg(socket, b, unix.UnixRights(fd), nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
		if err != unix.EINTR {
			return os.NewSyscallError("sendmsg", err)
		}
	}
}

// sendDescriptor is like passDescriptor, but for a connection that Go polls. It waits while the
// socket is full. If it fails and the connection has not ended, it returns fault.Refused, because
// descriptors cannot pass between the two processes. It returns the same error for a transient
// shortage, such as too many descriptors in flight (ETOOMANYREFS). In both cases the layer above
// uses another wire.
func sendDescriptor(nc *net.UnixConn, b []byte, fd int) error {
	conn, err := nc.SyscallConn()
	if err != nil {
		return err
	}
	var passErr error
	err = conn.Write(func(socket uintptr) bool {
		passErr = passDescriptor(int(socket), b, fd)
		return !errors.Is(passErr, unix.EAGAIN)
	})
	if err == nil {
		err = passErr
	}
	if err == nil || isConnEnd(err) {
		return err
	}
	return failure(fault.Refused, "pass a descriptor", fmt.Errorf("no descriptor can be sent to the peer: %w", err))
}

// isConnEnd reports whether err means that a connection has ended, or that its deadline has passed.
func isConnEnd(err error) bool {
	var timeout net.Error
	return errors.Is(err, net.ErrClosed) || errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET) ||
		errors.Is(err, syscall.ENOTCONN) || errors.As(err, &timeout) && timeout.Timeout()
}

// noDescriptor returns the reason why a message came without the descriptor that was sent with it.
// The kernel silently removes the descriptor if this process cannot have another descriptor, or if
// a security module forbids it. To find the cause, noDescriptor opens a descriptor itself.
func noDescriptor() error {
	fd, err := unix.Open("/", unix.O_PATH|unix.O_CLOEXEC, 0)
	if err == nil {
		unix.Close(fd)
	}
	return noDescriptorFor(err)
}

// noDescriptorFor returns the result of noDescriptor. Its argument is the error of the attempt to
// open a descriptor. The error text begins with the remedy, because the answer to the peer is cut
// at reasonRoom bytes.
func noDescriptorFor(err error) error {
	switch {
	case errors.Is(err, unix.EMFILE):
		return failure(fault.Exhausted, "receive a descriptor", fmt.Errorf("raise ulimit -n: %w", err))
	case errors.Is(err, unix.ENFILE):
		return failure(fault.Exhausted, "receive a descriptor", fmt.Errorf("raise fs.file-max: %w", err))
	}
	return failure(fault.Refused, "receive a descriptor",
		errors.New("none came with the message: a sandbox or security module removes descriptors"))
}

// probeSharing returns why this process cannot share memory, or nil if it can. It makes sealed
// memory and passes the descriptor to itself, which costs some ten microseconds, once. It detects
// the restrictions of a sandbox on this process. It cannot detect restrictions that apply only
// between two processes.
func probeSharing() error {
	memory, err := createMemfd(os.Getpagesize(), fixedSeals)
	if err != nil {
		return err
	}
	defer unix.Close(memory)
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("socketpair", err)
	}
	defer unix.Close(pair[0])
	defer unix.Close(pair[1])
	if err := passDescriptor(pair[0], []byte{1}, memory); err != nil {
		return fmt.Errorf("no descriptor can be sent: %w", err)
	}
	var b [socketRead]byte
	_, fd, errno := readSocket(pair[1], &b)
	switch {
	case errno != 0:
		return os.NewSyscallError("recvmsg", errno)
	case fd < 0:
		return noDescriptor()
	}
	return os.NewSyscallError("close", unix.Close(fd))
}
