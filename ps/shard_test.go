package ps

import (
	"encoding/binary"
	"errors"
	"testing"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/ps/internal/message"
	"github.com/tutti-go/tutti/ps/internal/part"
	"github.com/tutti-go/tutti/ps/internal/storage"
	"github.com/tutti-go/tutti/tensor"
)

// A version is lost because the memory is used up. The next version, which has no rows, needs none:
// its pushes were on the server already, and another worker has closed.
func TestASynchronousPartKeepsTheErrorOfALostVersion(t *testing.T) {
	for _, mode := range []part.Mode{part.Synchronous, part.Asynchronous, part.Bounded} {
		table, err := storage.NewTable(storage.Spec{Name: "t", DType: tensor.Float32, Initial: storage.Zeros(), Budget: storage.NewBudget(20_000)}, 1)
		if err != nil {
			t.Fatal(err)
		}
		p := &shard{spec: message.Spec{Name: "t", Table: true, DType: tensor.Float32, Size: 1, Mode: mode}, table: table, jobs: make(map[uint64]*job)}
		complete := func(rows int) {
			j := &job{part: p, q: message.Request{Kind: message.Push, Rows: rows}, body: tensor.Bytes(make([]int64, 2*rows))[:rows*(indexSize+4)]}
			for i := range rows {
				binary.NativeEndian.PutUint64(j.body[indexSize*i:], uint64(i))
			}
			p.fold(j, true)
			p.complete(1)
		}
		complete(10_000)
		if !errors.Is(p.failure, fault.Exhausted) {
			t.Fatalf("mode %d: got %v after a version that needs too much memory, want fault.Exhausted", mode, p.failure)
		}
		complete(0)
		if kept := p.failure != nil; kept != (mode == part.Synchronous) {
			t.Errorf("mode %d: got %v after the next version, want the error to stay in a synchronous part only", mode, p.failure)
		}
	}
}
