package shm

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/poll"
	"github.com/tutti-go/tutti/transport"
)

// A Transport makes Conns through shared memory. It implements transport.Transport,
// transport.Sharer and transport.Allocator. All its methods may be called concurrently. Its
// mutex guards the tables of what is open, and no other lock is taken inside it.
type Transport struct {
	options      Options
	locality     locality
	unavailable  error           // why this process cannot share memory
	life         context.Context // ends with Close
	stop         context.CancelFunc
	calls        poll.Caller  // runs ready callbacks
	watcher      poll.Watcher // calls Event when a Conn's socket has something
	pool         pool
	pendingSlots chan struct{}  // holds one element per pending peer
	running      sync.WaitGroup // Close waits for these goroutines, Conns and Shares

	mu       sync.Mutex         // guards what follows
	conns    map[*conn]struct{} // the Conns that hold memory
	listener *net.UnixListener  // nil before Serve
	sharing  map[string]bool    // names of the Shares that wait
	closed   bool
}

// New returns a Transport that holds no resources yet. It tests whether this process can share
// memory; Available returns the result. Once it has served, dialled, shared or allocated, the
// Transport needs a Close.
func New(o Options) *Transport {
	t := &Transport{
		options: o, pendingSlots: make(chan struct{}, maxPending),
		conns: make(map[*conn]struct{}), sharing: make(map[string]bool),
	}
	t.life, t.stop = context.WithCancel(context.Background())
	t.locality, t.unavailable = detectLocality()
	if t.unavailable == nil {
		t.unavailable = probeSharing()
	}
	return t
}

// detectLocality returns the locality of this process. It fails if /proc is not mounted, because
// only /proc shows whether two processes run on one host.
func detectLocality() (locality, error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return locality{}, err
	}
	host, err := os.Hostname()
	if err != nil {
		return locality{}, err
	}
	network, err := namespace("net")
	if err != nil {
		return locality{}, err
	}
	user, err := namespace("user")
	if err != nil {
		user = "0" // a kernel without user namespaces
	}
	sum := sha256.Sum256(bytes.TrimSpace(boot))
	return locality{
		boot: hex.EncodeToString(sum[:8]), host: escape(host), net: network,
		user: fmt.Sprintf("%d.%s", os.Geteuid(), user),
	}, nil
}

// namespace returns the number of this process's namespace of the given kind.
func namespace(kind string) (string, error) {
	link, err := os.Readlink("/proc/self/ns/" + kind) // "net:[4026531840]"
	if err != nil {
		return "", err
	}
	return strings.Trim(strings.TrimPrefix(link, kind+":"), "[]"), nil
}

// Name returns "shm".
func (t *Transport) Name() string { return Name }

// Available returns nil if this process can share memory, and the reason if it cannot.
func (t *Transport) Available() error {
	if t.unavailable != nil {
		return failure(fault.Refused, "share memory", t.unavailable)
	}
	return nil
}

// Reaches reports whether this process can share memory with the process that serves addr, as far
// as the address shows. If not, Reaches also returns the reason. It is symmetric: both processes
// get the same answer about each other. Only a Dial shows whether descriptors pass between the two.
func (t *Transport) Reaches(addr string) (ok bool, why string) {
	if t.unavailable != nil {
		return false, "no shared memory here: " + t.unavailable.Error()
	}
	a, err := parseAddress(addr)
	if err != nil {
		return false, err.Error()
	}
	why = t.locality.difference(a.locality)
	return why == "", why
}

// Dial opens a Conn to the process that serves an address. The kind of its errors is fault.Refused
// for an address that is invalid or has another locality, for a peer that rejects the connection,
// and if descriptors do not pass. It is fault.Exhausted for a lack of memory or descriptors,
// fault.Timeout or fault.Canceled if ctx has ended, fault.Closed after Close, and otherwise
// fault.LinkLost.
func (t *Transport) Dial(ctx context.Context, addr string) (transport.Conn, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(t.life, cancel)()

	op := "dial " + fmt.Sprintf("%.80q", addr)
	if err := ctx.Err(); err != nil {
		return nil, t.waitError(ctx, op, fault.Closed, err)
	}
	if ok, why := t.Reaches(addr); !ok {
		return nil, failure(fault.Refused, op, errors.New(why))
	}
	a, _ := parseAddress(addr)
	w, err := t.dialHandshake(ctx, a.name)
	if err != nil {
		return nil, t.waitError(ctx, op, fault.LinkLost, err)
	}
	c, err := t.newConn(w)
	if err != nil {
		return nil, err
	}
	return c, nil
}

// waitError returns the error of a failed wait. Its kind is the first of these that applies:
// fault.Closed after Close; fault.Timeout or fault.Canceled if ctx has ended; the kind of err; and
// otherwise the argument kind. The order matters, because Close and the end of ctx make reads and
// writes fail with errors of their own.
func (t *Transport) waitError(ctx context.Context, op string, kind fault.Kind, err error) error {
	var ours *fault.Error
	switch {
	case t.life.Err() != nil:
		kind = fault.Closed
	case errors.Is(ctx.Err(), context.DeadlineExceeded), errors.Is(err, context.DeadlineExceeded):
		// A dialer's deadline may expire before ctx does.
		kind, err = fault.Timeout, context.DeadlineExceeded
	case ctx.Err() != nil:
		kind, err = fault.Canceled, ctx.Err()
	case errors.As(err, &ours):
		kind = ours.Kind
	}
	return failure(kind, op, err)
}

// Close ends every Conn of this Transport and every Share that waits. It returns when each Conn has
// released its memory, and each running call of accept or ready has returned. The callbacks accept
// and ready, and Sinks, must not call Close. Memory from Share and Alloc stays until it is released
// or freed.
func (t *Transport) Close() error {
	t.mu.Lock()
	t.closed = true
	t.stop()
	in := t.listener
	open := make([]*conn, 0, len(t.conns))
	for c := range t.conns {
		open = append(open, c)
	}
	t.mu.Unlock()
	if in != nil {
		in.Close()
	}
	for _, c := range open {
		c.Close()
	}
	t.running.Wait()
	t.pool.close()
	t.watcher.Stop()
	t.calls.Stop()
	return nil
}

// register adds c to the Conns that Close ends. It returns false after Close. unregister removes c
// again.
func (t *Transport) register(c *conn) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return false
	}
	c.registered = true
	t.conns[c] = struct{}{}
	t.running.Add(1)
	return true
}

// ringSize returns the size of each ring of the next Conn.
func (t *Transport) ringSize() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.conns) >= smallRingConns {
		return smallRing
	}
	return ringSize
}

// unregister removes a Conn that holds nothing any more.
func (t *Transport) unregister(c *conn) {
	if !c.registered {
		return
	}
	t.mu.Lock()
	delete(t.conns, c)
	t.mu.Unlock()
	t.running.Done()
}

var (
	_ transport.Transport = (*Transport)(nil)
	_ transport.Sharer    = (*Transport)(nil)
	_ transport.Allocator = (*Transport)(nil)
)
