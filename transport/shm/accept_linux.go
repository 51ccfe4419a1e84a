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
	guestSlots = 64
	helloTime  = 5 * time.Second
	guestLife  = 10 * time.Second
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
	case t.in != nil:
		return "", failure(fault.Misuse, "serve", errors.New("called twice"))
	}
	n := newNonce()
	a := address{t.here, "tutti-" + hex.EncodeToString(n[:])}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: "@" + a.name})
	if err != nil {
		return "", failure(fault.Refused, "serve", err)
	}
	t.in = l
	t.open.Go(func() { t.acceptAll(l, accept) })
	return a.String(), nil
}

// The accept loop's pause after a failure that may pass, such as a lack of
// descriptors, grows from the first to the second.
const (
	minPause = 5 * time.Millisecond
	maxPause = time.Second
)

// acceptAll gives each connection a slot and a goroutine; where all slots are
// taken, connections wait in the socket's queue. It ends when l is closed.
func (t *Transport) acceptAll(l *net.UnixListener, accept func(transport.Conn)) {
	pause := minPause
	for {
		select {
		case t.slots <- struct{}{}:
		case <-t.life.Done():
			return
		}
		nc, err := l.AcceptUnix()
		if err == nil {
			pause = minPause
			t.open.Go(func() { t.welcome(nc, accept) })
			continue
		}
		t.leaveSlot()
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

func (t *Transport) leaveSlot() { <-t.slots }

// welcome makes a Conn of an accepted connection, which has a slot.
func (t *Transport) welcome(nc *net.UnixConn, accept func(transport.Conn)) {
	w, err := t.receive(nc)
	if err != nil {
		t.leaveSlot()
		if !errors.Is(err, io.EOF) && t.life.Err() == nil && t.options.Log != nil {
			t.options.Log.Warn("a connection to shared memory refused", "because", err)
		}
		return
	}
	w.slot = t.leaveSlot
	if c, err := t.newConn(w); err == nil {
		accept(c)
	}
}

// receive is the side of the meeting that accepts. It closes nc, and lasts no
// longer than helloTime.
func (t *Transport) receive(nc *net.UnixConn) (w wire, err error) {
	defer nc.Close()
	nc.SetDeadline(time.Now().Add(helloTime))
	defer context.AfterFunc(t.life, func() { nc.SetDeadline(time.Unix(1, 0)) })()
	if w.peer, err = sameUser(nc); err != nil {
		return wire{}, err
	}
	seg, memory, err := t.hearHello(nc)
	if err != nil {
		turnAway(nc, err)
		return wire{}, err
	}
	w.seg = seg
	err = t.sayWelcome(nc, seg, memory)
	unix.Close(memory)
	if err == nil {
		w.fd, err = takeSocket(nc)
	}
	if err != nil {
		w.seg.close()
		return wire{}, err
	}
	return w, nil
}

// hearHello maps the memory that a stranger brings, and returns its descriptor, too,
// unless there is an error. One whose descriptor did not get here may bring it once
// more, as a file with a name.
func (t *Transport) hearHello(nc *net.UnixConn) (*segment, int, error) {
	seg, fd, err := t.hearOffer(nc)
	if !errors.Is(err, errNotPassed) {
		return seg, fd, err
	}
	if err := say(nc, sayNotPassed, ""); err != nil {
		return nil, -1, err
	}
	return t.hearOffer(nc)
}

// hearOffer reads a stranger's first bytes and maps the memory that came along. A
// name is gone from then on.
func (t *Transport) hearOffer(nc *net.UnixConn) (*segment, int, error) {
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
		err = checkRing(ring)
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
	seg, err := open(fd, int(ring))
	if err != nil {
		unix.Close(fd)
		return nil, -1, err
	}
	seg.named = tk.how == byName
	return seg, fd, nil
}

// sayWelcome answers, and hands the memory back, of which only whether it comes
// matters: descriptors may pass one way and not the other.
func (t *Transport) sayWelcome(nc *net.UnixConn, seg *segment, memory int) error {
	mine := newNonce()
	copy(seg.mem[answerAt:], mine[:])
	b := make([]byte, answerLen)
	copy(b, magic)
	theirs := seg.nonce(nonceAt)
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

// turnAway tells a stranger why; where it does not listen, that is its loss.
func turnAway(nc *net.UnixConn, why error) { say(nc, sayAway, why.Error()) }

// say answers with no more than a code and a reason.
func say(nc *net.UnixConn, code byte, reason string) error {
	b := make([]byte, answerLen)
	copy(b, magic)
	b[8] = code
	b[9] = byte(copy(b[reasonAt:], reason))
	_, err := nc.Write(b)
	return err
}
