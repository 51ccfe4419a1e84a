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

// Name is the name of this transport. A Transport's own Name begins with the set-up
// transport's, as in TensorFlow's "grpc+verbs".
const Name = "verbs"

// A Device is an RDMA device. Besides the hardware devices that New opens, there are the devices of
// package softdevice.
type Device = rdma.Device

// Options configures a Transport. Zero values mean the defaults, or what the variables in
// docs/verbs.md set.
type Options struct {
	// Setup is the transport over which two ends find each other, agree on a queue pair, and notice
	// that the other end is gone. From New on, the Transport owns Setup, and closes it.
	Setup transport.Transport
	// Device, if not nil, is used in place of this host's hardware. From New on, the Transport owns
	// it, and closes it.
	Device Device

	// OnRequest gives an accepted Conn a queue pair only if its peer has requested one. A peer does
	// so by dialling with OnRequest itself. Otherwise the Conn stays on the set-up transport and
	// exposes no memory. So a peer may also use the set-up transport alone. OnRequest is for
	// programs that choose a transport per peer.
	OnRequest bool

	// Depth is how many messages and writes a peer may have in flight to this end on one Conn. It
	// is between 3 and 1024; 0 means 32.
	Depth int
	// Buffer is the size of a message buffer in bytes. It is between 256 and 1 MiB; 0 means 8192. A
	// Conn has twice Depth message buffers. If a body fits into one buffer together with its head
	// and the packet header of 40 bytes, it is copied and not registered.
	Buffer int
	// Ring is the size in bytes of a Conn's eager ring. It is between 1 KiB and 1 GiB; 0 means 2
	// MiB, and a negative value means no ring. A body that fits no message buffer, but a quarter of
	// the ring, is written to the ring without a request, and copied out. The ring is allocated
	// with the first such body.
	Ring int
	// CacheBytes bounds the memory from which bodies were sent and which stays registered
	// afterwards. The same bound applies, separately, to memory into which peers have written. 0
	// means 256 MiB. With a negative value, only memory in use is registered.
	CacheBytes int
	// With Fresh, every registration for a peer ends with its use. So no key is valid afterwards,
	// even for a peer that breaks the protocol. Expose then refuses the ID transport.NoNotify,
	// because such memory is for many uses.
	Fresh bool
}

// A Transport is one end's RDMA device with its queue pairs, TensorFlow's adapter and manager.
// It implements transport.Transport. All its methods may be called concurrently.
type Transport struct {
	opts        Options
	device      rdma.Device
	localCache  *registrationCache // memory from which bodies are sent
	remoteCache *registrationCache // memory into which peers may write
	caller      *poll.Caller
	inUse       sync.WaitGroup // uses of the device: message buffers, and calls that register

	mu        sync.Mutex // guards the rest
	conns     map[*conn]struct{}
	closed    bool
	closeDone chan struct{} // closed once Close has returned
}

// New opens the first device that has an active port and a GID. It uses the best GID, which is one
// of RoCE version 2 over IPv4 if available. Explain lists the choices. The variables in
// docs/verbs.md, such as TUTTI_VERBS_DEVICE, override this choice. They also set the options that
// are zero in o. The result is a transport.Greeter if the set-up transport is a Greeter.
//
// New returns fault.Misuse if o or a variable is invalid. It returns fault.Refused, with the
// remedy, if this program or this host has no verbs. Setup stays open in both cases.
func New(o Options) (transport.Transport, error) {
	w, err := readConfig(os.Getenv)
	if err != nil {
		return nil, failure(fault.Misuse, "open", err)
	}
	// Options precede variables, and variables precede defaults.
	w.apply(&o)
	if err := o.applyDefaults(); err != nil {
		return nil, err
	}
	// From here on o is valid, so no later check can fail with an open device.
	d := o.Device
	if d == nil {
		if d, err = openDevice(w); err != nil {
			return nil, failure(fault.Refused, "open", err)
		}
	}
	t := &Transport{opts: o, device: d, localCache: newCache(d, o.CacheBytes, false), remoteCache: newCache(d, o.remoteCacheBytes(), true), caller: new(poll.Caller),
		conns: make(map[*conn]struct{}), closeDone: make(chan struct{})}
	// The result is a Greeter only if the set-up transport is one.
	if g, ok := o.Setup.(transport.Greeter); ok {
		return greeter{t, g}, nil
	}
	return t, nil
}

