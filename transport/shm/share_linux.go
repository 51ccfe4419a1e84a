package shm

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/race"
)

// The ranks of a Share find each other by a unix socket whose name is a hash of
// the Share's: whoever comes first binds it and is the host, the others call.
// When all have come, the host makes the memory and hands it to everyone. A host
// that gives up closes its socket, and one of those that wait binds the name again.
//
// A visitor that gives up says so by a byte, and then listens: whether it was too late
// for that is the host's decision, so that all get memory or none does, but for a death,
// for one that was stopped for longer than verdictTime, and for one that cannot map, open
// or take what it was given: that one's Share fails, and those of others may not.
//
// Nobody uses a descriptor before the host says that it has sent all. If one could not
// be sent, or a rank asks for that, as one does that could not get one before, all of
// them get the name of a file instead. Each says by a byte that it has opened it. When
// all have, the host takes the name away and closes; each takes it away after that as
// well, in case that the host has died.
//
//	request  offset  bytes  field
//	         0       8      "tuttishr"
//	         8       4      version, 2
//	         12      4      ranks
//	         16      8      bytes of memory
//	         24      8      not 0: by the name of a file
//
//	then     0       1      'q': I give up; 'o': I have opened the file
//
//	verdict  offset  bytes  field
//	         0       1      'm': here is the memory; 'g': it is yours, all have it; '!': there
//	                        is a mismatch; 'x': the host could not make the memory
//	         8       4      on a mismatch: ranks, as another one said
//	         16      8      on a mismatch: bytes, as another one said
//	         24      32     ticket for the memory
const (
	shareMagic = "tuttishr"
	requestLen = 32
	replyLen   = 56
)

const (
	replyMemory   = 'm'
	replyCommit   = 'g'
	replyMismatch = '!'
	replyFailed   = 'x'

	memberQuits   = 'q'
	visitorOpened = 'o'
)

// replyTimeout bounds how long the host of a Share may take to answer one that gives
// up, and its visitors to open a file: one that was stopped does neither.
const replyTimeout = time.Second

// A shareRequest is what a rank asks of a Share.
type shareRequest struct{ ranks, size int }

func (w shareRequest) String() string { return fmt.Sprintf("%d bytes for %d ranks", w.size, w.ranks) }

// Share implements transport.Sharer between the processes of one user on one
// host, or within one. The name must be one that no other group uses at the same
// time: other jobs on the host are kept apart by Options.Job, or by a random part
// of the name that one rank has told the others. The memory is mapped until
// release, which only the first time is no fault.Misuse.
func (t *Transport) Share(ctx context.Context, name string, ranks, size int) ([]byte, func() error, error) {
	op := fmt.Sprintf("share %.80q", name)
	w := shareRequest{ranks, size}
	if ranks < 1 || size < 0 || int64(size) > MaxBody || int64(ranks) > 1<<31-1 {
		return nil, nil, failure(fault.Misuse, op, errors.New(w.String()))
	}
	if err := t.Available(); err != nil {
		return nil, nil, err
	}
	if err := t.beginShare(op, name); err != nil {
		return nil, nil, err
	}
	defer t.endShare(name)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(t.life, cancel)()
	fd, err := t.joinShare(ctx, t.shareName(name), w)
	if err != nil {
		return nil, nil, t.waitError(ctx, op, fault.LinkLost, err)
	}
	defer unix.Close(fd)
	return t.mapShare(op, fd, size)
}

// beginShare takes the name, of which this rank waits for one Share at a time.
func (t *Transport) beginShare(op, name string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return failure(fault.Closed, op, nil)
	}
	if t.sharing[name] {
		return failure(fault.Misuse, op, errors.New("this rank waits for that name already"))
	}
	t.sharing[name] = true
	t.running.Add(1)
	return nil
}

func (t *Transport) endShare(name string) {
	t.mu.Lock()
	delete(t.sharing, name)
	t.mu.Unlock()
	t.running.Done()
}

