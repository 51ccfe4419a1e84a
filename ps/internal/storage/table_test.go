package storage

import (
	"errors"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/ps/optimizer"
	"github.com/tutti-go/tutti/reduce"
	"github.com/tutti-go/tutti/tensor"
)

func newTable(t testing.TB, spec Spec, width int) *Table {
	t.Helper()
	table, err := NewTable(spec, width)
	if err != nil {
		t.Fatal(err)
	}
	return table
}

// A model is a table as a map: the plain serial reference.
type model[T float32 | float64] struct {
	spec  Spec
	width int
	rows  map[int64]*modelRow[T]
}

type modelRow[T float32 | float64] struct {
	values []T
	slots  [][]T
	steps  int64
}

func newModel[T float32 | float64](spec Spec, width int) *model[T] {
	return &model[T]{spec, width, map[int64]*modelRow[T]{}}
}

func (m *model[T]) pull(index int64) []T {
	if r := m.rows[index]; r != nil {
		return r.values
	}
	return values[T](m.spec.Initial, m.spec.Name, index, 0, m.width)
}

func (m *model[T]) row(index int64) *modelRow[T] {
	r := m.rows[index]
	if r == nil {
		r = &modelRow[T]{values: m.pull(index)}
		for _, x := range m.spec.state().Slots {
			r.slots = append(r.slots, slices.Repeat([]T{T(x)}, m.width))
		}
		m.rows[index] = r
	}
	return r
}

// sum returns the sum of the occurrences of each index, in the order of the Batches.
func (m *model[T]) sum(batches []Batch, divide int) map[int64][]T {
	sums := map[int64][]T{}
	for _, b := range batches {
		rows := tensor.Elements[T](b.Values)
		for i, index := range b.Indices {
			g := rows[i*m.width : (i+1)*m.width]
			if sums[index] == nil {
				sums[index] = slices.Clone(g)
				continue
			}
			for k, x := range g {
				sums[index][k] += x
			}
		}
	}
	mean, _ := reduce.Mean.Kernel(tensor.TypeOf[T]())
	for _, s := range sums {
		mean.Finish(tensor.Bytes(s), max(divide, 1))
	}
	return sums
}

func (m *model[T]) update(batches []Batch, divide int) {
	for index, g := range m.sum(batches, divide) {
		r := m.row(index)
		r.steps++
		optimizer.Update[T](m.spec.Optimizer)(r.values, g, r.slots, r.steps)
	}
}

func (m *model[T]) add(batches []Batch, divide int) {
	for index, g := range m.sum(batches, divide) {
		r := m.row(index)
		for k, x := range g {
			r.values[k] += x
		}
	}
}

func (m *model[T]) set(b Batch) {
	rows := tensor.Elements[T](b.Values)
	for i, index := range b.Indices {
		copy(m.row(index).values, rows[i*m.width:(i+1)*m.width])
	}
}

// compare pulls all rows of the model, and some that do not exist.
func (m *model[T]) compare(t *testing.T, table *Table) {
	t.Helper()
	if got, want := table.Rows(), int64(len(m.rows)); got != want {
		t.Errorf("%d rows, want %d", got, want)
	}
	indices := []int64{-1 << 63, 1<<63 - 1}
	for index := range m.rows {
		indices = append(indices, index)
	}
	got := make([]T, len(indices)*m.width)
	if err := table.Pull(indices, tensor.Bytes(got)); err != nil {
		t.Fatal(err)
	}
	for i, index := range indices {
		if got, want := got[i*m.width:(i+1)*m.width], m.pull(index); !slices.Equal(tensor.Bytes(got), tensor.Bytes(want)) {
			t.Fatalf("row %d: got %v, want %v", index, got, want)
		}
	}
}

// batch returns n random rows with indices below most, and repetitions.
func batch[T float32 | float64](random *rand.Rand, n, width int, most int64) Batch {
	indices, rows := make([]int64, n), make([]T, n*width)
	for i := range indices {
		indices[i] = random.Int64N(most)*1_000_003 - most
	}
	for i := range rows {
		rows[i] = T(random.NormFloat64())
	}
	return Batch{indices, tensor.Bytes(rows)}
}

