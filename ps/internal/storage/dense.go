package storage

import (
	"bytes"
	"encoding/binary"
	"io"
	"sync/atomic"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/ps/optimizer"
	"github.com/tutti-go/tutti/reduce"
	"github.com/tutti-go/tutti/tensor"
)

// A Dense holds consecutive elements of a vector, and the slots of its optimizer.
type Dense struct {
	spec   Spec
	first  int64
	size   int                     // bytes of the values
	planes []*Buffer               // the values, and each slot; all of the same size
	spare  *atomic.Pointer[Buffer] // memory for the next copy of a plane, if not nil
	steps  int64
	sum    reduce.Kernel
	update func(gradient []byte) // nil without an optimizer
}

// NewDense returns the n elements from element first on, with their first values.
func NewDense(spec Spec, first int64, n int) (*Dense, error) {
	if err := spec.check(); err != nil {
		return nil, err
	}
	state := spec.state()
	d := &Dense{spec: spec, first: first, size: n * spec.DType.Size(), spare: new(atomic.Pointer[Buffer])}
	if first < 0 || n < 0 || len(state.Slots) > maxSlots {
		return nil, misuse("%s: got %d elements from element %d on, %d slots", spec.Name, n, first, len(state.Slots))
	}
	if err := spec.Budget.claim(spec.Name, int64(d.size)*int64(1+len(state.Slots))); err != nil {
		return nil, err
	}
	for range 1 + len(state.Slots) {
		d.planes = append(d.planes, d.unused())
	}
	d.sum, _ = reduce.Sum.Kernel(spec.DType) // Add reports an element type without sums
	spec.filler().fill(d.planes[0].bytes, 0, first)
	for i, x := range state.Slots {
		filler{Constant(x), spec.DType, 0}.fill(d.planes[1+i].bytes, 0, 0)
	}
	switch {
	case spec.Optimizer == nil:
	case spec.DType == tensor.Float32:
		d.update = updater[float32](d)
	default:
		d.update = updater[float64](d)
	}
	return d, nil
}

// maxSlots is the largest number of slots. A saved state has 7 bits for it.
const maxSlots = 100

// updater returns a function that makes one step of the optimizer of d.
func updater[T float32 | float64](d *Dense) func(gradient []byte) {
	update := optimizer.Update[T](d.spec.Optimizer)
	slots := make([][]T, len(d.planes)-1)
	return func(gradient []byte) {
		for i := range slots {
			slots[i] = tensor.Elements[T](d.planes[1+i].bytes)
		}
		update(tensor.Elements[T](d.planes[0].bytes), tensor.Elements[T](gradient), slots, d.steps)
	}
}

// Value returns the values. The caller releases the Buffer. Until then, its bytes do not change.
func (d *Dense) Value() *Buffer {
	d.planes[0].Retain()
	return d.planes[0]
}

// Update makes one step of the optimizer with this gradient, which is as long as the values and
// aligned for the element type.
func (d *Dense) Update(gradient []byte) error {
	if d.update == nil {
		return misuse("%s: got an update, want an optimizer in the declaration", d.spec.Name)
	}
	if err := d.fits("gradient", gradient); err != nil {
		return err
	}
	for i := range d.planes {
		d.makePrivate(i)
	}
	d.steps++
	d.update(gradient)
	return nil
}

// Add adds delta to the values.
func (d *Dense) Add(delta []byte) error {
	if !d.sum.DType().Valid() {
		return misuse("%s: got a sum of elements of type %v, want a type that has sums", d.spec.Name, d.spec.DType)
	}
	if err := d.fits("values to add", delta); err != nil {
		return err
	}
	old := d.planes[0]
	to := old
	if old.shared() {
		to = d.unused()
		d.planes[0] = to
		defer old.Release()
	}
	d.sum.Fold(to.bytes, old.bytes, delta)
	return nil
}