// shareName is the socket's name for a Share.
func (t *Transport) shareName(name string) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%d:%s%s", len(t.options.Job), t.options.Job, name))
	return "tutti-share-" + hex.EncodeToString(sum[:16])
}

// mapShare is what Share returns.
func (t *Transport) mapShare(op string, fd, size int) ([]byte, func() error, error) {
	mem := []byte{}
	if size > 0 {
		whole, err := mapShared(fd, size)
		if err != nil {
			return nil, nil, failure(fault.Exhausted, op, err)
		}
		mem = whole[:size:size]
		race.MarkShared(mem)
	}
	var released atomic.Bool
	release := func() error {
		if !released.CompareAndSwap(false, true) {
			return failure(fault.Misuse, op, errors.New("released twice"))
		}
		if size == 0 {
			return nil
		}
		race.UnmarkShared(mem)
		return unix.Munmap(mem)
	}
	return mem, release, nil
}

// atLeastOne is the size of a Share's memory: none at all cannot be made everywhere.
func atLeastOne(size int) int { return max(size, 1) }

// errRetry ends an attempt that others have to make anew, as host or as guest.
var errRetry = errors.New("the host of the share has left")

// joinShare meets the other ranks and returns the memory's descriptor.
func (t *Transport) joinShare(ctx context.Context, name string, w shareRequest) (int, error) {
	for pause := 50 * time.Microsecond; ; pause = min(2*pause, 5*time.Millisecond) {
		l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: "@" + name})
		var fd int
		switch {
		case err == nil:
			fd, err = t.hostShare(ctx, l, w)
		case errors.Is(err, syscall.EADDRINUSE):
			fd, err = t.joinHost(ctx, name, w)
		}
		if !errors.Is(err, errRetry) {
			return fd, err
		}
		select {
		case <-ctx.Done():
			return -1, ctx.Err()
		case <-time.After(pause):
		}
	}
}

// joinHost asks the host for the memory, and waits for the verdict.
func (t *Transport) joinHost(ctx context.Context, name string, w shareRequest) (int, error) {
	nc, err := dialSocket(ctx, name)
	if errors.Is(err, syscall.ECONNREFUSED) {
		return -1, errRetry // bound, but not listening yet or any more
	}
	if err != nil {
		return -1, err
	}
	defer nc.Close()
	peer, err := checkPeerUser(nc)
	if err != nil {
		return -1, err
	}
	b := make([]byte, requestLen)
	copy(b, shareMagic)
	binary.NativeEndian.PutUint32(b[8:], version)
	binary.NativeEndian.PutUint32(b[12:], uint32(w.ranks))
	binary.NativeEndian.PutUint64(b[16:], uint64(w.size))
	if t.namesWith(peer.Pid) {
		b[24] = 1
	}
	if _, err := nc.Write(b); err != nil {
		return -1, errRetry
	}
	defer context.AfterFunc(ctx, func() {
		nc.SetReadDeadline(time.Now().Add(replyTimeout))
		nc.Write([]byte{memberQuits})
	})()
	return t.awaitReply(nc, w)
}

// awaitReply waits for what the host decides.
func (t *Transport) awaitReply(nc *net.UnixConn, w shareRequest) (int, error) {
	held := -1 // memory that is not for use yet
	for {
		b := make([]byte, replyLen)
		fd, err := readWithRights(nc, b)
		switch {
		case err != nil:
			err = errRetry
		case b[0] == replyCommit && held >= 0 && fd < 0:
			return held, nil
		case b[0] == replyMismatch:
			err = mismatch(w, shareRequest{int(binary.NativeEndian.Uint32(b[8:])), int(binary.NativeEndian.Uint64(b[16:]))})
		case b[0] != replyMemory:
			err = failure(fault.Exhausted, "share", errors.New("the host of the share could not make the memory"))
		}
		if held >= 0 {
			unix.Close(held)
			held = -1
		}
		if err != nil {
			if fd >= 0 {
				unix.Close(fd)
			}
			return -1, err
		}
		tk := ticketOf(b[24:])
		held, err = t.ways.take(tk, fd, atLeastOne(w.size))
		switch {
		case errors.Is(err, errNotPassed):
			t.lost.Store(true) // the next Share asks for a file
			return -1, failure(fault.Exhausted, "share", err)
		case errors.Is(err, unix.ENOENT):
			return -1, failure(fault.Exhausted, "share", fmt.Errorf("%w; or this rank came too late", err))
		case err != nil:
			return -1, failure(fault.Exhausted, "share", err)
		case tk.how == byName:
			t.opened(nc, tk)
			return held, nil
		}
	}
}

