// Package auto makes a transport from its name. It also implements the transport "auto", which
// chooses a wire for each pair of ranks. It knows the wires of every program, which are memory, shm
// and tcp, and the Transports that the program passes. It imports no other wire, so that a program
// links only the wires that it names.
//
// A rank's address under "auto" lists every wire that reaches the rank:
//
//	address = wire *(";" wire)          at most transport.MaxAddr bytes
//	wire    = "memory=" hub "/" addr    hub: the random ID of the memory.Hub
//	        / "shm=" place "/@" name    see package shm
//	        / "verbs=" network          at the address of tcp; see Upgrader
//	        / "tcp=" host ":" port
//	        / kind "=" addr             of a later version: skipped
//
// The dialling rank chooses the first wire that applies:
//
//	memory  both ranks are in the same Hub, and so in the same process (the ID is random)
//	shm     the two processes run on one host under one user
//	verbs   both have an RDMA device on the same network; set up over tcp
//	tcp     in all other cases, and for a bare address such as the address of rank 0
//
// Two ranks make the same decision about each other, so it does not matter which rank dials.
//
// A transport that is selected by name is used directly, also within a process. The transport "shm"
// is also a Picker, because ranks find each other through rank 0's bare address. The connection to
// that address uses tcp, and all other connections use shm or fail.
package auto

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/tlsopt"
	"github.com/tutti-go/tutti/transport"
	"github.com/tutti-go/tutti/transport/memory"
	"github.com/tutti-go/tutti/transport/shm"
	"github.com/tutti-go/tutti/transport/tcp"
)

// Name is the name of the transport that chooses a wire for each peer.
const Name = "auto"

// verbsName is the name for RDMA in addresses and in names of transports.
const verbsName = "verbs"

// Options configure New. The zero Options are for a process with one rank, without TLS.
//
// A process with several ranks calls New once per rank, with one Hub and different Ranks.
type Options struct {
	Hub  *memory.Hub     // the Hub of the ranks of this process; nil: the process has one rank
	Rank int             // this rank's number in the Hub
	TLS  *tlsopt.Options // the TLS options of tcp and grpc; nil: no TLS
	Log  *slog.Logger    // gets a line for each unauthenticated peer that is refused; nil: none

	// Job separates this job's shared memory from the shared memory of the user's other jobs; see
	// shm.Options.
	Job string
	// NoShm excludes shm from "auto".
	NoShm bool
	// Wires are the Transports that the program passes. New can also choose one of them.
	Wires []transport.Transport
	// Again says that an earlier New of this process has used the Wires, for another epoch.
	Again bool
}

// New makes the transport with the given name. It returns fault.Misuse for an unknown name, for a
// name that the program does not link, and for "memory" without a Hub. It returns fault.Refused if
// the hardware for the name is missing.
//
// The Transport belongs to the caller, who closes it. If New fails, it closes everything that it
// has opened.
func New(name string, o Options) (transport.Transport, error) {
	switch name {
	case tcp.Name:
		return tcp.New(tcp.Options{TLS: o.TLS}), nil
	case memory.Name:
		m, err := o.memory()
		if err == nil && m == nil {
			err = failure(fault.Misuse, "transport memory",
				errors.New("the transport joins ranks of one process, and this process has one rank: unset TUTTI_TRANSPORT, or leave out WithTransportName"))
		}
		if err != nil {
			return nil, err
		}
		return m, nil
	case Name:
		m, err := o.memory()
		if err != nil {
			return nil, err
		}
		p := &Picker{name: Name, memory: m, shm: o.shm(), tcp: tcp.New(tcp.Options{TLS: o.TLS})}
		if m != nil {
			p.hub = o.Hub.ID()
		}
		if err := p.shm.Available(); err != nil {
			p.disableShm(reason(err))
		} else if o.NoShm {
			p.disableShm("shm is switched off")
		}
		p.upgrade(&o)
		return p, nil
	case shm.Name:
		p := &Picker{name: shm.Name, shm: o.shm(), tcp: tcp.New(tcp.Options{TLS: o.TLS})}
		if err := p.shm.Available(); err != nil {
			p.Close()
			return nil, err
		}
		return p, nil
	}
	return o.passed(name)
}

// A Template is a Transport that a program passes before its rank is known. ForRank returns a new
// Transport like it for one rank. A Transport that is no Template can serve only one rank, in one
// epoch. So it cannot be used in a process that runs several ranks, and not after Rejoin.
type Template interface {
	ForRank(rank int) (transport.Transport, error)
}

// A tlsTemplate is like a Template, and its Transports use the job's TLS and log.
type tlsTemplate interface {
	ForRank(rank int, tls *tlsopt.Options, log *slog.Logger) (transport.Transport, error)
}

