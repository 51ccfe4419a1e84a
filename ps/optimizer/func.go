package optimizer

import (
	"strings"

	"github.com/tutti-go/tutti/tensor"
)

// Func is an Optimizer that calls functions of the program. The servers must have a Func of the same
// name, because a declaration only carries the name.
//
// A function gets the arguments of Update32 or Update64. On all servers it must compute equal
// bits from equal arguments, because copies of a part compute separately. For a dense tensor it must
// treat each element by itself, because tensors are cut into parts. For a table it gets whole
// rows, and may treat the elements of a row together.
type Func struct {
	Name    string    // 1 to 100 bytes, without parentheses
	Slots   []float64 // the value of every element of each slot before the first update
	Steps   bool      // whether the functions use the step
	Float32 func(values, gradient []float32, slots [][]float32, step int64)
	Float64 func(values, gradient []float64, slots [][]float64, step int64)
}

// String returns text such as "func(clip)".
func (o Func) String() string { return "func(" + o.Name + ")" }

// State returns Slots and Steps.
func (o Func) State() State { return State{Slots: o.Slots, Steps: o.Steps} }

// Update32 calls Float32.
func (o Func) Update32(values, gradient []float32, slots [][]float32, step int64) {
	o.Float32(values, gradient, slots, step)
}

// Update64 calls Float64.
func (o Func) Update64(values, gradient []float64, slots [][]float64, step int64) {
	o.Float64(values, gradient, slots, step)
}

func (o Func) check(d tensor.DType) error {
	if len(o.Name) < 1 || len(o.Name) > 100 || strings.ContainsAny(o.Name, "()") {
		return misuse("optimizer.Func: got name %q, want 1 to 100 bytes without parentheses", shorten(o.Name))
	}
	if d == tensor.Float32 && o.Float32 == nil || d == tensor.Float64 && o.Float64 == nil {
		return misuse("optimizer %s: got values of type %v and no function for them", o, d)
	}
	return nil
}
