package optimizer

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/tensor"
)

// An Optimizer changes values by a gradient. It is an immutable value. Several goroutines may call
// its methods at the same time, each with its own memory.
type Optimizer interface {
	// String returns the text that Parse parses. Optimizers with equal texts compute equal bits.
	String() string

	// State describes what the Optimizer remembers between two updates.
	State() State

	// Update32 changes float32 values by a gradient of the same length. For each entry of
	// State().Slots it is given a slot of that length. The step is the number of updates of
	// these values, including this one: 1 at the first. The gradient does not change.
	//
	// Element i of the results depends only on element i of the arguments and on the step. So a
	// vector may be cut into parts without an effect on its bits.
	Update32(values, gradient []float32, slots [][]float32, step int64)

	// Update64 is like Update32, for float64.
	Update64(values, gradient []float64, slots [][]float64, step int64)
}

// A State describes the memory of an Optimizer: slots, which are vectors of the length of the
// values, and possibly the number of updates.
type State struct {
	Slots []float64 // the value of every element of each slot before the first update
	Steps bool      // whether the results depend on the step
}

// Update returns Update32 or Update64 of o, whichever is for T.
func Update[T float32 | float64](o Optimizer) func(values, gradient []T, slots [][]T, step int64) {
	var update any = o.Update32
	if tensor.TypeOf[T]() == tensor.Float64 {
		update = o.Update64
	}
	return update.(func(values, gradient []T, slots [][]T, step int64))
}

// Check returns fault.Misuse if o cannot update values of type d, or if one of its parameters is
// outside its range.
func Check(o Optimizer, d tensor.DType) error {
	if d != tensor.Float32 && d != tensor.Float64 {
		return misuse("optimizer %s: got values of type %v, want float32 or float64", o, d)
	}
	switch o := o.(type) {
	case Func:
		return o.check(d)
	case interface{ parameters() []parameter }:
		for _, p := range o.parameters() {
			if err := p.check(*p.at); err != nil {
				return misuse("optimizer %s: %w", o, err)
			}
		}
	}
	return nil
}

// Parse returns the Optimizer whose String is text. The Optimizers of known are compared first.
// They are those of the program, for example of type Func. For a text that is not that of a known
// or built-in Optimizer, the error is fault.Misuse.
func Parse(text string, known ...Optimizer) (Optimizer, error) {
	for _, o := range known {
		if o.String() == text {
			return o, nil
		}
	}
	name, rest, _ := strings.Cut(text, "(")
	o, list := builtin(name)
	if o == nil {
		return nil, misuse("optimizer: got %q, want sgd, momentum, nesterov, adagrad, adam, ftrl, "+
			"or one that the program gives to its servers", shorten(text))
	}
	inside, ok := strings.CutSuffix(rest, ")")
	if !ok {
		return nil, misuse("optimizer: got %q, want %s(parameter=value,…)", shorten(text), name)
	}
	for item := range strings.SplitSeq(inside, ",") {
		key, value, _ := strings.Cut(item, "=")
		i := slices.IndexFunc(list, func(p parameter) bool { return p.name == key })
		if i < 0 {
			return nil, misuse("optimizer %s: got unknown or repeated parameter %q", name, shorten(item))
		}
		p := list[i]
		list = slices.Delete(list, i, i+1)
		x, err := strconv.ParseFloat(value, 64)
		if err == nil {
			err = p.check(x)
		}
		if err != nil {
			return nil, misuse("optimizer %s: %w", name, err)
		}
		*p.at = x
	}
	if slices.ContainsFunc(list, func(p parameter) bool { return p.name == "rate" }) {
		return nil, misuse("optimizer %s: got no rate, want rate=…", name)
	}
	return o(), nil
}

// builtin returns a function that returns the Optimizer of this name, and the parameters that it is
// going to have. The function is nil if there is none.
func builtin(name string) (func() Optimizer, []parameter) {
	switch name {
	case "sgd":
		o := new(SGD)
		return func() Optimizer { return *o }, o.list()
	case "momentum", "nesterov":
		o := &Momentum{Nesterov: name == "nesterov"}
		return func() Optimizer { return *o }, o.list()
	case "adagrad":
		o := new(Adagrad)
		return func() Optimizer { return *o }, o.list()
	case "adam":
		o := new(Adam)
		return func() Optimizer { return *o }, o.list()
	case "ftrl":
		o := new(FTRL)
		return func() Optimizer { return *o }, o.list()
	}
	return nil, nil
}

// A parameter describes a field of an Optimizer: its name in the text, its default, and the least
// and the largest number that it may be.
type parameter struct {
	name           string
	at             *float64
	standard       float64
	least, largest float64
}

// Numbers closer to 0 or to 1 than these are 0 or 1 as a float32.
const (
	tiny      = 1e-30
	huge      = 1e30
	almostOne = 1 - 1e-7
)

// check returns an error if x is neither in the range of p nor 0 for its default.
func (p parameter) check(x float64) error {
	if x == 0 && p.name != "rate" || x >= p.least && x <= p.largest {
		return nil
	}
	return fmt.Errorf("%s: got %v, want %v to %v", p.name, x, p.least, p.largest)
}

// format returns the text of an Optimizer of this name.
func format(name string, list []parameter) string {
	b := []byte(name)
	separator := byte('(')
	for _, p := range list {
		b = append(append(append(b, separator), p.name...), '=')
		x := *p.at
		if x == 0 {
			x = p.standard
		}
		b = strconv.AppendFloat(b, x, 'g', -1, 64)
		separator = ','
	}
	return string(append(b, ')'))
}

// misuse returns an error of kind fault.Misuse.
func misuse(format string, args ...any) error {
	return fault.New(fault.Misuse, "optimizer", -1, format, args...)
}

// shorten returns the beginning of a text that may come from outside.
func shorten(s string) string {
	if len(s) > 40 {
		return s[:40] + "…"
	}
	return s
}
