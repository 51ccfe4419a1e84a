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

// The ranks of a Share find each other by a unix socket whose name is a hash of the Share's name.
// The first rank binds the socket and becomes the host. The others are members. When all ranks have
// come, the host makes the memory, sends its descriptor to every member, and then commits. No rank
// uses a descriptor before the commit.
//
//	member                             host
//	  | -------- request --------------> |   waits for all ranks
//	  | <------- memory, descriptor ---- |   all have come
//	  | <------- commit, close --------- |   every descriptor has been sent
//
// A member that gets no memory gets a mismatch, a failure, or the end of the connection. A host
// that gives up closes its socket. Then one of the waiting members binds the name again. A member
// that gives up sends 'q' and keeps reading. The host decides whether the 'q' came too late, so
// that all ranks get the memory or none does. There are exceptions: the Share of a rank fails alone
// if the rank dies, is stopped for longer than replyTimeout, gets no descriptor or cannot map it.
//
//	request  offset  bytes  field
//	         0       8      "tuttishr"
//	         8       4      version, 3
//	         12      4      ranks
//	         16      8      bytes of memory
//
//	then     0       1      'q': the member gives up
//
//	reply    offset  bytes  field
//	         0       1      'm': here is the memory; 'g': commit; '!': there is a mismatch;
//	                        'x': the host could not make or send the memory
//	         8       4      on a mismatch: ranks, as another member asked
//	         16      8      on a mismatch: bytes, as another member asked
const (
	shareMagic = "tuttishr"
	requestLen = 24
	replyLen   = 24
)

const (
	replyMemory   = 'm'
	replyCommit   = 'g'
	replyMismatch = '!'
	replyFailed   = 'x'

	memberQuits = 'q'
)

// replyTimeout bounds how long a member that gives up waits for the host's reply. A stopped host
// does not reply.
const replyTimeout = time.Second

// A shareRequest holds the arguments of a rank's Share.
type shareRequest struct{ ranks, size int }

// String returns the request in the form that error texts use.
func (w shareRequest) String() string { return fmt.Sprintf("%d bytes for %d ranks", w.size, w.ranks) }

// Share implements transport.Sharer between the processes of one user on one host, or within one
// process. No other group may use the name at the same time. Options.Job keeps the names of
// different jobs on the host distinct. A random part of the name, which one rank has sent to the
// others, has the same effect. The memory stays mapped until release; a second release is
// fault.Misuse.
func (t *Transport) Share(ctx context.Context, name string, ranks, size int) ([]byte, func() error, error) {
	op := fmt.Sprintf("share %.80q", name)
	w := shareRequest{ranks, size}
	if ranks < 1 || size < 0 || int64(size) > MaxBody || int64(ranks) > 1<<31-1 {
		return nil, nil, failure(fault.Misuse, op, fmt.Errorf("got %v, want at least 1 rank and 0 bytes", w))
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
	fd, err := joinShare(ctx, t.shareName(name), w)
	if err != nil {
		return nil, nil, t.waitError(ctx, op, fault.LinkLost, err)
	}
	defer unix.Close(fd)
	return mapShare(op, fd, size)
}

// beginShare claims the name of a Share. It fails if this rank already waits in a Share with this
// name.
func (t *Transport) beginShare(op, name string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return failure(fault.Closed, op, nil)
	}
	if t.sharing[name] {
		return failure(fault.Misuse, op, errors.New("another Share of this name is still waiting on this rank: wait for it to return first"))
	}
	t.sharing[name] = true
	t.running.Add(1)
	return nil
}

// endShare releases the name that beginShare has claimed.
func (t *Transport) endShare(name string) {
	t.mu.Lock()
	delete(t.sharing, name)
	t.mu.Unlock()
	t.running.Done()
}

// shareName returns the name of the Share's socket. The length of the job's name is hashed, too, so
// that no two pairs of job and name are the same text.
func (t *Transport) shareName(name string) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%d:%s%s", len(t.options.Job), t.options.Job, name))
	return "tutti-share-" + hex.EncodeToString(sum[:16])
}

// mapShare maps the memory of a Share, and returns what Share returns.
func mapShare(op string, fd, size int) ([]byte, func() error, error) {
	mem := []byte{}
	if size > 0 {
		whole, err := mapShared(fd, 0, size)
		if err != nil {
			return nil, nil, failure(fault.Exhausted, op, err)
		}
		mem = whole[:size:size]
		race.MarkShared(mem)
	}
	var released atomic.Bool
	release := func() error {
		if !released.CompareAndSwap(false, true) {
			return failure(fault.Misuse, op, errors.New("got a second release, want one"))
		}
		if size == 0 {
			return nil
		}
		race.UnmarkShared(mem)
		return unix.Munmap(mem)
	}
	return mem, release, nil
}

