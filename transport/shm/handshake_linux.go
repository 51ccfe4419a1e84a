package shm

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tutti-go/tutti/fault"
)

// Two processes do a handshake over a unix socket. The dialer makes the memory, and sends a hello
// with the descriptor of the memory. The acceptor maps that memory and answers. Nonces prove that
// both processes see the same memory. The memory holds the nonce of the dialer, and the acceptor
// adds its own nonce. The answer repeats both nonces. An answer that accepts also returns the
// descriptor. So a Conn exists only if descriptors pass in both directions. Then either side can
// expose memory on the Conn.
//
//	dialer                                    acceptor
//	makes memory, with its nonce
//	  | ------- hello, descriptor ----------> |  maps the memory, adds its nonce
//	  | <------ answer, descriptor ---------- |
//	has a Conn                                   has a pending Conn, and accept gets it
//
//	hello   offset  bytes  field
//	        0       8      "tuttishm"
//	        8       4      version, 3
//	        12      4      bytes in each ring
//
//	answer  offset  bytes  field
//	        0       8      "tuttishm"
//	        8       1      0: accepted; 1: rejected
//	        9       1      length of the reason
//	        16      16     the dialer's nonce, from the memory
//	        32      16     the acceptor's nonce, which is in the memory, too
//	        48      80     the reason
const (
	helloLen     = 16
	answerLen    = 128
	reasonOffset = 48
	reasonRoom   = answerLen - reasonOffset
)

// The codes of an answer.
const (
	answerAccepted = 0
	answerRejected = 1
)

// A handshakeResult holds the results of a handshake, from which newConn makes a Conn.
type handshakeResult struct {
	seg         *segment
	fd          int // the socket, taken from Go's poller
	peer        unix.Ucred
	releaseSlot func() // releases the slot of an accepted connection; nil at the dialer
}

// dialSocket connects to the socket with the given name. A unix socket whose queue is full fails
// with EAGAIN instead of waiting, so dialSocket tries again, with pauses from 1 to 50 ms, until ctx
// ends.
func dialSocket(ctx context.Context, name string) (*net.UnixConn, error) {
	var d net.Dialer
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		nc, err := d.DialContext(ctx, "unix", "@"+name)
		if err == nil {
			return nc.(*net.UnixConn), nil
		}
		if !errors.Is(err, syscall.EAGAIN) {
			return nil, err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(pause):
		}
	}
}

// dialHandshake performs the dialer's side of the handshake. It ends with ctx.
func (t *Transport) dialHandshake(ctx context.Context, name string) (w handshakeResult, err error) {
	nc, err := dialSocket(ctx, name)
	if err != nil {
		return handshakeResult{}, err
	}
	defer nc.Close()
	// A deadline in the past ends every read and write on nc at once.
	defer context.AfterFunc(ctx, func() { nc.SetDeadline(time.Unix(1, 0)) })()

	if w.peer, err = checkPeerUser(nc); err != nil {
		return handshakeResult{}, err
	}
	if w.seg, err = t.offer(nc); err != nil {
		return handshakeResult{}, err
	}
	if w.fd, err = detachSocket(nc); err != nil {
		w.seg.close()
		return handshakeResult{}, err
	}
	return w, nil
}

// offer makes a segment, sends its descriptor, and waits until the peer has also mapped the
// segment.
func (t *Transport) offer(nc *net.UnixConn) (*segment, error) {
	n, ring := newNonce(), t.ringSize()
	fd, err := createMemfd(segmentSize(ring), fixedSeals)
	if err != nil {
		return nil, failure(fault.Exhausted, "make shared memory", err)
	}
	defer unix.Close(fd)
	seg, err := createSegment(fd, ring, n)
	if err != nil {
		return nil, failure(fault.Exhausted, "make shared memory", err)
	}
	if err = sendDescriptor(nc, makeHello(ring), fd); err == nil {
		err = readAnswer(nc, seg, n)
	}
	if err != nil {
		seg.close()
		return nil, err
	}
	return seg, nil
}

