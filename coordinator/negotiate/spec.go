package negotiate

import (
	"fmt"
	"slices"
	"strings"

	"github.com/tutti-go/tutti/tensor"
)

// These bound the values in a request.
const (
	MaxName = 512 // bytes of the name of a tensor or a process set
	MaxDims = 8   // dimensions of a tensor
	MaxSite = 256 // bytes of a call site's description
	maxOp   = 128 // bytes of an operator's name
)

// An Operation is the operation of a request. The numbers are part of the wire form.
type Operation uint8

// These are the operations.
const (
	AllReduce     Operation = 1
	AllGather     Operation = 2
	Broadcast     Operation = 3
	ReduceScatter Operation = 4
	AllToAll      Operation = 5
	Barrier       Operation = 6
	AddSet        Operation = 7 // Shape lists the ranks
	RemoveSet     Operation = 8 // Shape holds the set's number
	PushPull      Operation = 9 // the caller transfers the tensor
)

var operationNames = [...]string{"none", "allreduce", "allgather", "broadcast", "reducescatter", "alltoall", "barrier", "addset", "removeset", "pushpull"}

// Valid reports whether k is one of the operations above.
func (k Operation) Valid() bool { return k != 0 && int(k) < len(operationNames) }

// immediate reports whether a submission is sent at once, because a goroutine of every rank waits for
// it. Such an operation has no elements.
func (k Operation) immediate() bool { return k == Barrier || k == AddSet || k == RemoveSet }

// String returns a name such as "allreduce".
func (k Operation) String() string {
	if !k.Valid() {
		return fmt.Sprintf("operation %d", uint8(k))
	}
	return operationNames[k]
}

// These are the predefined process sets.
const (
	// World is the process set of all ranks. SetRegistry also has all ranks. It is only for
	// requests that add and remove process sets, so that their names cannot collide with names of
	// tensors.
	World       uint32 = 0
	SetRegistry uint32 = 1<<32 - 1
)

// A Codec is the compression of a rank's share of an AllReduce. The numbers are part of the wire
// form.
type Codec uint8

// These are the codecs.
const (
	Plain  Codec = 0 // no compression
	TopK   Codec = 1 // the Keep elements of largest magnitude
	OneBit Codec = 2 // a bit for each element
)

// A Spec is the part of a request on which the ranks must agree. It is immutable once submitted.
type Spec struct {
	Set       uint32
	Name      string
	Operation Operation
	DType     tensor.DType
	Wire      tensor.DType // the element type on the wire; DType if it is not compressed
	// Shape is the shape in elements. The first dimension of an AllGather or AllToAll differs from
	// rank to rank and is -1 here.
	Shape      []int
	Op         string
	OpID       uint64
	NoIdentity bool // the operator has no identity, so no rank may be absent
	Whole      bool // the tensor is never cut into parts
	Codec      Codec
	Keep       int // TopK: number of elements that each rank sends
	Root       int // index in the set; -1: no root
	Pre, Post  float64
	Priority   int    // higher priorities run first
	Group      uint64 // equal for tensors submitted as one; 0: none
	GroupSize  int
}

// A TensorRequest is one rank's request: a Spec and the values that differ from rank to rank.
type TensorRequest struct {
	Spec
	Rows   int          // AllGather: this rank's first dimension
	Splits []int        // AllToAll: number of rows to each rank of the set
	Site   string       // the program's call site, for errors and stall reports
	memo   *tensorState // the state that the last submission has found; it saves a map lookup
}

// A key identifies a tensor.
type key struct {
	set  uint32
	name string
}

// key returns the key of the tensor.
func (t *Spec) key() key { return key{t.Set, t.Name} }

// Elements returns the number of elements of the shape. A dimension of -1 counts as 1, so for an
// AllGather the result is the number of elements of a row.
func (t *Spec) Elements() int {
	n := 1
	for _, d := range t.Shape {
		if d >= 0 {
			n *= d
		}
	}
	return n
}

