package ps

import (
	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/compress"
	"github.com/tutti-go/tutti/ps/internal/message"
	"github.com/tutti-go/tutti/ps/internal/storage"
	"github.com/tutti-go/tutti/tensor"
)

// narrowSize is the size of an element of a compressed body.
const narrowSize = 2

// compresses reports whether pushes to d are compressed.
func (d *declared) compresses() bool { return d.spec.Wire != tensor.Invalid || d.spec.TopK != 0 }

// compress replaces the buffers of a call of a dense tensor by compressed ones. d.mu is held.
func (d *declared) compress(p *clientPart, c *call) {
	var body, answer *storage.Buffer
	dst, done := c.dst, c.done
	if src := c.body; src != nil {
		if d.residual == nil {
			d.residual = make([]byte, d.spec.Size*d.spec.DType.Size())
		}
		residual := d.residual[p.first*d.spec.DType.Size():][:len(src)]
		c.body, c.size = nil, pushSize(&d.spec, p.count)
		c.load = func() []byte {
			body = d.cl.n.pool.get(pushSize(&d.spec, p.count))
			d.encode(body.Bytes(), src, residual)
			return body.Bytes()
		}
	}
	if d.spec.Wire != tensor.Invalid {
		c.q.DType = d.spec.Wire
		if dst != nil {
			answer = d.cl.n.pool.get(narrowSize * p.count)
			c.dst = answer.Bytes()
		}
	}
	c.done = func(err error) {
		if answer != nil {
			if err == nil {
				compress.Widen(d.spec.DType, dst, d.spec.Wire, answer.Bytes())
			}
			answer.Release()
		}
		if body != nil {
			body.Release()
		}
		done(err)
	}
}

// pushSize returns the size of the body of a compressed push to a dense part.
func pushSize(s *message.Spec, count int) int {
	switch {
	case s.TopK == 0:
		return narrowSize * count
	case s.DType == tensor.Float32:
		return compress.TopSize[float32](topCount(s, count))
	}
	return compress.TopSize[float64](topCount(s, count))
}

// topCount returns how many of count elements a push sends.
func topCount(s *message.Spec, count int) int { return max(1, int(s.TopK*float64(count))) }

// encode writes the body of a push, and keeps in the residual what the body leaves out. The pushes to a
// part are encoded in their order, each before the next one begins, because one goroutine takes them: that
// of the outlet to the part's server, or the part's engine if this rank serves it.
func (d *declared) encode(body, src, residual []byte) {
	if d.spec.DType == tensor.Float32 {
		encode(&d.spec, body, tensor.Elements[float32](src), tensor.Elements[float32](residual))
		return
	}
	encode(&d.spec, body, tensor.Elements[float64](src), tensor.Elements[float64](residual))
}

func encode[T float32 | float64](s *message.Spec, body []byte, src, residual []T) {
	for i, v := range src {
		residual[i] += v
	}
	switch s.Wire {
	case tensor.F16:
		round(tensor.Elements[tensor.Float16](body), tensor.Float16From, residual)
	case tensor.BF16:
		round(tensor.Elements[tensor.BFloat16](body), tensor.BFloat16From, residual)
	default:
		compress.EncodeTop(body, residual, topCount(s, len(src)))
	}
}

// round writes the elements of sum as 16-bit floats, and replaces them by what the rounding has lost.
// That is 0 for an infinity and a NaN, which would stay for ever.
func round[T float32 | float64, H interface {
	tensor.Float16 | tensor.BFloat16
	Float32() float32
}](dst []H, from func(float32) H, sum []T) {
	for i, v := range sum {
		dst[i] = from(float32(v))
		lost := v - T(dst[i].Float32())
		if lost-lost != 0 {
			lost = 0
		}
		sum[i] = lost
	}
}

// rowsWire returns the type of the values of rows in messages, and the size of a row.
func rowsWire(s *message.Spec) (d tensor.DType, width int) {
	d = s.DType
	if s.Wire != tensor.Invalid {
		d = s.Wire
	}
	return d, s.Size * d.Size()
}

// bodySize returns the size of the body of a request about a part of count elements.
func bodySize(s *message.Spec, q *message.Request, count int) int {
	_, width := rowsWire(s)
	switch {
	case s.Table && q.Kind == message.Pull:
		return q.Rows * indexSize
	case s.Table:
		return q.Rows * (indexSize + width)
	case q.Kind == message.Pull:
		return 0
	case q.Kind != message.Set && (s.Wire != tensor.Invalid || s.TopK != 0):
		return pushSize(s, count)
	}
	return count * s.DType.Size()
}

// expand replaces the compressed values in the body of a push by elements of the tensor's type.
func (p *shard) expand(j *job) error {
	s := &p.spec
	if j.body == nil || j.q.Kind == message.Pull || j.q.Kind == message.Set || j.q.Kind == message.SetState || s.Wire == tensor.Invalid && s.TopK == 0 {
		return nil
	}
	count, indices := p.count, 0
	if s.Table {
		count, indices = j.q.Rows*s.Size, j.q.Rows*indexSize
	}
	wide := p.s.n.pool.get(indices + count*s.DType.Size())
	values := wide.Bytes()[indices:]
	copy(wide.Bytes(), j.body[:indices])
	ok := true
	switch {
	case s.Wire != tensor.Invalid:
		compress.Widen(s.DType, values, s.Wire, j.body[indices:])
	case s.DType == tensor.Float32:
		clear(values)
		ok = compress.AddTop(tensor.Elements[float32](values), j.body, topCount(s, count))
	default:
		clear(values)
		ok = compress.AddTop(tensor.Elements[float64](values), j.body, topCount(s, count))
	}
	j.release()
	j.buffer, j.body = wide, wide.Bytes()
	if !ok {
		return p.s.errorf(fault.Mismatch, "push to %s: got an element beyond the part, want one of %d; run the same version of the program on all ranks", p.name(), count)
	}
	return nil
}

// narrow returns values in the type of messages, in a Buffer. It releases the given Buffer.
func (p *shard) narrow(values *storage.Buffer) *storage.Buffer {
	s := &p.spec
	b := p.s.n.pool.get(len(values.Bytes()) / s.DType.Size() * narrowSize)
	compress.Narrow(s.Wire, b.Bytes(), s.DType, values.Bytes(), 1)
	values.Release()
	return b
}
