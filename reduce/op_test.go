package reduce

import (
	"errors"
	"math"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/test/arm64"
	"github.com/tutti-go/tutti/tensor"
)

// The table in the package comment must say which pairs of operator and type have a kernel. The
// test parses the table and tries every pair.
func TestDocTableMatchesKernel(t *testing.T) {
	columns := map[string][]tensor.DType{
		"int":     {tensor.Int8, tensor.Int16, tensor.Int32, tensor.Int64},
		"uint":    {tensor.Uint8, tensor.Uint16, tensor.Uint32, tensor.Uint64},
		"float":   {tensor.F16, tensor.BF16, tensor.Float32, tensor.Float64},
		"complex": {tensor.Complex64, tensor.Complex128},
		"bool":    {tensor.Bool},
	}
	pairs := 0
	for _, d := range tensor.DTypes() {
		if d.IsLoc() {
			columns["loc"] = append(columns["loc"], d)
		}
	}
	head, rows := docTable(t)
	if len(head) != len(columns)+1 || len(rows) != len(builtins()) {
		t.Fatalf("the table has columns %v and %d rows", head, len(rows))
	}
	for _, op := range builtins() {
		row := rows[op.Name()]
		if len(row) != len(head) {
			t.Errorf("%s: row %v for columns %v", op.Name(), row, head)
			continue
		}
		for i, word := range row[1:] {
			for _, d := range columns[head[i+1]] {
				pairs++
				k, err := op.Kernel(d)
				switch {
				case word == "yes" && err != nil:
					t.Errorf("the doc has %s of %v: %v", op.Name(), d, err)
				case word == "yes" && (k.DType() != d || k.Op().Name() != op.Name()):
					t.Errorf("%s of %v gave %s of %v", op.Name(), d, k.Op().Name(), k.DType())
				case word != "yes" && !errors.Is(err, fault.Misuse):
					t.Errorf("the doc has no %s of %v, but Kernel says %v", op.Name(), d, err)
				case word != "yes" && !(strings.Contains(err.Error(), op.Name()) && strings.Contains(err.Error(), d.String())):
					t.Errorf("%q does not name %s and %v", err, op.Name(), d)
				}
			}
		}
	}
	if want := len(builtins()) * len(tensor.DTypes()); pairs != want {
		t.Errorf("%d pairs were tried, want %d", pairs, want)
	}
}

// docTable returns the words of the table in doc.go: the words of its head, and the words of each
// row by the row's name.
func docTable(t *testing.T) (head []string, rows map[string][]string) {
	t.Helper()
	text, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	_, table, found := strings.Cut(string(text), "//	operator ")
	if !found {
		t.Fatal("doc.go has no table")
	}
	table, _, _ = strings.Cut("operator "+table, "//\n")
	rows = map[string][]string{}
	for i, line := range strings.Split(strings.TrimSpace(table), "\n") {
		words := strings.Fields(strings.TrimPrefix(line, "//"))
		if i == 0 {
			head = words
			continue
		}
		rows[words[0]] = words
	}
	return head, rows
}

func TestBuiltinsCommuteAndHaveTheirOwnNamesAndIDs(t *testing.T) {
	names, ids := map[string]bool{}, map[uint64]bool{}
	for _, op := range builtins() {
		if !op.Commutative() {
			t.Errorf("%s does not commute", op.Name())
		}
		names[op.Name()], ids[op.ID()] = true, true
	}
	if len(names) != len(builtins()) || len(ids) != len(builtins()) {
		t.Errorf("%d names and %d ids for %d operators", len(names), len(ids), len(builtins()))
	}
}

// Ranks of different builds compare fingerprints that contain IDs, so IDs must not change.
func TestIDsStayAsTheyAre(t *testing.T) {
	keep := func(a, _ int) int { return a }
	for _, c := range []struct {
		op   Op
		want uint64
	}{
		{Op{}, 0},
		{Sum, 0x82719e195d0fc4a8},
		{Func("keep", RankOrder, keep), 0x2ad3cb7cd179ceae},
	} {
		if got := c.op.ID(); got != c.want {
			t.Errorf("%q has the id %#x, want %#x", c.op.Name(), got, c.want)
		}
	}
	if hash("") != 0xcbf29ce484222325 || hash("foobar") != 0x85944171f73967e8 {
		t.Error("the hash is not FNV-1a")
	}
}

func TestIDsOfFuncDifferByNameAndOrder(t *testing.T) {
	f := func(a, b int32) int32 { return a }
	ops := []Op{
		Sum, Func("sum", Commutative, f), Func("sum", RankOrder, f), Func("prod", Commutative, f),
		Func("func 1 sum", Commutative, f),
	}
	ids := map[uint64]bool{}
	for _, op := range ops {
		ids[op.ID()] = true
	}
	if len(ids) != len(ops) {
		t.Errorf("%d ids for %d operators", len(ids), len(ops))
	}
	if again := Func("sum", RankOrder, func(_, b int32) int32 { return b }); again.ID() != ops[2].ID() {
		t.Error("the same name and order gave another id")
	}
}

