package storage

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/tensor"
)

var savedSpec = Spec{Name: "t", DType: tensor.Float32, Optimizer: adam, Initial: Normal(1, 1)}

const savedWidth = 40 // a slab has 512 rows or more

// random pushes change a table and a model.
type pusher struct {
	table  *Table
	model  *model[float32]
	random *rand.Rand
}

func newPusher(t *testing.T, rows int) pusher {
	p := pusher{newTable(t, savedSpec, savedWidth), newModel[float32](savedSpec, savedWidth), rand.New(rand.NewPCG(5, 6))}
	for p.table.Rows() < int64(rows) {
		p.push(t, 1000)
	}
	return p
}

func (p pusher) push(t *testing.T, n int) {
	b := []Batch{batch[float32](p.random, n, savedWidth, 20_000)}
	p.model.update(b, 1)
	if err := p.table.Update(b, 1); err != nil {
		t.Error(err)
	}
}

// copied returns a model with the same rows.
func (m *model[T]) copied() *model[T] {
	c := newModel[T](m.spec, m.width)
	for index, r := range m.rows {
		c.rows[index] = &modelRow[T]{slices.Clone(r.values), [][]T{slices.Clone(r.slots[0]), slices.Clone(r.slots[1])}, r.steps}
	}
	return c
}

// check loads a saved state, compares it with the model of that time, and makes one more step with
// both, so that the slots and steps are compared, too.
func (m *model[T]) check(t *testing.T, saved []byte) {
	t.Helper()
	table := newTable(t, m.spec, m.width)
	if err := table.Load(bytes.NewReader(saved)); err != nil {
		t.Fatal(err)
	}
	m.compare(t, table)
	var all Batch
	for index := range m.rows {
		all.Indices = append(all.Indices, index)
	}
	all.Values = tensor.Bytes(slices.Repeat([]T{1}, len(all.Indices)*m.width))
	m.update([]Batch{all}, 1)
	if err := table.Update([]Batch{all}, 1); err != nil {
		t.Fatal(err)
	}
	m.compare(t, table)
}

// The saved state is that of Save, whatever changes between any two of its chunks.
func TestASaveHoldsOneStateWhileItsTableChanges(t *testing.T) {
	for _, each := range []int{0, 1, 30, 3000} {
		p := newPusher(t, 10_000)
		want := p.model.copied()
		save, err := p.table.Save()
		if err != nil {
			t.Fatal(err)
		}
		saved := save.(*tableSave).head.append(nil)
		buf := make([]byte, 0, p.table.stride<<p.table.slabBits)
		for {
			p.push(t, each)
			rows, more := save.(*tableSave).next(buf)
			if !more {
				break
			}
			if len(rows) > max(maxSlab, maxWrite) {
				t.Errorf("%d bytes are copied at once", len(rows))
			}
			saved = append(saved, rows...)
		}
		save.Close()
		want.check(t, saved)
		p.model.compare(t, p.table)
		// A second Save has all changes.
		second, err := p.table.Save()
		if err != nil {
			t.Fatal(err)
		}
		p.model.check(t, state(t, second))
	}
}

func TestASaveIsWrittenBesideItsOwner(t *testing.T) {
	p := newPusher(t, 10_000)
	want := p.model.copied()
	save, err := p.table.Save()
	if err != nil {
		t.Fatal(err)
	}
	var writer sync.WaitGroup
	var saved []byte
	writer.Go(func() { saved = state(t, save) })
	for range 50 {
		p.push(t, 300)
	}
	writer.Wait()
	want.check(t, saved)
	p.model.compare(t, p.table)
}

func TestATableHasOneSaveAtATime(t *testing.T) {
	p := newPusher(t, 100)
	first, err := p.table.Save()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.table.Save(); !errors.Is(err, fault.Misuse) {
		t.Errorf("got %v, want fault.Misuse", err)
	}
	if err := p.table.Load(bytes.NewReader(first.(*tableSave).head.append(nil))); !errors.Is(err, fault.Misuse) {
		t.Errorf("got %v, want fault.Misuse", err)
	}
	first.Close()
	p.push(t, 100)
	p.model.check(t, state(t, newSave(t, p.table)))
}

