package comm_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/fault"
)

// Each row of a grid of ranks computes its own sum.
func ExampleComm_Split() {
	err := comm.Local(4, func(ctx context.Context, c *comm.Comm) error {
		row, err := c.Split(ctx, c.Rank()/2, c.Rank())
		if err != nil {
			return err
		}
		defer row.Close(ctx)
		sum := []int{c.Rank()}
		if err := comm.AllReduce(ctx, row, sum, comm.Sum); err != nil {
			return err
		}
		fmt.Printf("rank %d is rank %d of %d in its row, whose sum is %d\n", c.Rank(), row.Rank(), row.Size(), sum[0])
		return nil
	})
	fmt.Println(err)
	// Unordered output:
	// rank 0 is rank 0 of 2 in its row, whose sum is 1
	// rank 1 is rank 1 of 2 in its row, whose sum is 1
	// rank 2 is rank 0 of 2 in its row, whose sum is 5
	// rank 3 is rank 1 of 2 in its row, whose sum is 5
	// <nil>
}

// A message on a Dup does not match a receive on the original communicator, even with the same rank
// and tag.
func ExampleComm_Dup() {
	err := comm.Local(2, func(ctx context.Context, c *comm.Comm) error {
		other, err := c.Dup(ctx)
		if err != nil {
			return err
		}
		defer other.Close(ctx)
		if c.Rank() == 0 {
			if err := comm.Send(ctx, c, 1, 0, []byte("first")); err != nil {
				return err
			}
			return comm.Send(ctx, other, 1, 0, []byte("second"))
		}
		a, b := make([]byte, 6), make([]byte, 5)
		if _, err := comm.Recv(ctx, other, 0, 0, a); err != nil {
			return err
		}
		if _, err := comm.Recv(ctx, c, 0, 0, b); err != nil {
			return err
		}
		fmt.Printf("%s, %s\n", a, b)
		return nil
	})
	fmt.Println(err)
	// Output:
	// second, first
	// <nil>
}

// Ranks 3 and 1 form a communicator, in this order. The other ranks need not call Sub.
func ExampleComm_Sub() {
	err := comm.Local(4, func(ctx context.Context, c *comm.Comm) error {
		if c.Rank() != 1 && c.Rank() != 3 {
			return nil
		}
		pair, err := c.Sub(ctx, 3, 1)
		if err != nil {
			return err
		}
		defer pair.Close(ctx)
		ranks := make([]int, 2)
		if err := comm.AllGather(ctx, pair, ranks, comm.From([]int{c.Rank()})); err != nil {
			return err
		}
		if pair.Rank() == 0 {
			fmt.Println(ranks, pair.WorldRank(0), pair.WorldRank(1))
		}
		return nil
	})
	fmt.Println(err)
	// Output:
	// [3 1] 3 1
	// <nil>
}

// A rank that closes still delivers the messages that it sent before. A call that needs more from
// that rank gets fault.Closed.
func ExampleComm_Close() {
	err := comm.Local(2, func(ctx context.Context, c *comm.Comm) error {
		if c.Rank() == 0 {
			if err := comm.Send(ctx, c, 1, 0, []int{1}); err != nil {
				return err
			}
			return c.Close(ctx)
		}
		buf := make([]int, 1)
		_, first := comm.Recv(ctx, c, 0, 0, buf)
		_, second := comm.Recv(ctx, c, 0, 0, buf)
		fmt.Println(first, buf, errors.Is(second, fault.Closed))
		return nil
	})
	fmt.Println(err)
	// Output:
	// <nil> [1] true
	// <nil>
}

func ExampleComm_Abort() {
	err := comm.Local(2, func(ctx context.Context, c *comm.Comm) error {
		if c.Rank() == 1 {
			c.Abort(errors.New("the disk is full"))
			return nil
		}
		err := c.Barrier(context.Background())
		fmt.Println(errors.Is(err, fault.PeerLost))
		return nil
	})
	fmt.Println(err)
	// Output:
	// true
	// <nil>
}
