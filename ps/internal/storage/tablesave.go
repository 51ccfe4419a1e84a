package storage

import (
	"encoding/binary"
	"io"
	"math/bits"
)

// Save returns the present state. There may be one Save at a time; for a second one it returns
// fault.Misuse.
func (t *Table) Save() (Save, error) {
	t.saving.Lock()
	defer t.saving.Unlock()
	if t.save != nil {
		return nil, misuse("%s: got a second Save, want the first one closed before", t.spec.Name)
	}
	t.save = &tableSave{t: t, head: t.header(), rows: t.rows, copied: make([]uint64, (int(t.rows)+63)/64)}
	return t.save, nil
}

func (t *Table) header() header {
	return header{kindTable, t.spec, int64(t.width), int64(t.rows), int64(t.stride)}
}

// A tableSave goes through the slabs. Until it has reached a row, a change of the row copies the row
// for it before. All fields but the first three belong to t.saving.
type tableSave struct {
	t    *Table
	head header
	rows uint32 // of the state; later ones do not belong to it

	slab   int      // the next one to write; all before it may change freely
	copied []uint64 // a bit for each row: a copy of it is or was in copies
	copies [][]byte // copied rows, in blocks of at most maxWrite bytes or one row
	closed bool
}

// preserve copies a row that is going to change. The caller holds t.saving.
func (s *tableSave) preserve(row uint32) {
	if row >= s.rows || int(row>>s.t.slabBits) < s.slab || s.copied[row/64]>>(row%64)&1 != 0 {
		return
	}
	s.copied[row/64] |= 1 << (row % 64)
	last := len(s.copies) - 1
	if last < 0 || len(s.copies[last])+s.t.stride > cap(s.copies[last]) {
		s.copies = append(s.copies, make([]byte, 0, max(maxWrite/s.t.stride, 1)*s.t.stride))
		last++
	}
	s.copies[last] = append(s.copies[last], s.t.row(row)...)
}

// WriteTo implements Save.
func (s *tableSave) WriteTo(w io.Writer) (int64, error) {
	total, err := write(w, s.head.append(nil))
	slab := make([]byte, 0, s.t.stride<<s.t.slabBits)
	for err == nil {
		rows, more := s.next(slab)
		if !more {
			break
		}
		for len(rows) > 0 && err == nil {
			n := min(len(rows), maxWrite)
			var m int64
			m, err = write(w, rows[:n])
			total, rows = total+m, rows[n:]
		}
	}
	return total, err
}

// next returns the next rows of the state: copies first, so that they take little memory, and then a
// slab, which it copies into buf. It returns false after the last ones.
func (s *tableSave) next(buf []byte) (rows []byte, more bool) {
	s.t.saving.Lock()
	defer s.t.saving.Unlock()
	if n := len(s.copies); n > 0 && !s.closed {
		rows, s.copies = s.copies[n-1], s.copies[:n-1]
		return rows, true
	}
	perSlab := uint32(1) << s.t.slabBits
	first := uint32(s.slab) << s.t.slabBits
	if s.closed || s.slab>>(32-s.t.slabBits) > 0 || first >= s.rows {
		return nil, false
	}
	s.slab++
	for row := first; row < min(first+perSlab, s.rows); {
		// The rows up to the next one that was copied are one piece.
		n := uint32(bits.TrailingZeros64(s.copied[row/64] >> (row % 64)))
		n = min(n, 64-row%64, min(first+perSlab, s.rows)-row)
		if n == 0 {
			row++
			continue
		}
		at := int(row-first) * s.t.stride
		buf = append(buf, s.t.slabs[s.slab-1][at:at+int(n)*s.t.stride]...)
		row += n
	}
	return buf, true
}

// Close implements Save.
func (s *tableSave) Close() {
	s.t.saving.Lock()
	defer s.t.saving.Unlock()
	s.closed, s.copies = true, nil
	if s.t.save == s {
		s.t.save = nil
	}
}

// Load replaces all rows by those of a saved state. It returns fault.Mismatch for a state of another
// kind of table, and fault.Exhausted if the Budget does not allow for it. After any error the table
// is empty. There must be no Save.
func (t *Table) Load(r io.Reader) error {
	want := t.header()
	got, err := readHeader(r, want)
	if err != nil {
		return err
	}
	if got.position != want.position || got.extra != want.extra || got.count < 0 || got.count > maxRows {
		return mismatch("%s: got a saved state of %d rows of %d elements and %d bytes, want rows of %d elements and %d bytes",
			t.spec.Name, got.count, got.position, got.extra, want.position, want.extra)
	}
	if t.save != nil {
		return misuse("%s: got a state to load during a Save", t.spec.Name)
	}
	t.empty()
	if err := t.load(r, int(got.count)); err != nil {
		t.empty()
		return err
	}
	return nil
}

// load reads n rows into the empty table.
func (t *Table) load(r io.Reader, n int) error {
	for n > 0 {
		some := min(n, 1<<t.slabBits)
		if err := t.reserve(some); err != nil {
			return err
		}
		slab := t.slabs[len(t.slabs)-1][:some*t.stride]
		if _, err := io.ReadFull(r, slab); err != nil {
			return torn(t.spec.Name, err)
		}
		var rows [1]uint32
		for at := 0; at < len(slab); at += t.stride {
			index := int64(binary.NativeEndian.Uint64(slab[at:]))
			if t.lookup(rows[:], []int64{index}, 0); rows[0] != noRow {
				return mismatch("%s: saved state has row %d twice", t.spec.Name, index)
			}
			t.index.insert(t.hash(index), t.rows, t.hashOf)
			t.rows++
		}
		n -= some
	}
	t.shownRows.Store(int64(t.rows))
	return nil
}

// empty removes all rows.
func (t *Table) empty() {
	t.spec.Budget.give(t.shownBytes.Swap(segmentBytes) - segmentBytes)
	t.slabs, t.rows, t.index = nil, 0, newIndex()
	t.shownRows.Store(0)
}
