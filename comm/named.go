package comm

import (
	"cmp"
	"context"

	"github.com/tutti-go/tutti/p2p"
	"github.com/tutti-go/tutti/tensor"
)

// A Tensor holds raw elements with their type and shape, for SendNamed and RecvNamed. Dead means
// that the producer of the tensor did not run; Data is empty in that case.
type Tensor = p2p.Tensor

// NewTensor makes a Tensor of the elements in data, without copying them. The product of the shape
// must be len(data). Without a shape the tensor has one dimension.
func NewTensor[T Element](data []T, shape ...int) Tensor {
	if len(shape) == 0 {
		shape = []int{len(data)}
	}
	return Tensor{DType: tensor.TypeOf[T](), Shape: shape, Data: tensor.Bytes(data)}
}

// Values returns a Tensor's elements without copying them. It returns nil if they are not of type
// T, or not aligned for it.
func Values[T Element](t Tensor) []T {
	if t.DType != tensor.TypeOf[T]() || !tensor.Aligned[T](t.Data) {
		return nil
	}
	return tensor.Elements[T](t.Data)
}

// SendNamed sends a tensor to another rank, which receives it by step and name. It never blocks and
// does not copy the data. The data belongs to the library until the callback done has run. The
// library calls done once, on one of its own goroutines. The callback must not block, and may be
// nil.
//
// The argument of done is nil when the bytes have been sent. It is an error if the receiver ends
// the step, or closes, before it has asked for the bytes. For a small tensor, and for a tensor with
// a prepared buffer, the receiver does not ask. The argument may then be nil even if the receiver
// drops the tensor, because it ends the step.
//
// Parameters.StepBytes bounds the bytes of all sends of a step. Beyond that bound SendNamed fails
// at once with fault.Exhausted, which names the largest tensor.
func (c *Comm) SendNamed(step uint64, to int, name string, t Tensor, done func(error)) error {
	if err := c.checkNamed("sendnamed", to, name, &t); err != nil {
		return err
	}
	if err := c.group.SendNamed(step, to, name, t, done); err != nil {
		return c.messageError("sendnamed "+name, err)
	}
	return nil
}

// RecvNamed receives the tensor with the given step and name from another rank. It waits until the
// tensor arrives, the step ends, or ctx ends. The parameter buf decides where the bytes go:
//
//	buf         Data of the result
//	not nil     in buf, which must be large enough; else fault.Misuse
//	nil         in new memory, or, for a tensor with a prepared receive
//	            (PrepareRecvNamed, Parameters.StaticTensors), in the prepared buffer
//	            until Tensor.Release
//
// The key of a tensor consists of communicator, step, sender and name. Tensors with equal keys
// arrive in the order sent.
func (c *Comm) RecvNamed(ctx context.Context, step uint64, from int, name string, buf []byte) (Tensor, error) {
	if err := cmp.Or(checkContext("recvnamed", ctx), c.checkNamed("recvnamed", from, name, nil)); err != nil {
		return Tensor{}, err
	}
	cl := c.beginMessage(ctx, signature{callName: "recvnamed " + name, count: -1, root: -1, peer: c.jobRank(from), tag: -1})
	t, err := c.group.RecvNamed(ctx, cl, step, from, name, buf)
	return t, c.endMessage(cl, err)
}

// OnNamed registers got as the callback for the tensor with this step, sender and name. The
// callback runs once: with the tensor, on the goroutine that moved its last bytes; with an error,
// on any goroutine. It may run before OnNamed returns. It must not block, and may send. If buf is
// nil, the tensor's Data is newly allocated, and the callback may keep it.
func (c *Comm) OnNamed(step uint64, from int, name string, buf []byte, got func(Tensor, error)) error {
	if err := c.checkNamed("onnamed", from, name, nil); err != nil {
		return err
	}
	c.group.OnNamed(step, from, name, buf, got)
	return nil
}

// EndStep ends a step on every rank. Pending calls of the step fail, and tensors that arrive later
// are dropped, so that the step holds no memory. If cause is not nil, the step is aborted, and the
// errors of its calls include cause.
func (c *Comm) EndStep(step uint64, cause error) { c.group.EndStep(step, cause) }

// checkNamed refuses wrong arguments of a call on named tensors. The parameter t is nil for a call
// that sends no tensor.
func (c *Comm) checkNamed(op string, rank int, name string, t *Tensor) error {
	if name == "" {
		return c.misuse(op, "name of the tensor: got an empty name, want the name that sender and receiver use")
	}
	if rank < 0 || rank >= c.Size() {
		return c.misuse(op, "rank: got %d, want 0 to %d", rank, c.Size()-1)
	}
	if t == nil {
		return nil
	}
	n := t.DType.Size()
	for _, d := range t.Shape {
		n *= d
	}
	switch {
	case t.Dead && len(t.Data) > 0:
		return c.misuse(op, "data of a dead tensor: got %d bytes, want none", len(t.Data))
	case !t.Dead && n != len(t.Data):
		return c.misuse(op, "data of a tensor of %v with shape %v: got %d bytes, want %d", t.DType, t.Shape, len(t.Data), n)
	}
	return nil
}
