package comm

import (
	"context"
	"errors"
	"testing"

	"github.com/tutti-go/tutti/collective"
	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/tensor"
)

// Every call must refuse buffers that do not fit its counts. Package collective relies on that,
// because it slices buffers by the counts that it gets.
func TestBuffersThatDoNotFitACollectiveAreMisuse(t *testing.T) {
	buf := func(elems int) []byte { return tensor.Bytes(make([]int32, elems)) }
	plans := []struct {
		name string
		plan plan
	}{
		{"a short allreduce", plan{verb: collective.VerbAllReduce, dst: buf(1), src: buf(2)}},
		{"a short allgather", plan{verb: collective.VerbAllGather, dst: buf(5), src: buf(2)}},
		{"a short gather", plan{verb: collective.VerbGather, dst: buf(5), src: buf(2)}},
		{"a short scatter", plan{verb: collective.VerbScatter, dst: buf(2), src: buf(5)}},
		{"a long reduce_scatter", plan{verb: collective.VerbReduceScatter, dst: buf(4), src: buf(9)}},
		{"alltoall of unequal chunks", plan{verb: collective.VerbAllToAll, dst: buf(4), src: buf(4)}},
		{"counts for other ranks", plan{verb: collective.VerbAllGatherV, dst: buf(2), src: buf(1), counts: []int{1, 1}}},
		{"a negative count", plan{verb: collective.VerbReduceScatterV, dst: buf(2), src: buf(1), counts: []int{2, -1, 0}}},
		{"a count whose bytes overflow", plan{verb: collective.VerbAllGatherV, dst: buf(2), src: buf(1), counts: []int{1, 1<<62 + 1, 0}}},
		{"counts whose sum overflows", plan{verb: collective.VerbScatterV, dst: buf(1), src: buf(1), counts: []int{1, 1<<63 - 1, 1<<63 - 1}}},
		{"counts that are too few", plan{verb: collective.VerbAllGatherV, dst: buf(4), src: buf(1), counts: []int{1, 1, 1}}},
		{"a share of another length", plan{verb: collective.VerbAllGatherV, dst: buf(3), src: buf(2), counts: []int{1, 1, 1}}},
	}
	err := Local(3, func(ctx context.Context, c *Comm) error {
		if c.Rank() != 0 {
			return nil
		}
		for _, p := range plans {
			p.plan.dtype = tensor.Int32
			if err := p.plan.checkBuffers(c); !errors.Is(err, fault.Misuse) {
				t.Errorf("%s: got %v, want %v", p.name, err, fault.Misuse)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
