package main

import (
	"context"
	"fmt"
	"io"
	"math"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/fault"
)

// serve is rank 0's part: it holds the table, and in each step hands out rows to
// every worker before it takes the gradients of any. Both are done in the order
// of the ranks, so that each run adds up in the same order, whoever comes first.
func serve(ctx context.Context, c *comm.Comm, out io.Writer) error {
	table := firstTable()
	requested := make([][]int32, c.Size())
	for step := range steps {
		for worker := 1; worker < c.Size(); worker++ {
			ids, err := sendRows(ctx, c, step, worker, table)
			if err != nil {
				c.EndStep(uint64(step), err) // workers that wait for rows learn why none come
				return err
			}
			requested[worker] = ids
		}
		for worker := 1; worker < c.Size(); worker++ {
			ofRows := make([]float64, len(requested[worker])*dim)
			if err := recvInto(ctx, c, step, worker, rowGradients, ofRows); err != nil {
				return err
			}
			descend(table, ofRows, requested[worker])
		}
	}
	dense := make([]float64, dim)
	if err := recvInto(ctx, c, steps, 1, weights, dense); err != nil {
		return err
	}
	return verify(table, dense, c.Size()-1, out)
}

// sendRows sends a worker the rows that it wants in this step.
func sendRows(ctx context.Context, c *comm.Comm, step, worker int, table []float64) ([]int32, error) {
	t, err := c.RecvNamed(ctx, uint64(step), worker, wantedRows, nil) // as many as come
	if err != nil {
		return nil, err
	}
	ids := comm.Values[int32](t)
	for _, id := range ids {
		if id < 0 || id >= words {
			return nil, fault.New(fault.Misuse, "hand out", c.Rank(), "rank %d wants word %d of %d", worker, id, words)
		}
	}
	picked := pick(table, ids)
	return ids, c.SendNamed(uint64(step), worker, rows, comm.NewTensor(picked, len(ids), dim), nil)
}

// tolerance is how far the result may be from that of one process. Sums in
// another order differ by less than 1e-12 here; a gradient that is summed where it
// should be averaged, or lost, leads elsewhere altogether.
const tolerance = 1e-9

// verify trains the same model in this process alone, and compares.
func verify(table, dense []float64, workers int, out io.Writer) error {
	wantTable, wantDense := trainAlone()
	far := distance(append(table, dense...), append(wantTable, wantDense...))
	if !(far <= tolerance) {
		return fmt.Errorf("the result is %.2g away from that of one process (relative L2 distance, at most %g)", far, tolerance)
	}
	fmt.Fprintf(out, "%d workers and a server learnt what one process learns: relative L2 distance %.1g (at most %g)\n", workers, far, tolerance)
	return nil
}

// trainAlone is the whole training without any communication.
func trainAlone() (table, dense []float64) {
	table, dense = firstTable(), firstWeights()
	for step := range steps {
		examples := batchOf(step)
		ids := wordsOf(examples)
		gradient, ofRows := gradients(dense, pick(table, ids), examples)
		descend(table, ofRows, ids)
		move(dense, gradient[:dim], rate/batch)
	}
	return table, dense
}

// distance is the relative L2 distance of got from want.
func distance(got, want []float64) float64 {
	var off, all float64
	for i := range want {
		off += (got[i] - want[i]) * (got[i] - want[i])
		all += want[i] * want[i]
	}
	return math.Sqrt(off / all)
}
