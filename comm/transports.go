package comm

import (
	"errors"
	"strings"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/tlsopt"
	"github.com/tutti-go/tutti/transport"
	"github.com/tutti-go/tutti/transport/auto"
	"github.com/tutti-go/tutti/transport/memory"
)

// This file contains everything that comm knows about transports: the options that choose a
// transport, the default choice, and the abilities that comm uses.

// wireOptions are the options that choose a transport.
type wireOptions struct {
	transport string // the name of the transport; "" for the default, see transportName
	extra     []transport.Transport
	again     bool // an epoch of the job has used extra
	wrap      wrapper
}

// A wrapper returns a transport that wraps t. Tests use it to inject faults.
type wrapper func(rank int, t transport.Transport) transport.Transport

// WithTransport adds Transports that are not built into comm, such as grpc.New(grpc.Options{}).
// Built in are "memory", "shm", "tcp" and "auto", which chooses among these and RDMA. A single
// Transport is used by the job, unless WithTransportName or, for Init, TUTTI_TRANSPORT selects
// another one. Of several Transports, such as those of wires.All(), the name selects one. The job
// owns the Transports from Init on, and closes those that it uses. For Local and for Rejoin a
// Transport needs the method ForRank; see auto.Template.
func WithTransport(ts ...transport.Transport) Option {
	return func(o *options) { o.extra = append(o.extra, ts...) }
}

// WithTransportName selects the transport by name: "auto" (the default), "memory", "shm", "tcp", or
// a Transport of WithTransport. The named transport is used even between ranks of one process. If
// the option is not given, Init uses TUTTI_TRANSPORT in the same way.
func WithTransportName(name string) Option { return func(o *options) { o.transport = name } }

// transportName returns the name of the transport to use: the requested name, or else the name of
// the only Transport of WithTransport, or else auto.Name.
func (o *wireOptions) transportName() string {
	switch {
	case o.transport != "":
		return o.transport
	case len(o.extra) == 1 && o.extra[0] != nil:
		return o.extra[0].Name()
	}
	return auto.Name
}

// A wire is a rank's transport. Each method uses one optional ability, and documents its result for
// a transport that lacks the ability.
type wire struct{ transport.Transport }

// newWire makes the transport of a process with one rank. The caller must close it unless it passes
// the transport to member.start.
func (o *wireOptions) newWire(tls *tlsopt.Options) (wire, error) {
	t, err := auto.New(o.transportName(), auto.Options{TLS: tls, Wires: o.extra, Again: o.again})
	return wire{t}, err
}

// newLoneWire makes the transport of a job of one rank, and the rank's address. No rank dials the
// address, because a message to the rank itself never leaves the matching table.
func newLoneWire() (w wire, addr string) {
	hub := memory.New()
	return wire{hub.Transport()}, hub.Addr(0)
}

// localWires holds the transports of the ranks of Local.
type localWires struct {
	id    string // unique among the localWires of this process
	wires []wire // indexed by rank
	// addrs holds the ranks' addresses in memory, indexed by rank. It is nil if the ranks use
	// listeners instead.
	addrs []string
}

// newLocalWires makes the transports of n ranks of this process. If no option names a transport,
// the ranks exchange messages in memory.
func (o *wireOptions) newLocalWires(n int, tls *tlsopt.Options) (*localWires, error) {
	hub := memory.New()
	l := &localWires{id: hub.ID()}
	name := o.transportName()
	if name == auto.Name || name == memory.Name {
		name = memory.Name
		for r := range n {
			l.addrs = append(l.addrs, hub.Addr(r))
		}
	}
	for r := range n { // in the order of the ranks, so that the hub's addresses have the same order
		t, err := auto.New(name, auto.Options{Hub: hub, Rank: r, TLS: tls, Wires: o.extra})
		if err != nil {
			for _, w := range l.wires {
				w.Close()
			}
			return nil, err
		}
		l.wires = append(l.wires, wire{t})
	}
	return l, nil
}

// wrapped returns the wire inside a test's fault injector, or the wire itself if there is no
// injector.
func (o *wireOptions) wrapped(rank int, w wire) wire {
	if o.wrap != nil {
		w.Transport = o.wrap(rank, w.Transport)
	}
	return w
}

// explain returns the name of the transport that reaches an address. If the transport was chosen
// for this address, a colon and the reason follow.
func (w wire) explain(addr string) string {
	if s, ok := w.Transport.(transport.Selector); ok {
		return s.Explain(addr)
	}
	return w.Name()
}

// nameTo returns the name of the transport that reaches an address, such as "tcp".
func (w wire) nameTo(addr string) string {
	name, _, _ := strings.Cut(w.explain(addr), ":")
	return name
}

// A memorySharer gives several ranks the same memory.
type memorySharer = transport.Sharer

// sharerFor returns the transport's means to share memory among the ranks at these addresses, or
// nil if there is none.
func (w wire) sharerFor(addrs []string) memorySharer {
	if s, ok := w.Transport.(transport.Selector); ok {
		return s.SharerFor(addrs)
	}
	s, _ := w.Transport.(transport.Sharer)
	return s
}

// alloc allocates memory that other ranks can write into. If the transport has no such memory,
// release is nil, and there is no error.
func (w wire) alloc(size int) (mem []byte, release func() error, err error) {
	a, ok := w.Transport.(transport.Allocator)
	if !ok {
		return nil, nil, nil
	}
	mem, release, err = a.Alloc(size)
	if errors.Is(err, fault.Refused) {
		return nil, nil, nil
	}
	return mem, release, err
}

// otherWire is the name in tuning rules for every transport that has no name of its own there.
const otherWire = "other"

// wireNames returns the names that tuning rules use for transports, otherWire included. Comm.survey
// represents each name by one bit, whose number is the index of the name.
func wireNames() [6]string { return [...]string{"memory", "shm", "tcp", "grpc", "verbs", otherWire} }

// tuningName returns the name that tuning rules use for a transport. RDMA is "verbs", even in names
// such as "grpc+verbs", because the transport that sets up RDMA carries no data.
func tuningName(name string) string {
	if strings.HasSuffix(name, "+verbs") {
		return "verbs"
	}
	for _, candidate := range wireNames() {
		if name == candidate {
			return name
		}
	}
	return otherWire
}
