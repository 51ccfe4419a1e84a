package tensor

import (
	"strings"
	"unsafe"

	"github.com/tutti-go/tutti/fault"
)

// A DType names an element type. Its numbers are part of the wire format and never change.
type DType uint8

// The element types. The two short floats have short names, because Float16 and
// BFloat16 are the Go types of such elements.
const (
	Invalid    DType = 0
	Int8       DType = 1
	Int16      DType = 2
	Int32      DType = 3
	Int64      DType = 4
	Uint8      DType = 5
	Uint16     DType = 6
	Uint32     DType = 7
	Uint64     DType = 8
	F16        DType = 9  // elements of type Float16
	BF16       DType = 10 // elements of type BFloat16
	Float32    DType = 11
	Float64    DType = 12
	Complex64  DType = 13
	Complex128 DType = 14
	Bool       DType = 15
)

// locBit distinguishes the number of a Loc type from the number of the type of its values.
const locBit DType = 0x80

// A typeInfo describes one DType. The compiler determines the size of a Loc, because Locs are sent
// as memory, not in an encoding.
type typeInfo struct {
	name string
	size int // bytes of an element
	loc  int // bytes of the Loc with such values; 0 if there is none
}

var typeInfos = [...]typeInfo{
	Invalid:    {"invalid", 0, 0},
	Int8:       {"int8", 1, int(unsafe.Sizeof(Loc[int8]{}))},
	Int16:      {"int16", 2, int(unsafe.Sizeof(Loc[int16]{}))},
	Int32:      {"int32", 4, int(unsafe.Sizeof(Loc[int32]{}))},
	Int64:      {"int64", 8, int(unsafe.Sizeof(Loc[int64]{}))},
	Uint8:      {"uint8", 1, int(unsafe.Sizeof(Loc[uint8]{}))},
	Uint16:     {"uint16", 2, int(unsafe.Sizeof(Loc[uint16]{}))},
	Uint32:     {"uint32", 4, int(unsafe.Sizeof(Loc[uint32]{}))},
	Uint64:     {"uint64", 8, int(unsafe.Sizeof(Loc[uint64]{}))},
	F16:        {"float16", 2, int(unsafe.Sizeof(Loc[Float16]{}))},
	BF16:       {"bfloat16", 2, int(unsafe.Sizeof(Loc[BFloat16]{}))},
	Float32:    {"float32", 4, int(unsafe.Sizeof(Loc[float32]{}))},
	Float64:    {"float64", 8, int(unsafe.Sizeof(Loc[float64]{}))},
	Complex64:  {"complex64", 8, 0},
	Complex128: {"complex128", 16, 0},
	Bool:       {"bool", 1, 0},
}

// DTypes lists every valid DType in the order of their numbers.
func DTypes() []DType {
	var all []DType
	for n := range 256 {
		if d := DType(n); d.Valid() {
			all = append(all, d)
		}
	}
	return all
}

// LocOf returns the type of Loc elements whose values have type base, or Invalid if Loc does
// not support base.
func LocOf(base DType) DType {
	if d := base | locBit; base != d && d.Valid() {
		return d
	}
	return Invalid
}

// Base returns the type of the values of a Loc type. For every other type it returns d.
func (d DType) Base() DType { return d &^ locBit }

// IsLoc reports whether elements of type d are values with an index.
func (d DType) IsLoc() bool { return d&locBit != 0 }

// Valid reports whether d is one of the types of this package.
func (d DType) Valid() bool { return d.Size() > 0 }

// Size returns the size of one element in bytes, or 0 if d is not valid.
func (d DType) Size() int {
	base := d.Base()
	if int(base) >= len(typeInfos) {
		return 0
	}
	if d.IsLoc() {
		return typeInfos[base].loc
	}
	return typeInfos[base].size
}

// String returns the name that ParseDType parses, such as "float32" or "loc[int8]".
func (d DType) String() string {
	if !d.Valid() {
		return typeInfos[Invalid].name
	}
	name := typeInfos[d.Base()].name
	if d.IsLoc() {
		return "loc[" + name + "]"
	}
	return name
}

// ParseDType parses the name of an element type, in the form that String returns. For an unknown
// name it returns fault.Misuse, and the error lists the known names.
func ParseDType(s string) (DType, error) {
	for _, d := range DTypes() {
		if d.String() == s {
			return d, nil
		}
	}
	return Invalid, unknown(s)
}

// unknown returns the error for a name that is not an element type. It shortens a long name,
// because the name may come from outside.
func unknown(s string) error {
	if len(s) > 40 {
		s = s[:40] + "…"
	}
	var names []string
	for _, f := range typeInfos[Int8:] {
		names = append(names, f.name)
	}
	return fault.New(fault.Misuse, "tensor.ParseDType", -1,
		"element type: got %q, want one of %s, or loc[…] of an integer or floating-point type", s, strings.Join(names, ", "))
}
