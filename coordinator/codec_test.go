package coordinator_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/coordinator"
	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/test/leak"
	"github.com/tutti-go/tutti/tensor"
	linked "github.com/tutti-go/tutti/transport/wires"
)

// A plainCodec is the reference for a codec. It returns the part of a vector that a rank sends.
type plainCodec func(v []float64) []float64

func plainTop(keep int) plainCodec {
	return func(v []float64) []float64 {
		order := make([]int, len(v))
		for i := range order {
			order[i] = i
		}
		slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(math.Abs(v[b]), math.Abs(v[a])) })
		out := make([]float64, len(v))
		for _, i := range order[:min(keep, len(v))] {
			out[i] = v[i]
		}
		return out
	}
}

func plainBits(v []float64) []float64 {
	var sums, counts [2]float64
	side := func(x float64) int {
		if x < 0 {
			return 1
		}
		return 0
	}
	for _, x := range v {
		sums[side(x)] += x
		counts[side(x)]++
	}
	out := make([]float64, len(v))
	for i, x := range v {
		out[i] = sums[side(x)] / counts[side(x)]
	}
	return out
}

// A codecCase is a codec with its reference.
type codecCase[T float32 | float64] struct {
	name   string
	plain  plainCodec
	option func(residual []T) coordinator.CallOption
}

func codecs[T float32 | float64]() []codecCase[T] {
	top := func(keep int) func([]T) coordinator.CallOption {
		return func(residual []T) coordinator.CallOption { return coordinator.TopK(keep, residual) }
	}
	return []codecCase[T]{
		{"top 1", plainTop(1), top(1)}, {"top 7", plainTop(7), top(7)}, {"top all", plainTop(1 << 30), top(1 << 30)},
		{"one bit", plainBits, coordinator.OneBit[T]},
	}
}

