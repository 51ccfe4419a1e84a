package elastic_test

import (
	"context"
	"fmt"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/elastic"
)

// The training needs no rollback, because its state changes only in the second function of Step.
func ExampleRun() {
	weight, data := []float64{0}, elastic.NewSampler(100, 1)
	state := elastic.States(elastic.Tensors(weight), data)
	err := elastic.Run(context.Background(), state, func(ctx context.Context, job *elastic.Job) error {
		gradient := []float64{0} // what belongs to one attempt is made here
		for data.Epoch() < 20 {
			mine, total := data.Batch(job.Comm(), 25)
			compute := func(ctx context.Context) error {
				gradient[0] = 0
				for range mine {
					gradient[0] += (weight[0] - 3) / float64(total)
				}
				return comm.AllReduce(ctx, job.Comm(), gradient, comm.Sum)
			}
			apply := func() {
				weight[0] -= 0.2 * gradient[0]
				data.Advance(total)
			}
			if err := job.Step(ctx, compute, apply); err != nil {
				return err
			}
			if err := job.Commit(ctx); err != nil { // lets processes join
				return err
			}
		}
		return nil
	})
	fmt.Printf("%.3f %v\n", weight[0], err)
	// Output: 3.000 <nil>
}
