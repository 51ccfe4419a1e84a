package storage

import (
	"encoding/binary"
	"math/bits"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/tutti-go/tutti/internal/cpu"
	"github.com/tutti-go/tutti/ps/optimizer"
	"github.com/tutti-go/tutti/reduce"
	"github.com/tutti-go/tutti/tensor"
)

const (
	maxSlab   = 512 << 10       // bytes of a slab with several rows
	maxRows   = 1<<32 - 2       // a slot of the index has 32 bits, and 0 means that it is free
	maxRow    = 1 << 30         // bytes of a row
	keyBytes  = 8               // of the index at the beginning of a row
	stepBytes = 8               // of the number of updates
	ahead     = 64              // rows that are looked up before the first of them is used
	noRow     = uint32(maxRows) // an index without a row
)

// A Table holds rows of equal width, and the slots of their optimizer.
type Table struct {
	spec   Spec
	filler filler
	width  int
	state  optimizer.State
	values int // bytes of a row's values
	stepAt int // offset of the number of updates in a row; 0: the optimizer does not need it
	stride int // bytes of a row
	sum    reduce.Kernel
	mean   reduce.Kernel
	update func(row []byte, gradient []byte) // nil without an optimizer

	seed     uint64 // of the hash, so that nobody can choose indices of equal hashes
	slabBits uint   // a slab has 1<<slabBits rows
	slabs    [][]byte
	rows     uint32
	index    rowIndex
	push     push
	first    []byte // the first contents of a row

	saving sync.Mutex // guards save and its fields, and changes of the rows that it has not written
	save   *tableSave // in progress, or nil

	shownRows, shownBytes atomic.Int64
}

// NewTable returns an empty table of rows with this many elements.
func NewTable(spec Spec, width int) (*Table, error) {
	if err := spec.check(); err != nil {
		return nil, err
	}
	size := spec.DType.Size()
	state := spec.state()
	if width < 1 || len(state.Slots) > maxSlots || width > maxRow/size/(1+len(state.Slots)) {
		return nil, misuse("%s: got rows of %d elements of type %v with %d slots, want 1 element to %d bytes",
			spec.Name, width, spec.DType, len(state.Slots), maxRow)
	}
	t := &Table{
		spec: spec, filler: spec.filler(), width: width, state: state, values: width * size,
		seed: rand.Uint64(), index: newIndex(),
	}
	t.stride = keyBytes + t.values*(1+len(state.Slots))
	if state.Steps {
		t.stepAt = t.stride
		t.stride += stepBytes
	}
	align := min(size, 8)
	t.stride = (t.stride + align - 1) / align * align
	t.slabBits = uint(max(bits.Len(uint(maxSlab/t.stride)), 1) - 1)
	t.sum, _ = reduce.Sum.Kernel(spec.DType)
	t.mean, _ = reduce.Mean.Kernel(spec.DType)
	t.first = aligned(t.stride)
	for i, x := range state.Slots {
		filler{Constant(x), spec.DType, 0}.fill(t.first[keyBytes+t.values*(1+i):][:t.values], 0, 0)
	}
	switch {
	case spec.Optimizer == nil:
	case spec.DType == tensor.Float32:
		t.update = rowUpdater[float32](t)
	default:
		t.update = rowUpdater[float64](t)
	}
	if err := t.claim(segmentBytes); err != nil {
		return nil, err
	}
	return t, nil
}

const segmentBytes = 4 * (segmentSlots + 1)

// claim claims memory from the Budget.
func (t *Table) claim(n int64) error {
	if err := t.spec.Budget.claim(t.spec.Name, n); err != nil {
		return err
	}
	t.shownBytes.Add(n)
	return nil
}

// rowUpdater returns a function that makes one step of the optimizer of t with a row.
func rowUpdater[T float32 | float64](t *Table) func(row, gradient []byte) {
	update := optimizer.Update[T](t.spec.Optimizer)
	slots := make([][]T, len(t.state.Slots))
	return func(row, gradient []byte) {
		all := tensor.Elements[T](row[keyBytes : keyBytes+t.values*(1+len(slots))])
		for i := range slots {
			slots[i] = all[t.width*(1+i) : t.width*(2+i) : t.width*(2+i)]
		}
		step := int64(0)
		if t.stepAt > 0 {
			step = int64(binary.NativeEndian.Uint64(row[t.stepAt:])) + 1
			binary.NativeEndian.PutUint64(row[t.stepAt:], uint64(step))
		}
		update(all[:t.width:t.width], tensor.Elements[T](gradient), slots, step)
	}
}

