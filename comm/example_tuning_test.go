package comm_test

import (
	"context"
	"fmt"
	"strings"

	"github.com/tutti-go/tutti/comm"
)

func ExampleComm_Explain() {
	err := comm.Local(4, func(_ context.Context, c *comm.Comm) error {
		text, err := c.Explain("allreduce", 1<<20)
		if err == nil && c.Rank() == 0 {
			lines := strings.SplitAfterN(text, "\n", 3)
			fmt.Print(lines[0], lines[1]) // the other lines predict the cost of each algorithm
		}
		return err
	}, comm.WithAlgorithm("allreduce:ring@128Ki"))
	if err != nil {
		fmt.Println(err)
	}
	// Output:
	// allreduce of 1048576 bytes on 4 ranks over memory
	//   runs ring in segments of 131072 bytes: forced
}

func ExampleAlgorithm() {
	err := comm.Local(3, func(ctx context.Context, c *comm.Comm) error {
		buf := []float32{1, 2}
		if err := comm.AllReduce(ctx, c, buf, comm.Sum, comm.Algorithm("ring")); err != nil {
			return err
		}
		if c.Rank() == 0 {
			fmt.Println(buf)
		}
		return nil
	})
	if err != nil {
		fmt.Println(err)
	}
	// Output:
	// [3 6]
}

// The forced algorithm adds parts of all sizes in the same order.
func ExampleAlgorithm_reduceScatter() {
	counts := []int{1, 2}
	err := comm.Local(2, func(ctx context.Context, c *comm.Comm) error {
		mine := make([]float32, counts[c.Rank()])
		if err := comm.ReduceScatter(ctx, c, mine, comm.Sum, comm.From([]float32{1, 2, 3}), comm.Counts(counts), comm.Algorithm("ring")); err != nil {
			return err
		}
		fmt.Println("rank", c.Rank(), "has", mine)
		return nil
	})
	if err != nil {
		fmt.Println(err)
	}
	// Unordered output:
	// rank 0 has [2]
	// rank 1 has [4 6]
}