func TestCodedGradientsAreThoseOfAPlainReferenceAndEqualOnAllRanks(t *testing.T) {
	for _, wire := range []string{"memory", "tcp"} {
		for n := 1; n <= 4; n++ {
			t.Run(fmt.Sprintf("%s/%d", wire, n), func(t *testing.T) {
				leak.Check(t)
				if err := comm.Local(n, with(func(ctx context.Context, c *comm.Comm, co *coordinator.Coordinator) error {
					return errors.Join(codedSteps[float32](ctx, c, co, 1e-5), codedSteps[float64](ctx, c, co, 1e-13))
				}, coordinator.WithPartition(2000)), comm.WithTransport(linked.All()...), comm.WithTransportName(wire)); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// codedSteps runs several steps with error feedback on this rank, and computes the same steps for
// all ranks with the reference.
func codedSteps[T float32 | float64](ctx context.Context, c *comm.Comm, co *coordinator.Coordinator, most float64) error {
	for _, cc := range codecs[T]() {
		for _, size := range []int{0, 1, 9, 1000} {
			residual, plain := make([]T, size), make([][]float64, c.Size())
			for step := range 3 {
				what := fmt.Sprintf("%T %s of %d, step %d", residual, cc.name, size, step)
				want := make([]float64, size)
				for r := range c.Size() {
					sum := gradient(size, r, step)
					for i := range sum { // rounded like the elements, so that ties are the same
						v := T(sum[i]) * 0.5
						if step > 0 {
							v += T(plain[r][i])
						}
						sum[i] = float64(v)
					}
					sent := cc.plain(sum)
					plain[r] = sum
					for i := range sent {
						plain[r][i] = float64(T(sum[i]) - T(sent[i]))
						want[i] += sent[i] / float64(c.Size())
					}
				}
				buf := convert[T](gradient(size, c.Rank(), step))
				err := coordinator.AllReduce(co, fmt.Sprintf("%T %s of %d", buf, cc.name, size), buf, comm.Mean, coordinator.Scale(0.5, 1), cc.option(residual)).Wait(ctx)
				if err != nil {
					return err
				}
				if err := almostEqual(what, buf, want, most); err != nil {
					return err
				}
				if err := almostEqual(what+", residual", residual, plain[c.Rank()], most); err != nil {
					return err
				}
				if err := sameOnAll(ctx, c, what, buf); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// No part of a gradient may be lost: the results of all steps plus the remaining residuals must
// equal the sum of all inputs.
func TestErrorFeedbackBringsInTimeWhatWasNotSent(t *testing.T) {
	leak.Check(t)
	for _, cc := range codecs[float64]() {
		if err := comm.Local(3, with(func(ctx context.Context, c *comm.Comm, co *coordinator.Coordinator) error {
			const size = 40
			residual, got, want := make([]float64, size), make([]float64, size), make([]float64, size)
			for step := range 30 {
				for r := range c.Size() {
					for i, v := range gradient(size, r, step) {
						want[i] += v
					}
				}
				buf := gradient(size, c.Rank(), step)
				if err := coordinator.AllReduce(co, "w", buf, comm.Sum, cc.option(residual)).Wait(ctx); err != nil {
					return err
				}
				for i, v := range buf {
					got[i] += v
				}
			}
			if err := comm.AllReduce(ctx, c, residual, comm.Sum); err != nil {
				return err
			}
			for i, v := range residual {
				got[i] += v
			}
			return almostEqual(cc.name, got, want, 1e-12)
		})); err != nil {
			t.Error(err)
		}
	}
}

func TestCodedTensorsOfRanksThatHaveJoinedCountTheOthersOnly(t *testing.T) {
	whileRank1HasJoined(t, func(ctx context.Context, c *comm.Comm, co *coordinator.Coordinator) error {
		buf := []float64{float64(c.Rank() + 1), -9, 0.5}
		if err := coordinator.AllReduce(co, "w", buf, comm.Mean, coordinator.TopK[float64](2, nil)).Wait(ctx); err != nil {
			return err
		}
		if err := equal("w", buf, []float64{2, -9, 0}); err != nil {
			return err
		}
		return nil
	})
}

func TestRanksThatCodeOtherwiseDisagree(t *testing.T) {
	leak.Check(t)
	if err := comm.Local(2, with(func(ctx context.Context, c *comm.Comm, co *coordinator.Coordinator) error {
		err := coordinator.AllReduce(co, "w", make([]float32, 9), comm.Sum, coordinator.TopK[float32](1+c.Rank(), nil)).Wait(ctx)
		if !errors.Is(err, fault.Mismatch) {
			return fmt.Errorf("got %v, want a mismatch", err)
		}
		f := make([]float32, 4)
		for what, h := range map[string]*coordinator.Handle{
			"none kept":       coordinator.AllReduce(co, "a", f, comm.Sum, coordinator.TopK[float32](0, nil)),
			"other residual":  coordinator.AllReduce(co, "b", f, comm.Sum, coordinator.OneBit(make([]float64, 4))),
			"short residual":  coordinator.AllReduce(co, "c", f, comm.Sum, coordinator.OneBit(make([]float32, 3))),
			"maximum":         coordinator.AllReduce(co, "d", f, comm.Max, coordinator.OneBit[float32](nil)),
			"integers":        coordinator.AllReduce(co, "e", []int32{1}, comm.Sum, coordinator.TopK[float32](1, nil)),
			"no reduction":    coordinator.Broadcast(co, "f", f, 0, coordinator.OneBit[float32](nil)),
			"in 16 bits, too": coordinator.AllReduce(co, "g", f, comm.Sum, coordinator.OneBit[float32](nil), coordinator.Compress(tensor.F16)),
		} {
			if err := h.Wait(ctx); !errors.Is(err, fault.Misuse) {
				return fmt.Errorf("%s: got %v, want misuse", what, err)
			}
		}
		return nil
	})); err != nil {
		t.Error(err)
	}
}
