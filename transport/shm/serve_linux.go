package shm

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/transport"
)

// What a stranger may have: one of so many slots, for so long. helloTime is for
// its first bytes. guestLife is for all before Admit; it is longer than mesh gives
// a handshake, so that mesh ends one first, and says so.
const (
	maxPending   = 64
	helloTimeout = 5 * time.Second
	pendingLife  = 10 * time.Second
)

// Serve listens on a unix socket that has a random name and no file, and returns
// the address. It removes what processes that were killed have left in /dev/shm. It
// needs no listener of the process's, so that argument is not looked at.
func (t *Transport) Serve(_ net.Listener, accept func(transport.Conn)) (string, error) {
	if accept == nil {
		return "", failure(fault.Misuse, "serve", errors.New("accept is nil"))
	}
	if err := t.Available(); err != nil {
		return "", err
	}
	addr, err := t.listen(accept)
	if err == nil {
		sweep(t.ways.dirs[0])
	}
	return addr, err
}

// listen is Serve's part under the lock.
func (t *Transport) listen(accept func(transport.Conn)) (string, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.closed:
		return "", failure(fault.Closed, "serve", nil)
	case t.listener != nil:
		return "", failure(fault.Misuse, "serve", errors.New("called twice"))
	}
	n := newNonce()
	a := address{t.locality, "tutti-" + hex.EncodeToString(n[:])}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: "@" + a.name})
	if err != nil {
		return "", failure(fault.Refused, "serve", err)
	}
	t.listener = l
	t.running.Go(func() { t.acceptLoop(l, accept) })
	return a.String(), nil
}

// The accept loop's pause after a failure that may pass, such as a lack of
// descriptors, grows from the first to the second.
const (
	minPause = 5 * time.Millisecond
	maxPause = time.Second
)

// acceptLoop gives each connection a slot and a goroutine; where all slots are
// taken, connections wait in the socket's queue. It ends when l is closed.
func (t *Transport) acceptLoop(l *net.UnixListener, accept func(transport.Conn)) {
	pause := minPause
	for {
		select {
		case t.pendingSlots <- struct{}{}:
		case <-t.life.Done():
			return
		}
		nc, err := l.AcceptUnix()
		if err == nil {
			pause = minPause
			t.running.Go(func() { t.acceptOne(nc, accept) })
			continue
		}
		t.releasePendingSlot()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		select {
		case <-t.life.Done():
			return
		case <-time.After(pause):
			pause = min(2*pause, maxPause)
		}
	}
}

func (t *Transport) releasePendingSlot() { <-t.pendingSlots }

// acceptOne makes a Conn of an accepted connection, which has a slot.
func (t *Transport) acceptOne(nc *net.UnixConn, accept func(transport.Conn)) {
	w, err := t.acceptHandshake(nc)
	if err != nil {
		t.releasePendingSlot()
		if !errors.Is(err, io.EOF) && t.life.Err() == nil && t.options.Log != nil {
			t.options.Log.Warn("a connection to shared memory refused", "because", err)
		}
		return
	}
	w.releaseSlot = t.releasePendingSlot
	if c, err := t.newConn(w); err == nil {
		accept(c)
	}
}

// acceptHandshake is the side of the meeting that accepts. It closes nc, and lasts no
// longer than helloTime.
func (t *Transport) acceptHandshake(nc *net.UnixConn) (w handshakeResult, err error) {
	defer nc.Close()
	nc.SetDeadline(time.Now().Add(helloTimeout))
	defer context.AfterFunc(t.life, func() { nc.SetDeadline(time.Unix(1, 0)) })()
	if w.peer, err = checkPeerUser(nc); err != nil {
		return handshakeResult{}, err
	}
	seg, memory, err := t.readHello(nc)
	if err != nil {
		reject(nc, err)
		return handshakeResult{}, err
	}
	w.seg = seg
	err = t.writeAccepted(nc, seg, memory)
	unix.Close(memory)
	if err == nil {
		w.fd, err = detachSocket(nc)
	}
	if err != nil {
		w.seg.close()
		return handshakeResult{}, err
	}
	return w, nil
}

// readHello maps the memory that a stranger brings, and returns its descriptor, too,
// unless there is an error. One whose descriptor did not get here may bring it once
// more, as a file with a name.
func (t *Transport) readHello(nc *net.UnixConn) (*segment, int, error) {
	seg, fd, err := t.readOffer(nc)
	if !errors.Is(err, errNotPassed) {
		return seg, fd, err
	}
	if err := writeAnswer(nc, sayNotPassed, ""); err != nil {
		return nil, -1, err
	}
	return t.readOffer(nc)
}

// readOffer reads a stranger's first bytes and maps the memory that came along. A
// name is gone from then on.
func (t *Transport) readOffer(nc *net.UnixConn) (*segment, int, error) {
	b := make([]byte, helloLen)
	fd, err := readWithRights(nc, b)
	ring := binary.NativeEndian.Uint32(b[12:])
	switch {
	case err != nil:
	case string(b[:len(magic)]) != magic:
		err = fmt.Errorf("it is none of ours: it began with %q", b[:16])
	case binary.NativeEndian.Uint32(b[8:]) != version:
		err = fmt.Errorf("it speaks version %d, this side %d", binary.NativeEndian.Uint32(b[8:]), version)
	default:
		err = validateRingSize(ring)
	}
	if err != nil {
		if fd >= 0 {
			unix.Close(fd)
		}
		return nil, -1, err
	}
	tk := ticketOf(b[ticketAt:])
	if fd, err = t.ways.take(tk, fd, segmentSize(int(ring))); err != nil {
		return nil, -1, err
	}
	t.ways.removeFile(tk)
	seg, err := openSegment(fd, int(ring))
	if err != nil {
		unix.Close(fd)
		return nil, -1, err
	}
	seg.named = tk.how == byName
	return seg, fd, nil
}

// writeAccepted answers, and hands the memory back, of which only whether it comes
// matters: descriptors may pass one way and not the other.
func (t *Transport) writeAccepted(nc *net.UnixConn, seg *segment, memory int) error {
	mine := newNonce()
	copy(seg.mem[acceptorNonceOffset:], mine[:])
	b := make([]byte, answerLen)
	copy(b, magic)
	theirs := seg.nonce(dialerNonceOffset)
	copy(b[16:], theirs[:])
	copy(b[32:], mine[:])
	if !seg.named {
		err := t.ways.hand(nc, b, &block{fd: memory})
		if !errors.Is(err, errNotPassed) {
			return err
		}
		t.warnOfCopies(err)
	}
	_, err := nc.Write(b)
	return err
}

// reject tells a stranger why; where it does not listen, that is its loss.
func reject(nc *net.UnixConn, why error) { writeAnswer(nc, answerRejected, why.Error()) }

// writeAnswer answers with no more than a code and a reason.
func writeAnswer(nc *net.UnixConn, code byte, reason string) error {
	b := make([]byte, answerLen)
	copy(b, magic)
	b[8] = code
	b[9] = byte(copy(b[reasonOffset:], reason))
	_, err := nc.Write(b)
	return err
}
