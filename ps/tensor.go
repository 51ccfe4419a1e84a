package ps

import (
	"context"
	"fmt"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/ps/internal/message"
	"github.com/tutti-go/tutti/tensor"
)

// Push sends src, which has the tensor's length, to the servers, and returns when they have it. In a
// synchronous tensor it is this worker's contribution to the next version.
func (t *Tensor[T]) Push(ctx context.Context, src []T) error { return t.IPush(src).Wait(ctx) }

// Pull copies the values to dst. The values include the earlier pushes of this worker.
func (t *Tensor[T]) Pull(ctx context.Context, dst []T) error { return t.IPull(dst).Wait(ctx) }

// PushPull pushes src, and pulls values that include it to dst. It is faster than Push and Pull. The
// slices may be the same.
func (t *Tensor[T]) PushPull(ctx context.Context, src, dst []T) error {
	return t.IPushPull(src, dst).Wait(ctx)
}

// Set replaces the values by src. One worker calls it, mostly for the initial values of a model.
// Pulls of other workers do not wait for it.
func (t *Tensor[T]) Set(ctx context.Context, src []T) error {
	return t.d.dense(message.Set, tensor.Bytes(src), nil).Wait(ctx)
}

// IPush is the non-blocking Push.
func (t *Tensor[T]) IPush(src []T) *Handle { return t.d.dense(message.Push, tensor.Bytes(src), nil) }

// IPull is the non-blocking Pull.
func (t *Tensor[T]) IPull(dst []T) *Handle { return t.d.dense(message.Pull, nil, tensor.Bytes(dst)) }

// IPushPull is the non-blocking PushPull.
func (t *Tensor[T]) IPushPull(src, dst []T) *Handle {
	return t.d.dense(message.PushPull, tensor.Bytes(src), tensor.Bytes(dst))
}

// verbs are the names of operations in errors.
var verbs = map[message.RequestKind]string{message.Push: "push ", message.Pull: "pull ", message.PushPull: "pushpull ", message.Set: "set ",
	message.SetState: "set state ", message.PullState: "pull state "}

// refuse returns the Handle of an operation with wrong arguments. Nothing of it is sent.
func (d *declared) refuse(op, format string, args ...any) *Handle {
	n := d.cl.n
	return failed(fault.New(fault.Misuse, op, n.worldRank(n.c.Rank()), format, args...))
}

// dense begins an operation on a dense tensor.
func (d *declared) dense(kind message.RequestKind, src, dst []byte) *Handle {
	op := verbs[kind] + d.spec.Name
	es := d.spec.DType.Size()
	want := d.spec.Size * es
	if kind != message.Pull && len(src) != want || (kind == message.Pull || kind == message.PushPull) && len(dst) != want {
		got := len(src)
		if kind == message.Pull || got == want {
			got = len(dst)
		}
		return d.refuse(op, "elements: got %d, want %d", got/es, d.spec.Size)
	}
	if tensor.Overlap(src, dst) && &src[0] != &dst[0] {
		return d.refuse(op, "buffers: got slices that overlap in part, want the same slice or separate ones")
	}
	if i := d.findNaN(src); i >= 0 {
		return d.refuse(op, "element %d: got NaN, want a number, because the tensor has the option RejectNaN", i)
	}
	if err := d.cl.begin(op); err != nil {
		return failed(err)
	}
	h := newHandle(d.cl, op, len(d.parts))
	if kind != message.Pull {
		h.pushing = &d.pushing
		d.pushing.Add(1)
	}
	calls := make([]call, len(d.parts))
	d.mu.Lock()
	defer d.mu.Unlock()
	for i := range d.parts {
		p, c := &d.parts[i], &calls[i]
		c.q = message.Request{Kind: kind, DType: d.spec.DType, Tensor: d.id, Part: uint32(i)}
		if src != nil {
			c.body = src[p.first*es:][:p.count*es]
		}
		if dst != nil {
			c.dst = dst[p.first*es:][:p.count*es]
		}
		c.done = h.partDone
		if d.compresses() && kind != message.Set {
			d.compress(p, c)
		}
		d.submit(p, c)
	}
	return h
}

// submit numbers a call and sends it. d.mu is held.
func (d *declared) submit(p *clientPart, c *call) {
	if c.q.Kind != message.Pull && c.q.Kind != message.PullState {
		p.seq++
		c.q.Seq = p.seq
		d.cl.pushes.Add(1)
	}
	if c.q.Kind == message.Pull || c.q.Kind == message.PushPull {
		d.cl.pulls.Add(1)
	}
	c.priority = d.spec.Priority
	if c.times = d.cl.n.clientTimes(d.spec.Name, &c.q, p.server()); c.times != nil {
		c.started = clientStarted
		c.times.bytes = c.bodySize() + len(c.dst)
		done := c.done
		c.done = func(err error) {
			c.times.end()
			done(err)
		}
	}
	p.submit(c)
}

// findNaN returns the index of the first NaN in values, or -1 if there is none or if NaNs are
// allowed.
func (d *declared) findNaN(values []byte) int {
	if !d.rejectNaN || len(values) == 0 {
		return -1
	}
	switch d.spec.DType {
	case tensor.Float32:
		return indexNaN(tensor.Elements[float32](values), func(v float32) bool { return v != v })
	case tensor.Float64:
		return indexNaN(tensor.Elements[float64](values), func(v float64) bool { return v != v })
	case tensor.F16:
		return indexNaN(tensor.Elements[tensor.Float16](values), func(v tensor.Float16) bool { return v.Float32() != v.Float32() })
	}
	return indexNaN(tensor.Elements[tensor.BFloat16](values), func(v tensor.BFloat16) bool { return v.Float32() != v.Float32() })
}

func indexNaN[T any](values []T, isNaN func(T) bool) int {
	for i, v := range values {
		if isNaN(v) {
			return i
		}
	}
	return -1
}

// String returns the name and the declaration of the tensor.
func (t *Tensor[T]) String() string { return t.d.String() }

// String returns the name and the declaration of the table.
func (t *Table[T]) String() string { return t.d.String() }

func (d *declared) String() string { return fmt.Sprintf("%s %s", d.spec.Name, describe(&d.spec)) }
