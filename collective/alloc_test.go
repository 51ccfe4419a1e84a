package collective

import (
	"context"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"testing"

	"github.com/tutti-go/tutti/reduce"
	"github.com/tutti-go/tutti/tensor"
)

// Once the pools are filled, a call allocates nothing: scratch memory is the
// group's. A barrier after each call keeps ranks that only send from running
// ahead, which fills pools further. What the runtime allocates now and then is far
// less than once per call.
func TestAlgorithmsAllocateNothing(t *testing.T) {
	if underRace() {
		t.Skip("under the race detector pools forget at random, so that races with their users are found")
	}
	const n, width, warm, calls = 4, 50, 50, 200
	k, err := reduce.Sum.Kernel(tensor.Uint64)
	if err != nil {
		t.Fatal(err)
	}
	tm := newTeam(t, n, 0)
	everyAlgorithm(func(a Algorithm) {
		var before, after runtime.MemStats
		var ready sync.WaitGroup
		ready.Add(n)
		first := tm.seq + 1
		tm.seq += warm + calls
		tm.each(t, func(ctx context.Context, rank int) error {
			s := newStand(n, rank, width, k)
			for i := range uint32(warm + calls) {
				if i == warm {
					ready.Done()
					ready.Wait()
					if rank == 0 {
						runtime.ReadMemStats(&before)
					}
				}
				r := tm.ranks[rank].group.NewRound(first+i, 1, nil)
				if err := s.perform(ctx, r, a, 0); err != nil {
					return err
				}
				if err := Barrier(ctx, r, modest(VerbBarrier)); err != nil {
					return err
				}
				r.End()
			}
			return nil
		})
		runtime.ReadMemStats(&after)
		if got := float64(after.Mallocs-before.Mallocs) / (n * calls); got > 0.1 {
			t.Errorf("%v: %.2f allocations per call and rank, want none", a, got)
		}
	})
}

// underRace reports whether the tests were built with -race.
func underRace() bool {
	info, _ := debug.ReadBuildInfo()
	return info != nil && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
}
