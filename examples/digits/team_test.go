package main

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"

	"gonum.org/v1/gonum/floats"
)

// links connect goroutines that act as ranks: links[i][j] carries messages from i to j.
type links [][]chan any

// exchange sends v to every rank and returns the values of all ranks, by rank.
func (l links) exchange(ctx context.Context, rank int, v any) ([]any, error) {
	all := make([]any, len(l))
	for to := range l {
		select {
		case l[rank][to] <- v:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	for from := range l {
		select {
		case all[from] = <-l[from][rank]:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	return all, nil
}

// team returns the team of a rank. Its average adds the vectors in descending order of ranks,
// because no result may depend on the order in which an all-reduce adds.
func (l links) team(rank int) team {
	return team{
		rank: rank,
		size: len(l),
		average: func(ctx context.Context, v []float64) error {
			all, err := l.exchange(ctx, rank, slices.Clone(v))
			if err != nil {
				return err
			}
			clear(v)
			for _, theirs := range slices.Backward(all) {
				floats.Add(v, theirs.([]float64))
			}
			floats.Scale(1/float64(len(l)), v)
			return nil
		},
		copyFirst: func(ctx context.Context, v []float64) error {
			all, err := l.exchange(ctx, rank, slices.Clone(v))
			if err != nil {
				return err
			}
			copy(v, all[0].([]float64))
			return nil
		},
		gather: func(ctx context.Context, mine []byte) ([]byte, error) {
			all, err := l.exchange(ctx, rank, slices.Clone(mine))
			var joined []byte
			for _, theirs := range all {
				joined = append(joined, theirs.([]byte)...)
			}
			return joined, err
		},
	}
}

// together runs f on n goroutines that act as the ranks of one team, and returns their errors by
// rank. The first failure ends the waits of the other ranks.
func together(t *testing.T, n int, f func(ctx context.Context, t team) error) []error {
	t.Helper()
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	l := make(links, n)
	for from := range l {
		for range n {
			l[from] = append(l[from], make(chan any, 1))
		}
	}
	errs := make([]error, n)
	var wg sync.WaitGroup
	for rank := range n {
		wg.Go(func() {
			if errs[rank] = f(ctx, l.team(rank)); errs[rank] != nil {
				cancel(errors.New("another rank has failed"))
			}
		})
	}
	wg.Wait()
	return errs
}