// Rows returns the number of rows.
func (t *Table) Rows() int64 { return t.shownRows.Load() }

// Bytes returns the memory of the rows and of the index in bytes, as the Budget counts it.
func (t *Table) Bytes() int64 { return t.shownBytes.Load() }

// Free gives the memory back to the Budget. Nothing may be called afterwards, other than the methods
// of Saves.
func (t *Table) Free() { t.spec.Budget.give(t.shownBytes.Swap(0)) }

// row returns the memory of a row.
func (t *Table) row(row uint32) []byte {
	at := int(row&(1<<t.slabBits-1)) * t.stride
	return t.slabs[row>>t.slabBits][at : at+t.stride : at+t.stride]
}

// indexOf returns the index of a row.
func (t *Table) indexOf(row uint32) int64 {
	at := int(row&(1<<t.slabBits-1)) * t.stride
	return int64(binary.NativeEndian.Uint64(t.slabs[row>>t.slabBits][at:]))
}

// hash returns the hash of an index.
func (t *Table) hash(index int64) uint64 { return mix(uint64(index) ^ t.seed) }

func (t *Table) hashOf(row uint32) uint64 { return t.hash(t.indexOf(row)) }

// lookup sets rows[i] to the number of the row with index indices[i], or to noRow. It goes through
// all indices for each kind of memory that it reads: the directory, the slots and the rows. So the
// processor reads the memory of several indices at the same time. Both slices have at most ahead
// entries. Of each row that is found, it prefetches as many bytes as the caller uses at once.
func (t *Table) lookup(rows []uint32, indices []int64, use int) {
	var cursors [ahead]cursor
	rows = rows[:len(indices)]
	for i, index := range indices {
		c := t.index.find(t.hash(index))
		// Eight bytes at the last slot would reach beyond the segment. The slot before it is in the same
		// cache line.
		cpu.PrefetchRead((*uint64)(unsafe.Pointer(&c.segment.slots[min(c.at, segmentSlots-2)])))
		cursors[i&(ahead-1)] = c
	}
	for i := range rows {
		row, ok := cursors[i&(ahead-1)].next()
		if ok {
			t.prefetch(row, use)
		} else {
			row = noRow
		}
		rows[i] = row
	}
	for i, index := range indices {
		for rows[i] != noRow && t.indexOf(rows[i]) != index {
			row, ok := cursors[i&(ahead-1)].next()
			if !ok {
				row = noRow
			}
			rows[i] = row
		}
	}
}

// prefetch fetches the cache lines of the first bytes of a row. The processor recognises the access
// to a longer row by itself. A prefetch has 8 bytes, so it does not reach beyond the slab.
func (t *Table) prefetch(row uint32, use int) {
	b := t.row(row)[:min(use, t.stride, 512)]
	for at := 0; at+8 <= len(b); at += 64 {
		cpu.PrefetchRead((*uint64)(unsafe.Pointer(&b[at])))
	}
}

// Pull copies the rows with these indices into dst, which is aligned for the element type. For an
// index without a row, it computes the first values, and creates no row.
func (t *Table) Pull(indices []int64, dst []byte) error {
	if err := t.fits("memory for rows", indices, dst); err != nil {
		return err
	}
	var rows [ahead]uint32
	for len(indices) > 0 {
		n := min(len(indices), ahead)
		t.lookup(rows[:], indices[:n], keyBytes+t.values)
		for i, row := range rows[:n] {
			to := dst[i*t.values:][:t.values]
			if row == noRow {
				t.filler.fill(to, indices[i], 0)
			} else {
				copy(to, t.row(row)[keyBytes:])
			}
		}
		indices, dst = indices[n:], dst[n*t.values:]
	}
	return nil
}

// fits returns an error if b cannot hold one row for each index.
func (t *Table) fits(what string, indices []int64, b []byte) error {
	if len(b)/t.values != len(indices) || len(b)%t.values != 0 || !tensor.AlignedFor(t.spec.DType, b) {
		return misuse("%s: got %s of %d bytes, want %d rows of %d bytes, aligned for %v",
			t.spec.Name, what, len(b), len(indices), t.values, t.spec.DType)
	}
	return nil
}
