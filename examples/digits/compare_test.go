package main

import (
	"context"
	"math"
	"strings"
	"testing"

	"gonum.org/v1/gonum/floats"

	"github.com/tutti-go/tutti/examples/internal/digits"
)

// brief holds settings for tests. Most numbers of ranks do not divide its batch size, and the last
// batch of an epoch is smaller.
var brief = settings{epochs: 3, batch: 50, rate: 0.2, momentum: 0.9, seed: 1}

// trainingSet returns the rows to train on.
func trainingSet(t *testing.T) digits.Images {
	t.Helper()
	all, err := digits.Load()
	if err != nil {
		t.Fatal(err)
	}
	rows, _ := digits.Split(all.Digits, 1)
	return all.Pick(rows)
}

func TestTeamsOfAllSizesMatchASingleProcess(t *testing.T) {
	data := trainingSet(t)
	for _, size := range []int{1, 2, 3, 4, 7} {
		errs := together(t, size, func(ctx context.Context, tm team) error {
			n, err := train(ctx, tm, brief, data, nil)
			if err != nil {
				return err
			}
			if err := identical(ctx, tm, n.Params); err != nil {
				return err
			}
			far, err := matchesSingle(ctx, tm, brief, data, n.Params)
			if tm.rank == 0 {
				t.Logf("%d ranks: relative distance %.2g", tm.size, far)
			}
			return err
		})
		for rank, err := range errs {
			if err != nil {
				t.Errorf("rank %d of %d: %v", rank, size, err)
			}
		}
	}
}

// With more ranks than rows in a batch, some ranks have nothing to compute. The mean must still be
// right.
func TestIdleRanksDoNotDisturbTheMean(t *testing.T) {
	data := trainingSet(t)
	data = data.Pick([]int{0, 200, 400, 600, 800})
	s := brief
	s.batch = 3
	for rank, err := range together(t, 4, func(ctx context.Context, tm team) error {
		n, err := train(ctx, tm, s, data, nil)
		if err != nil {
			return err
		}
		_, err = matchesSingle(ctx, tm, s, data, n.Params)
		return err
	}) {
		if err != nil {
			t.Errorf("rank %d: %v", rank, err)
		}
	}
}

// Each of these mistakes leaves the ranks equal to one another, so that only the comparison
// with a single process finds it.
func TestWrongAveragingFailsTheComparison(t *testing.T) {
	data := trainingSet(t)
	for name, wrong := range map[string]func(tm team, v []float64){
		"sum for mean": func(tm team, v []float64) { floats.Scale(float64(tm.size), v) },
		"a rank too many": func(tm team, v []float64) {
			floats.Scale(float64(tm.size)/float64(tm.size+1), v)
		},
		"one bias stands still": func(tm team, v []float64) { v[len(v)-3] = 0 },
		"noise":                 func(_ team, v []float64) { floats.Scale(1+1e-7, v) },
		"no number":             func(_ team, v []float64) { v[0] = math.NaN() },
	} {
		t.Run(name, func(t *testing.T) {
			const size = 3
			var refused [size]error
			errs := together(t, size, func(ctx context.Context, tm team) error {
				right := tm.average
				tm.average = func(ctx context.Context, v []float64) error {
					err := right(ctx, v)
					wrong(tm, v)
					return err
				}
				n, err := train(ctx, tm, brief, data, nil)
				if err != nil {
					return err
				}
				if err := identical(ctx, tm, n.Params); err != nil {
					t.Errorf("rank %d: %v", tm.rank, err)
				}
				// If a rank returned its error, the other ranks' calls would be cancelled.
				_, refused[tm.rank] = matchesSingle(ctx, tm, brief, data, n.Params)
				return nil
			})
			for rank, err := range refused {
				if errs[rank] != nil || err == nil || !strings.Contains(err.Error(), "relative distance") {
					t.Errorf("rank %d: got %v and %v, want the distance to be refused", rank, errs[rank], err)
				}
			}
		})
	}
}

func TestIdenticalNoticesASingleBit(t *testing.T) {
	for name, odd := range map[string]float64{
		"last bit":    math.Nextafter(1, 2),
		"another NaN": math.Float64frombits(math.Float64bits(math.NaN()) ^ 1<<40),
		"sign":        -1,
	} {
		errs := together(t, 3, func(ctx context.Context, tm team) error {
			params := []float64{0, 1, 2}
			if tm.rank == 2 {
				params[1] = odd
			}
			return identical(ctx, tm, params)
		})
		for rank, err := range errs {
			if err == nil {
				t.Errorf("%s: rank %d noticed nothing", name, rank)
			}
		}
	}
}

func TestIdenticalAcceptsEqualBitsOfAnyKind(t *testing.T) {
	errs := together(t, 3, func(ctx context.Context, tm team) error {
		return identical(ctx, tm, []float64{0, math.Copysign(0, -1), math.NaN(), math.Inf(1)})
	})
	for rank, err := range errs {
		if err != nil {
			t.Errorf("rank %d: %v", rank, err)
		}
	}
}

func TestIdenticalDistinguishesZeroFromMinusZero(t *testing.T) {
	errs := together(t, 2, func(ctx context.Context, tm team) error {
		return identical(ctx, tm, []float64{math.Copysign(0, float64(-tm.rank))})
	})
	if errs[0] == nil || errs[1] == nil {
		t.Errorf("got %v, want errors", errs)
	}
}
