package elastic

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"

	"github.com/tutti-go/tutti/comm"
)

// soaking reports whether the user asked for the long versions of the tests.
func soaking() bool { return os.Getenv("TUTTI_SOAK") != "" }

// Four ranks use a part of an epoch, and two of them use the rest. Each index must be used once.
func TestASamplerDealsEachIndexOncePerEpoch(t *testing.T) {
	const n, size = 103, 10
	var mu sync.Mutex
	var used []int
	use := func(s *Sampler, c *comm.Comm) error {
		mine, total := s.Batch(c, size)
		if again, _ := s.Batch(c, size); !slices.Equal(mine, again) {
			return fmt.Errorf("got %v, and then %v of the same batch", mine, again)
		}
		if low, high := total/c.Size(), (total+c.Size()-1)/c.Size(); len(mine) < low || len(mine) > high {
			return fmt.Errorf("got %d of %d indexes on one of %d ranks", len(mine), total, c.Size())
		}
		mu.Lock()
		used = append(used, mine...)
		mu.Unlock()
		s.Advance(total)
		return nil
	}
	err := comm.Local(4, func(ctx context.Context, c *comm.Comm) error {
		s := NewSampler(n, 7)
		for range 4 {
			if err := use(s, c); err != nil {
				return err
			}
		}
		half, err := c.Split(ctx, c.Rank()/2, 0)
		if err != nil || c.Rank() >= 2 {
			return err
		}
		for s.Epoch() == 0 {
			if err := use(s, half); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(used)
	want := make([]int, n)
	for i := range want {
		want[i] = i
	}
	if !slices.Equal(used, want) {
		t.Errorf("got indexes %v, want each from 0 to %d once", used, n-1)
	}
}

func TestASamplerIsAState(t *testing.T) {
	err := comm.Local(2, func(ctx context.Context, c *comm.Comm) error {
		s, reference := NewSampler(30, 1), NewSampler(30, 1)
		advance := func(s *Sampler, batches int) {
			for range batches {
				_, total := s.Batch(c, 7)
				s.Advance(total)
			}
		}
		batch := func(s *Sampler) []int {
			mine, _ := s.Batch(c, 7)
			return mine
		}
		advance(s, 7)
		if s.Epoch() != 1 {
			return fmt.Errorf("got epoch %d after 49 of 30 indexes, want 1", s.Epoch())
		}
		s.Commit()
		first := slices.Clone(batch(s))
		advance(s, 6)
		s.Restore()
		if got := batch(s); !slices.Equal(got, first) {
			return fmt.Errorf("after Restore: got %v, want %v", got, first)
		}
		advance(s, c.Rank())
		if err := s.Sync(ctx, c, 1); err != nil {
			return err
		}
		advance(reference, 8)
		if got, want := batch(s), batch(reference); !slices.Equal(got, want) {
			return fmt.Errorf("after Sync: got %v, want rank 1's next batch %v", got, want)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestASamplerShufflesEachEpochDifferently(t *testing.T) {
	err := comm.Local(1, func(ctx context.Context, c *comm.Comm) error {
		s, other := NewSampler(100, 1), NewSampler(100, 2)
		first, _ := s.Batch(c, 100)
		ofOther, _ := other.Batch(c, 100)
		s.Advance(100)
		second, _ := s.Batch(c, 100)
		if slices.Equal(first, second) || slices.Equal(first, ofOther) {
			return errors.New("two epochs, or two seeds, have one order")
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
