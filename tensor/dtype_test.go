package tensor

import (
	"errors"
	"strings"
	"testing"
	"unsafe"

	"github.com/tutti-go/tutti/fault"
)

// numbers are the DTypes' numbers on the wire. If a number changes, programs cannot exchange
// messages with earlier builds.
var numbers = map[string]DType{
	"int8": 1, "int16": 2, "int32": 3, "int64": 4,
	"uint8": 5, "uint16": 6, "uint32": 7, "uint64": 8,
	"float16": 9, "bfloat16": 10, "float32": 11, "float64": 12,
	"complex64": 13, "complex128": 14, "bool": 15,
	"loc[int8]": 129, "loc[int16]": 130, "loc[int32]": 131, "loc[int64]": 132,
	"loc[uint8]": 133, "loc[uint16]": 134, "loc[uint32]": 135, "loc[uint64]": 136,
	"loc[float16]": 137, "loc[bfloat16]": 138, "loc[float32]": 139, "loc[float64]": 140,
}

func TestDTypesKeepTheirNumbersAndNames(t *testing.T) {
	if got, want := len(DTypes()), len(numbers); got != want {
		t.Errorf("%d types, want %d", got, want)
	}
	for n := range 256 {
		d := DType(n)
		want, known := numbers[d.String()]
		if d.Valid() != known {
			t.Errorf("type %d (%v): valid is %v, want %v", n, d, d.Valid(), known)
		}
		if !d.Valid() {
			if d.Size() != 0 || d.String() != "invalid" {
				t.Errorf("invalid type %d has size %d and name %v", n, d.Size(), d)
			}
			continue
		}
		if d != want {
			t.Errorf("%v is %d, want %d", d, n, want)
		}
	}
}

func TestParseDTypeReadsEveryName(t *testing.T) {
	for _, d := range DTypes() {
		if got, err := ParseDType(d.String()); got != d || err != nil {
			t.Errorf("%q is read as %v, %v", d, got, err)
		}
	}
}

func TestParseDTypeRefusesOtherNames(t *testing.T) {
	for _, s := range []string{
		"", "invalid", "float", "Float32", " float32", "float32 ", "loc[]", "loc[float32", "loc[bool]", "loc[complex64]",
		"loc[invalid]", "loc[loc[int8]]", "loc[float32]]", "loc", "[int8]", strings.Repeat("x", 1000),
	} {
		d, err := ParseDType(s)
		if d != Invalid || !errors.Is(err, fault.Misuse) {
			t.Errorf("%q is read as %v, %v", s, d, err)
		} else if !strings.Contains(err.Error(), "bfloat16") || len(err.Error()) > 400 {
			t.Errorf("%q is refused without the list of names, or at length: %v", s, err)
		}
	}
}

func FuzzParseDType(f *testing.F) {
	for _, d := range DTypes() {
		f.Add(d.String())
	}
	f.Fuzz(func(t *testing.T, s string) {
		d, err := ParseDType(s)
		if d.Valid() != (err == nil) || err == nil && d.String() != s {
			t.Errorf("%q is read as %v, %v", s, d, err)
		}
	})
}

func TestLocOfAcceptsOrderedTypes(t *testing.T) {
	for _, base := range append(DTypes(), Invalid, Bool+1, 0x7f, 0x80, 0xff) {
		want := numbers["loc["+base.String()+"]"]
		got := LocOf(base)
		if got != want {
			t.Errorf("LocOf(%v) is %v, want %v", base, got, want)
		}
		if got.Valid() && (!got.IsLoc() || got.Base() != base || base.IsLoc() || base.Base() != base) {
			t.Errorf("LocOf(%v) and back is %v", base, got.Base())
		}
	}
}

type (
	myInt  int
	myByte uint8
	myF64  float64
	myC64  complex64
	myBool bool
)

// typed returns a test case with the results of TypeOf and unsafe.Sizeof for one Go type.
func typed[T Element](name string, d DType) (c struct {
	name      string
	got, want DType
	size      int
	allocs    float64
}) {
	var e T
	c.name, c.got, c.want, c.size = name, TypeOf[T](), d, int(unsafe.Sizeof(e))
	c.allocs = testing.AllocsPerRun(100, func() { sink = TypeOf[T]() })
	return c
}

var sink DType

