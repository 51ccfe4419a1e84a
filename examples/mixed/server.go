package main

import (
	"context"
	"fmt"
	"io"
	"math"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/fault"
)

// serve is the part of rank 0. It holds the table. In each step it sends rows to every worker
// before it receives gradients. It does both in the order of ranks, so that each run adds in the
// same order.
func serve(ctx context.Context, c *comm.Comm, out io.Writer) error {
	table := firstTable()
	requested := make([][]int32, c.Size())
	for step := range steps {
		for worker := 1; worker < c.Size(); worker++ {
			ids, err := sendRows(ctx, c, step, worker, table)
			if err != nil {
				c.EndStep(uint64(step), err) // tells workers that wait for rows why no rows come
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

// sendRows sends a worker the rows that it requests in this step.
func sendRows(ctx context.Context, c *comm.Comm, step, worker int, table []float64) ([]int32, error) {
	t, err := c.RecvNamed(ctx, uint64(step), worker, wantedRows, nil) // accepts any number of words
	if err != nil {
		return nil, err
	}
	ids := comm.Values[int32](t)
	for _, id := range ids {
		if id < 0 || id >= words {
			return nil, fault.New(fault.Misuse, "send rows", c.Rank(), "word from rank %d: got %d, want 0 to %d", worker, id, words-1)
		}
	}
	picked := pick(table, ids)
	return ids, c.SendNamed(uint64(step), worker, rows, comm.NewTensor(picked, len(ids), dim), nil)
}

// tolerance bounds the distance of the result from the result of one process. Sums in a different
// order differ by less than 1e-12 here. If a gradient is lost, or summed instead of averaged, the
// difference is far larger.
const tolerance = 1e-9

// verify trains the same model in this process alone, and compares the results.
func verify(table, dense []float64, workers int, out io.Writer) error {
	wantTable, wantDense := trainAlone()
	far := distance(append(table, dense...), append(wantTable, wantDense...))
	if !(far <= tolerance) {
		return fmt.Errorf("relative L2 distance to one process: got %.2g, want at most %g", far, tolerance)
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

// distance returns the relative L2 distance of got from want.
func distance(got, want []float64) float64 {
	var off, all float64
	for i := range want {
		off += (got[i] - want[i]) * (got[i] - want[i])
		all += want[i] * want[i]
	}
	return math.Sqrt(off / all)
}