// Set copies values into d. The slots and the number of updates stay.
func (d *Dense) Set(values []byte) error {
	if err := d.fits("values", values); err != nil {
		return err
	}
	if d.planes[0].shared() {
		d.planes[0].Release()
		d.planes[0] = d.unused()
	}
	copy(d.planes[0].bytes, values)
	return nil
}

// Replace makes the Buffer the values of d, and takes over the caller's hold of it. No other holder
// of the Buffer may change its bytes. If Replace returns an error, the caller still holds it.
func (d *Dense) Replace(values *Buffer) error {
	if err := d.fits("values", values.bytes); err != nil {
		return err
	}
	d.planes[0].Release()
	d.planes[0] = values
	return nil
}

// fits returns an error if b cannot be a vector of the type and length of d.
func (d *Dense) fits(what string, b []byte) error {
	if len(b) != d.size || !tensor.AlignedFor(d.spec.DType, b) {
		return misuse("%s: got %s of %d bytes, want %d aligned for %v", d.spec.Name, what, len(b), d.size, d.spec.DType)
	}
	return nil
}

// makePrivate copies a plane if it has other holders.
func (d *Dense) makePrivate(i int) {
	if old := d.planes[i]; old.shared() {
		d.planes[i] = d.unused()
		copy(d.planes[i].bytes, old.bytes)
		old.Release()
	}
}

// unused returns a Buffer for a plane, with any contents. If it is released, the next call may return
// it again. So a vector that alternates between two Buffers allocates no memory.
func (d *Dense) unused() *Buffer {
	if b := d.spare.Swap(nil); b != nil {
		b.holders.Store(1)
		return b
	}
	b := NewBuffer(aligned(d.size), nil)
	spare := d.spare
	b.free = func() { spare.Store(b) }
	return b
}

// aligned returns n bytes that are aligned for every element type.
func aligned(n int) []byte { return tensor.Bytes(make([]uint64, (n+7)/8))[:n] }

// Steps returns the number of updates.
func (d *Dense) Steps() int64 { return d.steps }

// Bytes returns the memory of the values and slots in bytes.
func (d *Dense) Bytes() int64 { return int64(d.size) * int64(len(d.planes)) }

// Free gives the memory back to the Budget. Nothing may be called afterwards, other than Release of
// Buffers and the methods of Saves.
func (d *Dense) Free() {
	d.spec.Budget.give(d.Bytes())
	for _, p := range d.planes {
		p.Release()
	}
}

// Save returns the present state.
func (d *Dense) Save() Save {
	s := &denseSave{head: d.header()}
	for _, p := range d.planes {
		p.Retain()
		s.planes = append(s.planes, p)
	}
	return s
}

func (d *Dense) header() header {
	return header{kindDense, d.spec, d.first, int64(d.size / d.spec.DType.Size()), d.steps}
}

// StateSize returns the size of the saved state of d.
func (d *Dense) StateSize() int { return d.spec.StateSize(d.size / d.spec.DType.Size()) }

// StateSize returns the size of the saved state of a Dense of n elements.
func (s Spec) StateSize(n int) int {
	return headerSize + n*s.DType.Size()*(1+len(s.state().Slots))
}

// AppendState appends the saved state of a Dense of n elements. The planes are its values and its slots.
func (s Spec) AppendState(b []byte, first int64, n int, planes [][]byte, steps int64) []byte {
	b = header{kindDense, s, first, int64(n), steps}.append(b)
	for _, p := range planes {
		b = append(b, p...)
	}
	return b
}

// ParseState copies the saved state of a Dense of n elements to planes. It returns the number of
// updates.
func (s Spec) ParseState(b []byte, first int64, n int, planes [][]byte) (steps int64, err error) {
	r := bytes.NewReader(b)
	want := header{kindDense, s, first, int64(n), 0}
	got, err := readHeader(r, want)
	if err == nil && (got.position != want.position || got.count != want.count) {
		err = mismatch("%s: got a state of %d elements from element %d on, want %d from %d on", s.Name, got.count, got.position, n, first)
	}
	for _, p := range planes {
		if err == nil {
			_, err = io.ReadFull(r, p)
		}
	}
	return got.extra, err
}

