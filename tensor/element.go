package tensor

import (
	"reflect"
	"unsafe"

	"github.com/tutti-go/tutti/fault"
)

// Element lists the types that can be sent. They can also be reduced, with an operator that
// supports the type.
type Element interface {
	~int8 | ~int16 | ~int32 | ~int64 | ~int |
		~uint8 | ~uint16 | ~uint32 | ~uint64 | ~uint |
		~float32 | ~float64 | ~complex64 | ~complex128 | ~bool |
		Float16 | BFloat16 |
		Loc[int8] | Loc[int16] | Loc[int32] | Loc[int64] | Loc[int] |
		Loc[uint8] | Loc[uint16] | Loc[uint32] | Loc[uint64] | Loc[uint] |
		Loc[float32] | Loc[float64] | Loc[Float16] | Loc[BFloat16]
}

// LocValue lists the types of values in a Loc. All of them have an order.
type LocValue interface {
	int8 | int16 | int32 | int64 | int |
		uint8 | uint16 | uint32 | uint64 | uint |
		float32 | float64 | Float16 | BFloat16
}

// A Loc is a value with an index. The index may be a rank, a row, or any other number that the
// caller chooses. MinLoc and MaxLoc reduce Locs.
type Loc[T LocValue] struct {
	Value T
	Index int64
}

// kinds maps the kind of a basic type, or of a named type that is based on it, to the DType. int
// and uint map to the DType of the same size, so that programs on hosts of the same kind agree.
var kinds = [...]DType{
	reflect.Int8:       Int8,
	reflect.Int16:      Int16,
	reflect.Int32:      Int32,
	reflect.Int64:      Int64,
	reflect.Int:        signedOf[unsafe.Sizeof(int(0))],
	reflect.Uint8:      Uint8,
	reflect.Uint16:     Uint16,
	reflect.Uint32:     Uint32,
	reflect.Uint64:     Uint64,
	reflect.Uint:       unsignedOf[unsafe.Sizeof(uint(0))],
	reflect.Float32:    Float32,
	reflect.Float64:    Float64,
	reflect.Complex64:  Complex64,
	reflect.Complex128: Complex128,
	reflect.Bool:       Bool,
}

// The DTypes of int and uint, indexed by the size of an int in bytes.
var (
	signedOf   = [...]DType{4: Int32, 8: Int64}
	unsignedOf = [...]DType{4: Uint32, 8: Uint64}
)

// TypeOf returns the DType of T. It does not allocate, and takes a nanosecond or two except for
// named types.
func TypeOf[T Element]() DType {
	return typeOf((*T)(nil)) // a nil pointer makes an interface without allocating
}

// typeOf returns the DType of the element to which p points. The compiler turns the switch into a
// binary search. The switch lists all types but the named ones that are based on a basic type.
func typeOf(p any) DType {
	switch p.(type) {
	case *int8:
		return Int8
	case *int16:
		return Int16
	case *int32:
		return Int32
	case *int64:
		return Int64
	case *int:
		return kinds[reflect.Int]
	case *uint8:
		return Uint8
	case *uint16:
		return Uint16
	case *uint32:
		return Uint32
	case *uint64:
		return Uint64
	case *uint:
		return kinds[reflect.Uint]
	case *float32:
		return Float32
	case *float64:
		return Float64
	case *complex64:
		return Complex64
	case *complex128:
		return Complex128
	case *bool:
		return Bool
	case *Float16:
		return F16
	case *BFloat16:
		return BF16
	case *Loc[int8]:
		return LocOf(Int8)
	case *Loc[int16]:
		return LocOf(Int16)
	case *Loc[int32]:
		return LocOf(Int32)
	case *Loc[int64]:
		return LocOf(Int64)
	case *Loc[int]:
		return LocOf(kinds[reflect.Int])
	case *Loc[uint8]:
		return LocOf(Uint8)
	case *Loc[uint16]:
		return LocOf(Uint16)
	case *Loc[uint32]:
		return LocOf(Uint32)
	case *Loc[uint64]:
		return LocOf(Uint64)
	case *Loc[uint]:
		return LocOf(kinds[reflect.Uint])
	case *Loc[float32]:
		return LocOf(Float32)
	case *Loc[float64]:
		return LocOf(Float64)
	case *Loc[Float16]:
		return LocOf(F16)
	case *Loc[BFloat16]:
		return LocOf(BF16)
	}
	return kinds[reflect.TypeOf(p).Elem().Kind()]
}

// Bytes returns the memory of s without copying it, or nil if s is empty. The result shares the
// memory and the ownership of s.
func Bytes[T Element](s []T) []byte {
	if len(s) == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(s))), len(s)*int(unsafe.Sizeof(s[0])))
}

// Text returns b as a string without copying it. Nobody may change b while the string is in use.
func Text(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

// TextBytes returns the bytes of s without copying them. Nobody may change the bytes.
func TextBytes(s string) []byte { return unsafe.Slice(unsafe.StringData(s), len(s)) }

// Overlap reports whether two slices have a byte in common. An empty slice overlaps nothing.
func Overlap(a, b []byte) bool {
	at, bt := uintptr(unsafe.Pointer(unsafe.SliceData(a))), uintptr(unsafe.Pointer(unsafe.SliceData(b)))
	return len(a) > 0 && len(b) > 0 && (at-bt < uintptr(len(b)) || bt-at < uintptr(len(a)))
}

// Elements returns the memory of b as elements without copying it, or nil if b is empty. The slice
// b must be Aligned and hold whole elements. Otherwise Elements panics with a *fault.Error of kind
// Misuse. Memory that becomes a []bool must hold only the bytes 0 and 1.
func Elements[T Element](b []byte) []T {
	var e T
	if len(b) == 0 {
		return nil
	}
	if len(b)%int(unsafe.Sizeof(e)) != 0 || !Aligned[T](b) {
		panic(fault.New(fault.Misuse, "tensor.Elements", -1,
			"memory: got %d bytes at %p, want whole and aligned elements of type %v", len(b), b, TypeOf[T]()))
	}
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/int(unsafe.Sizeof(e)))
}

// Aligned reports whether an element of type T may begin at the beginning of b.
func Aligned[T Element](b []byte) bool {
	var e T
	return uintptr(unsafe.Pointer(unsafe.SliceData(b)))%unsafe.Alignof(e) == 0
}

// AlignedFor is like Aligned, for a type that is known at run time only.
func AlignedFor(d DType, b []byte) bool {
	align := min(d.Size(), 8)
	if d == Complex64 {
		align = 4
	}
	return align == 0 || uintptr(unsafe.Pointer(unsafe.SliceData(b)))%uintptr(align) == 0
}