func TestTypeOfKnowsEveryElementAndAllocatesNothing(t *testing.T) {
	native, unative := Int64, Uint64
	if unsafe.Sizeof(int(0)) == 4 {
		native, unative = Int32, Uint32
	}
	seen := map[DType]bool{}
	for _, c := range []struct {
		name      string
		got, want DType
		size      int
		allocs    float64
	}{
		typed[int8]("int8", Int8), typed[int16]("int16", Int16), typed[int32]("int32", Int32), typed[int64]("int64", Int64),
		typed[uint8]("uint8", Uint8), typed[uint16]("uint16", Uint16), typed[uint32]("uint32", Uint32), typed[uint64]("uint64", Uint64),
		typed[int]("int", native), typed[uint]("uint", unative),
		typed[Float16]("Float16", F16), typed[BFloat16]("BFloat16", BF16), typed[float32]("float32", Float32), typed[float64]("float64", Float64),
		typed[complex64]("complex64", Complex64), typed[complex128]("complex128", Complex128), typed[bool]("bool", Bool),
		typed[Loc[int8]]("Loc[int8]", LocOf(Int8)), typed[Loc[int16]]("Loc[int16]", LocOf(Int16)),
		typed[Loc[int32]]("Loc[int32]", LocOf(Int32)), typed[Loc[int64]]("Loc[int64]", LocOf(Int64)),
		typed[Loc[uint8]]("Loc[uint8]", LocOf(Uint8)), typed[Loc[uint16]]("Loc[uint16]", LocOf(Uint16)),
		typed[Loc[uint32]]("Loc[uint32]", LocOf(Uint32)), typed[Loc[uint64]]("Loc[uint64]", LocOf(Uint64)),
		typed[Loc[int]]("Loc[int]", LocOf(native)), typed[Loc[uint]]("Loc[uint]", LocOf(unative)),
		typed[Loc[Float16]]("Loc[Float16]", LocOf(F16)), typed[Loc[BFloat16]]("Loc[BFloat16]", LocOf(BF16)),
		typed[Loc[float32]]("Loc[float32]", LocOf(Float32)), typed[Loc[float64]]("Loc[float64]", LocOf(Float64)),
		typed[myInt]("named int", native), typed[myByte]("named uint8", Uint8), typed[myF64]("named float64", Float64),
		typed[myC64]("named complex64", Complex64), typed[myBool]("named bool", Bool),
	} {
		seen[c.got] = true
		if c.got != c.want {
			t.Errorf("%s is %v, want %v", c.name, c.got, c.want)
		}
		if c.got.Size() != c.size {
			t.Errorf("%s has %d bytes, %v says %d", c.name, c.size, c.got, c.got.Size())
		}
		if c.allocs != 0 {
			t.Errorf("TypeOf[%s] allocates %v times", c.name, c.allocs)
		}
	}
	for _, d := range DTypes() {
		if !seen[d] {
			t.Errorf("no Go type gives %v", d)
		}
	}
}

func TestBytesAndElementsAreTheSameMemory(t *testing.T) {
	s := []myF64{1, 2, 3}
	b := Bytes(s)
	if got, want := len(b), 24; got != want {
		t.Fatalf("%d bytes, want %d", got, want)
	}
	back := Elements[float64](b[8:])
	if len(back) != 2 || back[0] != 2 {
		t.Fatalf("got %v", back)
	}
	back[1] = 9
	if s[2] != 9 {
		t.Errorf("a change did not reach the slice: %v", s)
	}
	if cap(b) != len(b) || cap(back) != len(back) {
		t.Errorf("spare capacity: %d of %d bytes, %d of %d elements", cap(b), len(b), cap(back), len(back))
	}
}

func TestNothingStaysNothing(t *testing.T) {
	if b := Bytes([]int32{}); b != nil {
		t.Errorf("got %v", b)
	}
	if b := Bytes[int32](nil); b != nil {
		t.Errorf("got %v", b)
	}
	if s := Elements[Loc[int8]]([]byte{}); s != nil {
		t.Errorf("got %v", s)
	}
	misaligned := Bytes([]int64{1})[1:1]
	if s := Elements[int64](misaligned); s != nil {
		t.Errorf("got %v", s)
	}
}

func TestBytesAndElementsAllocateNothing(t *testing.T) {
	s := make([]complex128, 10)
	n := 0
	if got := testing.AllocsPerRun(100, func() { n += len(Elements[complex128](Bytes(s))) }); got != 0 {
		t.Errorf("%v allocations", got)
	}
}

func TestElementsRefusesPartialAndUnalignedElements(t *testing.T) {
	b := Bytes(make([]int64, 4))
	for name, bad := range map[string][]byte{
		"not aligned": b[4:20],
		"not whole":   b[:12],
	} {
		func() {
			defer func() {
				if err, ok := recover().(error); !ok || !errors.Is(err, fault.Misuse) {
					t.Errorf("%s: got %v, want fault.Misuse", name, err)
				}
			}()
			Elements[int64](bad)
		}()
	}
	if Aligned[int64](b[4:]) || !Aligned[int64](b[8:]) || !Aligned[int32](b[4:]) || !Aligned[bool](b[3:]) {
		t.Error("Aligned is wrong")
	}
}
