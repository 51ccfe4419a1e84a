package coordinator_test

import (
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

// plainAdasum computes the formula on whole vectors in float64.
func plainAdasum(shares [][]float64) []float64 {
	for len(shares) > 1 {
		var up [][]float64
		for p := 0; p < len(shares); p += 2 {
			if p+1 == len(shares) {
				up = append(up, shares[p])
				continue
			}
			a, b := shares[p], shares[p+1]
			dot := func(x, y []float64) (s float64) {
				for i := range x {
					s += x[i] * y[i]
				}
				return s
			}
			ca, cb := 1.0, 1.0
			if aa := dot(a, a); aa > 0 {
				ca = 1 - dot(a, b)/(2*aa)
			}
			if bb := dot(b, b); bb > 0 {
				cb = 1 - dot(a, b)/(2*bb)
			}
			c := make([]float64, len(a))
			for i := range c {
				c[i] = ca*a[i] + cb*b[i]
			}
			up = append(up, c)
		}
		shares = up
	}
	return shares[0]
}

// gradient returns a rank's share of a tensor with n elements.
func gradient(n, rank, which int) []float64 {
	v := make([]float64, n)
	for i := range v {
		v[i] = math.Sin(float64(1+i*(rank+1)+which)) + float64(rank)/3
	}
	return v
}

func convert[T float32 | float64](v []float64) []T {
	out := make([]T, len(v))
	for i := range v {
		out[i] = T(v[i])
	}
	return out
}

// almostEqual compares elements with a reference. Errors are relative to the largest element of the
// reference.
func almostEqual[T float32 | float64](what string, got []T, want []float64, most float64) error {
	largest := 1e-300
	for _, w := range want {
		largest = max(largest, math.Abs(w))
	}
	for i := range got {
		if far := math.Abs(float64(got[i]) - want[i]); !(far <= most*largest) {
			return fmt.Errorf("%s: element %d is %g, want %g", what, i, got[i], want[i])
		}
	}
	return nil
}

// sameOnAll checks that all ranks have elements with the same bits.
func sameOnAll[T float32 | float64](ctx context.Context, c *comm.Comm, what string, v []T) error {
	mine := tensor.Bytes(v)
	all := make([]byte, c.Size()*len(mine))
	if err := comm.AllGather(ctx, c, all, comm.From(mine)); err != nil {
		return err
	}
	for r := range c.Size() {
		if !slices.Equal(all[r*len(mine):(r+1)*len(mine)], mine) {
			return fmt.Errorf("%s: ranks %d and %d have other bits", what, r, c.Rank())
		}
	}
	return nil
}

func TestAdasumIsThePapersFormula(t *testing.T) {
	for _, wire := range []string{"memory", "tcp"} {
		for n := 1; n <= 5; n++ {
			t.Run(fmt.Sprintf("%s/%d", wire, n), func(t *testing.T) {
				leak.Check(t)
				if err := comm.Local(n, with(func(ctx context.Context, c *comm.Comm, co *coordinator.Coordinator) error {
					if err := adasumOf[float32](ctx, c, co, 1e-6); err != nil {
						return err
					}
					return adasumOf[float64](ctx, c, co, 1e-14)
				}, coordinator.WithPartition(10_000)), comm.WithTransport(linked.All()...), comm.WithTransportName(wire)); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

func adasumOf[T float32 | float64](ctx context.Context, c *comm.Comm, co *coordinator.Coordinator, most float64) error {
	sizes := []int{0, 1, 3, 100, 20_000}
	for range 2 { // the second time through the response cache
		var hs []*coordinator.Handle
		bufs := make([][]T, len(sizes))
		for i, n := range sizes {
			bufs[i] = convert[T](gradient(n, c.Rank(), i))
			hs = append(hs, coordinator.AllReduce(co, fmt.Sprintf("%T%d", bufs, i), bufs[i], coordinator.Adasum, coordinator.Scale(0.5, 4)))
		}
		if err := coordinator.WaitAll(ctx, hs...); err != nil {
			return err
		}
		for i, n := range sizes {
			var shares [][]float64
			for r := range c.Size() {
				shares = append(shares, gradient(n, r, i))
			}
			want := plainAdasum(shares)
			for k := range want {
				want[k] *= 2
			}
			what := fmt.Sprintf("%T of %d", bufs[i], n)
			if err := almostEqual(what, bufs[i], want, 10*most); err != nil {
				return err
			}
			if err := sameOnAll(ctx, c, what, bufs[i]); err != nil {
				return err
			}
		}
	}
	return nil
}

func TestAdasumAddsWhatIsOrthogonalAndKeepsWhatIsEqual(t *testing.T) {
	leak.Check(t)
	if err := comm.Local(4, with(func(ctx context.Context, c *comm.Comm, co *coordinator.Coordinator) error {
		own, equalAll, zero := make([]float32, 4), []float32{3, -1, 2}, make([]float32, 5)
		own[c.Rank()] = float32(c.Rank() + 1)
		err := coordinator.WaitAll(ctx, coordinator.AllReduce(co, "own", own, coordinator.Adasum),
			coordinator.AllReduce(co, "equal", equalAll, coordinator.Adasum), coordinator.AllReduce(co, "zero", zero, coordinator.Adasum))
		if err != nil {
			return err
		}
		return errors.Join(equal("orthogonal", own, []float32{1, 2, 3, 4}), equal("equal", equalAll, []float32{3, -1, 2}), equal("zero", zero, make([]float32, 5)))
	})); err != nil {
		t.Error(err)
	}
}

func TestAdasumsBitsDoNotDependOnFusion(t *testing.T) {
	leak.Check(t)
	got := make([][]float32, 2)
	for k, alone := range []int{0, 1 << 20} {
		if err := comm.Local(3, with(func(ctx context.Context, c *comm.Comm, co *coordinator.Coordinator) error {
			buf := convert[float32](gradient(1001, c.Rank(), 0))
			var hs []*coordinator.Handle
			co.Group(func(g *coordinator.TensorGroup) {
				hs = []*coordinator.Handle{coordinator.AllReduce(g, "w", buf, coordinator.Adasum), coordinator.AllReduce(g, "v", vector(77*(k+1), c.Rank()), coordinator.Adasum)}
			})
			if c.Rank() == 0 {
				got[k] = buf
			}
			return coordinator.WaitAll(ctx, hs...)
		}, coordinator.WithMaxFusedTensor(alone))); err != nil {
			t.Fatal(err)
		}
	}
	if err := equal("fused", got[1], got[0]); err != nil {
		t.Error(err)
	}
}

func TestAdasumCountsARankThatHasJoinedAsZeros(t *testing.T) {
	whileRank1HasJoined(t, func(ctx context.Context, c *comm.Comm, co *coordinator.Coordinator) error {
		buf := gradient(50, c.Rank(), 0)
		if err := coordinator.AllReduce(co, "w", buf, coordinator.Adasum).Wait(ctx); err != nil {
			return err
		}
		if err := almostEqual("w", buf, plainAdasum([][]float64{gradient(50, 0, 0), make([]float64, 50), gradient(50, 2, 0)}), 1e-14); err != nil {
			return err
		}
		return nil
	})
}

func TestAdasumIsRefusedWhereItMeansNothing(t *testing.T) {
	leak.Check(t)
	if err := comm.Local(1, with(func(ctx context.Context, c *comm.Comm, co *coordinator.Coordinator) error {
		f := make([]float32, 4)
		for what, err := range map[string]error{
			"integers":      coordinator.AllReduce(co, "a", []int32{1}, coordinator.Adasum).Wait(ctx),
			"compressed":    coordinator.AllReduce(co, "b", f, coordinator.Adasum, coordinator.Compress(tensor.F16)).Wait(ctx),
			"reducescatter": coordinator.ReduceScatter(co, "c", f[:2], f[2:], coordinator.Adasum).Wait(ctx),
			"top-k":         coordinator.AllReduce(co, "d", f, coordinator.Adasum, coordinator.TopK[float32](1, nil)).Wait(ctx),
			"comm":          comm.AllReduce(ctx, c, f, coordinator.Adasum),
		} {
			if !errors.Is(err, fault.Misuse) {
				return fmt.Errorf("%s: got %v, want misuse", what, err)
			}
		}
		return nil
	})); err != nil {
		t.Error(err)
	}
}
