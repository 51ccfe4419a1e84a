package coordinator_test

import (
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/coordinator"
	"github.com/tutti-go/tutti/internal/test/leak"
	"github.com/tutti-go/tutti/reduce"
	"github.com/tutti-go/tutti/tensor"
)

// A reductionCase holds the conditions that determine the order of the folds.
type reductionCase struct {
	name     string
	op       comm.Op
	opts     []comm.Option
	class    string
	callOpts []coordinator.CallOption
}

// reductionCases returns a test case for every way to fold, including those in which one call folds
// the chunks and another gathers them. The cases "by rules" use tuning rules that choose the
// algorithm by the size of the vector. For large vectors the rules choose a ring, which does not
// fold in rank order.
func reductionCases(t *testing.T) []reductionCase {
	t.Helper()
	rules := filepath.Join(t.TempDir(), "tuning.json")
	text := `{"tutti_tuning": 1, "gamma_us_per_MiB": 1000, "links": [{"wire": "memory", "alpha_us": 100, "beta_us_per_MiB": 0}], "rules": [
{"op": "reduce_scatterv", "algorithm": "linear", "up_to_bytes": 10000},
{"op": "reduce_scatterv", "algorithm": "recursive_halving", "up_to_bytes": 40000},
{"op": "reduce_scatterv", "algorithm": "ring"}]}`
	if err := os.WriteFile(rules, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	inOrder := reduce.Func("sum in order", reduce.RankOrder, func(a, b float32) float32 { return a + b })
	forced := func(list string) []comm.Option { return []comm.Option{comm.WithAlgorithm(list)} }
	tuned := []comm.Option{comm.WithParameters(comm.Parameters{Tuning: rules})}
	return []reductionCase{
		{name: "by the table", op: comm.Sum},
		{name: "a mean", op: comm.Mean},
		{name: "in the order of the ranks", op: inOrder},
		{name: "by a ring", op: comm.Sum, class: coordinator.Ring},
		{name: "in two calls", op: comm.Sum, class: coordinator.ReduceScatterAllGather},
		{name: "a mean in two calls", op: comm.Mean, class: coordinator.ReduceScatterAllGather},
		{name: "compressed, in two calls", op: comm.Sum, class: coordinator.ReduceScatterAllGather, callOpts: []coordinator.CallOption{coordinator.Compress(tensor.BF16)}},
		{name: "in two calls, by rules", op: comm.Sum, class: coordinator.ReduceScatterAllGather, opts: tuned},
		{name: "in the order of the ranks, by rules", op: inOrder, opts: tuned},
		{name: "by a tree", op: comm.Sum, opts: forced("allreduce:recursive_doubling")},
		{name: "by a tree, chunks by a ring", op: comm.Sum, opts: forced("allreduce:recursive_doubling,reduce_scatterv:ring")},
		{name: "by Rabenseifner's", op: comm.Mean, opts: forced("allreduce:rabenseifner")},
		{name: "across", op: inOrder, opts: forced("allreduce:pairwise")},
		{name: "Adasum", op: coordinator.Adasum},
	}
}

// fusedSizes returns sizes of small tensors. Each tensor has at most 8 KiB, and all together have
// 84 KB.
func fusedSizes() []int {
	sizes := []int{1000, 1, 3, 64}
	for range 10 {
		sizes = append(sizes, 1999)
	}
	return sizes
}

// A tensor must have the same bits alone, with a few other tensors, and in a large Bucket, whatever
// algorithm folds it.
func TestNoWayOfFoldingLetsFusionChangeABit(t *testing.T) {
	const some, all = 20_000, 64 << 20
	for _, w := range reductionCases(t) {
		for _, on := range []struct {
			ranks  int
			share  bool
			fusion []int
		}{{4, false, []int{some, all}}, {5, false, []int{some, all}}, {4, true, []int{all}}} {
			t.Run(fmt.Sprintf("%s/%d/shared %v", w.name, on.ranks, on.share), func(t *testing.T) {
				leak.Check(t)
				alone, together := w.runFused(t, on.ranks, on.share, 0)
				if together != 1 {
					t.Fatalf("without fusion %d tensors were carried out together", together)
				}
				for _, fusion := range on.fusion {
					got, together := w.runFused(t, on.ranks, on.share, fusion)
					if fusion == all && together != len(got) || together < 2 {
						t.Fatalf("%d bytes: no more than %d of %d tensors were carried out together: this compares nothing", fusion, together, len(got))
					}
					sameBits(t, fusion, alone, got)
				}
			})
		}
	}
}

func sameBits(t *testing.T, fusion int, alone, fused [][]float32) {
	t.Helper()
	differ, first := 0, ""
	for i := range alone {
		for j, v := range alone[i] {
			if math.Float32bits(v) == math.Float32bits(fused[i][j]) {
				continue
			}
			if differ++; differ == 1 {
				first = fmt.Sprintf("tensor %d, element %d is %v alone, and %v fused", i, j, v, fused[i][j])
			}
		}
	}
	if differ > 0 {
		t.Errorf("fused up to %d bytes, %d elements have other bits: %s", fusion, differ, first)
	}
}

// runFused returns rank 0's results, and the largest number of tensors that were executed together.
// It submits the tensors as a group, so that all of them are ready at once.
func (w *reductionCase) runFused(t *testing.T, n int, share bool, fusion int) (results [][]float32, together int) {
	t.Helper()
	by := w.class
	if by == "" {
		by = coordinator.DefaultAlgorithm
	}
	opts := append([]comm.Option{comm.WithTransportName("memory")}, w.opts...)
	if !share {
		opts = append(opts, comm.WithParameters(comm.Parameters{NoSharedMemory: true}))
	}
	program := func(ctx context.Context, c *comm.Comm, co *coordinator.Coordinator) error {
		coordinator.Record(co)
		var bufs [][]float32
		var hs []*coordinator.Handle
		co.Group(func(g *coordinator.TensorGroup) {
			for i, size := range fusedSizes() {
				bufs = append(bufs, convert[float32](gradient(size, c.Rank(), i)))
				hs = append(hs, coordinator.AllReduce(g, fmt.Sprint("w", i), bufs[i], w.op, w.callOpts...))
			}
		})
		if err := coordinator.WaitAll(ctx, hs...); err != nil {
			return err
		}
		carried := coordinator.Sequence(co)
		for i, b := range bufs {
			if err := sameOnAll(ctx, c, fmt.Sprint("w", i), b); err != nil {
				return err
			}
		}
		if c.Rank() != 0 {
			return nil
		}
		results = bufs
		for _, done := range carried {
			_, text, _ := strings.Cut(done.What, ", of ")
			var of int
			if _, err := fmt.Sscanf(text, "%d together", &of); err != nil {
				return fmt.Errorf("%q: %w", done.What, err)
			}
			together = max(together, of)
		}
		return nil
	}
	set := coordinator.Settings{Cycle: time.Millisecond, Fusion: fusion, Cache: true, Algorithm: by}
	if err := comm.Local(n, with(program, coordinator.WithSettings(set)), opts...); err != nil {
		t.Fatal(err)
	}
	return results, together
}