// atLeastOne returns the size of the mapping for a Share of size bytes. mmap needs at least one
// byte.
func atLeastOne(size int) int { return max(size, 1) }

// errRetry ends an attempt of joinShare, which then tries again, as host or as member.
var errRetry = errors.New("the rank that offered the shared memory has left")

// joinShare waits for the other ranks, as host or as member, and returns the memory's descriptor.
// The rank that binds the socket's name is the host. The kernel lets only one process bind the
// name, and frees the name when that process closes the socket or dies. So a Share needs no other
// election, and survives the death of its host. Between two attempts joinShare pauses, for 50 µs at
// first and for 5 ms at most.
func joinShare(ctx context.Context, name string, w shareRequest) (int, error) {
	for pause := 50 * time.Microsecond; ; pause = min(2*pause, 5*time.Millisecond) {
		l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: "@" + name})
		var fd int
		switch {
		case err == nil:
			fd, err = hostShare(ctx, l, w)
		case errors.Is(err, syscall.EADDRINUSE):
			fd, err = joinHost(ctx, name, w)
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

// joinHost asks the host for the memory, and waits for its decision. It returns errRetry when the
// host cannot be reached, because the host is not listening yet or has ended.
func joinHost(ctx context.Context, name string, w shareRequest) (int, error) {
	nc, err := dialSocket(ctx, name)
	if errors.Is(err, syscall.ECONNREFUSED) {
		return -1, errRetry // the socket is bound, but not listening yet or no longer listening
	}
	if err != nil {
		return -1, err
	}
	defer nc.Close()
	if _, err := checkPeerUser(nc); err != nil {
		return -1, err
	}
	b := make([]byte, requestLen)
	copy(b, shareMagic)
	binary.NativeEndian.PutUint32(b[8:], version)
	binary.NativeEndian.PutUint32(b[12:], uint32(w.ranks))
	binary.NativeEndian.PutUint64(b[16:], uint64(w.size))
	if _, err := nc.Write(b); err != nil {
		return -1, errRetry
	}
	// When ctx ends, the member tells the host that it gives up. Then it waits at most replyTimeout
	// for the decision, because the host may have already decided.
	defer context.AfterFunc(ctx, func() {
		nc.SetReadDeadline(time.Now().Add(replyTimeout))
		nc.Write([]byte{memberQuits})
	})()
	return awaitReply(nc, w)
}

// awaitReply waits for the host's decision, and returns the memory's descriptor.
func awaitReply(nc *net.UnixConn, w shareRequest) (int, error) {
	memory := -1 // not to be used before the commit
	for {
		b := make([]byte, replyLen)
		fd, err := readWithRights(nc, b)
		switch {
		case err != nil:
			err = errRetry
		case b[0] == replyCommit && memory >= 0 && fd < 0:
			return memory, nil
		case b[0] == replyMismatch:
			err = mismatch(w, shareRequest{int(binary.NativeEndian.Uint32(b[8:])), int(binary.NativeEndian.Uint64(b[16:]))})
		case b[0] != replyMemory || memory >= 0:
			err = failure(fault.Exhausted, "share", errors.New("the rank that makes the shared memory could not make it or send its descriptor"))
		case fd < 0:
			err = noDescriptor()
		default:
			err = validateMemory(fd, atLeastOne(w.size))
		}
		if err == nil {
			memory = fd
			continue
		}
		for _, fd := range []int{fd, memory} {
			if fd >= 0 {
				unix.Close(fd)
			}
		}
		return -1, err
	}
}

// mismatch returns the error of ranks that ask for different memory. The error of each rank names
// its own request and a differing request of another rank.
func mismatch(mine, theirs shareRequest) error {
	return failure(fault.Mismatch, "share", fmt.Errorf("got %v on another rank, want %v as on this rank", theirs, mine))
}

// A shareHost is the host's side of a Share. Each connection has a goroutine, which runs
// serveMember. The goroutine that completes the group or finds a mismatch makes the decision, and
// holds mu for it:
//
//	decided  memory  err  outcome
//	no       -1      nil  some ranks have not come yet
//	yes      fd      nil  every member has got the descriptor and the commit
//	yes      -1      set  a mismatch, a failure to make or send the memory, or the host gave up
//
// decide closes the listener and all connections, which ends the goroutines. A connection whose
// request comes later is closed without a reply, and its rank tries again.
type shareHost struct {
	listener *net.UnixListener
	request  shareRequest
	work     sync.WaitGroup

	mu      sync.Mutex                      // guards what follows
	members map[*net.UnixConn]*shareRequest // the request of each connection; nil: none yet
	done    chan struct{}                   // closed when decided
	decided bool
	memory  int // the descriptor to share, once decided; -1: none
	err     error
}

// hostShare waits for the members and decides. It closes l.
func hostShare(ctx context.Context, l *net.UnixListener, w shareRequest) (int, error) {
	h := &shareHost{listener: l, request: w, members: make(map[*net.UnixConn]*shareRequest), done: make(chan struct{}), memory: -1}
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
	return h.memory, h.err
}

// acceptLoop adds members until decide closes the listener.
func (h *shareHost) acceptLoop() {
	for {
		nc, err := h.listener.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // possibly a lack of descriptors
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

// add adds a connection. It returns false if the host has decided, or if too many connections
// without a request are open.
func (h *shareHost) add(nc *net.UnixConn) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.decided || len(h.members) >= h.request.ranks-1+maxPending {
		return false
	}
	h.members[nc] = nil
	return true
}

// serveMember reads one member's request and waits until the member gives up, or decide
// closes the connection.
func (h *shareHost) serveMember(nc *net.UnixConn) {
	theirs, err := readRequest(nc)
	h.mu.Lock()
	if err == nil && !h.decided {
		h.members[nc] = &theirs
		if theirs != h.request {
			h.rejectMismatch(theirs)
		} else {
			h.distributeIfComplete()
		}
	}
	h.mu.Unlock()
	if err == nil {
		nc.Read(make([]byte, 1))
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.members, nc)
	nc.Close()
}

// readRequest reads a member's request, within helloTimeout.
func readRequest(nc *net.UnixConn) (shareRequest, error) {
	if _, err := checkPeerUser(nc); err != nil {
		return shareRequest{}, err
	}
	nc.SetReadDeadline(time.Now().Add(helloTimeout))
	defer nc.SetReadDeadline(time.Time{})
	b := make([]byte, requestLen)
	fd, err := readWithRights(nc, b)
	if fd >= 0 {
		unix.Close(fd)
	}
	if err != nil {
		return shareRequest{}, err
	}
	if string(b[:len(shareMagic)]) != shareMagic || binary.NativeEndian.Uint32(b[8:]) != version {
		return shareRequest{}, fmt.Errorf("got a request that begins with %q, want %q and version %d", b[:12], shareMagic, version)
	}
	return shareRequest{int(binary.NativeEndian.Uint32(b[12:])), int(binary.NativeEndian.Uint64(b[16:]))}, nil
}

// distributeIfComplete distributes the memory and decides, if all ranks have come. h.mu is held.
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
	code := byte(replyCommit)
	err := h.distribute()
	if err != nil {
		code = replyFailed
	}
	h.decide(err, func(shareRequest) []byte { return makeReply(code, shareRequest{}) })
}

// distribute makes the memory and sends its descriptor to all members. A member whose connection
// has ended gets no descriptor. This is not an error. h.mu is held.
func (h *shareHost) distribute() error {
	fd, err := createMemfd(atLeastOne(h.request.size), fixedSeals)
	if err != nil {
		return failure(fault.Exhausted, "share", err)
	}
	b := makeReply(replyMemory, shareRequest{})
	for nc, asked := range h.members {
		if asked == nil {
			continue
		}
		if err := sendDescriptor(nc, b, fd); errors.Is(err, fault.Refused) {
			unix.Close(fd)
			return err
		}
	}
	h.memory = fd
	return nil
}

// rejectMismatch ends the Share because the requests of two ranks differ. It sends to each rank a
// request that differs from the rank's own request. h.mu is held.
func (h *shareHost) rejectMismatch(theirs shareRequest) {
	h.decide(mismatch(h.request, theirs), func(w shareRequest) []byte {
		if w == h.request {
			return makeReply(replyMismatch, theirs)
		}
		return makeReply(replyMismatch, h.request)
	})
}

// makeReply returns a reply. The argument w is the request that a reply about a mismatch contains.
func makeReply(code byte, w shareRequest) []byte {
	b := make([]byte, replyLen)
	b[0] = code
	binary.NativeEndian.PutUint32(b[8:], uint32(w.ranks))
	binary.NativeEndian.PutUint64(b[16:], uint64(w.size))
	return b
}

// decide ends the Share. The argument err is the host's result. Each member that has sent a request
// gets a reply, and the name becomes free. If the function reply is nil, the members get no reply
// and try again. The few replies always fit into an unused socket, and members can read them after
// the socket has been closed. h.mu is held.
func (h *shareHost) decide(err error, reply func(shareRequest) []byte) {
	h.decided, h.err = true, err
	h.listener.Close()
	for nc, asked := range h.members {
		if asked != nil && reply != nil {
			nc.Write(reply(*asked))
		}
		nc.Close()
	}
	close(h.done)
}
