package collective

import (
	"context"
	"fmt"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"testing"

	"github.com/tutti-go/tutti/internal/test/teamtest"
	"github.com/tutti-go/tutti/reduce"
	"github.com/tutti-go/tutti/tensor"
)

// When the pools are filled, a call must allocate nothing, because scratch memory comes from the
// group's pool. The number of calls that fill the pools depends on how far ranks run ahead of each
// other, so each algorithm gets several tries. An algorithm that allocates in every call fails all
// tries.
func TestAlgorithmsAllocateNothing(t *testing.T) {
	if underRace() {
		// Reason: the race detector makes sync.Pool drop items, so calls allocate.
		t.Skip("under the race detector pools forget at random, so that races with their users are found")
	}
	for _, hosts := range []int{1, 2} {
		t.Run(fmt.Sprintf("%d hosts", hosts), func(t *testing.T) {
			allocateNothing(t, teamtest.StartAt(t, onHosts(4, hosts), teamtest.SharedMemory, 0, teamtest.NoWrapper))
		})
	}
}

func allocateNothing(t *testing.T, tm *teamtest.Team) {
	const tries, enough = 5, 0.1 // the runtime allocates now and then, too
	everyAlgorithm(func(a Algorithm) {
		if a.NeedsShared() && !tm.Ranks[0].Group.HasShared() {
			return
		}
		var got []float64
		for range tries {
			got = append(got, allocations(t, tm, a))
			if got[len(got)-1] < enough {
				return
			}
		}
		t.Errorf("%v: %.2f allocations per call and rank, want none", a, got)
	})
}

// allocations returns the number of allocations per call and rank of an algorithm. A barrier
// follows each call, so that ranks that only send do not run ahead.
func allocations(t testing.TB, tm *teamtest.Team, a Algorithm) float64 {
	const width, warm, calls = 50, 50, 200
	k, err := reduce.Sum.Kernel(tensor.Uint64)
	if err != nil {
		t.Fatal(err)
	}
	n := len(tm.Ranks)
	var before, after runtime.MemStats
	var ready sync.WaitGroup
	ready.Add(n)
	first := tm.Seq + 1
	tm.Seq += warm + calls
	tm.Each(t, func(ctx context.Context, rank int) error {
		s := newFixture(n, rank, width, k)
		for i := range uint32(warm + calls) {
			if i == warm {
				ready.Done()
				ready.Wait()
				if rank == 0 {
					runtime.ReadMemStats(&before)
				}
			}
			r := tm.Ranks[rank].Group.NewRound(first+i, 1, nil)
			if err := s.call(ctx, r, a, 0); err != nil {
				return err
			}
			if err := Barrier(ctx, r, fallbackFor(VerbBarrier)); err != nil {
				return err
			}
			r.End()
		}
		return nil
	})
	runtime.ReadMemStats(&after)
	return float64(after.Mallocs-before.Mallocs) / float64(n*calls)
}

// underRace reports whether the tests were built with -race.
func underRace() bool {
	info, _ := debug.ReadBuildInfo()
	return info != nil && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
}