// opened tells the host that this rank has the file, and sees to it that its name
// goes, when no other rank needs it any more.
func (t *Transport) opened(nc *net.UnixConn, tk ticket) {
	nc.SetReadDeadline(time.Now().Add(2 * replyTimeout))
	nc.Write([]byte{visitorOpened})
	nc.Read(make([]byte, 1)) // ends when the host has closed, or died
	t.ways.removeFile(tk)
}

func mismatch(mine, theirs shareRequest) error {
	return failure(fault.Mismatch, "share", fmt.Errorf("%v here, %v elsewhere", mine, theirs))
}

// A shareHost is a Share as its host sees it.
type shareHost struct {
	t        *Transport
	listener *net.UnixListener
	request  shareRequest
	work     sync.WaitGroup

	mu      sync.Mutex                      // guards what follows
	members map[*net.UnixConn]*shareRequest // nil: it has not asked yet
	done    chan struct{}                   // closed when decided
	decided bool
	naming  bool   // somebody asks for a file with a name
	memory  *block // what was decided for, or nil
	err     error
}

// hostShare waits for the others and decides. It closes l.
func (t *Transport) hostShare(ctx context.Context, l *net.UnixListener, w shareRequest) (int, error) {
	h := &shareHost{t: t, listener: l, request: w, members: make(map[*net.UnixConn]*shareRequest), done: make(chan struct{}), naming: t.lost.Load()}
	h.mu.Lock()
	h.distributeIfComplete()
	h.mu.Unlock()
	h.work.Go(h.acceptLoop)
	select {
	case <-h.done:
	case <-ctx.Done():
		h.mu.Lock()
		if !h.decided {
			h.decide(ctx.Err(), nil)
		}
		h.mu.Unlock()
	}
	h.work.Wait()
	if h.memory == nil {
		return -1, h.err
	}
	h.memory.unlink()
	for nc := range h.members { // those with a file were kept until now
		nc.Close()
	}
	return h.memory.fd, h.err
}

// acceptLoop takes visitors until the listener is closed, by decide.
func (h *shareHost) acceptLoop() {
	for {
		nc, err := h.listener.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // a lack of descriptors, perhaps
			select {
			case <-h.done:
				return
			case <-time.After(minPause):
			}
			continue
		}
		if !h.add(nc) {
			nc.Close()
			continue
		}
		h.work.Go(func() { h.serveMember(nc) })
	}
}

// add takes a visitor in, unless all is decided, or too many strangers came.
func (h *shareHost) add(nc *net.UnixConn) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.decided || len(h.members) >= h.request.ranks-1+maxPending {
		return false
	}
	h.members[nc] = nil
	return true
}