// makeHello returns the hello for a segment. Its argument is the size of each ring.
func makeHello(ring int) []byte {
	b := make([]byte, helloLen)
	copy(b, magic)
	binary.NativeEndian.PutUint32(b[8:], version)
	binary.NativeEndian.PutUint32(b[12:], uint32(ring))
	return b
}

// readAnswer reads the answer to the hello that offered a segment. The argument n is the dialer's
// nonce in that segment.
func readAnswer(nc *net.UnixConn, seg *segment, n nonce) error {
	b := make([]byte, answerLen)
	fd, err := readWithRights(nc, b)
	if fd >= 0 {
		unix.Close(fd)
	}
	if err != nil {
		return fmt.Errorf("no answer to the hello: %w", err)
	}
	switch {
	case string(b[:len(magic)]) != magic:
		return failure(fault.Refused, "dial", fmt.Errorf("got an answer that begins with %q, want %q", b[:len(magic)], magic))
	case b[8] != answerAccepted:
		reason := b[reasonOffset:][:min(int(b[9]), reasonRoom)]
		return failure(fault.Refused, "dial", fmt.Errorf("the peer rejected the connection: %s", reason))
	case nonce(b[16:]) != n || nonce(b[32:]) != seg.nonce(acceptorNonceOffset) || nonce(b[32:]) == nonce{}:
		return failure(fault.Refused, "dial", errors.New("the peer does not see the same memory"))
	case fd < 0:
		return noDescriptor()
	}
	return nil
}

// checkPeerUser returns the credentials of the peer's process. It refuses a process of another
// user.
func checkPeerUser(nc *net.UnixConn) (unix.Ucred, error) {
	conn, err := nc.SyscallConn()
	if err != nil {
		return unix.Ucred{}, err
	}
	var peer *unix.Ucred
	var credErr error
	err = conn.Control(func(fd uintptr) {
		peer, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err = errors.Join(err, credErr); err != nil {
		return unix.Ucred{}, err
	}
	if me := os.Geteuid(); int(peer.Uid) != me {
		return *peer, failure(fault.Refused, "check the peer",
			fmt.Errorf("got process %d of user %d, want one of user %d: run all ranks as one user", peer.Pid, peer.Uid, me))
	}
	return *peer, nil
}

// detachSocket returns a duplicate of a connection's descriptor. When the original is closed, Go's
// poller no longer watches the socket. The duplicate stays non-blocking.
func detachSocket(nc *net.UnixConn) (int, error) {
	conn, err := nc.SyscallConn()
	if err != nil {
		return -1, err
	}
	fd, dupErr := -1, error(nil)
	err = conn.Control(func(original uintptr) {
		fd, dupErr = unix.FcntlInt(original, unix.F_DUPFD_CLOEXEC, 0)
	})
	return fd, errors.Join(err, os.NewSyscallError("fcntl", dupErr))
}

// readWithRights fills b, and returns the one descriptor that came with it, or -1. The caller
// closes the descriptor, also after an error. readWithRights closes further descriptors, because no
// message of this package has more than one descriptor.
func readWithRights(nc *net.UnixConn, b []byte) (fd int, err error) {
	fd = -1
	oob := make([]byte, unix.CmsgSpace(4))
	for len(b) > 0 {
		n, oobn, _, _, err := nc.ReadMsgUnix(b, oob)
		fds := parseRights(oob[:oobn])
		for i, got := range fds {
			if fd < 0 && i == 0 {
				fd = got
			} else {
				unix.Close(got)
			}
		}
		switch {
		case err != nil:
			return fd, err
		case n == 0:
			return fd, io.ErrUnexpectedEOF
		}
		b = b[n:]
	}
	return fd, nil
}

// parseRights returns the descriptors in a control message.
func parseRights(oob []byte) (fds []int) {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil
	}
	for i := range messages {
		if got, err := unix.ParseUnixRights(&messages[i]); err == nil {
			fds = append(fds, got...)
		}
	}
	return fds
}
