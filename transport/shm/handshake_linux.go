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

// Two processes meet at a unix socket. Whoever dials sends a hello, with the memory
// that it has made; the other one maps it and answers. Where the descriptor did not
// come along, or could not be sent, there is a second hello, with a file's name. Each
// proves by a nonce that it sees the same memory as the other: the answer repeats what
// was found in the memory, and leaves there what it says itself. A welcome brings the
// descriptor back, unless there was a name: where that does not arrive, the side that
// dialled says so in the memory, and is shown no other memory by that Conn.
//
//	hello   offset  bytes  field
//	        0       8      "tuttishm"
//	        8       4      version, 2
//	        12      4      bytes in each ring
//	        16      32     ticket for the memory
//	        48      16     0
//
//	answer  offset  bytes  field
//	        0       8      "tuttishm"
//	        8       1      0: welcome; 1: turned away; 2: no descriptor came
//	        9       1      length of the reason
//	        16      16     the nonce of the side that dialled, from the memory
//	        32      16     the nonce of the side that accepted, which is there too
//	        48      80     the reason
const (
	helloLen     = 64
	answerLen    = 128
	reasonOffset = 48
	reasonRoom   = answerLen - reasonOffset
	ticketAt     = 16
)

const (
	answerAccepted = 0
	answerRejected = 1
	sayNotPassed   = 2
)

// A handshakeResult is what a meeting has led to, on its way to becoming a Conn.
type handshakeResult struct {
	seg         *segment
	fd          int // the socket, taken from Go's poller
	peer        unix.Ucred
	releaseSlot func() // of who has accepted: gives the guest's slot back
}

// dialSocket opens a socket to a name. A listener whose queue is full is tried again.
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

// dialHandshake is the side of the meeting that dials. It ends with ctx.
func (t *Transport) dialHandshake(ctx context.Context, name string) (w handshakeResult, err error) {
	nc, err := dialSocket(ctx, name)
	if err != nil {
		return handshakeResult{}, err
	}
	defer nc.Close()
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

// offer makes a segment that the peer maps, too: by its descriptor, or where that
// does not pass by the name of a file. Each meeting begins with a descriptor, for one
// failed call or exchange at most: it may have been a lack of the moment, and it may
// be another peer.
func (t *Transport) offer(nc *net.UnixConn) (*segment, error) {
	seg, why := t.offerOnce(nc, false)
	if !errors.Is(why, errNotPassed) {
		return seg, why
	}
	seg, err := t.offerOnce(nc, true)
	if err != nil {
		return nil, fmt.Errorf("%w; a file was named because %w", err, why)
	}
	t.warn(why)
	return seg, nil
}

func (t *Transport) offerOnce(nc *net.UnixConn, named bool) (*segment, error) {
	mine, ring := newNonce(), t.ringSize()
	m, err := t.ways.newBlock(segmentSize(ring), named)
	if err != nil {
		return nil, failure(fault.Exhausted, "make shared memory", err)
	}
	defer m.close()
	seg, err := createSegment(m, ring, mine)
	if err != nil {
		return nil, failure(fault.Exhausted, "make shared memory", err)
	}
	if err = t.ways.hand(nc, makeHello(m.ticket, ring), m); err == nil {
		err = readAnswer(nc, seg, mine)
	}
	if err != nil {
		seg.close()
		return nil, err
	}
	if !named && seg.deaf().Load() != 0 {
		t.warnOfCopies(notCome())
	}
	return seg, nil
}

func makeHello(tk ticket, ring int) []byte {
	b := make([]byte, helloLen)
	copy(b, magic)
	binary.NativeEndian.PutUint32(b[8:], version)
	binary.NativeEndian.PutUint32(b[12:], uint32(ring))
	tk.put(b[ticketAt:])
	return b
}

// readAnswer reads what the peer says to our hello.
func readAnswer(nc *net.UnixConn, seg *segment, mine nonce) error {
	b := make([]byte, answerLen)
	fd, err := readWithRights(nc, b)
	if fd >= 0 {
		unix.Close(fd)
	} else {
		seg.deaf().Store(1)
	}
	if err != nil {
		return fmt.Errorf("no answer to our hello: %w", err)
	}
	switch {
	case string(b[:len(magic)]) != magic:
		return failure(fault.Refused, "dial", fmt.Errorf("the peer does not speak shm: it answered %q", b[:16]))
	case b[8] == sayNotPassed:
		return errNotPassed
	case b[8] != answerAccepted:
		reason := b[reasonOffset:][:min(int(b[9]), reasonRoom)]
		return failure(fault.Refused, "dial", fmt.Errorf("the peer turned us away: %q", reason))
	case nonce(b[16:]) != mine || nonce(b[32:]) != seg.nonce(acceptorNonceOffset) || nonce(b[32:]) == nonce{}:
		return failure(fault.Refused, "dial", errors.New("the peer does not see the same memory"))
	}
	return nil
}

// checkPeerUser is the peer's process, if it is this user's.
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
		return *peer, failure(fault.Refused, "meet",
			fmt.Errorf("process %d runs as user %d, this one as %d", peer.Pid, peer.Uid, me))
	}
	return *peer, nil
}

// detachSocket duplicates a connection's descriptor, which takes it out of Go's
// poller once the original is closed. It stays non-blocking.
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

// readWithRights fills b, and returns the one descriptor that came with it, or
// -1. It is the caller's to close, also with an error.
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

// parseRights are the descriptors in a control message.
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
