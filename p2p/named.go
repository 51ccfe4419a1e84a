package p2p

import (
	"context"

	"github.com/tutti-go/tutti/mesh"
	"github.com/tutti-go/tutti/rendezvous"
)

// A Tensor is the content of a named message.
type Tensor = rendezvous.Tensor

// A FingerprintError is the cause of a fault.Mismatch. It says that a message and its receive have
// different fingerprints. Its Source is a rank of the job.
type FingerprintError = rendezvous.FingerprintError

// SendNamed sends a tensor to a member, which receives it by step and name. It never blocks. The
// tensor's data belongs to the group until the callback done has run. The callback runs once. It
// may be nil.
func (g *Group) SendNamed(step uint64, to int, name string, t Tensor, done func(error)) error {
	return g.messages.SendNamed(step, g.ranks[to], name, t, done)
}

// RecvNamed waits for the tensor of a step and name from a member. The tensor's data is in buf. If
// buf is nil, it is in separate memory.
func (g *Group) RecvNamed(ctx context.Context, p mesh.WaitPolicy, step uint64, from int, name string, buf []byte) (Tensor, error) {
	return g.messages.RecvNamed(ctx, p, step, g.ranks[from], name, buf)
}

// OnNamed registers a callback for the tensor of a step and name from a member. The callback runs
// once and must not block.
func (g *Group) OnNamed(step uint64, from int, name string, buf []byte, got func(Tensor, error)) {
	g.messages.RecvNamedAsync(step, g.ranks[from], name, buf, got)
}

// PrepareNamed exposes buf to a member, which may then write the tensors of one name directly into
// buf. The function stop withdraws buf, and returns when the member cannot write into buf any more.
func (g *Group) PrepareNamed(from int, name string, buf []byte) (stop func(context.Context) error, err error) {
	pr, err := g.messages.PrepareNamed(g.ranks[from], name, buf)
	if err != nil {
		return nil, err
	}
	return pr.Close, nil
}

// EndStep ends a step of named tensors on all members. The calls of the step fail with cause, if it
// is not nil.
func (g *Group) EndStep(step uint64, cause error) { g.messages.EndStep(step, cause) }
