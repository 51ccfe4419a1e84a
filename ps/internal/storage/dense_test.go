package storage

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/ps/optimizer"
	"github.com/tutti-go/tutti/tensor"
)

// randoms returns n random numbers.
func randoms(random *rand.Rand, n int) []float32 {
	v := make([]float32, n)
	for i := range v {
		v[i] = float32(random.NormFloat64())
	}
	return v
}

func newDense(t *testing.T, spec Spec, n int) *Dense {
	t.Helper()
	d, err := NewDense(spec, 0, n)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// contents returns a copy of the values.
func contents[T tensor.Element](d *Dense) []T {
	b := d.Value()
	defer b.Release()
	return slices.Clone(tensor.Elements[T](b.Bytes()))
}

var adam = optimizer.Adam{Rate: 0.1}

func TestDenseUpdatesWithItsOptimizer(t *testing.T) {
	const n = 100
	d := newDense(t, Spec{Name: "w", DType: tensor.Float32, Optimizer: adam, Initial: Normal(1, 2)}, n)
	want, slots := values[float32](Normal(1, 2), "w", 0, 0, n), [][]float32{make([]float32, n), make([]float32, n)}
	random := rand.New(rand.NewPCG(1, 1))
	for step := range 10 {
		g := randoms(random, n)
		if err := d.Update(tensor.Bytes(g)); err != nil {
			t.Fatal(err)
		}
		adam.Update32(want, g, slots, int64(step+1))
		if got := contents[float32](d); !slices.Equal(got, want) || d.Steps() != int64(step+1) {
			t.Fatalf("step %d, of %d: got %v, want %v", step+1, d.Steps(), got, want)
		}
	}
	if got, want := d.Bytes(), int64(3*4*n); got != want {
		t.Errorf("got %d bytes, want %d", got, want)
	}
}

// Two parts of a vector hold what the whole vector does.
func TestDenseMayBeCut(t *testing.T) {
	spec := Spec{Name: "w", DType: tensor.Float64, Optimizer: optimizer.Adagrad{Rate: 1}, Initial: Uniform(-1, 1, 2)}
	whole := newDense(t, spec, 10)
	low := newDense(t, spec, 4)
	high, err := NewDense(spec, 4, 6)
	if err != nil {
		t.Fatal(err)
	}
	g := []float64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}
	for range 3 {
		if err := errors.Join(whole.Update(tensor.Bytes(g)), low.Update(tensor.Bytes(g[:4])), high.Update(tensor.Bytes(g[4:]))); err != nil {
			t.Fatal(err)
		}
	}
	if got, want := append(contents[float64](low), contents[float64](high)...), contents[float64](whole); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestDenseDoesNotChangeValuesThatAreHeld(t *testing.T) {
	two := []float32{2, 2, 2}
	for name, change := range map[string]func(d *Dense) error{
		"update": func(d *Dense) error { return d.Update(tensor.Bytes(two)) },
		"add":    func(d *Dense) error { return d.Add(tensor.Bytes(two)) },
		"set":    func(d *Dense) error { return d.Set(tensor.Bytes(two)) },
		"replace": func(d *Dense) error {
			return d.Replace(NewBuffer(tensor.Bytes(slices.Clone(two)), nil))
		},
		"load": func(d *Dense) error {
			other := newDense(t, d.spec, 3)
			other.Set(tensor.Bytes(two))
			return d.Load(bytes.NewReader(state(t, other.Save())))
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDense(t, Spec{Name: "w", DType: tensor.Float32, Optimizer: optimizer.SGD{Rate: 1}, Initial: Constant(1)}, 3)
			held := d.Value()
			if err := change(d); err != nil {
				t.Fatal(err)
			}
			if got, want := tensor.Elements[float32](held.Bytes()), []float32{1, 1, 1}; !slices.Equal(got, want) {
				t.Errorf("held values: got %v, want %v", got, want)
			}
			first := contents[float32](d)
			if slices.Equal(first, []float32{1, 1, 1}) {
				t.Errorf("got %v, want a change", first)
			}
			held.Release()
			// Nobody holds the values now, so the next change needs no other memory.
			before := d.planes[0]
			if err := change(d); err != nil {
				t.Fatal(err)
			}
			if name != "replace" && d.planes[0] != before {
				t.Error("the values were copied, though nobody holds them")
			}
		})
	}
}

