package ps_test

import (
	"context"
	"fmt"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/ps"
	"github.com/tutti-go/tutti/ps/optimizer"
)

// Two workers push gradients to one server, which makes steps of an optimizer with their mean.
func ExampleRun() {
	err := comm.Local(3, func(ctx context.Context, c *comm.Comm) error {
		return ps.Run(ctx, c, ps.Servers(1), func(ctx context.Context, cl *ps.Client) error {
			w, err := ps.Declare[float32](ctx, cl, "w", 2, ps.Optimizer(optimizer.SGD{Rate: 0.5}))
			if err != nil {
				return err
			}
			gradient := []float32{1, float32(2 * cl.Workers().Rank())}
			values := make([]float32, 2)
			for range 3 {
				if err := w.PushPull(ctx, gradient, values); err != nil {
					return err
				}
			}
			if cl.Workers().Rank() == 0 {
				fmt.Println(values)
			}
			return nil
		}, nil)
	})
	if err != nil {
		fmt.Println(err)
	}
	// Output: [-1.5 -1.5]
}

// A step uses only some rows of a table. Rows exist from the first push on.
func ExampleDeclareTable() {
	err := comm.Local(2, func(ctx context.Context, c *comm.Comm) error {
		return ps.Run(ctx, c, ps.Everywhere(), func(ctx context.Context, cl *ps.Client) error {
			words, err := ps.DeclareTable[float64](ctx, cl, "words", 2, ps.Reduce(comm.Sum), ps.Initial(ps.Constant(10)))
			if err != nil {
				return err
			}
			// Both workers push row 7, and each one pushes a row of its own.
			mine := int64(100 + cl.Workers().Rank())
			if err := words.Push(ctx, []int64{7, mine}, []float64{1, 2, 3, 4}); err != nil {
				return err
			}
			rows := make([]float64, 6)
			if err := words.Pull(ctx, []int64{7, 101, 8}, rows); err != nil {
				return err
			}
			if cl.Workers().Rank() == 0 {
				fmt.Println(rows)
			}
			return nil
		}, nil)
	})
	if err != nil {
		fmt.Println(err)
	}
	// Output: [12 14 13 14 10 10]
}