// Bytes returns the size of the elements in bytes.
func (t *Spec) Bytes() int { return t.Elements() * t.DType.Size() }

// Differs returns the name of the first property in which two specs of one name differ, or "" if
// they agree.
func (t *Spec) Differs(o *Spec) string {
	switch {
	case t.Operation != o.Operation:
		return "operation"
	case t.DType != o.DType:
		return "element type"
	case !slices.Equal(t.Shape, o.Shape):
		return "shape"
	case t.OpID != o.OpID || t.Op != o.Op:
		return "operator"
	case t.Root != o.Root:
		return "root"
	case t.Pre != o.Pre || t.Post != o.Post:
		return "scale"
	case t.Wire != o.Wire || t.Codec != o.Codec || t.Keep != o.Keep:
		return "compression"
	case t.Priority != o.Priority:
		return "priority"
	case !t.sameGroup(o):
		return "group"
	}
	return ""
}

// sameGroup reports whether two specs of one name are in the same group, or both in no group.
func (t *Spec) sameGroup(o *Spec) bool { return t.Group == o.Group && t.GroupSize == o.GroupSize }

// same reports whether a rank's request equals its previous request.
func (r *TensorRequest) same(o *TensorRequest) bool {
	return r.Rows == o.Rows && slices.Equal(r.Splits, o.Splits) && r.Differs(&o.Spec) == ""
}

// Call describes the request in words, such as "allreduce w1 float32 [3 4] sum".
func (t *Spec) Call() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%v %s", t.Operation, t.Name)
	if t.DType.Valid() && !t.Operation.immediate() {
		fmt.Fprintf(&b, " %v %v", t.DType, t.Shape)
	}
	if t.Op != "" {
		b.WriteString(" " + t.Op)
	}
	if t.Root >= 0 {
		fmt.Fprintf(&b, " root %d", t.Root)
	}
	if t.Pre != 1 || t.Post != 1 {
		fmt.Fprintf(&b, " scaled by %g and %g", t.Pre, t.Post)
	}
	if t.Wire != t.DType {
		fmt.Fprintf(&b, " as %v", t.Wire)
	}
	switch t.Codec {
	case TopK:
		fmt.Fprintf(&b, " of each rank's top %d", t.Keep)
	case OneBit:
		b.WriteString(" in one bit")
	}
	if t.Priority != 0 {
		fmt.Fprintf(&b, " priority %d", t.Priority)
	}
	if t.GroupSize > 0 {
		fmt.Fprintf(&b, " in a group of %d", t.GroupSize)
	}
	switch {
	case t.Operation == AddSet:
		fmt.Fprintf(&b, " of ranks %v", t.Shape)
	case t.Set != World && t.Set != SetRegistry:
		fmt.Fprintf(&b, " in process set %d", t.Set)
	}
	return b.String()
}

// valid reports whether a Worker could have sent the spec. Its bounds ensure that sizes in bytes
// fit into an int.
func (t *Spec) valid() bool {
	if !t.Operation.Valid() || t.Name == "" || len(t.Name) > MaxName || len(t.Op) > maxOp {
		return false
	}
	if t.Operation == AddSet || t.Operation == RemoveSet {
		return t.Set == SetRegistry
	}
	if t.Set == SetRegistry || len(t.Shape) > MaxDims || t.GroupSize < 0 || (t.GroupSize == 0) != (t.Group == 0) {
		return false
	}
	if t.Operation != Barrier && (!t.DType.Valid() || !t.Wire.Valid()) {
		return false
	}
	if t.Codec > OneBit || t.Keep < 0 || (t.Codec == TopK) != (t.Keep > 0) || t.Codec != Plain && t.Operation != AllReduce {
		return false
	}
	size := 1
	for i, d := range t.Shape {
		open := i == 0 && d == -1 && (t.Operation == AllGather || t.Operation == AllToAll)
		if d < 0 && !open || d > 0 && size > maxElements/d {
			return false
		}
		size *= max(1, d)
	}
	return true
}

// maxElements ensures that sizes in bytes fit into an int.
const maxElements = 1 << 56
