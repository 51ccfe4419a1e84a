package verbs

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/poll"
	"github.com/tutti-go/tutti/transport"
	"github.com/tutti-go/tutti/transport/verbs/internal/rdma"
)

// Name is what this wire is called; a Transport's Name has the set-up wire's
// before it, as in TensorFlow's "grpc+verbs".
const Name = "verbs"

// A Device is an RDMA device. Besides the hardware that New opens there are those of
// package softdevice.
type Device = rdma.Device

// Options says how a Transport is set up, and what it may use.
type Options struct {
	// Setup is the wire over which two ends find each other and agree on a queue
	// pair, and by which they notice that the other is gone. The Transport owns
	// it from New on, and closes it.
	Setup transport.Transport
	// Device, if not nil, is used in place of this host's hardware. The Transport owns
	// it from New on, and closes it.
	Device Device

	// OnRequest has an accepted Conn get a queue pair only if its peer has asked for
	// one, which a peer does by dialling with OnRequest itself. Otherwise it stays a
	// Conn of the set-up wire, also towards peers that know that wire only, and shows
	// no memory: for who picks a wire per peer.
	OnRequest bool

	// Depth is how many messages, and writes of tensors, a peer may have on their
	// way to this end on one Conn: 3 to 1024; 0 is 32.
	Depth int
	// Buffer is the size in bytes of a message buffer, and bodies that fit into
	// one with 40 bytes and their head are copied rather than registered: 256 to
	// 1 MiB; 0 is 8192. A Conn has twice Depth of them.
	Buffer int
	// Strip is the size in bytes of a Conn's strip: bodies of up to a quarter of it
	// that fit no message buffer are written there without asking for each, and
	// copied out. It is made with the first such body. 1 KiB to 1 GiB; 0 is 2 MiB,
	// negative none.
	Ring int
	// CacheBytes bounds the memory that stays registered because it was sent from,
	// and as much again that peers wrote to: 0 is 256 MiB; negative, none beyond
	// what is in use.
	CacheBytes int
	// Fresh has memory be registered anew for each use by a peer, so that no key is
	// of any use afterwards, also to a peer that breaks the rules. Expose refuses the
	// id transport.Unheard then: that memory is for many uses.
	Fresh bool
}

// A Transport is one end's RDMA device and the queue pairs on it: TensorFlow's
// adapter and manager. It implements transport.Transport; all its methods may be
// called concurrently.
type Transport struct {
	opts        Options
	device      rdma.Device
	localCache  *registrationCache // what is sent from
	remoteCache *registrationCache // what peers may write to
	caller      *poll.Caller
	inUse       sync.WaitGroup // what uses the device: message buffers, and registrations under way

	mu        sync.Mutex // guards the rest
	conns     map[*conn]struct{}
	closed    bool
	closeDone chan struct{} // closed when Close has ended
}

// New opens the device: the first that has an active port and a GID, and of its GIDs,
// RoCE version 2's over IPv4 if it can; Explain tells. The variables in docs/verbs.md,
// TUTTI_VERBS_DEVICE and so on, say otherwise, and fill in what o leaves open. The
// result is a transport.Greeter if the set-up wire is.
// It is fault.Misuse if o says what cannot be, and fault.Refused, with the remedy,
// if this program or this host has no verbs; then Setup is left alone.
func New(o Options) (transport.Transport, error) {
	w, err := readConfig(os.Getenv)
	if err != nil {
		return nil, failure(fault.Misuse, "open", err)
	}
	w.apply(&o)
	if err := o.applyDefaults(); err != nil {
		return nil, err
	}
	d := o.Device
	if d == nil {
		if d, err = openDevice(w); err != nil {
			return nil, failure(fault.Refused, "open", err)
		}
	}
	t := &Transport{opts: o, device: d, localCache: newCache(d, o.CacheBytes, false), remoteCache: newCache(d, o.remoteCacheBytes(), true), caller: new(poll.Caller),
		conns: make(map[*conn]struct{}), closeDone: make(chan struct{})}
	if g, ok := o.Setup.(transport.Greeter); ok {
		return greeter{t, g}, nil
	}
	return t, nil
}

// Explain says, a line each, which of this host's devices, ports and GIDs New would
// take, and why not the others. The error is New's.
func Explain() ([]string, error) {
	w, err := readConfig(os.Getenv)
	if err != nil {
		return nil, failure(fault.Misuse, "explain", err)
	}
	text, err := explainDevices(w)
	if err != nil {
		return text, failure(fault.Refused, "explain", err)
	}
	return text, nil
}

