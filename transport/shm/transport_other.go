//go:build !linux

package shm

import (
	"context"
	"errors"
	"net"
	"runtime"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/transport"
)

// A Transport refuses to serve and to dial: memory without a name, and the
// sockets to pass it on, are Linux's. Its methods may be called concurrently.
type Transport struct{}

// New is a Transport that can do nothing but tell why.
func New(Options) *Transport { return &Transport{} }

// Name is "shm".
func (*Transport) Name() string { return Name }

// Available says why this Transport cannot work here, with fault.Refused.
func (*Transport) Available() error {
	return failure(fault.Refused, "look for shared memory", errors.New("it is built for Linux, and this is "+runtime.GOOS))
}

// Reaches is false, with the reason.
func (t *Transport) Reaches(string) (ok bool, why string) {
	return false, "no shared memory on " + runtime.GOOS
}

// Serve returns what Available does.
func (t *Transport) Serve(net.Listener, func(transport.Conn)) (string, error) {
	return "", t.Available()
}

// Dial returns what Available does.
func (t *Transport) Dial(context.Context, string) (transport.Conn, error) {
	return nil, t.Available()
}

// Close has nothing to end.
func (*Transport) Close() error { return nil }

var _ transport.Transport = (*Transport)(nil)
