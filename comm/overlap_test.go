package comm_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/test/leak"
)

// TestReductionsRefuseBuffersThatOverlap: what one element's fold has written would
// be another's input. One slice for both is in place, and fine. A call that differs
// from one before only in where its buffers lie is looked at, too.
func TestReductionsRefuseBuffersThatOverlap(t *testing.T) {
	leak.Check(t)
	err := comm.Local(2, func(ctx context.Context, c *comm.Comm) error {
		b := make([]float64, 10)
		for i, call := range []func(dst, src []float64) error{
			func(dst, src []float64) error { return comm.AllReduce(ctx, c, dst, comm.Sum, comm.From(src)) },
			func(dst, src []float64) error { return comm.Scan(ctx, c, dst, comm.Sum, comm.From(src)) },
			func(dst, src []float64) error { return comm.ExScan(ctx, c, dst, comm.Sum, comm.From(src)) },
			func(dst, src []float64) error {
				_, err := comm.IAllReduce(c, dst, comm.Sum, comm.From(src)).Wait(ctx)
				return err
			},
		} {
			name := []string{"allreduce", "scan", "exscan", "iallreduce"}[i]
			if err := call(make([]float64, 6), b[4:]); err != nil {
				return fmt.Errorf("%s into another slice: %w", name, err)
			}
			if err := call(b[:6], b[4:]); !errors.Is(err, fault.Misuse) {
				return fmt.Errorf("%s into what it reads: got %v, want %v", name, err, fault.Misuse)
			}
		}
		if c.Rank() == 0 { // elsewhere dst is not looked at, and only the root would be told
			if err := comm.Reduce(ctx, c, b[:6], comm.Sum, 0, comm.From(b[4:])); !errors.Is(err, fault.Misuse) {
				return fmt.Errorf("reduce into what it reads: got %v, want %v", err, fault.Misuse)
			}
		}
		if err := comm.AllReduce(ctx, c, b, comm.Sum, comm.From(b)); err != nil {
			return fmt.Errorf("one slice for both: %w", err)
		}
		return comm.AllReduce(ctx, c, b[:5], comm.Sum, comm.From(b[5:]))
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestInvalidOptionsNameTheirRank: each rank reads its own
// environment, and must not put its error on rank 0.
func TestInvalidOptionsNameTheirRank(t *testing.T) {
	for name, value := range map[string]string{
		"TUTTI_RANK": "1", "TUTTI_SIZE": "2", "TUTTI_ROOT": "127.0.0.1:1", "TUTTI_RACK": "a b",
	} {
		t.Setenv(name, value)
	}
	_, err := comm.Init(t.Context())
	var e *fault.Error
	if !errors.As(err, &e) || e.Kind != fault.Misuse || e.Rank != 1 {
		t.Errorf("got %v, want a misuse that rank 1 noticed", err)
	}
}