// applyDefaults fills in what is left out.
func (o *Options) applyDefaults() error {
	if o.Depth == 0 {
		o.Depth = 32
	}
	if o.Buffer == 0 {
		o.Buffer = 8192
	}
	if o.CacheBytes == 0 {
		o.CacheBytes = 256 << 20
	}
	if o.Ring == 0 {
		o.Ring = 2 << 20
	}
	switch {
	case o.Setup == nil:
		return failure(fault.Misuse, "open", errors.New("Setup is nil, want the transport to set up over"))
	case o.Depth < minDepth || o.Depth > maxDepth:
		return failure(fault.Misuse, "open", fmt.Errorf("Depth: got %d, want %d to %d", o.Depth, minDepth, maxDepth))
	case o.Buffer < minBuffer || o.Buffer > maxBuffer:
		return failure(fault.Misuse, "open", fmt.Errorf("Buffer: got %d bytes, want %d to %d", o.Buffer, minBuffer, maxBuffer))
	case o.Ring > 0 && o.Ring < minRing || o.Ring > maxRing:
		return failure(fault.Misuse, "open", fmt.Errorf("Ring: got %d bytes, want %d to %d", o.Ring, minRing, maxRing))
	}
	return nil
}

// remoteCacheBytes is how much may stay registered for peers that nobody is writing to.
func (o *Options) remoteCacheBytes() int {
	if o.Fresh {
		return -1
	}
	return o.CacheBytes
}

// Network says, in a word without ";" and "=", what network the device is on: two
// ends whose words are equal have addresses of one kind, by which each device should
// reach the other's.
func (t *Transport) Network() string { return t.device.Network() }

// Try finds out whether a Conn could be set up here: it makes a queue pair with its
// message buffers, and gives them back. The error is what the Conn's would be.
func (t *Transport) Try() error {
	c := newConn(t, nil, false)
	l, err := c.newEndpoint()
	if err == nil {
		c.discard(l)
	}
	return err
}

// A greeter is a Transport whose set-up wire shares the process's listener.
type greeter struct {
	*Transport
	transport.Greeter
}

// Name is the set-up wire's name, "+" and "verbs".
func (t *Transport) Name() string { return t.opts.Setup.Name() + "+" + Name }

// Serve serves on the set-up wire; the address is that wire's.
func (t *Transport) Serve(in net.Listener, accept func(transport.Conn)) (string, error) {
	if accept == nil {
		return "", failure(fault.Misuse, "serve", errors.New("accept is nil, want a function"))
	}
	return t.opts.Setup.Serve(in, func(s transport.Conn) {
		if c := t.addConn(s, true); c != nil {
			accept(pendingConn{c})
		}
	})
}

// Dial opens a Conn over the set-up wire. It has a queue pair once the peer has
// admitted it; that there can be none fails the Conn, then, with the reason.
func (t *Transport) Dial(ctx context.Context, addr string) (transport.Conn, error) {
	s, err := t.opts.Setup.Dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	c := t.addConn(s, false)
	if c == nil {
		return nil, failure(fault.Closed, "dial "+addr, nil)
	}
	if t.opts.OnRequest {
		s.Send(setupFrame(setupRequest, nil, ignore)) // before any frame of the owner's
	}
	return c, nil
}

// addConn makes a Conn that Close ends, too; nil when it is too late.
func (t *Transport) addConn(s transport.Conn, accepted bool) *conn {
	c := newConn(t, s, accepted)
	t.mu.Lock()
	if !t.closed {
		t.conns[c] = struct{}{}
		t.mu.Unlock()
		return c
	}
	t.mu.Unlock()
	s.Close()
	return nil
}

// acquireDevice counts a use of the device that Close has to wait for; false: Close has
// begun. Each is undone by leave.
func (t *Transport) acquireDevice() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.closed {
		t.inUse.Add(1)
	}
	return !t.closed
}

func (t *Transport) releaseDevice() { t.inUse.Done() }

func (t *Transport) removeConn(c *conn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.conns, c)
}

// Close ends every Conn made here, and returns when nothing of theirs is with the
// device any more. It must not be called from a Sink either.
func (t *Transport) Close() error {
	t.mu.Lock()
	first := !t.closed
	t.closed = true
	open := make([]*conn, 0, len(t.conns))
	for c := range t.conns {
		open = append(open, c)
	}
	t.mu.Unlock()
	if !first {
		<-t.closeDone
		return nil
	}
	defer close(t.closeDone)
	for _, c := range open {
		c.Close()
	}
	err := t.opts.Setup.Close()
	t.inUse.Wait()
	t.caller.Stop()
	t.localCache.close()
	t.remoteCache.close()
	return errors.Join(err, t.device.Close())
}

var (
	_ transport.Transport = (*Transport)(nil)
	_ transport.Greeter   = greeter{}
	_ transport.Allocator = (*Transport)(nil)
)
