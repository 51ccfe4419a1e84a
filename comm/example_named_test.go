package comm_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/fault"
)

// Named tensors are found by step and name, whether the send or the receive comes first.
func ExampleComm_SendNamed() {
	err := comm.Local(2, func(ctx context.Context, c *comm.Comm) error {
		const step = 7
		if c.Rank() == 0 {
			// The library owns rows until the callback done has run.
			rows := []float32{1, 2, 3, 4, 5, 6}
			sent := make(chan error, 1)
			err := c.SendNamed(step, 1, "embedding/rows", comm.NewTensor(rows, 3, 2), func(err error) { sent <- err })
			if err != nil {
				return err
			}
			return <-sent
		}
		t, err := c.RecvNamed(ctx, step, 0, "embedding/rows", nil)
		if err != nil {
			return err
		}
		fmt.Println(t.DType, t.Shape, comm.Values[float32](t))
		return nil
	})
	fmt.Println(err)
	// Output:
	// float32 [3 2] [1 2 3 4 5 6]
	// <nil>
}

// A dead tensor says that its producer did not run.
func ExampleComm_RecvNamed() {
	err := comm.Local(2, func(ctx context.Context, c *comm.Comm) error {
		if c.Rank() == 0 {
			return c.SendNamed(0, 1, "branch not taken", comm.Tensor{Dead: true}, nil)
		}
		t, err := c.RecvNamed(ctx, 0, 0, "branch not taken", nil)
		fmt.Println(t.Dead)
		return err
	})
	fmt.Println(err)
	// Output:
	// true
	// <nil>
}

// A prepared receive uses one buffer for all steps. The sender may write into that buffer.
func ExampleComm_PrepareRecvNamed() {
	const steps = 3
	err := comm.Local(2, func(ctx context.Context, c *comm.Comm) error {
		if c.Rank() == 0 {
			weights := make([]float32, 4)
			for step := range uint64(steps) {
				weights[0] = float32(step)
				sent := make(chan error, 1)
				if err := c.SendNamed(step, 1, "weights", comm.NewTensor(weights), func(err error) { sent <- err }); err != nil {
					return err
				}
				if err := <-sent; err != nil {
					return err
				}
			}
			return nil
		}
		stop, err := c.PrepareRecvNamed(0, "weights", make([]byte, 16))
		if err != nil {
			return err
		}
		for step := range uint64(steps) {
			t, err := c.RecvNamed(ctx, step, 0, "weights", nil)
			if err != nil {
				return err
			}
			fmt.Println(comm.Values[float32](t))
			t.Release() // the sender may now write the next step's tensor
		}
		return stop(ctx)
	})
	fmt.Println(err)
	// Output:
	// [0 0 0 0]
	// [1 0 0 0]
	// [2 0 0 0]
	// <nil>
}

func ExampleComm_OnNamed() {
	err := comm.Local(2, func(ctx context.Context, c *comm.Comm) error {
		if c.Rank() == 0 {
			return c.SendNamed(0, 1, "answer", comm.NewTensor([]int{42}), nil)
		}
		got := make(chan string, 1)
		c.OnNamed(0, 0, "answer", nil, func(t comm.Tensor, err error) {
			got <- fmt.Sprint(comm.Values[int](t), err) // the callback must not block
		})
		fmt.Println(<-got)
		return nil
	})
	fmt.Println(err)
	// Output:
	// [42] <nil>
	// <nil>
}

// Rank 0 aborts a step, which aborts it on every rank. A receive of that step fails.
func ExampleComm_EndStep() {
	err := comm.Local(2, func(ctx context.Context, c *comm.Comm) error {
		const step = 3
		if c.Rank() == 0 {
			c.EndStep(step, errors.New("the batch is corrupt"))
			return c.Barrier(ctx)
		}
		_, err := c.RecvNamed(ctx, step, 0, "rows", nil)
		fmt.Println(errors.Is(err, fault.Canceled))
		return c.Barrier(ctx) // the communicator is still usable
	})
	fmt.Println(err)
	// Output:
	// true
	// <nil>
}