func TestKernelRefusesWhatIsNoOperator(t *testing.T) {
	keep := func(a, _ int32) int32 { return a }
	for _, c := range []struct {
		name  string
		op    Op
		dtype tensor.DType
		want  string
	}{
		{"no operator", Op{}, tensor.Int32, "got none"},
		{"no type", Sum, tensor.Invalid, "not valid"},
		{"unknown type", Sum, 0x7f, "not valid"},
		{"unknown loc", MinLoc, 0xff, "not valid"},
		{"a func of another type", Func("keep", RankOrder, keep), tensor.Int64, "keep: got int64, want int32"},
		{"a func without a name", Func("", RankOrder, keep), tensor.Int32, "got an empty name"},
		{"a func without an order", Func("keep", 0, keep), tensor.Int32, "order"},
		{"a func of a third order", Func("keep", 3, keep), tensor.Int32, "order"},
		{"a nil func", Func[int32]("keep", RankOrder, nil), tensor.Int32, "got no function"},
	} {
		k, err := c.op.Kernel(c.dtype)
		if !errors.Is(err, fault.Misuse) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want fault.Misuse with %q", c.name, err, c.want)
		}
		if k != (Kernel{}) {
			t.Errorf("%s: a kernel came with the error", c.name)
		}
	}
}

func TestFuncGetsTheEarlierShareFirst(t *testing.T) {
	op := Func("digits", RankOrder, func(earlier, later int) int { return 10*earlier + later })
	if op.Commutative() {
		t.Error("a RankOrder operator commutes")
	}
	k, err := op.Kernel(tensor.TypeOf[int]())
	if err != nil {
		t.Fatal(err)
	}
	want := []int{13, 24}
	for _, into := range []string{"other memory", "the earlier", "the later"} {
		a, b, dst := []int{1, 2}, []int{3, 4}, make([]int, 2)
		switch into {
		case "the earlier":
			dst = a
		case "the later":
			dst = b
		}
		k.Fold(tensor.Bytes(dst), tensor.Bytes(a), tensor.Bytes(b))
		if !slices.Equal(dst, want) {
			t.Errorf("into %s: got %v, want %v", into, dst, want)
		}
	}
	if k.Finish(tensor.Bytes(want), 3); want[0] != 13 {
		t.Errorf("Finish changed the result: %v", want)
	}
}

type celsius float32

func TestFuncAcceptsNamedTypesAndStructsAtAnyAlignment(t *testing.T) {
	hotter := Func("hotter", Commutative, func(a, b celsius) celsius { return max(a, b) })
	k, err := hotter.Kernel(tensor.Float32)
	if err != nil {
		t.Fatal(err)
	}
	mem := tensor.Bytes(make([]celsius, 4))
	dst := mem[1:9] // not aligned
	k.Fold(dst, tensor.Bytes([]celsius{1, 5}), tensor.Bytes([]celsius{3, 2}))
	got := make([]celsius, 2)
	copy(tensor.Bytes(got), dst)
	if want := []celsius{3, 5}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}

	last := Func("last", RankOrder, func(_, b tensor.Loc[uint16]) tensor.Loc[uint16] { return b })
	if _, err := last.Kernel(tensor.LocOf(tensor.Uint16)); err != nil {
		t.Error(err)
	}
}

func TestFuncFoldsWithoutAllocating(t *testing.T) {
	k, err := Func("add", Commutative, func(a, b float64) float64 { return a + b }).Kernel(tensor.Float64)
	if err != nil {
		t.Fatal(err)
	}
	buf := aligned(800, 0)
	if got := testing.AllocsPerRun(20, func() { k.Fold(buf, buf, buf) }); got != 0 {
		t.Errorf("%v allocations", got)
	}
}

func TestFuncsPanicIsTheCallers(t *testing.T) {
	k, err := Func("fails", Commutative, func(int8, int8) int8 { panic("on purpose") }).Kernel(tensor.Int8)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if got := recover(); got != "on purpose" {
			t.Errorf("got %v", got)
		}
	}()
	k.Fold([]byte{1}, []byte{1}, []byte{1})
	t.Error("the panic was swallowed")
}

// A complex product must round each of its real products. The test uses numbers for which a fused
// multiply-add gives a different last bit.
func TestComplexProductsRoundEachProduct(t *testing.T) {
	k, err := Prod.Kernel(tensor.Complex128)
	if err != nil {
		t.Fatal(err)
	}
	a := []complex128{complex(1+0x1p-30, 1+0x1p-31)}
	b := []complex128{complex(1+0x1p-29, 1-0x1p-32)}
	k.Fold(tensor.Bytes(a), tensor.Bytes(slices.Clone(a)), tensor.Bytes(b))

	x, y, u, v := 1+0x1p-30, 1+0x1p-31, 1+0x1p-29, 1-0x1p-32
	want := complex(unfused(x, u)-unfused(y, v), unfused(x, v)+unfused(y, u))
	if a[0] != want {
		t.Errorf("got %v, want %v", a[0], want)
	}
	if fused := math.FMA(x, u, -unfused(y, v)); fused == real(want) {
		t.Error("these operands do not tell fused from unfused")
	}
}

// On arm64 the compiler may fuse products and sums, so this test reads the compiler's listing. The
// listing does not contain gonum's loop. That loop fuses 1*x + y, which is rounded once with and
// without fusion.
func TestNoKernelFusesOnARM64(t *testing.T) {
	arm64.FusesNothing(t, "FMULD")
}