func TestDenseThatIsAlwaysHeldAllocatesNothing(t *testing.T) {
	d := newDense(t, Spec{Name: "w", DType: tensor.Float32, Optimizer: optimizer.SGD{Rate: 1}}, 1000)
	g := tensor.Bytes(make([]float32, 1000))
	var held *Buffer
	step := func() {
		next := d.Value()
		if held != nil {
			held.Release()
		}
		held = next
		if err := d.Update(g); err != nil {
			t.Fatal(err)
		}
	}
	step()
	step()
	step()
	if got := testing.AllocsPerRun(100, step); got != 0 {
		t.Errorf("%v allocations", got)
	}
}

func TestReplaceKeepsTheBuffer(t *testing.T) {
	d := newDense(t, Spec{Name: "w", DType: tensor.Int32}, 2)
	freed := 0
	b := NewBuffer(tensor.Bytes([]int32{4, 5}), func() { freed++ })
	if err := d.Replace(b); err != nil {
		t.Fatal(err)
	}
	if got := contents[int32](d); !slices.Equal(got, []int32{4, 5}) || freed != 0 {
		t.Errorf("got %v, freed %d times", got, freed)
	}
	if err := d.Replace(NewBuffer(tensor.Bytes([]int32{6, 7}), nil)); err != nil || freed != 1 {
		t.Errorf("got %v, freed %d times, want once", err, freed)
	}
	if err := d.Add(tensor.Bytes([]int32{1, 1})); err != nil || !slices.Equal(contents[int32](d), []int32{7, 8}) {
		t.Errorf("got %v, %v", contents[int32](d), err)
	}
}

func TestBufferPanicsIfReleasedTooOften(t *testing.T) {
	b := NewBuffer(nil, nil)
	b.Release()
	defer func() {
		if err, _ := recover().(error); !errors.Is(err, fault.Misuse) {
			t.Errorf("got %v, want fault.Misuse", err)
		}
	}()
	b.Release()
}

// state returns what a Save writes, and closes it.
func state(t *testing.T, s Save) []byte {
	t.Helper()
	defer s.Close()
	var b bytes.Buffer
	w := &limited{Writer: &b}
	n, err := s.WriteTo(w)
	if err != nil || n != int64(b.Len()) || w.largest > maxWrite {
		t.Fatalf("WriteTo returned %d, %v; %d bytes, at most %d at once", n, err, b.Len(), w.largest)
	}
	return b.Bytes()
}

// A limited counts the bytes of the largest Write.
type limited struct {
	io.Writer
	largest int
}

func (l *limited) Write(b []byte) (int, error) {
	l.largest = max(l.largest, len(b))
	return l.Writer.Write(b)
}

func TestDenseGoesOnFromASavedState(t *testing.T) {
	const n = 400_000 // more than one write
	spec := Spec{Name: "w", DType: tensor.Float32, Optimizer: adam, Initial: Normal(1, 1)}
	d := newDense(t, spec, n)
	random := rand.New(rand.NewPCG(1, 1))
	g := randoms(random, n)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(d.Update(tensor.Bytes(g)))
	s := d.Save()
	want := contents[float32](d)
	must(d.Update(tensor.Bytes(g))) // after the Save, so not in it
	loaded := newDense(t, spec, n)
	must(loaded.Load(bytes.NewReader(state(t, s))))
	if got := contents[float32](loaded); !slices.Equal(got, want) || loaded.Steps() != 1 {
		t.Fatalf("after %d steps, want 1; equal values: %v", loaded.Steps(), slices.Equal(got, want))
	}
	must(loaded.Update(tensor.Bytes(g)))
	if !slices.Equal(contents[float32](loaded), contents[float32](d)) {
		t.Error("the next step differs")
	}
}

