package worldtest

import (
	"context"
	"errors"
	"fmt"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/tensor"
)

// Messages returns the ways to send. In each, every rank sends two vectors to the next rank and
// receives two vectors from the rank before it. If a message of a rank fails, the rank goes on with
// its other messages, and joins all errors.
func Messages[T number]() []Call {
	return []Call{
		{Name: "send", Run: sendRecv[T]},
		{Name: "exchange", Run: sendRecvBoth[T]},
		{Name: "isend", Run: isend[T]},
		{Name: "persistent send", Run: persistentSend[T]},
		{Name: "send to any", Run: sendToAny[T]},
		{Name: "sendnamed", Run: named[T]},
	}
}

// Steps is the number of steps of NamedSteps.
const Steps = 24

// NamedSteps returns a call that is not in Messages. In several steps, beginning with the step
// first, it sends named tensors of one size. It then does the same with larger tensors. Each step
// has two tensors. For one of them the call prepares a receive, whose buffer is too small for the
// larger tensors. The other is for comm.Parameters.StaticTensors. At the end of each step the call
// runs drain, which may wait until no frame is in flight, so that the sender has seen every
// Release. The tracker counts the tensors that arrive in a buffer which was released before.
func NamedSteps[T number](first uint64, drain func()) Call {
	return Call{Name: "sendnamed step by step", Run: func(ctx context.Context, c *comm.Comm, count int, bt *BufferTracker) error {
		_, prev := ring(c)
		stop, err := c.PrepareRecvNamed(prev, stepName(0), tensor.Bytes(track(bt, make([]T, count))))
		errs := []error{err}
		for step := range Steps {
			if step == Steps/2 {
				count += count / 2
			}
			errs = append(errs, namedStep[T](ctx, c, first+uint64(step), count, bt))
			drain()
		}
		if err == nil {
			errs = append(errs, stop(ctx))
		}
		return errors.Join(errs...)
	}}
}

// stepName returns the name of tensor i of each step.
func stepName(i int) string { return fmt.Sprintf("weights/%d", i) }

