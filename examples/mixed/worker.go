package main

import (
	"context"
	"fmt"
	"io"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/fault"
)

// The names of tensors. A tensor is matched by step, ranks and name, so all workers use the same
// names.
const (
	wantedRows   = "wanted"  // worker to server: the words whose rows it needs
	rows         = "rows"    // server to worker
	rowGradients = "pushed"  // worker to server: gradients of those rows
	weights      = "weights" // first worker to server, after the last step
)

// server is the rank that holds the table.
const server = 0

// work is the part of a worker. The parameter team is the communicator of the workers. Its rank 0
// prints and sends the result.
func work(ctx context.Context, c, team *comm.Comm, average comm.Op, out io.Writer) error {
	dense := firstWeights()
	for step := range steps {
		mine := share(batchOf(step), team.Rank(), team.Size())
		pulled, err := pull(ctx, c, step, wordsOf(mine))
		if err != nil {
			return err
		}
		gradient, ofRows := gradients(dense, pulled, mine)
		// SendNamed never blocks, and reads ofRows until the bytes are sent. This worker never
		// writes to ofRows again, so it need not wait until they are sent.
		err = c.SendNamed(uint64(step), server, rowGradients, comm.NewTensor(ofRows, len(ofRows)/dim, dim), nil)
		if err != nil {
			return err
		}
		// Shares may differ by one example. With this scaling, the mean over the workers is the
		// mean over the batch.
		for i := range gradient {
			gradient[i] *= float64(team.Size()) / batch
		}
		if err := comm.AllReduce(ctx, team, gradient, average); err != nil {
			return err
		}
		move(dense, gradient[:dim], rate)
		if team.Rank() == 0 && (step+1)%showEach == 0 {
			fmt.Fprintf(out, "step %d: mean squared error %.4f\n", step+1, gradient[dim])
		}
	}
	if team.Rank() > 0 {
		return nil
	}
	return c.SendNamed(steps, server, weights, comm.NewTensor(dense), nil)
}

// pull receives the rows of some words from the server.
func pull(ctx context.Context, c *comm.Comm, step int, ids []int32) ([]float64, error) {
	if err := c.SendNamed(uint64(step), server, wantedRows, comm.NewTensor(ids), nil); err != nil {
		return nil, err
	}
	got := make([]float64, len(ids)*dim)
	err := recvInto(ctx, c, step, server, rows, got)
	return got, err
}

// recvInto receives a tensor of exactly len(dst) float64s.
func recvInto(ctx context.Context, c *comm.Comm, step, from int, name string, dst []float64) error {
	t, err := c.RecvNamed(ctx, uint64(step), from, name, comm.NewTensor(dst).Data)
	if err != nil {
		return err
	}
	if got := comm.Values[float64](t); len(got) != len(dst) || t.Dead {
		return fault.New(fault.Mismatch, "recvnamed "+name, c.Rank(), "tensor from rank %d: got %v of shape %v, want %d float64s", from, t.DType, t.Shape, len(dst))
	}
	return nil
}