// An Upgrader is a Transport that can move the Conns of tcp to faster hardware. Upgrade returns a
// Transport that is set up over tcp, and the name of the hardware's network. Two ranks whose
// networks have equal names can reach each other over this hardware. The Transport does not close
// tcp. It returns nil without an error if no such hardware is built into the program.
type Upgrader interface {
	Upgrade(tcp transport.Transport) (wire transport.Transport, network string, err error)
}

// passed makes the transport with the given name from a Transport that the program has passed.
//
// If the Transport is a Template, passed returns a new Transport and leaves the program's value
// unused. Any other Transport is used directly, by one rank.
func (o *Options) passed(name string) (transport.Transport, error) {
	if name == verbsName {
		name = "grpc+" + verbsName // the name that TensorFlow uses
	}
	for _, w := range o.Wires {
		if w.Name() != name {
			continue
		}
		switch t := w.(type) {
		case tlsTemplate:
			return t.ForRank(o.Rank, o.TLS, o.Log)
		case Template:
			return t.ForRank(o.Rank)
		}
		if o.Hub != nil {
			return nil, failure(fault.Misuse, "transport "+name,
				errors.New("the Transport serves one rank, and this process runs several: implement auto.Template"))
		}
		if o.Again {
			return nil, failure(fault.Misuse, "transport "+name,
				errors.New("the Transport serves one epoch of the job, and was closed at the end of that epoch: implement auto.Template"))
		}
		return w, nil
	}
	for _, known := range []string{"grpc", "grpc+" + verbsName, "tcp+" + verbsName} {
		if name == known {
			return nil, failure(fault.Misuse, "transport "+name, fmt.Errorf("the transport is not linked into this program: "+
				"import github.com/tutti-go/tutti/transport/wires and pass comm.WithTransport(wires.All()...), or import transport/%s alone",
				known[strings.Index(known, "+")+1:]))
		}
	}
	return nil, failure(fault.Misuse, fmt.Sprintf("transport %q", name),
		fmt.Errorf("got an unknown name, want one of %s; set TUTTI_TRANSPORT or WithTransportName", strings.Join(o.names(), ", ")))
}

// names returns the names of the transports that New can make.
func (o *Options) names() []string {
	names := []string{Name, memory.Name, shm.Name, tcp.Name}
	for _, w := range o.Wires {
		names = append(names, w.Name())
	}
	return names
}

// memory returns this rank's Transport in the Hub, or nil without a Hub.
func (o *Options) memory() (*memory.Transport, error) {
	if o.Hub == nil {
		return nil, nil
	}
	return o.Hub.Number(o.Rank)
}

// shm returns a new Transport over shared memory.
func (o *Options) shm() *shm.Transport { return shm.New(shm.Options{Job: o.Job, Log: o.Log}) }

// A Picker is the transport "auto", or "shm". It implements transport.Transport, transport.Greeter,
// transport.Selector and transport.Allocator. All its methods may be called concurrently.
//
// A Picker is not a transport.Sharer, although memory and shm are. Whether ranks can share memory
// depends on the ranks, so SharerFor decides.
//
// New makes all wires. New, or the first call that finds a wire unusable, excludes that wire with a
// reason.
type Picker struct {
	name    string
	hub     string            // the ID of the Hub to which memory belongs
	memory  *memory.Transport // nil without a Hub
	shm     *shm.Transport
	tcp     *tcp.Transport
	verbs   transport.Transport // set up over tcp; nil: not used
	network string              // the network of verbs

	noVerbs string                 // why verbs is not used
	noShm   atomic.Pointer[string] // why shm is not used; nil: shm is used
	// refused maps a peer's address to the reason why shm is not used for that peer. Both are
	// strings.
	refused sync.Map
}

// Name returns "auto" or "shm".
func (p *Picker) Name() string { return p.name }

// Prefix reports whether a connection belongs to tcp, the only wire that uses the listener.
func (p *Picker) Prefix(first []byte) bool { return p.tcp.Prefix(first) }

// Proto returns tcp's ALPN name.
func (p *Picker) Proto() string { return p.tcp.Proto() }

// disableShm excludes shm from now on, with a reason.
//
// The first reason stays, because it is the cause of later reasons.
func (p *Picker) disableShm(why string) { p.noShm.CompareAndSwap(nil, &why) }

// Serve serves on every wire and returns the list of their addresses. The listener in is for tcp.
// Without a listener there is no tcp, which is allowed only for a job on one host. If shm cannot
// serve, "auto" excludes shm.
//
// The address list has at most transport.MaxAddr bytes, since every rank stores the addresses of
// all ranks.
func (p *Picker) Serve(in net.Listener, accept func(transport.Conn)) (string, error) {
	var wires []string
	offer := func(kind, addr string) { wires = append(wires, kind+"="+addr) }
	if p.memory != nil {
		addr, err := p.memory.Serve(nil, accept)
		if err != nil {
			return "", err
		}
		offer(memory.Name, p.hub+"/"+addr)
	}
	if p.noShm.Load() == nil {
		addr, err := p.shm.Serve(nil, accept)
		switch {
		case err == nil:
			offer(shm.Name, addr)
		case p.name == shm.Name || !errors.Is(err, fault.Refused):
			return "", err
		default:
			p.disableShm(reason(err))
		}
	}
	if in != nil || p.memory == nil && p.name == Name {
		addr, err := p.setup().Serve(in, accept)
		if err != nil {
			return "", err
		}
		if p.verbs != nil {
			offer(verbsName, p.network)
		}
		if p.name == Name {
			offer(tcp.Name, addr)
		}
	}
	list := strings.Join(wires, ";")
	if len(list) > transport.MaxAddr {
		return "", failure(fault.Exhausted, "serve",
			fmt.Errorf("address %q: got %d bytes, want at most %d", list, len(list), transport.MaxAddr))
	}
	return list, nil
}

