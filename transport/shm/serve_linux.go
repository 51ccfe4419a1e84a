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

// The limits of a peer that is not authenticated. Such a peer holds one of maxPending slots. Its
// hello must come within helloTimeout, and it must be admitted within pendingLife. pendingLife is
// longer than the time limit of mesh for its own handshake. So mesh ends a slow handshake first and
// reports it.
const (
	maxPending   = 64
	helloTimeout = 5 * time.Second
	pendingLife  = 10 * time.Second
)

// Serve listens on a unix socket with a random name and no file, and returns the address. It
// needs no listener, so it ignores that argument. It may be called once.
func (t *Transport) Serve(_ net.Listener, accept func(transport.Conn)) (string, error) {
	if accept == nil {
		return "", failure(fault.Misuse, "serve", errors.New("accept function: got nil, want a function"))
	}
	if err := t.Available(); err != nil {
		return "", err
	}
	return t.listen(accept)
}

// listen opens the socket and starts to accept, under the lock, so that a Close either sees the
// listener or makes listen fail. The name is random: no other process can bind it beforehand.
func (t *Transport) listen(accept func(transport.Conn)) (string, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.closed:
		return "", failure(fault.Closed, "serve", nil)
	case t.listener != nil:
		return "", failure(fault.Misuse, "serve", errors.New("got a second call of Serve, want one per Transport"))
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

// The accept loop pauses after a failure that may be transient, such as a lack of descriptors. The
// pause is minPause at first, and grows to maxPause when the failure repeats.
const (
	minPause = 5 * time.Millisecond
	maxPause = time.Second
)

// acceptLoop gives each connection a slot of a pending peer and a goroutine. It gets the slot
// before it accepts, so while no slot is free, connections wait in the socket's queue and cost this
// process nothing. It ends when l is closed.
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

// releasePendingSlot lets the accept loop accept one more connection.
func (t *Transport) releasePendingSlot() { <-t.pendingSlots }

// acceptOne makes a Conn from a connection that holds a slot, and passes the Conn to the function
// accept. It logs the reason for a rejection, unless the connection has ended before its hello.
func (t *Transport) acceptOne(nc *net.UnixConn, accept func(transport.Conn)) {
	w, err := t.acceptHandshake(nc)
	if err != nil {
		t.releasePendingSlot()
		if !errors.Is(err, io.EOF) && t.life.Err() == nil && t.options.Log != nil {
			t.options.Log.Warn("shm: a connection was rejected", "because", err)
		}
		return
	}
	// From here on the Conn owns the slot. It releases the slot on Admit, or when it ends.
	w.releaseSlot = t.releasePendingSlot
	if c, err := t.newConn(w); err == nil {
		accept(c)
	}
}

// acceptHandshake performs the acceptor's side of the handshake, within helloTimeout. It closes nc.
// Its result holds a duplicate of the socket, which stays open.
func (t *Transport) acceptHandshake(nc *net.UnixConn) (w handshakeResult, err error) {
	defer nc.Close()
	nc.SetDeadline(time.Now().Add(helloTimeout))
	defer context.AfterFunc(t.life, func() { nc.SetDeadline(time.Unix(1, 0)) })()
	if w.peer, err = checkPeerUser(nc); err != nil {
		return handshakeResult{}, err
	}
	seg, memory, err := readHello(nc)
	if err != nil {
		reject(nc, err)
		return handshakeResult{}, err
	}
	w.seg = seg
	err = writeAccepted(nc, seg, memory)
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

// readHello reads a pending peer's hello and maps the memory that came with it. If there is no
// error, it also returns the memory's descriptor.
func readHello(nc *net.UnixConn) (*segment, int, error) {
	b := make([]byte, helloLen)
	fd, err := readWithRights(nc, b)
	var seg *segment
	if err == nil {
		seg, err = openOffer(b, fd)
	}
	if err != nil {
		if fd >= 0 {
			unix.Close(fd)
		}
		return nil, -1, err
	}
	return seg, fd, nil
}

// openOffer maps the memory with descriptor fd that the hello b offers.
func openOffer(b []byte, fd int) (*segment, error) {
	ring := binary.NativeEndian.Uint32(b[12:])
	if string(b[:len(magic)]) != magic {
		return nil, fmt.Errorf("got a hello that begins with %q, want %q", b[:len(magic)], magic)
	}
	if v := binary.NativeEndian.Uint32(b[8:]); v != version {
		return nil, fmt.Errorf("got version %d, want %d: run the same release of tutti on all ranks", v, version)
	}
	if err := validateRingSize(ring); err != nil {
		return nil, err
	}
	if fd < 0 {
		return nil, noDescriptor()
	}
	if err := validateMemory(fd, segmentSize(int(ring))); err != nil {
		return nil, err
	}
	return openSegment(fd, int(ring))
}

// writeAccepted sends an answer that accepts, and returns the memory's descriptor to the dialer.
// This proves that descriptors pass in this direction, too.
func writeAccepted(nc *net.UnixConn, seg *segment, memory int) error {
	n := newNonce()
	copy(seg.mem[acceptorNonceOffset:], n[:])
	b := make([]byte, answerLen)
	copy(b, magic)
	theirs := seg.nonce(dialerNonceOffset)
	copy(b[16:], theirs[:])
	copy(b[32:], n[:])
	err := sendDescriptor(nc, b, memory)
	if errors.Is(err, fault.Refused) {
		reject(nc, err)
	}
	return err
}

// reject answers with the reason of err, cut at reasonRoom bytes. It ignores errors of the write,
// since the connection ends anyway.
func reject(nc *net.UnixConn, err error) {
	var f *fault.Error
	if errors.As(err, &f) && f.Err != nil {
		err = f.Err // the peer needs the cause, not the operation that failed here
	}
	b := make([]byte, answerLen)
	copy(b, magic)
	b[8] = answerRejected
	b[9] = byte(copy(b[reasonOffset:], err.Error()))
	nc.Write(b)
}