// namedStep sends two named tensors, and receives two.
func namedStep[T number](ctx context.Context, c *comm.Comm, step uint64, count int, bt *BufferTracker) error {
	next, prev := ring(c)
	payloadOf := func(r, i int) []T { return payload[T](r, i+2*int(step%Steps), count) }
	var errs []error
	for i := range 2 {
		out := payloadOf(c.Rank(), i)
		done := trackUntilDone(bt, stepName(i), out)
		err := c.SendNamed(step, next, stepName(i), comm.NewTensor(out), done)
		if err != nil {
			done(err) // the library will not call done
		}
		errs = append(errs, err)
	}
	for i := range 2 {
		t, err := c.RecvNamed(ctx, step, prev, stepName(i), nil)
		if err == nil {
			err = same(stepName(i), comm.Values[T](t), payloadOf(prev, i))
		}
		if err == nil && i == 1 {
			bt.noteLoan(t.Data)
		}
		t.Release()
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// ring returns the neighbours of a rank in a ring of all ranks.
func ring(c *comm.Comm) (next, prev int) {
	return (c.Rank() + 1) % c.Size(), (c.Rank() + c.Size() - 1) % c.Size()
}

// payload returns message i of rank r.
func payload[T number](r, i, count int) []T { return vector[T](10*r+i, count) }

// checkMessage compares a received message with the one that was sent.
func checkMessage[T number](st comm.Status, from, tag int, got, want []T) error {
	if st.Source != from || st.Tag != tag || comm.Count[T](st) != len(want) {
		return wrong("a message of %+v, want %d elements from rank %d with tag %d", st, len(want), from, tag)
	}
	return same(fmt.Sprintf("message %d from rank %d", tag, from), got, want)
}

// sendRecv receives the second message first.
func sendRecv[T number](ctx context.Context, c *comm.Comm, count int, bt *BufferTracker) error {
	next, prev := ring(c)
	var errs []error
	for i := range 2 {
		errs = append(errs, comm.Send(ctx, c, next, i, track(bt, payload[T](c.Rank(), i, count))))
	}
	for i := 1; i >= 0; i-- {
		in := track(bt, make([]T, count+i))
		st, err := comm.Recv(ctx, c, prev, i, in)
		if err == nil {
			err = checkMessage(st, prev, i, in[:count], payload[T](prev, i, count))
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// IntoBuffers returns a call that sends into memory from comm.Alloc. A transport that has such
// memory writes straight into it. The BufferTracker's Check frees the memory. The call is not in
// Messages, because only with such a transport does it test anything new.
func IntoBuffers[T number]() Call { return Call{Name: "send into a buffer", Run: intoBuffer[T]} }

func intoBuffer[T number](ctx context.Context, c *comm.Comm, count int, bt *BufferTracker) error {
	next, prev := ring(c)
	room, free, err := comm.Alloc[T](c, 2*count+2)
	if err != nil {
		return err
	}
	bt.cleanups = append(bt.cleanups, free)
	var errs []error
	for i := range 2 {
		in := track(bt, room[i*(count+1):][:count])
		st, err := comm.SendRecv(ctx, c, next, i, track(bt, payload[T](c.Rank(), i, count)), prev, i, in)
		if err == nil {
			err = checkMessage(st, prev, i, in, payload[T](prev, i, count))
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func sendRecvBoth[T number](ctx context.Context, c *comm.Comm, count int, bt *BufferTracker) error {
	next, prev := ring(c)
	var errs []error
	for i := range 2 {
		out, in := track(bt, payload[T](c.Rank(), i, count)), track(bt, make([]T, count))
		st, err := comm.SendRecv(ctx, c, next, i, out, prev, i, in)
		if err == nil {
			err = checkMessage(st, prev, i, in, payload[T](prev, i, count))
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func isend[T number](ctx context.Context, c *comm.Comm, count int, bt *BufferTracker) error {
	next, prev := ring(c)
	var errs []error
	var recvs, sends []*comm.Request
	var ins [][]T
	for i := range 2 {
		ins = append(ins, track(bt, make([]T, count)))
		recvs = append(recvs, comm.IRecv(c, prev, i, ins[i]))
		sends = append(sends, comm.ISend(c, next, i, track(bt, payload[T](c.Rank(), i, count))))
	}
	for i, r := range recvs {
		st, err := r.Wait(ctx)
		if err == nil {
			err = checkMessage(st, prev, i, ins[i], payload[T](prev, i, count))
		}
		errs = append(errs, err)
	}
	for _, r := range sends {
		_, err := r.Wait(ctx)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// persistentSend starts the same four requests twice.
func persistentSend[T number](ctx context.Context, c *comm.Comm, count int, bt *BufferTracker) error {
	next, prev := ring(c)
	var rs []*comm.Request
	var outs, ins [][]T
	for i := range 2 {
		ins, outs = append(ins, track(bt, make([]T, count))), append(outs, track(bt, make([]T, count)))
		rs = append(rs, comm.IRecv(c, prev, i, ins[i], comm.Persistent()), comm.ISend(c, next, i, outs[i], comm.Persistent()))
	}
	var errs []error
	for round := range 2 {
		for i := range 2 {
			copy(outs[i], payload[T](c.Rank(), i+2*round, count))
		}
		if err := comm.StartAll(ctx, rs...); err != nil {
			return err
		}
		for left := len(rs); left > 0; {
			done, sts, err := comm.WaitSome(ctx, rs...)
			if errs = append(errs, err); len(done) == 0 {
				return errors.Join(errs...)
			}
			left -= len(done)
			for k, i := range done {
				if i%2 == 0 && err == nil {
					errs = append(errs, checkMessage(sts[k], prev, i/2, ins[i/2], payload[T](prev, i/2+2*round, count)))
				}
			}
		}
	}
	return errors.Join(errs...)
}

// sendToAny receives from any source with any tag, after a Probe.
func sendToAny[T number](ctx context.Context, c *comm.Comm, count int, bt *BufferTracker) error {
	next, prev := ring(c)
	var errs []error
	for i := range 2 {
		errs = append(errs, comm.Send(ctx, c, next, i, track(bt, payload[T](c.Rank(), i, count))))
	}
	for i := range 2 {
		in := track(bt, make([]T, count))
		seen, err := c.Probe(ctx, comm.AnySource, comm.AnyTag)
		var st comm.Status
		if err == nil {
			st, err = comm.Recv(ctx, c, comm.AnySource, comm.AnyTag, in)
		}
		if err == nil && st != seen {
			err = wrong("a message of %+v, after a probe had found %+v", st, seen)
		}
		if err == nil {
			err = checkMessage(st, prev, i, in, payload[T](prev, i, count))
		}
		// Stop here, because the next receive would get the message that this receive did not get.
		if err != nil {
			return errors.Join(append(errs, err)...)
		}
	}
	return errors.Join(errs...)
}

func named[T number](ctx context.Context, c *comm.Comm, count int, bt *BufferTracker) error {
	next, prev := ring(c)
	const step = 3
	name := func(i int) string { return fmt.Sprintf("grad/%d", i) }
	var errs []error
	for i := range 2 {
		out := payload[T](c.Rank(), i, count)
		done := trackUntilDone(bt, name(i), out)
		err := c.SendNamed(step, next, name(i), comm.NewTensor(out, 1, count), done)
		if err != nil {
			done(err) // the library will not call done
		}
		errs = append(errs, err)
	}
	for i := 1; i >= 0; i-- {
		var buf []byte // the second one gets memory of its own
		if i == 0 {
			buf = tensor.Bytes(track(bt, make([]T, count)))
		}
		t, err := c.RecvNamed(ctx, step, prev, name(i), buf)
		if err == nil && (len(t.Shape) != 2 || t.Shape[1] != count || t.Dead) {
			err = wrong("tensor %s has shape %v", name(i), t.Shape)
		}
		if err == nil {
			err = same(name(i), comm.Values[T](t), payload[T](prev, i, count))
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
