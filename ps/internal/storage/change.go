package storage

import (
	"encoding/binary"
	"math/bits"
)

// A push is the scratch memory of one change of a table.
type push struct {
	indices []int64  // without repetitions, in the order of their first occurrences
	hashes  []uint64 // of the indices
	sources []source // where the gradient of each is
	rows    []uint32 // where the row of each is
	set     []uint32 // hash table of positions in indices, plus 1
	sums    []byte   // gradients of indices that occur several times
	scaled  []byte   // a gradient, divided by the number of contributions
}

// A source says where a row of gradients is: in a Batch, or in the sums of the push.
type source struct {
	batch, at int32 // batch is summed for the sums
}

const summed = -1

// The scratch memory of a push is kept for the next one up to these sizes.
const (
	keepIndices = 1 << 20
	keepSums    = 32 << 20
)

// Update makes one step of the optimizer with each row that the Batches name, and creates those that
// do not exist. The gradient of a row is the sum of all its occurrences, in the order of the Batches
// and of the indices in them. If divide is above 1, the sum is divided by it, as reduce.Mean does.
//
// If the Budget does not allow for the new rows, Update returns fault.Exhausted and changes nothing.
func (t *Table) Update(batches []Batch, divide int) error {
	if t.update == nil {
		return misuse("%s: got an update, want an optimizer in the declaration", t.spec.Name)
	}
	return t.change(batches, divide, t.update)
}

// Add is like Update, but adds the sum of the occurrences to each row.
func (t *Table) Add(batches []Batch, divide int) error {
	return t.change(batches, divide, func(row, delta []byte) {
		values := row[keyBytes:][:t.values]
		t.sum.Fold(values, values, delta)
	})
}

// Set copies values into the rows, and creates those that do not exist. Of an index that occurs
// repeatedly, the last row counts. The slots and the number of updates stay. Errors are as for Update.
func (t *Table) Set(batch Batch) error {
	if err := t.fits("rows", batch.Indices, batch.Values); err != nil {
		return err
	}
	t.push.reset(len(batch.Indices))
	for i, index := range batch.Indices {
		at, _ := t.push.add(index, t.hash(index))
		t.push.sources[at] = source{0, int32(i)}
	}
	return t.apply([]Batch{batch}, 1, func(row, values []byte) { copy(row[keyBytes:], values) })
}

// change collects the gradients of each row, and calls apply for it.
func (t *Table) change(batches []Batch, divide int, apply func(row, gradient []byte)) error {
	if !t.sum.DType().Valid() || divide > 1 && !t.mean.DType().Valid() {
		return misuse("%s: got a push of elements of type %v, want a type that has sums and, for a mean, divisions",
			t.spec.Name, t.spec.DType)
	}
	total := 0
	for _, b := range batches {
		if err := t.fits("rows", b.Indices, b.Values); err != nil {
			return err
		}
		total += len(b.Indices)
	}
	p := &t.push
	p.reset(total)
	for k, b := range batches {
		for i, index := range b.Indices {
			at, repeated := p.add(index, t.hash(index))
			if !repeated {
				p.sources[at] = source{int32(k), int32(i)}
				continue
			}
			from := p.sources[at]
			if from.batch != summed {
				p.sources[at] = source{summed, int32(len(p.sums) / t.values)}
				p.sums = append(p.sums, t.gradient(batches, from)...)
			}
			sum := t.gradient(batches, p.sources[at])
			t.sum.Fold(sum, sum, b.Values[i*t.values:][:t.values])
		}
	}
	return t.apply(batches, divide, apply)
}

// gradient returns the row of gradients at a source.
func (t *Table) gradient(batches []Batch, from source) []byte {
	b := t.push.sums
	if from.batch != summed {
		b = batches[from.batch].Values
	}
	return b[int(from.at)*t.values:][:t.values]
}

// reset empties p for at most n indices.
func (p *push) reset(n int) {
	if cap(p.indices) > keepIndices || cap(p.sums) > keepSums {
		*p = push{}
	}
	p.indices, p.hashes, p.sources, p.sums = p.indices[:0], p.hashes[:0], p.sources[:0], p.sums[:0]
	if size := 1 << bits.Len(uint(2*n)); cap(p.set) < size {
		p.set = make([]uint32, size)
	} else {
		p.set = p.set[:size]
		clear(p.set)
	}
}

// add returns the position of an index in p.indices, and whether it was there before.
func (p *push) add(index int64, hash uint64) (at int, repeated bool) {
	mask := len(p.set) - 1
	i := int(hash) & mask
	for ; p.set[i] != 0; i = (i + 1) & mask {
		if at := int(p.set[i] - 1); p.indices[at] == index {
			return at, true
		}
	}
	p.indices = append(p.indices, index)
	p.hashes = append(p.hashes, hash)
	p.sources = append(p.sources, source{})
	p.set[i] = uint32(len(p.indices))
	return len(p.indices) - 1, false
}

// apply calls f for each row of the push with its gradient. It creates missing rows before.
func (t *Table) apply(batches []Batch, divide int, f func(row, gradient []byte)) error {
	p := &t.push
	if cap(p.rows) < len(p.indices) {
		p.rows = make([]uint32, cap(p.indices))
	}
	p.rows = p.rows[:len(p.indices)]
	missing := 0
	for at := 0; at < len(p.indices); at += ahead {
		end := min(at+ahead, len(p.indices))
		t.lookup(p.rows[at:end], p.indices[at:end], keyBytes)
		for _, row := range p.rows[at:end] {
			if row == noRow {
				missing++
			}
		}
	}
	t.saving.Lock()
	defer t.saving.Unlock()
	if err := t.reserve(missing); err != nil {
		return err
	}
	for i, row := range p.rows {
		if next := i + 8; next < len(p.rows) && p.rows[next] != noRow {
			t.prefetch(p.rows[next], t.stride)
		}
		if row == noRow {
			row = t.create(p.indices[i], p.hashes[i])
		} else if t.save != nil {
			t.save.preserve(row)
		}
		gradient := t.gradient(batches, p.sources[i])
		if divide > 1 {
			p.scaled = append(p.scaled[:0], gradient...)
			gradient = p.scaled
			t.mean.Finish(gradient, divide)
		}
		f(t.row(row), gradient)
	}
	t.shownRows.Store(int64(t.rows))
	return nil
}

// reserve allocates the slabs for n more rows.
func (t *Table) reserve(n int) error {
	if n > maxRows-int(t.rows) {
		return misuse("%s: got more than %d rows on one server, want more partitions of the table", t.spec.Name, maxRows)
	}
	perSlab := 1 << t.slabBits
	slabs := (int(t.rows)+n+perSlab-1)>>t.slabBits - len(t.slabs)
	if slabs <= 0 {
		return nil
	}
	if err := t.claim(int64(slabs) * int64(perSlab) * int64(t.stride+indexPerRow)); err != nil {
		return err
	}
	for range slabs {
		t.slabs = append(t.slabs, aligned(perSlab*t.stride))
	}
	return nil
}

// create makes a row with its first values. Its slab is reserved.
func (t *Table) create(index int64, hash uint64) uint32 {
	row := t.rows
	t.rows++
	b := t.row(row)
	copy(b, t.first)
	binary.NativeEndian.PutUint64(b, uint64(index))
	t.filler.fill(b[keyBytes:][:t.values], index, 0)
	t.index.insert(hash, row, t.hashOf)
	return row
}
