package ps

import (
	"context"
	"math"

	"github.com/tutti-go/tutti/internal/compress"
	"github.com/tutti-go/tutti/ps/internal/message"
	"github.com/tutti-go/tutti/ps/internal/part"
	"github.com/tutti-go/tutti/ps/internal/storage"
	"github.com/tutti-go/tutti/tensor"
)

// Push sends values to the rows of the indices: values[i*width:(i+1)*width] to the row of
// indices[i]. The values of an index that occurs repeatedly are added. A row is created when it is
// first pushed to.
func (t *Table[T]) Push(ctx context.Context, indices []int64, values []T) error {
	return t.IPush(indices, values).Wait(ctx)
}

// Pull copies the rows of the indices to dst, in the order of the indices. A row that nobody has
// pushed to has its initial values.
func (t *Table[T]) Pull(ctx context.Context, indices []int64, dst []T) error {
	return t.IPull(indices, dst).Wait(ctx)
}

// IPush is the non-blocking Push. The indices and the values stay in use until the operation is done.
func (t *Table[T]) IPush(indices []int64, values []T) *Handle {
	return t.d.rows(message.Push, indices, tensor.Bytes(values))
}

// IPull is the non-blocking Pull. The indices may be reused when it returns.
func (t *Table[T]) IPull(indices []int64, dst []T) *Handle {
	return t.d.rows(message.Pull, indices, tensor.Bytes(dst))
}

// indexSize is the size of an index in a message.
const indexSize = 8

// maxRows bounds the rows of a request, so that neither its body nor the reply is larger than
// message.MaxBody.
func maxRows(s *message.Spec) int { return message.MaxBody / (s.Size*s.DType.Size() + indexSize) }

// partOf returns the part of a row, of n parts. All clients use the same function. It mixes the bits
// of the index as the generator SplitMix64 does, so that rows with a pattern in their indices spread
// evenly.
func partOf(index int64, n int) int {
	x := uint64(index)
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	x ^= x >> 31
	return int((x >> 32) * uint64(n) >> 32)
}

// rows begins an operation on rows of a table. The slice rows holds the rows to push, or is where
// the pulled rows go.
func (d *declared) rows(kind message.RequestKind, indices []int64, rows []byte) *Handle {
	op := verbs[kind] + d.spec.Name
	width := d.spec.Size * d.spec.DType.Size() // of a row in the program's memory
	if len(rows) != len(indices)*width {
		return d.refuse(op, "elements for %d rows: got %d, want %d for each row", len(indices), len(rows)/d.spec.DType.Size(), d.spec.Size)
	}
	limit := int64(math.MaxInt64)
	if d.spec.Rows > 0 {
		limit = d.spec.Rows
	}
	for i, index := range indices {
		if index < 0 || index >= limit {
			return d.refuse(op, "index %d of %d: got %d, want 0 to %d", i, len(indices), index, limit-1)
		}
	}
	if limit := maxRows(&d.spec); len(indices) > limit {
		return d.refuse(op, "rows: got %d, want at most %d in one call", len(indices), limit)
	}
	if kind == message.Push {
		if i := d.findNaN(rows); i >= 0 {
			return d.refuse(op, "row %d of %d, element %d: got NaN, want a number, because the table has the option RejectNaN", i/d.spec.Size, len(indices), i%d.spec.Size)
		}
	}
	if err := d.cl.begin(op); err != nil {
		return failed(err)
	}
	order, ends := d.sortByPart(indices)
	// A version of a synchronous table needs a push to every part, and so do the clocks of a bounded
	// one.
	all := kind == message.Push && d.spec.Mode != part.Asynchronous
	h := newHandle(d.cl, op, 1) // one more than the calls, until all are submitted
	d.mu.Lock()
	first := int32(0)
	for i := range d.parts {
		positions := order[first:ends[i]]
		first = ends[i]
		if len(positions) > 0 || all {
			h.more()
			d.submit(&d.parts[i], d.rowsCall(h, kind, i, indices, positions, rows, width))
		}
	}
	d.mu.Unlock()
	h.partDone(nil)
	return h
}

// sortByPart returns the positions of the indices, ordered by the part of the index and then by the
// position, and the end of each part's positions.
func (d *declared) sortByPart(indices []int64) (order, ends []int32) {
	n := len(d.parts)
	ends = make([]int32, n)
	for _, index := range indices {
		ends[partOf(index, n)]++
	}
	var total int32
	for i, count := range ends {
		ends[i] = total
		total += count
	}
	order = make([]int32, len(indices))
	for i, index := range indices {
		p := partOf(index, n)
		order[ends[p]] = int32(i)
		ends[p]++
	}
	return order, ends
}

// rowsCall returns the call for the rows of one part.
func (d *declared) rowsCall(h *Handle, kind message.RequestKind, part int, indices []int64, positions []int32, rows []byte, width int) *call {
	c := &call{q: message.Request{Kind: kind, DType: d.spec.DType, Tensor: d.id, Part: uint32(part), Rows: len(positions)}}
	wire, wireWidth := rowsWire(&d.spec)
	c.q.DType = wire
	size := bodySize(&d.spec, &c.q, 0)
	if kind == message.Push {
		var body *storage.Buffer
		c.size = size
		c.load = func() []byte {
			body = d.cl.n.pool.get(size)
			values := gather(body.Bytes(), indices, positions)
			for k, i := range positions {
				row := rows[int(i)*width:][:width]
				if wire == d.spec.DType {
					copy(values[k*width:], row)
				} else {
					compress.Narrow(wire, values[k*wireWidth:][:wireWidth], d.spec.DType, row, 1)
				}
			}
			return body.Bytes()
		}
		c.done = func(err error) {
			if body != nil {
				body.Release()
			}
			h.partDone(err)
		}
		return c
	}
	body, answer := d.cl.n.pool.get(size), d.cl.n.pool.get(wireWidth*len(positions))
	gather(body.Bytes(), indices, positions)
	c.body, c.dst = body.Bytes(), answer.Bytes()
	c.done = func(err error) {
		if err == nil {
			d.scatter(rows, answer.Bytes(), positions)
		}
		body.Release()
		answer.Release()
		h.partDone(err)
	}
	return c
}

// gather copies the indices at some positions to the beginning of a body, and returns the rest of it.
func gather(body []byte, indices []int64, positions []int32) (values []byte) {
	list := tensor.Elements[int64](body[:indexSize*len(positions)])
	for k, i := range positions {
		list[k] = indices[i]
	}
	return body[indexSize*len(positions):]
}

// scatter copies the rows of an answer to their positions.
func (d *declared) scatter(dst, src []byte, positions []int32) {
	wire, wireWidth := rowsWire(&d.spec)
	width := d.spec.Size * d.spec.DType.Size()
	for k, i := range positions {
		row := dst[int(i)*width:][:width]
		if wire == d.spec.DType {
			copy(row, src[k*width:])
		} else {
			compress.Widen(d.spec.DType, row, wire, src[k*wireWidth:][:wireWidth])
		}
	}
}