// serveMember hears one visitor's request, and then whether it gives up, or has opened a
// file. Otherwise the verdict ends it, by closing the connection.
func (h *shareHost) serveMember(nc *net.UnixConn) {
	theirs, naming, err := readRequest(nc)
	h.mu.Lock()
	if err == nil && !h.decided {
		h.members[nc] = &theirs
		h.naming = h.naming || naming
		if theirs != h.request {
			h.rejectMismatch(theirs)
		} else {
			h.distributeIfComplete()
		}
	}
	h.mu.Unlock()
	for stays := err == nil; stays; {
		var b [1]byte
		_, err := nc.Read(b[:])
		h.mu.Lock()
		// who gives up too late opens the file all the same
		stays = err == nil && h.decided && b[0] == memberQuits
		h.mu.Unlock()
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.memory == nil || h.memory.how != byName {
		delete(h.members, nc)
		nc.Close()
	}
}

// readRequest reads what a visitor asks for, within helloTime, and whether by name.
func readRequest(nc *net.UnixConn) (w shareRequest, naming bool, err error) {
	if _, err := checkPeerUser(nc); err != nil {
		return shareRequest{}, false, err
	}
	nc.SetReadDeadline(time.Now().Add(helloTimeout))
	defer nc.SetReadDeadline(time.Time{})
	b := make([]byte, requestLen)
	fd, err := readWithRights(nc, b)
	if fd >= 0 {
		unix.Close(fd)
	}
	if err != nil {
		return shareRequest{}, false, err
	}
	if string(b[:len(shareMagic)]) != shareMagic || binary.NativeEndian.Uint32(b[8:]) != version {
		return shareRequest{}, false, fmt.Errorf("it began with %q", b[:16])
	}
	return shareRequest{int(binary.NativeEndian.Uint32(b[12:])), int(binary.NativeEndian.Uint64(b[16:]))}, b[24] != 0, nil
}

// distributeIfComplete decides when all have come. h.mu is held.
func (h *shareHost) distributeIfComplete() {
	here := 1
	for _, asked := range h.members {
		if asked != nil {
			here++
		}
	}
	if here < h.request.ranks {
		return
	}
	if !h.naming {
		err := h.distribute(false)
		if !errors.Is(err, errNotPassed) {
			h.finish(err)
			return
		}
		h.t.warn(err)
	}
	h.finish(h.distribute(true))
}

// distribute makes the memory and hands it to all visitors; errNotPassed: not to all.
// One that has gone gets none, and is no failure. h.mu is held.
func (h *shareHost) distribute(named bool) error {
	m, err := h.t.ways.newBlock(atLeastOne(h.request.size), named)
	if err != nil {
		return failure(fault.Exhausted, "share", err)
	}
	b := makeReply(replyMemory, shareRequest{})
	m.ticket.put(b[24:])
	for nc, asked := range h.members {
		if asked == nil {
			continue
		}
		if err := h.t.ways.hand(nc, b, m); errors.Is(err, errNotPassed) {
			m.close()
			return err
		}
	}
	h.memory = m
	return nil
}

// finish decides after handOut. h.mu is held.
func (h *shareHost) finish(err error) {
	if err != nil {
		h.decide(err, func(shareRequest) []byte { return makeReply(replyFailed, shareRequest{}) })
		return
	}
	h.decide(nil, func(shareRequest) []byte { return makeReply(replyCommit, shareRequest{}) })
}

// rejectMismatch decides that there is a mismatch, and tells each what another one said.
func (h *shareHost) rejectMismatch(theirs shareRequest) {
	h.decide(mismatch(h.request, theirs), func(w shareRequest) []byte {
		if w == h.request {
			return makeReply(replyMismatch, theirs)
		}
		return makeReply(replyMismatch, h.request)
	})
}

func makeReply(code byte, w shareRequest) []byte {
	b := make([]byte, replyLen)
	b[0] = code
	binary.NativeEndian.PutUint32(b[8:], uint32(w.ranks))
	binary.NativeEndian.PutUint64(b[16:], uint64(w.size))
	return b
}

// decide ends the Share with err for the host: everybody who asked gets a verdict,
// and the name is free. Without verdicts the others are to start anew. A few verdicts
// always fit into a socket that nothing was written to, and can be read when the
// socket has been closed behind them. Who has to open a file gets no further verdict,
// and verdictTime. h.mu is held.
func (h *shareHost) decide(err error, verdict func(shareRequest) []byte) {
	h.decided, h.err = true, err
	h.listener.Close()
	for nc, asked := range h.members {
		if asked != nil && h.memory != nil && h.memory.how == byName {
			nc.SetReadDeadline(time.Now().Add(replyTimeout))
			continue
		}
		if asked != nil && verdict != nil {
			nc.Write(verdict(*asked))
		}
		nc.Close()
	}
	close(h.done)
}
