package comm_test

import (
	"context"
	"fmt"

	"github.com/tutti-go/tutti/comm"
)

// Every step sums gradients in the same memory, so a persistent request prepares the sum once.
func ExamplePersistent() {
	err := comm.Local(3, func(ctx context.Context, c *comm.Comm) error {
		grads := make([]float64, 2)
		sum := comm.IAllReduce(c, grads, comm.Sum, comm.Persistent())
		defer sum.Free()
		for step := range 3 {
			grads[0], grads[1] = float64(step), float64(c.Rank())
			if err := sum.Start(ctx); err != nil {
				return err
			}
			// ... compute what does not need grads ...
			if _, err := sum.Wait(ctx); err != nil {
				return err
			}
			if c.Rank() == 0 {
				fmt.Println(grads)
			}
		}
		return nil
	})
	fmt.Println(err)
	// Output:
	// [0 3]
	// [3 3]
	// [6 3]
	// <nil>
}

// In each turn every rank writes its records to a common file, after the records of the ranks
// before it. Each turn runs the same scan with different numbers.
func ExamplePersistent_outOfPlace() {
	err := comm.Local(3, func(ctx context.Context, c *comm.Comm) error {
		records, at := make([]int, 1), make([]int, 1)
		offset := comm.IExScan(c, at, comm.Sum, comm.From(records), comm.Persistent())
		defer offset.Free()
		for turn := range 2 {
			records[0] = 10 * (turn + c.Rank() + 1)
			if err := offset.Start(ctx); err != nil {
				return err
			}
			if _, err := offset.Wait(ctx); err != nil {
				return err
			}
			fmt.Println("turn", turn, "rank", c.Rank(), "writes", records[0], "records from", at[0], "on")
		}
		return nil
	})
	fmt.Println(err)
	// Unordered output:
	// turn 0 rank 0 writes 10 records from 0 on
	// turn 0 rank 1 writes 20 records from 10 on
	// turn 0 rank 2 writes 30 records from 30 on
	// turn 1 rank 0 writes 20 records from 0 on
	// turn 1 rank 1 writes 30 records from 20 on
	// turn 1 rank 2 writes 40 records from 50 on
	// <nil>
}

func ExampleRequest_Start() {
	err := comm.Local(3, func(ctx context.Context, c *comm.Comm) error {
		sum := make([]int, 1)
		upTo := comm.IScan(c, sum, comm.Sum, comm.Persistent())
		defer upTo.Free()
		for turn := range 2 {
			sum[0] = turn + 1 // each start reads the current contents of the buffer
			if err := upTo.Start(ctx); err != nil {
				return err
			}
			if _, err := upTo.Wait(ctx); err != nil {
				return err
			}
			fmt.Println("turn", turn, "ranks 0 to", c.Rank(), "have", sum[0])
		}
		return nil
	})
	fmt.Println(err)
	// Unordered output:
	// turn 0 ranks 0 to 0 have 1
	// turn 0 ranks 0 to 1 have 2
	// turn 0 ranks 0 to 2 have 3
	// turn 1 ranks 0 to 0 have 2
	// turn 1 ranks 0 to 1 have 4
	// turn 1 ranks 0 to 2 have 6
	// <nil>
}

func ExampleStartAll() {
	err := comm.Local(2, func(ctx context.Context, c *comm.Comm) error {
		weights, steps := []float32{float32(c.Rank())}, []int{c.Rank()}
		a := comm.IBroadcast(c, weights, 1, comm.Persistent())
		defer a.Free()
		b := comm.IAllReduce(c, steps, comm.Max, comm.Persistent())
		defer b.Free()
		if err := comm.StartAll(ctx, a, b); err != nil {
			return err
		}
		if err := comm.WaitAll(ctx, a, b); err != nil {
			return err
		}
		if c.Rank() == 0 {
			fmt.Println(weights, steps)
		}
		return nil
	})
	fmt.Println(err)
	// Output:
	// [1] [1]
	// <nil>
}
