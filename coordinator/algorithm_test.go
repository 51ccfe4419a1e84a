package coordinator

import (
	"context"
	"slices"
	"testing"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/tensor"
)

// With the default table, fused tensors must be reduced as lists. For large vectors the table names
// algorithms that do not support lists. But each of them folds in the same order as an algorithm
// that supports lists.
func TestByTheDefaultTableTensorsAreReducedWhereTheyLie(t *testing.T) {
	for _, tc := range []struct {
		name string
		opts []comm.Option
		want string
	}{
		{"tcp", []comm.Option{comm.WithTransportName("tcp")}, "ring"},
		{"memory", []comm.Option{comm.WithTransportName("memory")}, inRankOrder},
		{"memory by messages", []comm.Option{comm.WithTransportName("memory"), comm.WithParameters(comm.Parameters{NoSharedMemory: true})}, "ring"},
	} {
		err := comm.Local(4, func(ctx context.Context, c *comm.Comm) error {
			got, _ := algorithmOf(c)
			if got != tc.want {
				t.Errorf("%s: rank %d reduces by %q, want %q", tc.name, c.Rank(), got, tc.want)
			}
			list := [][]byte{tensor.Bytes([]float32{1, 2}), tensor.Bytes([]float32{3})}
			return c.Bridge().AllReduceList(ctx, got, tensor.Float32, list, comm.Sum)
		}, tc.opts...)
		if err != nil {
			t.Errorf("%s: %v", tc.name, err)
		}
	}
}

// A plain ring must be used if the program asks for it, or if the table names it for large vectors.
// A single vector may be reduced with the segmented ring only if the table names it.
func TestSingleVectorsAreReducedByWhatWasChosenForLargeOnes(t *testing.T) {
	classOf := func(a string) uint8 { return uint8(slices.Index(classes(), a)) }
	for _, tc := range []struct {
		chosen       string
		class        string
		folds, alone string
	}{
		{"ring", DefaultAlgorithm, "ring", "ring"},
		{"segmented_ring", DefaultAlgorithm, "ring", "segmented_ring"},
		{"segmented_ring", Ring, "ring", "ring"},
		{"segmented_ring", ReduceScatterAllGather, "", ""},
		{"pairwise", DefaultAlgorithm, "pairwise", "pairwise"},
		{"recursive_doubling", DefaultAlgorithm, "", ""},
	} {
		err := comm.Local(4, func(_ context.Context, c *comm.Comm) error {
			s := newSetComm(c, ranks(4)).useClass(classOf(tc.class))
			if s.foldAlgorithm != tc.folds || s.vectorAlgorithm != tc.alone {
				t.Errorf("%s, class %s: rank %d folds by %q, and alone by %q; want %q and %q", tc.chosen, tc.class, c.Rank(), s.foldAlgorithm, s.vectorAlgorithm, tc.folds, tc.alone)
			}
			return nil
		}, comm.WithTransportName("memory"), comm.WithParameters(comm.Parameters{NoSharedMemory: true}), comm.WithAlgorithm("allreduce:"+tc.chosen))
		if err != nil {
			t.Errorf("%s: %v", tc.chosen, err)
		}
	}
}
