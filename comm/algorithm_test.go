package comm_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/reduce"
	linked "github.com/tutti-go/tutti/transport/wires"
)

func TestAlgorithmNamesTheChosenOne(t *testing.T) {
	for _, tc := range []struct {
		transport, algorithm, op string
		want                     string // transport to the other rank, algorithm
	}{
		{"", "allreduce:ring", "allreduce", "memory ring"},
		{"tcp", "allreduce:linear,barrier:dissemination", "allreduce", "tcp linear"},
		{"grpc", "", "barrier", "grpc dissemination"},
		{"memory", "", "allsum", "memory "},
	} {
		err := comm.Local(2, func(_ context.Context, c *comm.Comm) error {
			other := 1 - c.Rank()
			if got := c.Bridge().Transport(other) + " " + c.Bridge().Algorithm(tc.op, 1000, comm.Sum); got != tc.want {
				return fmt.Errorf("got %q, want %q", got, tc.want)
			}
			if got := c.Bridge().Transport(c.Rank()) + c.Bridge().Transport(2) + c.Bridge().Transport(-1); got != "self" {
				return fmt.Errorf("got %q for this rank and none, want self", got)
			}
			return nil
		}, comm.WithTransport(linked.All()...), comm.WithTransportName(tc.transport), comm.WithAlgorithm(tc.algorithm))
		if err != nil {
			t.Errorf("%s %s: %v", tc.transport, tc.algorithm, err)
		}
	}
}

func TestACallMayNameItsAlgorithm(t *testing.T) {
	for _, tc := range []struct {
		algorithm string
		op        comm.Op
		want      error
	}{
		{"ring", comm.Sum, nil},
		{"pairwise", comm.Sum, nil},
		{"linear", comm.Max, nil},
		{"", comm.Sum, nil},
		{"shared", comm.Sum, fault.Misuse},
		{"quickest", comm.Sum, fault.Misuse},
	} {
		err := comm.Local(3, func(ctx context.Context, c *comm.Comm) error {
			buf := []int32{int32(c.Rank()), 1, -1, 7}
			err := comm.AllReduce(ctx, c, buf, tc.op, comm.Algorithm(tc.algorithm))
			if tc.want != nil {
				if !errors.Is(err, tc.want) {
					return fmt.Errorf("got %v, want %v", err, tc.want)
				}
				return nil
			}
			want := []int32{3, 3, -3, 21}
			if tc.op.ID() == comm.Max.ID() {
				want = []int32{2, 1, -1, 7}
			}
			if err != nil || !slices.Equal(buf, want) {
				return fmt.Errorf("got %v, error %v, want %v", buf, err, want)
			}
			return nil
		}, comm.WithTransportName("tcp"))
		if err != nil {
			t.Errorf("%q: %v", tc.algorithm, err)
		}
	}
}

func TestRanksThatNameDifferentAlgorithmsGetMismatch(t *testing.T) {
	err := comm.Local(2, func(ctx context.Context, c *comm.Comm) error {
		err := comm.AllReduce(ctx, c, make([]float32, 1000), comm.Sum, comm.Algorithm([]string{"ring", "pairwise"}[c.Rank()]))
		if !errors.Is(err, fault.Mismatch) {
			return fmt.Errorf("got %v, want a mismatch", err)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	err = comm.Local(2, func(ctx context.Context, c *comm.Comm) error {
		err := comm.ReduceScatter(ctx, c, make([]float32, 1+c.Rank()), comm.Sum, comm.From(make([]float32, 3)), comm.Counts([]int{1, 2}), comm.Algorithm([]string{"ring", "linear"}[c.Rank()]))
		if !errors.Is(err, fault.Mismatch) {
			return fmt.Errorf("reduce_scatterv: got %v, want a mismatch", err)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// ReduceScatter must run the algorithm that its call names. The order of the additions shows which
// algorithm ran. With three ranks the linear algorithm adds (0 1) 2, and the pairwise algorithm
// adds 0 (1 2) for rank 0's own chunk.
func TestAReduceScatterMayNameItsAlgorithm(t *testing.T) {
	order := reduce.Func("halve and add", reduce.RankOrder, func(a, b float64) float64 { return a/2 + b })
	for _, tc := range []struct {
		algorithm string
		op        comm.Op
		first     float64 // rank 0's result for the inputs 8, 16 and 32
		want      error
	}{
		{"linear", order, (8./2+16)/2 + 32, nil},
		{"pairwise", order, 8./2 + (16./2 + 32), nil},
		{"ring", comm.Sum, 56, nil},
		{"ring", order, 0, fault.Misuse},
		{"shared", comm.Sum, 0, fault.Misuse},
		{"bruck", comm.Sum, 0, fault.Misuse},
		{"", comm.Sum, 56, nil},
	} {
		err := comm.Local(3, func(ctx context.Context, c *comm.Comm) error {
			x := float64(int(8) << c.Rank())
			counts := []int{1, 2, 0}
			dst := make([]float64, counts[c.Rank()])
			err := comm.ReduceScatter(ctx, c, dst, tc.op, comm.From([]float64{x, x, x}), comm.Counts(counts), comm.Algorithm(tc.algorithm))
			if tc.want != nil {
				if !errors.Is(err, tc.want) {
					return fmt.Errorf("got %v, want %v", err, tc.want)
				}
				return nil
			}
			if err != nil || c.Rank() == 0 && dst[0] != tc.first {
				return fmt.Errorf("got %v, error %v, want %v", dst, err, tc.first)
			}
			return nil
		}, comm.WithTransportName("tcp"))
		if err != nil {
			t.Errorf("%q, %s: %v", tc.algorithm, tc.op.Name(), err)
		}
	}
}

func TestAlgorithmDependsOnTheOperator(t *testing.T) {
	inOrder := reduce.Func("first", reduce.RankOrder, func(a, _ int32) int32 { return a })
	err := comm.Local(2, func(_ context.Context, c *comm.Comm) error {
		for _, tc := range []struct {
			op   comm.Op
			want string
		}{{comm.Sum, "ring"}, {inOrder, "pairwise"}} {
			if got := c.Bridge().Algorithm("allreduce", 1<<20, tc.op); got != tc.want {
				return fmt.Errorf("%s: got %q, want %q", tc.op.Name(), got, tc.want)
			}
		}
		if got := c.Bridge().Algorithm("allsum", 1, comm.Sum); got != "" {
			return fmt.Errorf("of no collective: %q", got)
		}
		return nil
	}, comm.WithParameters(comm.Parameters{NoSharedMemory: true}))
	if err != nil {
		t.Error(err)
	}
}
