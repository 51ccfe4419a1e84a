package verbs

import (
	"context"
	"log/slog"
	"net"
	"sync"

	"github.com/tutti-go/tutti/internal/tlsopt"
	"github.com/tutti-go/tutti/transport"
)

// A LazyTransport is the verbs transport with a device that is opened on first use. So a program
// can pass it whether or not the host has an RDMA device. All its methods may be called
// concurrently.
type LazyTransport struct {
	options Options

	open sync.Once
	t    transport.Transport // set by open
	err  error               // the same
}

// Over returns a LazyTransport with these options.
func Over(o Options) *LazyTransport { return &LazyTransport{options: o} }

// Name returns the set-up wire's name, "+" and "verbs".
func (v *LazyTransport) Name() string { return v.options.Setup.Name() + "+" + Name }

// opened opens the device.
func (v *LazyTransport) opened() (transport.Transport, error) {
	v.open.Do(func() { v.t, v.err = New(v.options) })
	return v.t, v.err
}

// Serve opens the device and serves. Without a device, it returns the error of New.
func (v *LazyTransport) Serve(in net.Listener, accept func(transport.Conn)) (string, error) {
	t, err := v.opened()
	if err != nil {
		return "", err
	}
	return t.Serve(in, accept)
}

// Dial opens the device and dials. Without a device, it returns the error of New.
func (v *LazyTransport) Dial(ctx context.Context, addr string) (transport.Conn, error) {
	t, err := v.opened()
	if err != nil {
		return nil, err
	}
	return t.Dial(ctx, addr)
}

// Close closes the Transport if the device was opened, and otherwise the set-up wire.
func (v *LazyTransport) Close() error {
	v.open.Do(func() {})
	if v.t == nil {
		return v.options.Setup.Close()
	}
	return v.t.Close()
}

// ForRank opens the device for one rank, over a set-up wire for that rank.
//
// After an error, ForRank closes the set-up wire that it has made.
func (v *LazyTransport) ForRank(rank int, tls *tlsopt.Options, log *slog.Logger) (transport.Transport, error) {
	o := v.options
	if s, ok := o.Setup.(template); ok {
		setup, err := s.ForRank(rank, tls, log)
		if err != nil {
			return nil, err
		}
		o.Setup = setup
	}
	t, err := New(o)
	if err != nil {
		o.Setup.Close()
		return nil, err
	}
	return t, nil
}

// A template makes a Transport for one rank. It has the same method as Template in package auto.
type template interface {
	ForRank(rank int, tls *tlsopt.Options, log *slog.Logger) (transport.Transport, error)
}

// Upgrade returns a Transport that is set up over tcp, and the name of the device's network. The
// Transport moves a Conn to RDMA if both ends have a device. If the program was built without
// verbs, Upgrade returns nil without an error.
//
// Upgrade makes one queue pair as a check. So it detects an unusable device before any peer learns
// about the device.
func (v *LazyTransport) Upgrade(tcp transport.Transport) (wire transport.Transport, network string, err error) {
	o := v.options
	if !Built && o.Device == nil {
		return nil, "", nil
	}
	o.Setup, o.OnRequest = tcp, true
	if wire, err = New(o); err != nil {
		return nil, "", err
	}
	t := wire.(*Transport) // tcp is no Greeter here
	if err := t.Try(); err != nil {
		t.Close()
		return nil, "", err
	}
	return t, t.Network(), nil
}

var _ transport.Transport = (*LazyTransport)(nil)