// Explain returns a line for each device, port and GID of this host. The line says whether New
// would select it, or why not. Explain returns the same error as New.
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

// applyDefaults sets the options that are zero, and validates all options.
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
		return failure(fault.Misuse, "open", errors.New("option Setup: got nil, want the transport that sets up the RDMA connections"))
	case o.Depth < minDepth || o.Depth > maxDepth:
		return failure(fault.Misuse, "open", fmt.Errorf("option Depth: got %d, want %d to %d", o.Depth, minDepth, maxDepth))
	case o.Buffer < minBuffer || o.Buffer > maxBuffer:
		return failure(fault.Misuse, "open", fmt.Errorf("option Buffer: got %d bytes, want %d to %d", o.Buffer, minBuffer, maxBuffer))
	case o.Ring > 0 && o.Ring < minRing || o.Ring > maxRing:
		return failure(fault.Misuse, "open", fmt.Errorf("option Ring: got %d bytes, want %d to %d", o.Ring, minRing, maxRing))
	}
	return nil
}

// remoteCacheBytes is how much memory may stay registered for peers while no peer is writing to
// it.
func (o *Options) remoteCacheBytes() int {
	if o.Fresh {
		return -1
	}
	return o.CacheBytes
}

// Network names the network of the device, in a word without ";" and "=". Devices with equal
// names should reach each other.
func (t *Transport) Network() string { return t.device.Network() }

// Try checks whether a Conn could be set up: it makes a queue pair with its message buffers and
// releases them. The error is the error that the Conn would have.
func (t *Transport) Try() error {
	c := newConn(t, nil, false)
	l, err := c.newEndpoint()
	if err == nil {
		c.discard(l)
	}
	return err
}

// A greeter is a Transport whose set-up transport shares the process's listener.
type greeter struct {
	*Transport
	transport.Greeter
}

// Name returns the set-up transport's name, "+" and "verbs".
func (t *Transport) Name() string { return t.opts.Setup.Name() + "+" + Name }

// Serve serves on the set-up transport, and returns the address of that transport.
func (t *Transport) Serve(in net.Listener, accept func(transport.Conn)) (string, error) {
	if accept == nil {
		return "", failure(fault.Misuse, "serve", errors.New("accept function: got nil, want a function"))
	}
	return t.opts.Setup.Serve(in, func(s transport.Conn) {
		if c := t.addConn(s, true); c != nil {
			accept(pendingConn{c})
		}
	})
}

// Dial opens a Conn over the set-up transport. The Conn gets a queue pair once the peer has
// admitted it. If a queue pair is impossible, the Conn fails at that moment, with the reason.
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
		s.Send(setupFrame(setupRequest, nil, ignore)) // precedes all frames of the caller
	}
	return c, nil
}

// addConn makes a Conn that Close also closes. It returns nil after Close has begun.
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

// acquireDevice counts a use of the device. Close waits until releaseDevice has ended each use.
// acquireDevice returns false if Close has begun.
func (t *Transport) acquireDevice() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.closed {
		t.inUse.Add(1)
	}
	return !t.closed
}

// releaseDevice ends a use of the device that acquireDevice has counted.
func (t *Transport) releaseDevice() { t.inUse.Done() }

// removeConn forgets a Conn that holds nothing any more.
func (t *Transport) removeConn(c *conn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.conns, c)
}

// Close closes every Conn of the Transport, and returns once the device holds no resources of these
// Conns. It must not be called from a Sink.
func (t *Transport) Close() error {
	t.mu.Lock()
	first := !t.closed
	t.closed = true
	open := make([]*conn, 0, len(t.conns))
	for c := range t.conns {
		open = append(open, c)
	}
	t.mu.Unlock()
	// A second Close waits for the first: when it returns, everything is closed.
	if !first {
		<-t.closeDone
		return nil
	}
	defer close(t.closeDone)
	// Each Close closes its queue pair, so that no device writes to memory that is deregistered
	// below.
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
