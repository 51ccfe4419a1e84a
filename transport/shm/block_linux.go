package shm

import (
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// Memory gets to another process in one of three ways; a ticket, in what one says to
// the other, tells in which.
//
//	ticket  offset  bytes  field
//	        0       1      0: a descriptor of sealed memory comes along; 1: one of a
//	                       file; 2: the file has a name
//	        1       1      where: 0 in /dev/shm, 1 in TMPDIR
//	        16      16     a random number: the name is "tutti-" and this in hex
//
// Anonymous memory by its descriptor is the rule. A file takes its place where the
// kernel makes none, and where no descriptor passes between the two: sandboxes forbid
// sendmsg to have any, and security modules take them out on the way. Only then has
// the file a name, from when it is all there until the other side has opened it.
const (
	bySeal = iota
	byFile
	byName
)

// A ticket says where memory is.
type ticket struct {
	how, dir byte
	number   nonce
}

func (tk ticket) put(b []byte) {
	b[0], b[1] = tk.how, tk.dir
	copy(b[16:], tk.number[:])
}

func ticketOf(b []byte) ticket { return ticket{b[0], b[1], nonce(b[16:])} }

// path is where the file is for a process that has these directories.
func (tk ticket) path(dirs []string) (string, error) {
	if int(tk.dir) >= len(dirs) {
		return "", fmt.Errorf("memory in a directory of number %d", tk.dir)
	}
	return dirs[tk.dir] + "/" + filePrefix + hex.EncodeToString(tk.number[:]), nil
}

// ways are what a Transport shares memory by. Tests take some of them away.
type ways struct {
	sealed func(size int) (fd int, err error)       // makes anonymous memory
	pass   func(socket int, b []byte, fd int) error // says b, and hands fd over, without waiting
	dirs   []string                                 // for files, by their numbers in tickets
}

func ordinaryWays() ways {
	return ways{sealed: createSealed, pass: passDescriptor, dirs: []string{"/dev/shm", os.TempDir()}}
}

func passDescriptor(socket int, b []byte, fd int) error {
	for {
		err := unix.Sendmsg(socket, b, unix.UnixRights(fd), nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
		if err != unix.EINTR {
			return os.NewSyscallError("sendmsg", err)
		}
	}
}

// errNotPassed says that a descriptor did not get to the other process, which is
// there and listens: none ever does, or there was a lack of something, such as of
// places for descriptors on their way (ETOOMANYREFS). No later meeting depends on it.
var errNotPassed = errors.New("no descriptor of memory passed between the two processes")

// A block is memory of this process's on its way to others.
type block struct {
	ticket
	fd   int
	path string // the name that it has now, or ""
}

// newBlock makes memory of zero bytes: anonymous and sealed, or a file's when that
// cannot be had, or when it shall have a name. Whoever gets the block closes it.
func (w ways) newBlock(size int, named bool) (*block, error) {
	if named {
		return w.newFile(size, true)
	}
	fd, err := w.sealed(size)
	if err == nil {
		return &block{ticket: ticket{how: bySeal}, fd: fd}, nil
	}
	b, otherwise := w.newFile(size, false)
	if otherwise != nil {
		return nil, fmt.Errorf("%w; in its place %w", err, otherwise)
	}
	return b, nil
}

// hand gives the block to the process at the other end, beside what it says, b.
// errNotPassed: the descriptor did not go there; nothing was said.
func (w ways) hand(nc *net.UnixConn, b []byte, m *block) error {
	if m.how == byName {
		_, err := nc.Write(b)
		return err
	}
	conn, err := nc.SyscallConn()
	if err != nil {
		return err
	}
	var passErr error
	err = conn.Write(func(socket uintptr) bool {
		passErr = w.pass(int(socket), b, m.fd)
		return !errors.Is(passErr, unix.EAGAIN)
	})
	if err == nil {
		err = passErr
	}
	if err == nil || gone(err) {
		return err
	}
	return fmt.Errorf("%w: %w", errNotPassed, err)
}

// gone reports whether a failure to write is the end of the connection, or of the
// patience with it.
func gone(err error) bool {
	var late net.Error
	return errors.Is(err, net.ErrClosed) || errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET) ||
		errors.Is(err, syscall.ENOTCONN) || errors.As(err, &late) && late.Timeout()
}

// take is the descriptor of memory that another process has handed over; fd came
// along, or is -1, and is the caller's no more. errNotPassed: it should have come.
func (w ways) take(tk ticket, fd, size int) (int, error) {
	var err error
	switch {
	case tk.how == byName:
		if fd >= 0 {
			unix.Close(fd)
		}
		return w.openFile(tk, size)
	case fd < 0:
		return -1, notCome()
	case tk.how > byName:
		err = fmt.Errorf("memory in way %d", tk.how)
	default:
		err = validateMemory(fd, size, tk.how == bySeal)
		if err == nil && tk.how == byFile { // memory that could be sealed has another mode
			err = checkOwner(fd)
		}
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// notCome says why a descriptor has not come along: the kernel takes it out on the
// way and leaves word of neither a security module's no nor a full table, so a look at
// that decides.
func notCome() error {
	fd, err := unix.Open("/", unix.O_PATH|unix.O_CLOEXEC, 0)
	if err == nil {
		unix.Close(fd)
	}
	return notComeFor(err)
}

// notComeFor says why a descriptor has not come to a process that got err when it made
// one itself.
func notComeFor(err error) error {
	if more := moreDescriptors(err); more != "" {
		return fmt.Errorf("%s: %w; no room for the descriptor of the peer's memory", more, err)
	}
	return errNotPassed
}

// moreDescriptors is what helps where err is a lack of room for descriptors, and else
// "". What tells a peer of it begins with that, for there is reasonRoom.
func moreDescriptors(err error) string {
	switch {
	case errors.Is(err, unix.EMFILE):
		return "raise ulimit -n"
	case errors.Is(err, unix.ENFILE):
		return "raise fs.file-max"
	}
	return ""
}

// close gives the descriptor back, and the name if there is one, once.
func (m *block) close() {
	m.unlink()
	if m.fd >= 0 {
		unix.Close(m.fd)
		m.fd = -1
	}
}

// unlink takes the name away; whoever has opened the file keeps it.
func (m *block) unlink() {
	if m.path != "" {
		unix.Unlink(m.path)
		m.path = ""
	}
}
