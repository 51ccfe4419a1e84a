package storage

import (
	"io"
	"sync/atomic"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/ps/optimizer"
	"github.com/tutti-go/tutti/tensor"
)

// A Spec describes the elements of a vector or a table. Copies of a part on several servers have
// equal Specs. After the same calls they hold the same bits.
type Spec struct {
	Name      string              // of the tensor; the Initializer's results depend on it
	DType     tensor.DType        // of values and gradients
	Optimizer optimizer.Optimizer // for Update, of float32 and float64; nil: none
	Initial   Initializer         // the zero Initializer is Zeros
	Budget    *Budget             // bounds the memory; nil: no bound
}

// check returns fault.Misuse for a Spec that no vector or table can have.
func (s Spec) check() error {
	if !s.DType.Valid() {
		return misuse("%s: got element type %v", s.Name, s.DType)
	}
	if s.Optimizer != nil {
		if err := optimizer.Check(s.Optimizer, s.DType); err != nil {
			return misuse("%s: %w", s.Name, fault.Cause(err))
		}
	}
	return s.Initial.check(s.DType)
}

// state returns the State of the Optimizer.
func (s Spec) state() optimizer.State {
	if s.Optimizer == nil {
		return optimizer.State{}
	}
	return s.Optimizer.State()
}

// A Batch holds rows of a push or an assignment. Values has len(Indices) rows, in the order of
// Indices, aligned for the element type. An index may occur several times.
type Batch struct {
	Indices []int64
	Values  []byte
}

// A Save holds the state of a vector or a table at the time when it was made. While one goroutine
// writes it, the owner may change the vector or the table.
type Save interface {
	// WriteTo writes the state in the form that Load reads, in writes of at most 1 MiB. It may be
	// called once.
	WriteTo(w io.Writer) (int64, error)

	// Close ends the Save. It must be called, also without WriteTo, but not during it.
	Close()
}

// A Budget bounds the memory of several vectors and tables together. Several goroutines may use it
// at the same time.
type Budget struct {
	limit int64
	used  atomic.Int64
}

// NewBudget returns a Budget of this many bytes.
func NewBudget(limit int64) *Budget { return &Budget{limit: limit} }

// Used returns the number of bytes in use.
func (b *Budget) Used() int64 { return b.used.Load() }

// claim claims n bytes for the named tensor, or returns fault.Exhausted.
func (b *Budget) claim(name string, n int64) error {
	if b == nil {
		return nil
	}
	if used := b.used.Add(n); used > b.limit {
		b.used.Add(-n)
		return fault.New(fault.Exhausted, "ps", -1, "memory of the server: %s needs %d bytes more, and %d of %d are in use; "+
			"raise the server's bound on memory, or add a server", name, n, used-n, b.limit)
	}
	return nil
}

// give returns n bytes.
func (b *Budget) give(n int64) {
	if b != nil {
		b.used.Add(-n)
	}
}

// A Buffer is memory with a number of holders. Several goroutines may hold and release it.
type Buffer struct {
	bytes   []byte
	holders atomic.Int32
	free    func()
}

// NewBuffer returns a Buffer of these bytes with one holder. The last Release calls free, if it is
// not nil.
func NewBuffer(bytes []byte, free func()) *Buffer {
	b := &Buffer{bytes: bytes, free: free}
	b.holders.Store(1)
	return b
}

// Bytes returns the memory. It does not change while there are two holders or more.
func (b *Buffer) Bytes() []byte { return b.bytes }

// Retain adds a holder. A holder calls it.
func (b *Buffer) Retain() { b.holders.Add(1) }

// Release removes a holder.
func (b *Buffer) Release() {
	if n := b.holders.Add(-1); n < 0 {
		panic(misuse("Buffer: released more often than retained"))
	} else if n == 0 && b.free != nil {
		b.free()
	}
}

// shared reports whether there are other holders than the caller.
func (b *Buffer) shared() bool { return b.holders.Load() > 1 }

// misuse returns an error of kind fault.Misuse.
func misuse(format string, args ...any) *fault.Error {
	return fault.New(fault.Misuse, "ps", -1, format, args...)
}
