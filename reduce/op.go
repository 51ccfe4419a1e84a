package reduce

import (
	"strconv"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/tensor"
)

// An Op is a reduction operator. It is an immutable value that may be copied and shared by
// goroutines. The zero Op is no operator; its Kernel method returns fault.Misuse.
type Op struct{ def *definition }

// A definition holds the properties of an Op. It never changes, and all copies of an Op refer to
// the same definition.
type definition struct {
	name  string
	id    uint64
	code  code
	order Order
	user  *userOp // only for operators of Func
}

// undefined is the definition of the zero Op.
var undefined definition

// definition returns o's definition. For the zero Op it returns undefined.
func (o Op) definition() *definition {
	if o.def == nil {
		return &undefined
	}
	return o.def
}

// An Order is the order in which an operator needs the shares of the ranks. Every operator is
// associative.
type Order uint8

// The orders.
const (
	// Commutative operators accept the shares in any order.
	Commutative Order = iota + 1
	// RankOrder operators get rank 0's share first, then rank 1's, and so on.
	RankOrder
)

// code is an operator's row in the table of kernels.
type code uint8

const (
	codeNone code = iota
	codeSum
	codeProd
	codeMin
	codeMax
	codeMean
	codeLogicalAnd
	codeLogicalOr
	codeLogicalXor
	codeBitAnd
	codeBitOr
	codeBitXor
	codeMinLoc
	codeMaxLoc
	codeUser
)

// The operators of this package. All of them commute. The package comment describes each operator
// for each type.
var (
	Sum        = builtin("sum", codeSum)
	Prod       = builtin("prod", codeProd)
	Min        = builtin("min", codeMin)
	Max        = builtin("max", codeMax)
	Mean       = builtin("mean", codeMean)
	LogicalAnd = builtin("logical_and", codeLogicalAnd)
	LogicalOr  = builtin("logical_or", codeLogicalOr)
	LogicalXor = builtin("logical_xor", codeLogicalXor)
	BitAnd     = builtin("bit_and", codeBitAnd)
	BitOr      = builtin("bit_or", codeBitOr)
	BitXor     = builtin("bit_xor", codeBitXor)
	MinLoc     = builtin("minloc", codeMinLoc)
	MaxLoc     = builtin("maxloc", codeMaxLoc)
)

func builtin(name string, c code) Op {
	return Op{&definition{name: name, id: hash(name), code: c, order: Commutative}}
}

// A userOp holds the arguments of a call of Func.
type userOp struct {
	loops *loops
	wrong string // the reason why there are no loops; "" if there are loops
}

// Func returns an operator that applies the caller's function f. The name identifies the operator,
// so ranks that use different names or different orders get fault.Mismatch. If f is nil, the name
// is empty or the order is unknown, the method Kernel returns fault.Misuse.
//
// The function f must be associative, except for rounding if the caller accepts it. On every rank
// it must give equal results for equal arguments. Several goroutines may call it at the same time.
// If f panics, Fold does not recover, and dst is only partly written.
func Func[T tensor.Element](name string, order Order, f func(earlier, later T) T) Op {
	// The prefix distinguishes a user's "sum" from Sum.
	id := hash("func " + strconv.Itoa(int(order)) + " " + name)
	u := new(userOp)
	o := Op{&definition{name: name, id: id, code: codeUser, order: order, user: u}}
	switch {
	case name == "":
		u.wrong = "operator: got an empty name, want a name that no other operator has"
	case order != Commutative && order != RankOrder:
		u.wrong = "operator " + name + ": got an unknown order, want Commutative or RankOrder"
	case f == nil:
		u.wrong = "operator " + name + ": got no function, want an associative one"
	default:
		u.loops = newLoops(o, tensor.TypeOf[T](), over(func(dst, earlier, later []T) {
			for i := range dst {
				dst[i] = f(earlier[i], later[i])
			}
		}))
	}
	return o
}

// Name returns the operator's name, such as "sum" or "logical_and", or the name that was passed to
// Func.
func (o Op) Name() string { return o.definition().name }

// Commutative reports whether shares may be folded in any order.
func (o Op) Commutative() bool { return o.definition().order == Commutative }

// ID returns a hash of the name. For operators of Func, the hash includes the order. Ranks compare
// IDs to check that they use the same operator.
func (o Op) ID() uint64 { return o.definition().id }

// hash returns the 64-bit FNV-1a hash of s.
func hash(s string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(s) {
		h = (h ^ uint64(s[i])) * 1099511628211
	}
	return h
}

// Kernel returns the kernel of o for elements of type d. It returns fault.Misuse for the zero
// Op and for a type that the operator does not support. It does not allocate.
func (o Op) Kernel(d tensor.DType) (Kernel, error) { return o.kernel(kernels, d) }

// kernel is like Kernel, but takes the loops from table t.
func (o Op) kernel(t *table, d tensor.DType) (Kernel, error) {
	def := o.definition()
	switch {
	case def.code == codeNone:
		return Kernel{}, misuse("operator: got none, want one such as Sum")
	case !d.Valid():
		return Kernel{}, misuse("element type of %s: got %d, which is not valid, want one of package tensor", def.name, uint8(d))
	case def.code != codeUser:
		if l := t.loops[def.code][d]; l != nil {
			return Kernel{l}, nil
		}
		return Kernel{}, misuse("element type of %s: got %v, want one of %v", def.name, d, t.typesOf(def.code))
	case def.user.wrong != "":
		return Kernel{}, misuse("%s", def.user.wrong)
	case def.user.loops.dtype != d:
		return Kernel{}, misuse("element type of %s: got %v, want %v", def.name, d, def.user.loops.dtype)
	}
	return Kernel{def.user.loops}, nil
}

// misuse returns the error of Op.Kernel. Programs get it from comm, which adds the call and the
// rank.
func misuse(format string, args ...any) error {
	return fault.New(fault.Misuse, "reduce.Op.Kernel", -1, format, args...)
}