func testTable[T float32 | float64](t *testing.T, o optimizer.Optimizer, width int) {
	spec := Spec{Name: "table", DType: tensor.TypeOf[T](), Optimizer: o, Initial: Uniform(-1, 1, 5)}
	table, m := newTable(t, spec, width), newModel[T](spec, width)
	random := rand.New(rand.NewPCG(3, uint64(width)))
	for step := range 60 {
		some := func() Batch { return batch[T](random, random.IntN(400), width, 50+int64(step)*40) }
		var err error
		switch random.IntN(4) {
		case 0:
			b := some()
			m.set(b)
			err = table.Set(b)
		case 1:
			b := []Batch{some()}
			m.add(b, 1)
			err = table.Add(b, 1)
		default:
			b, divide := []Batch{some(), some(), {}, some()}, random.IntN(4)
			if o == nil {
				m.add(b, divide)
				err = table.Add(b, divide)
			} else {
				m.update(b, divide)
				err = table.Update(b, divide)
			}
		}
		if err != nil {
			t.Fatal(err)
		}
		m.compare(t, table)
	}
}

// The steps of Adam are counted for each row.
func TestTableEqualsTheSerialReferenceBitForBit(t *testing.T) {
	clip := func(values, gradient []float32, slots [][]float32, step int64) {
		for i := range values {
			slots[0][i]++
			values[i] += min(gradient[i], float32(step)) + slots[0][i]
		}
	}
	for _, o := range []optimizer.Optimizer{
		nil, optimizer.SGD{Rate: 0.1}, optimizer.Momentum{Rate: 0.1}, optimizer.Adagrad{Rate: 0.1, Initial: 0.1}, adam, optimizer.FTRL{Rate: 0.1},
	} {
		name := "none"
		if o != nil {
			name = o.String()
		}
		t.Run(name, func(t *testing.T) {
			for _, width := range []int{1, 3, 64} {
				testTable[float32](t, o, width)
				testTable[float64](t, o, width)
			}
		})
	}
	t.Run("func", func(t *testing.T) {
		testTable[float32](t, optimizer.Func{Name: "clip", Slots: []float64{2}, Steps: true, Float32: clip}, 5)
	})
}

func TestTableOfIntegersSums(t *testing.T) {
	table := newTable(t, Spec{Name: "counts", DType: tensor.Int16, Initial: Constant(100)}, 1)
	rows := tensor.Bytes([]int16{1, 2, 4})
	if err := table.Add([]Batch{{[]int64{7, 8, 7}, rows}}, 1); err != nil {
		t.Fatal(err)
	}
	got := make([]int16, 3)
	if err := table.Pull([]int64{7, 8, 9}, tensor.Bytes(got)); err != nil || !slices.Equal(got, []int16{105, 102, 100}) {
		t.Errorf("got %v, %v", got, err)
	}
}

