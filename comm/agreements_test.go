package comm_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/transport/flaky"
)

// A schedule is a sequence of calls of Agree and Shrink that all ranks make, and the ranks that die
// during it. A rank dies at one of the frames that it sends, so that some ranks may have its last
// State and others may not.
type schedule struct {
	seed    uint64
	n       int
	shrinks []bool // of each call: Shrink, not Agree
	onNew   []bool // after such a Shrink, the next calls are those of the new communicator
	victims []int
	frames  []int // the number of the frame at which each victim dies
}

// newSchedule makes the choices of a schedule. The ranks that are left are always a quorum.
func newSchedule(seed uint64) *schedule {
	rng := rand.New(rand.NewPCG(seed, 8))
	s := &schedule{seed: seed, n: 3 + rng.IntN(3)}
	for range 2 + rng.IntN(4) {
		s.shrinks, s.onNew = append(s.shrinks, rng.IntN(2) == 0), append(s.onNew, rng.IntN(2) == 0)
	}
	s.victims = rng.Perm(s.n)[:1+rng.IntN((s.n-1)/2)]
	for range s.victims {
		s.frames = append(s.frames, 1+rng.IntN(1<<rng.IntN(9)))
	}
	return s
}

// A rankResult is what one rank got of its calls: the results, as texts, and the first error.
type rankResult struct {
	texts   []string
	err     error
	longest time.Duration // of its calls
}

// run makes the calls of one rank. It returns after the first error.
func (s *schedule) run(ctx context.Context, c *comm.Comm) (res rankResult) {
	rng := rand.New(rand.NewPCG(s.seed, uint64(c.Rank())))
	for i := range s.shrinks {
		// Reason: the ranks enter at different times. The bubble's clock passes them at once.
		time.Sleep(time.Duration(rng.IntN(400)) * time.Millisecond)
		began := time.Now()
		var text string
		if s.shrinks[i] {
			next, err := c.Shrink(ctx)
			if err != nil {
				res.err = fmt.Errorf("call %d: %w", i, err)
				return res
			}
			var ranks []int
			for r := range next.Size() {
				ranks = append(ranks, next.WorldRank(r))
			}
			text = fmt.Sprint("members ", ranks)
			if s.onNew[i] {
				c = next
			}
		} else {
			bits, err := c.Agree(ctx, ^(uint64(1) << c.Rank()))
			if err != nil {
				res.err = fmt.Errorf("call %d: %w", i, err)
				return res
			}
			text = fmt.Sprintf("bits %#b", ^bits)
		}
		res.texts = append(res.texts, text)
		res.longest = max(res.longest, time.Since(began))
	}
	return res
}

// Ranks make several calls of Agree and Shrink in a row, also on the communicator that a Shrink has
// returned, and some ranks die meanwhile. All calls of the other ranks must succeed, soon after
// the last rank has entered. No two ranks may get different results of a call, those that die later
// included.
func TestAgreementsInARowHaveOneResultOnAllRanks(t *testing.T) {
	runs := uint64(150)
	if raceEnabled {
		runs = 60
	}
	if soaking {
		runs = 5_000
	}
	deaths, between := 0, 0
	for seed := range runs {
		s := newSchedule(seed)
		var counting atomic.Bool
		options := flaky.Options{Counts: func(st flaky.Step) bool { return st.Kind == flaky.Frame && counting.Load() }}
		for i, v := range s.victims {
			options.Rules = append(options.Rules, flaky.Die(flaky.After, s.frames[i]).From(v))
		}
		script := flaky.New(options)
		results := make([]rankResult, s.n)
		synctest.Test(t, func(t *testing.T) {
			var running sync.WaitGroup
			running.Add(s.n)
			comm.Local(s.n, func(ctx context.Context, c *comm.Comm) error {
				if err := c.Barrier(ctx); err != nil {
					return err
				}
				counting.Store(true)
				rank := c.Rank()
				results[rank] = s.run(ctx, c)
				running.Done()
				running.Wait() // a rank that returned would end the job in another way
				return nil
			}, comm.WithTransportName("memory"), comm.WithWrap(wrapBy(script)), comm.WithLogger(discardLog), comm.WithTimeout(time.Minute))
		})
		first := make([]string, len(s.shrinks))
		for r, res := range results {
			died := slices.Contains(s.victims, r) && script.Fired(slices.Index(s.victims, r))
			if died {
				deaths++
				if len(res.texts) > 0 {
					between++
				}
			} else if res.err != nil || len(res.texts) != len(s.shrinks) || res.longest > 5*time.Second {
				t.Errorf("%+v: rank %d got %q and %v, and waited %v, want all results within 5s", s, r, res.texts, res.err, res.longest)
			}
			for i, text := range res.texts {
				if first[i] == "" {
					first[i] = text
				}
				if text != first[i] {
					t.Errorf("%+v: rank %d got %q of call %d, and a lower rank got %q", s, r, text, i, first[i])
				}
			}
		}
	}
	t.Logf("%d ranks have died, %d of them between two calls or in a later one", deaths, between)
	if deaths < int(runs)/2 || between < int(runs)/10 {
		t.Errorf("%d ranks have died, and %d of them after a call, want at least %d and %d", deaths, between, runs/2, runs/10)
	}
}
