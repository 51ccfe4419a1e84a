package ps_test

import (
	"context"
	"fmt"
	"math"
	"testing"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/internal/test/leak"
	"github.com/tutti-go/tutti/ps"
	"github.com/tutti-go/tutti/tensor"
)

// Numbers that 16-bit floats represent exactly arrive exactly, in every mode.
func TestCompressedValuesThatFitArriveExactly(t *testing.T) {
	const n, width = 3000, 4
	everywhere(t, func(t *testing.T, wire string, ranks int, p ps.Placement) {
		for _, d := range []tensor.DType{tensor.F16, tensor.BF16} {
			err := run(wire, ranks, p, func(ctx context.Context, cl *ps.Client) error {
				workers := float64(cl.Workers().Size())
				w, err := ps.Declare[float64](ctx, cl, "w", n, ps.Compress(d), ps.Reduce(comm.Sum))
				if err != nil {
					return err
				}
				src, dst := make([]float64, n), make([]float64, n)
				for i := range src {
					src[i] = float64(i%16) / 4
				}
				for range 3 {
					if err := w.PushPull(ctx, src, dst); err != nil {
						return err
					}
				}
				for i, v := range dst {
					if v != workers*src[i] {
						return fmt.Errorf("%v: element %d: got %v, want %v", d, i, v, workers*src[i])
					}
				}
				table, err := ps.DeclareTable[float64](ctx, cl, "t", width, ps.Compress(d), ps.Reduce(comm.Sum))
				if err != nil {
					return err
				}
				indices := make([]int64, n/width)
				for i := range indices {
					indices[i] = int64(i * i)
				}
				if err := table.Push(ctx, indices, src); err != nil {
					return err
				}
				if err := table.Pull(ctx, indices, dst); err != nil {
					return err
				}
				for i, v := range dst {
					if v != workers*src[i] {
						return fmt.Errorf("%v: element %d of the rows: got %v, want %v", d, i, v, workers*src[i])
					}
				}
				return nil
			}, ps.WithPart(5000))
			if err != nil {
				t.Error(err)
			}
		}
	})
}

// The pushes 1+e and -1 have the sum e, which a rounded push loses. With error feedback, the sum of
// all pushes is off by no more than what the last push has lost.
func TestErrorFeedbackKeepsWhatRoundingLoses(t *testing.T) {
	leak.Check(t)
	const e, pairs = 3.0 / 1024, 64
	for _, d := range []tensor.DType{tensor.F16, tensor.BF16} {
		err := run("memory", 2, ps.Servers(1), func(ctx context.Context, cl *ps.Client) error {
			small := e
			if d == tensor.F16 {
				small = e / 8
			}
			w, err := ps.Declare[float32](ctx, cl, "w", 100, ps.Asynchronous(), ps.Compress(d))
			if err != nil {
				return err
			}
			src, got := make([]float32, 100), make([]float32, 100)
			for push := range 2 * pairs {
				for i := range src {
					src[i] = float32(1 + small)
					if push%2 == 1 {
						src[i] = -1
					}
				}
				if err := w.Push(ctx, src); err != nil {
					return err
				}
			}
			if err := w.Pull(ctx, got); err != nil {
				return err
			}
			for i, v := range got {
				if want := pairs * small; math.Abs(float64(v)-want) > 2*small {
					return fmt.Errorf("%v: element %d: got %v, want %v", d, i, v, want)
				}
			}
			return nil
		}, ps.WithPart(128))
		if err != nil {
			t.Error(err)
		}
	}
}

// Of each part of 32 elements, a push sends a tenth, those of the largest magnitude, and adds the others
// to the next push. The server has the sum of what a serial program selects.
func TestTopKSendsTheLargestElementsAndTheOthersLater(t *testing.T) {
	const n, part = 80, 32
	everywhere(t, func(t *testing.T, wire string, ranks int, p ps.Placement) {
		err := run(wire, ranks, p, func(ctx context.Context, cl *ps.Client) error {
			me := cl.Workers().Rank()
			w, err := ps.Declare[float32](ctx, cl, fmt.Sprint("w", me), n, ps.Asynchronous(), ps.TopK(0.1))
			if err != nil {
				return err
			}
			residual, want, got := make([]float32, n), make([]float32, n), make([]float32, n)
			for step := range 20 {
				src := vector(me, step, n)
				for i, v := range src {
					residual[i] += v
				}
				for first := 0; first < n; first += part {
					some := residual[first:min(n, first+part)]
					for range max(1, len(some)/10) {
						top := 0
						for i, v := range some {
							if math.Abs(float64(v)) > math.Abs(float64(some[top])) {
								top = i
							}
						}
						want[first+top] += some[top]
						some[top] = 0
					}
				}
				if err := w.PushPull(ctx, src, got); err != nil {
					return err
				}
				if err := equal(fmt.Sprintf("step %d", step), got, want); err != nil {
					return err
				}
			}
			return nil
		}, ps.WithPart(4*part))
		if err != nil {
			t.Error(err)
		}
	})
}
