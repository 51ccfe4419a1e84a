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

// This file is all that comm knows of transports: the options that choose one, the default choice,
// and the abilities that comm asks the chosen one for.

// wireOptions are the options that choose a transport.
type wireOptions struct {
	transport string // by name; "": see transportName
	extra     []transport.Transport
	wrap      wrapper
}

// A wrapper returns a transport that wraps t. Tests use it to inject faults.
type wrapper func(rank int, t transport.Transport) transport.Transport

// WithTransport adds Transports that are not built into comm, such as grpc.New(grpc.Options{}).
// Built in are "memory", "shm", "tcp" and "auto", which chooses among these and RDMA. A single
// Transport is used unless WithTransportName or, for Init, TUTTI_TRANSPORT selects another one. Of
// several Transports, such as those of wires.All(), the name selects one. The job owns the
// Transports from Init on, and closes those that it uses. For Local a Transport needs the method
// ForRank; see auto.Template.
func WithTransport(ts ...transport.Transport) Option {
	return func(o *options) { o.extra = append(o.extra, ts...) }
}

// WithTransportName selects the transport by name: "auto" (the default), "memory", "shm", "tcp", or
// a Transport of WithTransport. A transport that is named is used even between ranks of one process.
// For Init, TUTTI_TRANSPORT does the same where the option is not given.
func WithTransportName(name string) Option { return func(o *options) { o.transport = name } }

// transportName returns the name of the transport to use: the requested name, else the name of the
// only Transport of WithTransport, else auto.Name.
func (o *wireOptions) transportName() string {
	switch {
	case o.transport != "":
		return o.transport
	case len(o.extra) == 1 && o.extra[0] != nil:
		return o.extra[0].Name()
	}
	return auto.Name
}

// A wire is a rank's transport, with the abilities that comm asks for. A transport that lacks an
// ability behaves as the method says.
type wire struct{ transport.Transport }

// newWire makes the transport of a process with one rank. The caller closes it unless it is handed
// on to member.start.
func (o *wireOptions) newWire(tls *tlsopt.Options) (wire, error) {
	t, err := auto.New(o.transportName(), auto.Options{TLS: tls, Wires: o.extra})
	return wire{t}, err
}

// newLoneWire makes the transport of a job of one rank, and the rank's address. Nobody dials it: a
// message to the rank itself never leaves the matching table.
func newLoneWire() (w wire, addr string) {
	hub := memory.New()
	return wire{hub.Transport()}, hub.Addr(0)
}

// localWires are the transports of the ranks of Local.
type localWires struct {
	id    string   // unique among those of this process
	wires []wire   // by rank
	addrs []string // by rank, if the ranks dial each other in memory; nil: they need listeners
}

// newLocalWires makes the transports of n ranks of this process. Without a certain transport the
// ranks hand messages over in memory.
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
	for r := range n { // in the ranks' order, which is that of the hub's addresses
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

// wrapped returns the wire with the fault injector of a test around it, if there is one.
func (o *wireOptions) wrapped(rank int, w wire) wire {
	if o.wrap != nil {
		w.Transport = o.wrap(rank, w.Transport)
	}
	return w
}

// explain returns the name of the transport that reaches an address, and, after a colon, the reason
// where it was chosen for this address.
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

// A memorySharer gives ranks one piece of memory.
type memorySharer = transport.Sharer

// sharerFor returns what can share memory among the ranks at these addresses; nil when nothing can.
func (w wire) sharerFor(addrs []string) memorySharer {
	if s, ok := w.Transport.(transport.Selector); ok {
		return s.SharerFor(addrs)
	}
	s, _ := w.Transport.(transport.Sharer)
	return s
}

// alloc allocates memory that other ranks can write into. release is nil, without an error, where
// the transport has no such memory.
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

// otherWire stands in tuning rules for every transport that they do not know by name.
const otherWire = "other"

// wireNames are the transports that tuning rules know, in the order of the bits of Comm.survey.
func wireNames() [6]string { return [...]string{"memory", "shm", "tcp", "grpc", "verbs", otherWire} }

// tuningName returns what tuning rules call the transport of that name. RDMA is "verbs", also in
// names such as "grpc+verbs", because the transport that sets it up carries no data.
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