func TestDenseRefusesStatesOfOtherVectors(t *testing.T) {
	spec := Spec{Name: "w", DType: tensor.Float32, Optimizer: adam}
	d := newDense(t, spec, 3)
	good := state(t, d.Save())
	other := func(change func(*Spec), first int64, n int) []byte {
		s := spec
		change(&s)
		d, err := NewDense(s, first, n)
		if err != nil {
			t.Fatal(err)
		}
		return state(t, d.Save())
	}
	same := func(*Spec) {}
	table, err := NewTable(spec, 3)
	if err != nil {
		t.Fatal(err)
	}
	save, err := table.Save()
	if err != nil {
		t.Fatal(err)
	}
	version := slices.Clone(good)
	version[4]++
	for name, b := range map[string][]byte{
		"longer":    other(same, 0, 4),
		"elsewhere": other(same, 1, 3),
		"dtype":     other(func(s *Spec) { s.DType = tensor.Float64 }, 0, 3),
		"optimizer": other(func(s *Spec) { s.Optimizer = nil }, 0, 3),
		"table":     state(t, save),
		"version":   version,
		"nothing":   nil,
		"header":    good[:20],
		"torn":      good[:len(good)-1],
	} {
		if err := d.Load(bytes.NewReader(b)); !errors.Is(err, fault.Mismatch) {
			t.Errorf("%s: got %v, want fault.Mismatch", name, err)
		}
	}
	if err := d.Load(bytes.NewReader(good)); err != nil {
		t.Error(err)
	}
}

func TestDenseRefusesWhatItCannotDo(t *testing.T) {
	plain := newDense(t, Spec{Name: "w", DType: tensor.Bool}, 8)
	doubles := newDense(t, Spec{Name: "w", DType: tensor.Float64, Optimizer: optimizer.SGD{Rate: 1}}, 2)
	misaligned := tensor.Bytes(make([]uint64, 4))[4:20]
	for name, err := range map[string]error{
		"no optimizer":   plain.Update(make([]byte, 8)),
		"no sum":         plain.Add(make([]byte, 8)),
		"length":         plain.Set(make([]byte, 7)),
		"buffer":         plain.Replace(NewBuffer(nil, nil)),
		"short gradient": doubles.Update(make([]byte, 8)),
		"misaligned":     doubles.Update(misaligned),
		"invalid type":   newError(NewDense(Spec{Name: "w"}, 0, 1)),
		"rate":           newError(NewDense(Spec{Name: "w", DType: tensor.Float32, Optimizer: optimizer.SGD{}}, 0, 1)),
		"negative":       newError(NewDense(Spec{Name: "w", DType: tensor.Float32}, 0, -1)),
		"initializer":    newError(NewDense(Spec{Name: "w", DType: tensor.Int8, Initial: Constant(1000)}, 0, 1)),
	} {
		if !errors.Is(err, fault.Misuse) {
			t.Errorf("%s: got %v, want fault.Misuse", name, err)
		}
	}
}

func newError[T any](_ T, err error) error { return err }

func TestBudgetBoundsVectors(t *testing.T) {
	budget := NewBudget(1000)
	spec := Spec{Name: "w", DType: tensor.Float32, Optimizer: adam, Budget: budget}
	d := newDense(t, spec, 50)
	if got := budget.Used(); got != 600 {
		t.Errorf("%d bytes used, want 600", got)
	}
	_, err := NewDense(spec, 0, 50)
	if !errors.Is(err, fault.Exhausted) || !strings.Contains(err.Error(), "w needs 600 bytes more, and 600 of 1000 are in use") {
		t.Errorf("got %v, want fault.Exhausted", err)
	}
	d.Free()
	if got := budget.Used(); got != 0 {
		t.Errorf("%d bytes used, want 0", got)
	}
	newDense(t, spec, 80)
}
