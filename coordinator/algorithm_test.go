package coordinator

import (
	"context"
	"testing"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/tensor"
)

// Tensors are fused as lists where the table is the default one: it names algorithms
// for large vectors that take no lists, and fold as one that does.
func TestByTheDefaultTableTensorsAreReducedWhereTheyLie(t *testing.T) {
	for _, tc := range []struct {
		name string
		opts []comm.Option
		want string
	}{
		{"tcp", []comm.Option{comm.WithTransport("tcp")}, "ring"},
		{"memory", []comm.Option{comm.WithTransport("memory")}, inRankOrder},
		{"memory by messages", []comm.Option{comm.WithTransport("memory"), comm.WithoutSharedMemory()}, "ring"},
	} {
		err := comm.Local(4, func(ctx context.Context, c *comm.Comm) error {
			if got := algorithmOf(c); got != tc.want {
				t.Errorf("%s: rank %d reduces by %q, want %q", tc.name, c.Rank(), got, tc.want)
			}
			list := [][]byte{tensor.Bytes([]float32{1, 2}), tensor.Bytes([]float32{3})}
			return comm.AllReduceListBy(ctx, c, algorithmOf(c), tensor.Float32, list, comm.Sum)
		}, tc.opts...)
		if err != nil {
			t.Errorf("%s: %v", tc.name, err)
		}
	}
}
