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

// A Transport refuses to serve and to dial: only Linux has sockets without a file, and anonymous
// memory that passes over a socket. Its methods may be called concurrently.
type Transport struct{}

// New returns a Transport whose methods only return the reason.
func New(Options) *Transport { return &Transport{} }

// Name returns "shm".
func (*Transport) Name() string { return Name }

// Available returns why this Transport cannot work here, with fault.Refused.
func (*Transport) Available() error {
	return failure(fault.Refused, "share memory", errors.New("system: got "+runtime.GOOS+", want linux: use another transport"))
}

// Reaches returns false, with the reason.
func (t *Transport) Reaches(string) (ok bool, why string) {
	return false, "no shared memory on " + runtime.GOOS
}

// Serve returns the error of Available.
func (t *Transport) Serve(net.Listener, func(transport.Conn)) (string, error) {
	return "", t.Available()
}

// Dial returns the error of Available.
func (t *Transport) Dial(context.Context, string) (transport.Conn, error) {
	return nil, t.Available()
}

// Close does nothing.
func (*Transport) Close() error { return nil }

var _ transport.Transport = (*Transport)(nil)
