package main

import (
	"context"
	"fmt"
	"io"
	"math"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/ps"
	"github.com/tutti-go/tutti/ps/optimizer"
)

// work runs a worker. Worker 0 prints and verifies.
func work(ctx context.Context, cl *ps.Client, average comm.Op, out io.Writer) error {
	team := cl.Workers()
	dense := firstWeights()
	// The server adds up the pushes of all workers, and then applies the sum to the rows.
	table, err := ps.DeclareTable[float64](ctx, cl, "embeddings", dim,
		ps.Rows(words),
		ps.Initial(ps.Uniform(-1, 1, 3)),
		ps.Reduce(comm.Sum),
		ps.Optimizer(optimizer.SGD{Rate: rate / batch}))
	if err != nil {
		return err
	}
	first, err := pullAll(ctx, table)
	if err != nil {
		return err
	}
	for step := range steps {
		mine := share(batchOf(step), team.Rank(), team.Size())
		ids := wordsOf(mine)
		rows := make([]float64, len(ids)*dim)
		if err := table.Pull(ctx, ids, rows); err != nil {
			return err
		}
		gradient, ofRows := gradients(dense, rows, mine)
		push := table.IPush(ids, ofRows) // a word may occur twice: its gradients are added
		// Shares may differ by one example. With this scaling, the mean over the workers is the
		// mean over the batch.
		for i := range gradient {
			gradient[i] *= float64(team.Size()) / batch
		}
		if err := comm.AllReduce(ctx, team, gradient, average); err != nil {
			return err
		}
		move(dense, gradient[:dim], rate)
		if err := push.Wait(ctx); err != nil {
			return err
		}
		if team.Rank() == 0 && (step+1)%showEach == 0 {
			fmt.Fprintf(out, "step %d: mean squared error %.4f\n", step+1, gradient[dim])
		}
	}
	if team.Rank() > 0 {
		return nil
	}
	last, err := pullAll(ctx, table)
	if err != nil {
		return err
	}
	return verify(first, last, dense, team.Size(), out)
}

// pullAll returns all rows of the table. Before the first push, these are the initial values.
func pullAll(ctx context.Context, table *ps.Table[float64]) ([]float64, error) {
	ids := make([]int64, words)
	for i := range ids {
		ids[i] = int64(i)
	}
	rows := make([]float64, words*dim)
	return rows, table.Pull(ctx, ids, rows)
}

// tolerance bounds the distance of the result from that of one process. A different order of sums
// changes the result by less than 1e-12 here. If a gradient is lost, or summed instead of averaged,
// the difference is far larger.
const tolerance = 1e-9

// verify trains the same model in this process alone, and compares the results.
func verify(first, table, dense []float64, workers int, out io.Writer) error {
	wantTable, wantDense := trainAlone(first)
	far := distance(append(table, dense...), append(wantTable, wantDense...))
	if !(far <= tolerance) {
		return fmt.Errorf("relative L2 distance to one process: got %.2g, want at most %g", far, tolerance)
	}
	fmt.Fprintf(out, "%d workers and a server learnt what one process learns: relative L2 distance %.1g (at most %g)\n", workers, far, tolerance)
	return nil
}

// trainAlone is the whole training without any communication.
func trainAlone(table []float64) (_, dense []float64) {
	dense = firstWeights()
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