func newSave(t *testing.T, table *Table) Save {
	t.Helper()
	s, err := table.Save()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// A full is a disk without space.
type full struct{ left int }

var errFull = errors.New("no space left")

func (f *full) Write(b []byte) (int, error) {
	if len(b) > f.left {
		return 0, errFull
	}
	f.left -= len(b)
	return len(b), nil
}

func TestASaveReportsAWriterThatFails(t *testing.T) {
	p := newPusher(t, 5000)
	for _, left := range []int{0, headerSize, 1_000_000} {
		save := newSave(t, p.table)
		if n, err := save.WriteTo(&full{left}); !errors.Is(err, errFull) || n > int64(left) {
			t.Errorf("got %d, %v", n, err)
		}
		p.push(t, 100)
		save.Close()
	}
	d := newDense(t, savedSpec, 100)
	save := d.Save()
	defer save.Close()
	if _, err := save.WriteTo(&full{headerSize}); !errors.Is(err, errFull) {
		t.Errorf("got %v", err)
	}
	p.model.check(t, state(t, newSave(t, p.table)))
}

func TestTableRefusesStatesThatAreTornOrOfOtherTables(t *testing.T) {
	p := newPusher(t, 1000)
	good := state(t, newSave(t, p.table))
	twice := slices.Clone(good)
	copy(twice[headerSize+p.table.stride:], good[headerSize:headerSize+8])
	many := slices.Clone(good)
	binary.NativeEndian.PutUint64(many[16:], 1<<40)
	other := func(change func(*Spec), width int) []byte {
		s := savedSpec
		change(&s)
		return state(t, newSave(t, newTable(t, s, width)))
	}
	for name, b := range map[string][]byte{
		"nothing":   nil,
		"torn":      good[:len(good)-1],
		"twice":     twice,
		"many":      many,
		"width":     other(func(*Spec) {}, savedWidth+1),
		"optimizer": other(func(s *Spec) { s.Optimizer = nil }, savedWidth),
		"dtype":     other(func(s *Spec) { s.DType = tensor.Float64 }, savedWidth),
		"vector":    state(t, newDense(t, savedSpec, 10).Save()),
	} {
		table := newTable(t, savedSpec, savedWidth)
		if err := table.Load(bytes.NewReader(b)); !errors.Is(err, fault.Mismatch) || table.Rows() != 0 {
			t.Errorf("%s: got %d rows, %v, want none and fault.Mismatch", name, table.Rows(), err)
		}
		if err := table.Load(bytes.NewReader(good)); err != nil {
			t.Errorf("%s: then %v", name, err)
		}
		p.model.compare(t, table)
	}
}

func TestLoadReplacesAllRows(t *testing.T) {
	p, q := newPusher(t, 2000), newPusher(t, 10_000)
	if err := q.table.Load(bytes.NewReader(state(t, newSave(t, p.table)))); err != nil {
		t.Fatal(err)
	}
	p.model.compare(t, q.table)
}

func TestLoadKeepsToTheBudget(t *testing.T) {
	p := newPusher(t, 10_000)
	saved := state(t, newSave(t, p.table))
	spec := savedSpec
	spec.Budget = NewBudget(2 << 20)
	table := newTable(t, spec, savedWidth)
	if err := table.Load(bytes.NewReader(saved)); !errors.Is(err, fault.Exhausted) || table.Rows() != 0 {
		t.Errorf("got %d rows, %v, want fault.Exhausted", table.Rows(), err)
	}
	if got := spec.Budget.Used(); got != segmentBytes || table.Bytes() != segmentBytes {
		t.Errorf("%d bytes used, %d in the table, want %d", got, table.Bytes(), segmentBytes)
	}
}