// A denseSave holds the planes of a Dense.
type denseSave struct {
	head   header
	planes []*Buffer
}

// WriteTo implements Save.
func (s *denseSave) WriteTo(w io.Writer) (int64, error) {
	total, err := write(w, s.head.append(nil))
	for _, p := range s.planes {
		for rest := p.bytes; len(rest) > 0 && err == nil; {
			n := min(len(rest), maxWrite)
			var m int64
			m, err = write(w, rest[:n])
			total, rest = total+m, rest[n:]
		}
	}
	return total, err
}

// Close implements Save.
func (s *denseSave) Close() {
	for _, p := range s.planes {
		p.Release()
	}
	s.planes = nil
}

// Load replaces the values, the slots and the number of updates by a saved state. It returns
// fault.Mismatch for a state of another vector. After another error, the contents of d are undefined.
func (d *Dense) Load(r io.Reader) error {
	want := d.header()
	got, err := readHeader(r, want)
	if err != nil {
		return err
	}
	if got.position != want.position || got.count != want.count {
		return mismatch("%s: got a saved state of %d elements from element %d on, want %d from %d on",
			d.spec.Name, got.count, got.position, want.count, want.position)
	}
	for i, p := range d.planes {
		if p.shared() {
			p.Release()
			d.planes[i] = d.unused()
		}
		if _, err := io.ReadFull(r, d.planes[i].bytes); err != nil {
			return torn(d.spec.Name, err)
		}
	}
	d.steps = got.extra
	return nil
}

// maxWrite is the largest number of bytes in one Write of a Save.
const maxWrite = 1 << 20

// A header is the beginning of a saved state; the package comment has its form.
type header struct {
	kind            uint8
	spec            Spec
	position, count int64
	extra           int64
}

const (
	headerSize = 32
	magic      = 0x74757073
	version    = 1
	kindDense  = 1
	kindTable  = 2
)

func (h header) append(b []byte) []byte {
	state := h.spec.state()
	slots := uint8(len(state.Slots))
	if state.Steps {
		slots += 128
	}
	b = binary.NativeEndian.AppendUint32(b, magic)
	b = append(b, version, h.kind, uint8(h.spec.DType), slots)
	b = binary.NativeEndian.AppendUint64(b, uint64(h.position))
	b = binary.NativeEndian.AppendUint64(b, uint64(h.count))
	return binary.NativeEndian.AppendUint64(b, uint64(h.extra))
}

// readHeader reads a header, and compares its first 8 bytes with those of want.
func readHeader(r io.Reader, want header) (header, error) {
	var b [headerSize]byte
	if _, err := io.ReadFull(r, b[:]); err != nil {
		return header{}, torn(want.spec.Name, err)
	}
	if expected := want.append(nil); string(b[:8]) != string(expected[:8]) {
		return header{}, mismatch("%s: got a saved state that begins with % x, want % x "+
			"(format and version, vector or table, element type, slots of the optimizer)", want.spec.Name, b[:8], expected[:8])
	}
	number := func(at int) int64 { return int64(binary.NativeEndian.Uint64(b[at:])) }
	return header{want.kind, want.spec, number(8), number(16), number(24)}, nil
}

func mismatch(format string, args ...any) error {
	return fault.New(fault.Mismatch, "ps", -1, format, args...)
}

// torn returns the error for a saved state that cannot be read to its end.
func torn(name string, err error) error { return mismatch("%s: saved state ends early: %w", name, err) }

// write writes b.
func write(w io.Writer, b []byte) (int64, error) {
	n, err := w.Write(b)
	return int64(n), err
}