// setup returns the transport that accepts connections over tcp.
func (p *Picker) setup() transport.Transport {
	if p.verbs != nil {
		return p.verbs
	}
	return p.tcp
}

// reason returns the cause of a wire's error, without the name of the operation.
func reason(err error) string {
	var f *fault.Error
	if errors.As(err, &f) && f.Err != nil {
		return f.Err.Error()
	}
	return err.Error()
}

// Dial opens a Conn over the wire that Explain names. Two processes of one host may turn out to be
// unable to share memory, because a security module removes descriptors between them. Then "auto"
// uses the next wire to that peer from now on, and Explain gives the reason. After other failures
// Dial tries no other wire, because the two ranks must agree on one wire.
func (p *Picker) Dial(ctx context.Context, addr string) (transport.Conn, error) {
	c := p.pick(addr)
	switch c.kind {
	case memory.Name:
		return p.memory.Dial(ctx, c.addr)
	case shm.Name:
		conn, err := p.shm.Dial(ctx, c.addr)
		if p.name == shm.Name || !errors.Is(err, fault.Refused) && !errors.Is(err, fault.Exhausted) {
			return conn, err
		}
		p.refused.Store(c.addr, "no memory can be shared with this peer: "+reason(err))
		return p.Dial(ctx, addr)
	case verbsName:
		return p.verbs.Dial(ctx, c.addr)
	case tcp.Name:
		return p.tcp.Dial(ctx, c.addr)
	}
	return nil, failure(fault.Refused, fmt.Sprintf("dial %q", addr), errors.New(c.why))
}

// SharerFor implements transport.Selector.
//
// SharerFor returns memory if all ranks are in this process, or shm if all ranks are on this host.
// It returns no other Sharer, because all ranks must use the same Sharer, and no rank alone could
// check this.
func (p *Picker) SharerFor(addrs []string) transport.Sharer {
	inProcess, onHost := true, true
	for _, addr := range addrs {
		wires, err := parse(addr)
		inProcess = inProcess && p.pick(addr).kind == memory.Name
		onHost = onHost && err == nil && p.whyNotShm(wires[shm.Name]) == ""
	}
	switch {
	case inProcess && len(addrs) > 0:
		return p.memory
	case onHost && len(addrs) > 0:
		return sharer(p.shm)
	}
	return nil
}

// Alloc implements transport.Allocator. It allocates from shm, because peers on this host can write
// into such memory, and for other peers it is as good as any other memory. If shm is excluded,
// Alloc allocates from verbs, if this rank uses verbs.
//
// The memory may be used with every peer. Peers that cannot write into it get ordinary messages.
func (p *Picker) Alloc(size int) (mem []byte, free func() error, err error) {
	if a, ok := p.verbs.(transport.Allocator); ok && p.noShm.Load() != nil {
		return a.Alloc(size)
	}
	if why := p.noShm.Load(); why != nil {
		return nil, nil, failure(fault.Refused, "allocate", errors.New(*why))
	}
	return alloc(p.shm, size)
}

// Explain implements transport.Selector. It returns "wire: reason", or "no wire: reason".
//
// comm prints it for every peer if TUTTI_REPORT_TRANSPORT is set, and uses the word before the
// colon as the wire's name.
func (p *Picker) Explain(addr string) string {
	c := p.pick(addr)
	if c.kind == "" {
		return "no wire: " + c.why
	}
	return c.kind + ": " + c.why
}

// Close closes every wire.
func (p *Picker) Close() error {
	err := p.shm.Close()
	if p.verbs != nil {
		err = errors.Join(err, p.verbs.Close())
	}
	err = errors.Join(err, p.tcp.Close())
	if p.memory != nil {
		err = errors.Join(p.memory.Close(), err)
	}
	return err
}

// failure returns an error of this package. A transport does not know ranks, so Rank is -1.
func failure(k fault.Kind, op string, err error) error {
	return &fault.Error{Kind: k, Op: op, Rank: -1, Err: err}
}

var (
	_ transport.Transport = (*Picker)(nil)
	_ transport.Greeter   = (*Picker)(nil)
	_ transport.Selector  = (*Picker)(nil)
	_ transport.Allocator = (*Picker)(nil)
)
