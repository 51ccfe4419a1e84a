package comm_test

import (
	"context"
	"fmt"

	"github.com/tutti-go/tutti/comm"
)

// Three ranks go on after the fourth rank has closed. After a crash a program does the same.
func ExampleComm_Shrink() {
	err := comm.Local(4, func(ctx context.Context, c *comm.Comm) error {
		if c.Rank() == 1 {
			return nil
		}
		small, err := c.Shrink(ctx)
		if err != nil {
			return err
		}
		defer small.Close(ctx)
		sum := []int{c.Rank()}
		if err := comm.AllReduce(ctx, small, sum, comm.Sum); err != nil {
			return err
		}
		fmt.Printf("rank %d is rank %d of %d; the sum is %d\n", c.Rank(), small.Rank(), small.Size(), sum[0])
		return nil
	})
	fmt.Println(err)
	// Unordered output:
	// rank 0 is rank 0 of 3; the sum is 5
	// rank 2 is rank 1 of 3; the sum is 5
	// rank 3 is rank 2 of 3; the sum is 5
	// <nil>
}

// Ranks agree on whether all of them have written their checkpoints.
func ExampleComm_Agree() {
	err := comm.Local(3, func(ctx context.Context, c *comm.Comm) error {
		written := uint64(1)
		if c.Rank() == 2 {
			written = 0
		}
		all, err := c.Agree(ctx, written)
		if err != nil {
			return err
		}
		fmt.Printf("rank %d: all have written: %v\n", c.Rank(), all == 1)
		return nil
	})
	fmt.Println(err)
	// Unordered output:
	// rank 0: all have written: false
	// rank 1: all have written: false
	// rank 2: all have written: false
	// <nil>
}

// A rank that cannot go on ends the calls of the other ranks, including calls that do not wait for
// it.
func ExampleComm_Revoke() {
	err := comm.Local(2, func(ctx context.Context, c *comm.Comm) error {
		dup, err := c.Dup(ctx)
		if err != nil {
			return err
		}
		defer dup.Close(ctx)
		if c.Rank() == 0 {
			dup.Revoke()
			return c.Barrier(ctx) // other communicators are still usable
		}
		_, err = comm.Recv(ctx, dup, 0, 0, make([]int, 1))
		fmt.Println("the receive has ended with an error:", err != nil)
		return c.Barrier(ctx)
	})
	fmt.Println(err)
	// Output:
	// the receive has ended with an error: true
	// <nil>
}