// The race detector ends a program that makes a pointer to memory of two objects.
func TestPullProbesEverySlotOfASegment(t *testing.T) {
	table := newTable(t, Spec{Name: "every slot", DType: tensor.Float32}, 1)
	probed := map[uint32]bool{}
	for index := int64(0); len(probed) < segmentSlots; index++ {
		if at := probe(table.hash(index)).at; !probed[at] {
			probed[at] = true
			if err := table.Pull([]int64{index}, make([]byte, 4)); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func TestPullCreatesNoRow(t *testing.T) {
	table := newTable(t, Spec{Name: "t", DType: tensor.Float32, Initial: Normal(1, 1)}, 4)
	if err := table.Pull([]int64{1, 2, 3}, tensor.Bytes(make([]float32, 12))); err != nil || table.Rows() != 0 {
		t.Errorf("%d rows, %v", table.Rows(), err)
	}
}

func TestTableRefusesWhatItCannotDo(t *testing.T) {
	plain := newTable(t, Spec{Name: "t", DType: tensor.Bool}, 2)
	floats := newTable(t, Spec{Name: "t", DType: tensor.Float32, Optimizer: optimizer.SGD{Rate: 1}}, 2)
	misaligned := tensor.Bytes(make([]uint64, 4))[2:10]
	integers := newTable(t, Spec{Name: "t", DType: tensor.Int8}, 1)
	for name, err := range map[string]error{
		"no optimizer":  plain.Update(nil, 1),
		"no sum":        plain.Add(nil, 1),
		"no mean":       integers.Add(nil, 2),
		"short pull":    plain.Pull([]int64{1}, make([]byte, 1)),
		"long pull":     plain.Pull([]int64{1}, make([]byte, 4)),
		"partial row":   plain.Pull([]int64{1}, make([]byte, 3)),
		"wrong width":   floats.Update([]Batch{{[]int64{1, 2}, make([]byte, 8)}}, 1),
		"wrong set":     floats.Set(Batch{[]int64{1}, nil}),
		"misaligned":    floats.Update([]Batch{{[]int64{1}, misaligned}}, 1),
		"no width":      newError(NewTable(Spec{Name: "t", DType: tensor.Float32}, 0)),
		"width":         newError(NewTable(Spec{Name: "t", DType: tensor.Float32}, 1<<60)),
		"optimizer":     newError(NewTable(Spec{Name: "t", DType: tensor.Int8, Optimizer: adam}, 1)),
		"initial value": newError(NewTable(Spec{Name: "t", DType: tensor.Int8, Initial: Constant(0.5)}, 1)),
	} {
		if !errors.Is(err, fault.Misuse) {
			t.Errorf("%s: got %v, want fault.Misuse", name, err)
		}
	}
	if plain.Rows()+floats.Rows()+integers.Rows() != 0 {
		t.Error("a refused call has created rows")
	}
}

func TestAPushBeyondTheBudgetChangesNothing(t *testing.T) {
	budget := NewBudget(1 << 20)
	spec := Spec{Name: "t", DType: tensor.Float32, Optimizer: adam, Budget: budget}
	table, m := newTable(t, spec, 16), newModel[float32](spec, 16)
	random := rand.New(rand.NewPCG(1, 1))
	b := []Batch{batch[float32](random, 1000, 16, 1500)}
	m.update(b, 1)
	if err := table.Update(b, 1); err != nil {
		t.Fatal(err)
	}
	used := budget.Used()
	if used != table.Bytes() || used < 500*(3*64+16) {
		t.Errorf("%d bytes used, %d in the table", used, table.Bytes())
	}
	large := batch[float32](random, 10_000, 16, 1<<40)
	for name, err := range map[string]error{"update": table.Update([]Batch{large}, 1), "set": table.Set(large), "add": table.Add([]Batch{large}, 1)} {
		if !errors.Is(err, fault.Exhausted) {
			t.Errorf("%s: got %v, want fault.Exhausted", name, err)
		}
	}
	m.compare(t, table)
	if got := budget.Used(); got != used {
		t.Errorf("%d bytes used, want %d", got, used)
	}
	m.update(b, 2)
	if err := table.Update(b, 2); err != nil {
		t.Error(err)
	}
	m.compare(t, table)
	table.Free()
	if got := budget.Used(); got != 0 {
		t.Errorf("%d bytes used, want 0", got)
	}
}

// Hashes with many equal bits make long probes, segments of which one half stays empty when they
// split, and tags that say nothing.
func TestIndexFindsRowsWithAnyHashes(t *testing.T) {
	for name, hash := range map[string]func(row uint32) uint64{
		"equal ends":   func(row uint32) uint64 { return uint64(row) << 52 },
		"equal starts": func(row uint32) uint64 { return uint64(row) << 26 & (1<<56 - 1) },
		"mixed":        func(row uint32) uint64 { return mix(uint64(row)) },
		"few":          func(row uint32) uint64 { return mix(uint64(row % 4096)) },
		"last slots":   func(row uint32) uint64 { return mix(uint64(row))&^(1<<32-1) | 0xffff_f000 },
	} {
		t.Run(name, func(t *testing.T) {
			x := newIndex()
			const n = 9000
			for row := range uint32(n) {
				x.insert(hash(row), row, hash)
			}
			for row := range uint32(n + 100) {
				c := x.find(hash(row))
				found := false
				for candidate, ok := c.next(); ok; candidate, ok = c.next() {
					found = found || candidate == row
				}
				if found != (row < n) {
					t.Fatalf("row %d: found is %v", row, found)
				}
			}
		})
	}
}

// A growing index leaves no segments to the garbage collector. They would be as large as the index.
func TestAnIndexKeepsTheSegmentsThatItSplits(t *testing.T) {
	x := newIndex()
	hash := func(row uint32) uint64 { return mix(uint64(row)) }
	seen := make(map[*segment]bool)
	for row := range uint32(50_000) {
		x.insert(hash(row), row, hash)
		seen[x.directory[hash(row)>>x.shift]] = true
	}
	for s := range seen {
		if !slices.Contains(x.directory, s) {
			t.Fatal("the index has dropped a segment, want all that it has allocated")
		}
	}
}

// The rows that have to be compared with an index are few: about as many as exist.
func TestTagsSortOutOtherRows(t *testing.T) {
	x := newIndex()
	hash := func(row uint32) uint64 { return mix(uint64(row)) }
	const n = 100_000
	for row := range uint32(n) {
		x.insert(hash(row), row, hash)
	}
	others := 0
	for row := uint32(n); row < 2*n; row++ {
		c := x.find(hash(row))
		for _, ok := c.next(); ok; _, ok = c.next() {
			others++
		}
	}
	if others > n/100 {
		t.Errorf("%d lookups compare %d other rows", n, others)
	}
}

// An index may take 10 bytes per row. A doubling of the rows passes through all states of its growth.
func TestMemoryOfATableIsAtMostAQuarterMoreThanItsContents(t *testing.T) {
	heap := func() float64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return float64(m.HeapInuse)
	}
	const width, step, first = 16, 50_000, 1_000_000
	before := heap()
	table := newTable(t, Spec{Name: "t", DType: tensor.Float32, Optimizer: optimizer.SGD{Rate: 1}}, width)
	indices, gradients := make([]int64, step), tensor.Bytes(make([]float32, step*width))
	for at := 0; at < 2*first+2*step; at += step {
		for i := range indices {
			indices[i] = int64(at + i)
		}
		if err := table.Update([]Batch{{indices, gradients}}, 1); err != nil {
			t.Fatal(err)
		}
		if at < first {
			continue
		}
		contents := float64(table.Rows()) * (4*width + 8)
		if ratio := (heap() - before) / contents; ratio > 1.25 {
			t.Errorf("%d rows take %.3f times the memory of their contents", table.Rows(), ratio)
		}
		if ratio := float64(table.Bytes()) / contents; ratio > 1.25 || ratio < 1 {
			t.Errorf("%d rows count as %.3f times the memory of their contents", table.Rows(), ratio)
		}
	}
	runtime.KeepAlive(table)
}

// Rows of 68 bytes fill their slab exactly. A prefetch of 8 bytes at the last 4 of the last row would
// reach beyond the slab, which ends a program with the race detector.
func TestLookupReadsNothingBeyondASlab(t *testing.T) {
	table := newTable(t, Spec{Name: "t", DType: tensor.Float32}, 15)
	indices := make([]int64, 1<<table.slabBits)
	for i := range indices {
		indices[i] = int64(i)
	}
	values := tensor.Bytes(make([]float32, len(indices)*15))
	if err := table.Set(Batch{indices, values}); err != nil {
		t.Fatal(err)
	}
	if err := table.Pull(indices, values); err != nil {
		t.Error(err)
	}
}
