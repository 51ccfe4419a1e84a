package main

import (
	"bytes"
	"context"
	"io"
	"strings"
	"testing"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/coordinator"
)

func TestRunOverCommunicatorsOfAllSizes(t *testing.T) {
	for _, size := range []int{1, 3, 4} {
		var lines bytes.Buffer // the output of rank 0
		err := comm.Local(size, func(ctx context.Context, c *comm.Comm) error {
			o := defaults
			o.epochs, o.out = 6, t.TempDir()
			out := io.Discard
			if c.Rank() == 0 {
				out = &lines
			}
			return run(ctx, teamOf(c), o, io.Discard, out)
		})
		if err != nil {
			t.Errorf("%d ranks: %v\n%s", size, err, &lines)
		}
	}
}

// The result must also equal that of a single process when a coordinator averages layers by name in
// the background.
func TestRunLayerByLayerByACoordinator(t *testing.T) {
	for _, size := range []int{1, 4} {
		var lines bytes.Buffer
		err := comm.Local(size, func(ctx context.Context, c *comm.Comm) error {
			co, err := coordinator.Start(ctx, c)
			if err != nil {
				return err
			}
			o := defaults
			o.epochs, o.out = 6, t.TempDir()
			out := io.Discard
			if c.Rank() == 0 {
				out = &lines
			}
			if err := run(ctx, teamOf(c).with(co), o, io.Discard, out); err != nil {
				return err
			}
			return co.Close(ctx)
		})
		if err != nil {
			t.Errorf("%d ranks: %v\n%s", size, err, &lines)
		}
		if !strings.Contains(lines.String(), "gradients were in flight for ") {
			t.Errorf("%d ranks: nothing about the overlap in\n%s", size, &lines)
		}
	}
}

// The test uses Sum where Mean is needed. The comparison must detect this mistake.
func TestSumForMeanFailsTheComparison(t *testing.T) {
	const size = 3
	data := trainingSet(t)
	var refused [size]error
	err := comm.Local(size, func(ctx context.Context, c *comm.Comm) error {
		tm := teamOf(c)
		tm.average = func(ctx context.Context, v []float64) error {
			return comm.AllReduce(ctx, c, v, comm.Sum)
		}
		n, err := train(ctx, tm, brief, data, nil)
		if err != nil {
			return err
		}
		if err := identical(ctx, tm, n.Params); err != nil {
			return err
		}
		_, refused[c.Rank()] = matchesSingle(ctx, tm, brief, data, n.Params)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for rank, err := range refused {
		if err == nil || !strings.Contains(err.Error(), "relative distance") {
			t.Errorf("rank %d: got %v, want the distance to be refused", rank, err)
		}
	}
}
