package optim_test

import (
	"context"
	"fmt"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/coordinator"
	"github.com/tutti-go/tutti/optim"
	"github.com/tutti-go/tutti/ps"
	"github.com/tutti-go/tutti/ps/optimizer"
)

// Two workers and a server find the minimum of (a-3)² + (b+1)². The first parameter is on the server,
// and moves to the ring after half of the steps.
func Example() {
	err := comm.Local(3, func(ctx context.Context, c *comm.Comm) error {
		return ps.Run(ctx, c, ps.Servers(1), func(ctx context.Context, cl *ps.Client) error {
			co, err := coordinator.Start(ctx, cl.Workers())
			if err != nil {
				return err
			}
			defer co.Close(ctx)
			a, ga := make([]float64, 1), make([]float64, 1)
			b, gb := make([]float64, 1), make([]float64, 1)
			opt, err := optim.New(ctx, co, cl, optimizer.SGD{Rate: 0.1}, []optim.Parameter[float64]{
				{Name: "a", Value: a, Gradient: ga, Way: optim.Servers},
				{Name: "b", Value: b, Gradient: gb, Way: optim.Ring},
			})
			if err != nil {
				return err
			}
			for step := range 100 {
				gb[0] = 2 * (b[0] + 1)
				opt.Ready("b") // on the wire, while the program computes the other gradient
				ga[0] = 2 * (a[0] - 3)
				if step == 50 && cl.Workers().Rank() == 0 {
					if err := opt.Move("a", optim.Ring); err != nil {
						return err
					}
				}
				if err := opt.Step(ctx); err != nil {
					return err
				}
			}
			if cl.Workers().Rank() == 0 {
				side, steps := opt.Way("a")
				fmt.Printf("a=%.3f b=%.3f; a is on the %v after %d steps\n", a[0], b[0], side, steps)
			}
			return nil
		}, nil)
	})
	if err != nil {
		fmt.Println(err)
	}
	// Output: a=3.000 b=-1.000; a is on the ring after 100 steps
}
