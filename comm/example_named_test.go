package comm_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/fault"
)

// Named tensors are found by step and name, whoever comes first.
func ExampleSendNamed() {
	err := comm.Local(2, func(ctx context.Context, c *comm.Comm) error {
		const step = 7
		if c.Rank() == 0 {
			rows := []float32{1, 2, 3, 4, 5, 6} // tutti's until done has run
			sent := make(chan error, 1)
			err := comm.SendNamed(c, step, 1, "embedding/rows", comm.NewTensor(rows, 3, 2), func(err error) { sent <- err })
			if err != nil {
				return err
			}
			return <-sent
		}
		t, err := comm.RecvNamed(ctx, c, step, 0, "embedding/rows", nil)
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
func ExampleRecvNamed() {
	err := comm.Local(2, func(ctx context.Context, c *comm.Comm) error {
		if c.Rank() == 0 {
			return comm.SendNamed(c, 0, 1, "branch not taken", comm.Tensor{Dead: true}, nil)
		}
		t, err := comm.RecvNamed(ctx, c, 0, 0, "branch not taken", nil)
		fmt.Println(t.Dead)
		return err
	})
	fmt.Println(err)
	// Output:
	// true
	// <nil>
}

func ExampleOnNamed() {
	err := comm.Local(2, func(ctx context.Context, c *comm.Comm) error {
		if c.Rank() == 0 {
			return comm.SendNamed(c, 0, 1, "answer", comm.NewTensor([]int{42}), nil)
		}
		got := make(chan string, 1)
		comm.OnNamed(c, 0, 0, "answer", nil, func(t comm.Tensor, err error) {
			got <- fmt.Sprint(comm.Values[int](t), err) // must not block
		})
		fmt.Println(<-got)
		return nil
	})
	fmt.Println(err)
	// Output:
	// [42] <nil>
	// <nil>
}

// A step is aborted on every rank, and who waits in it learns why.
func ExampleEndStep() {
	err := comm.Local(2, func(ctx context.Context, c *comm.Comm) error {
		const step = 3
		if c.Rank() == 0 {
			comm.EndStep(c, step, errors.New("the batch is corrupt"))
			return comm.Barrier(ctx, c)
		}
		_, err := comm.RecvNamed(ctx, c, step, 0, "rows", nil)
		fmt.Println(errors.Is(err, fault.Canceled))
		return comm.Barrier(ctx, c) // the communicator goes on
	})
	fmt.Println(err)
	// Output:
	// true
	// <nil>
}

// answered is the event that an answer has come.
type answered chan int

// Met implements comm.Event.
func (a answered) Met() bool { return len(a) > 0 }

// A rank that can do nothing until the answer comes looks for it by itself, and then
// sleeps until the callback has run.
func ExampleNewPoller() {
	err := comm.Local(2, func(ctx context.Context, c *comm.Comm) error {
		if c.Rank() == 0 {
			return comm.SendNamed(c, 0, 1, "answer", comm.NewTensor([]int{42}), nil)
		}
		got := make(answered, 1)
		err := comm.OnNamed(c, 0, 0, "answer", nil, func(t comm.Tensor, err error) { got <- comm.Values[int](t)[0] })
		if err != nil {
			return err
		}
		comm.NewPoller(c, 0).Poll(ctx, got)
		fmt.Println(<-got)
		return nil
	})
	fmt.Println(err)
	// Output:
	// 42
	// <nil>
}
