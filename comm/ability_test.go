package comm_test

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/internal/test/worldtest"
	"github.com/tutti-go/tutti/transport/flaky"
	linked "github.com/tutti-go/tutti/transport/wires"
)

// abilities lists, for each optional ability of a transport, the kinds of steps that show that a
// job uses it.
var abilities = map[flaky.StepKind][]flaky.StepKind{
	flaky.Expose:  {flaky.Expose, flaky.Write},
	flaky.Parts:   {flaky.Parts},
	flaky.Share:   {flaky.Share, flaky.Publish},
	flaky.TrySend: {flaky.TrySend},
}

// used lists, for each transport, the abilities that a job uses: all abilities of the transport,
// and TrySend, which a job tries on every transport. The ability Expose of shm is left out: shm
// exposes only memory from Alloc, and the vectors of this test are in ordinary memory.
var used = map[string][]flaky.StepKind{
	"memory": {flaky.Expose, flaky.Parts, flaky.Share, flaky.TrySend},
	"tcp":    {flaky.Parts, flaky.TrySend},
	"shm":    {flaky.Parts, flaky.Share, flaky.TrySend},
}

// Hiding an ability from a job may cost speed, but must not change results. The counts of steps
// show whether the job used the ability.
func TestEveryCallIsRightWithAndWithoutEachAbility(t *testing.T) {
	all := []flaky.StepKind{flaky.Expose, flaky.Parts, flaky.Share, flaky.TrySend}
	for _, wire := range transports {
		hidden := [][]flaky.StepKind{nil, all}
		if !raceEnabled {
			for _, ability := range used[wire] {
				hidden = append(hidden, []flaky.StepKind{ability})
			}
		}
		for _, hide := range hidden {
			t.Run(fmt.Sprintf("%s/without %v", wire, hide), func(t *testing.T) {
				counted := runAllCalls(t, wire, hide)
				for ability, steps := range abilities {
					for _, kind := range steps {
						n := counted[kind].Load()
						if slices.Contains(hide, ability) && n > 0 {
							t.Errorf("%d steps of kind %v, whose ability is hidden", n, kind)
						}
						if !slices.Contains(hide, ability) && slices.Contains(used[wire], ability) && n == 0 {
							t.Errorf("no step of kind %v: its ability is there, and was not used", kind)
						}
					}
				}
			})
		}
	}
}

// runAllCalls makes every call on three ranks, with small vectors, and with vectors so large that
// receivers request them. It returns how many steps of each kind the ranks took. The call that
// reduces a list of vectors uses the ring algorithm, so it sends messages even where ranks share
// memory. These messages gather the vectors.
func runAllCalls(t *testing.T, wire string, hide []flaky.StepKind) *[flaky.TrySend + 1]atomic.Int64 {
	t.Helper()
	var counted [flaky.TrySend + 1]atomic.Int64
	script := flaky.New(flaky.Options{Hide: hide, Counts: func(s flaky.Step) bool {
		counted[s.Kind].Add(1)
		return false
	}})
	shares := slices.Contains(used[wire], flaky.Share) && !slices.Contains(hide, flaky.Share)
	err := comm.Local(3, func(ctx context.Context, c *comm.Comm) error {
		if got := c.Bridge().Algorithm("allreduce", 4, comm.Sum); (got == "shared") != shares {
			t.Errorf("rank %d: allreduce goes by %q; want memory that the ranks share: %v", c.Rank(), got, shares)
		}
		counts := []int{1, 1000, huge}
		if raceEnabled {
			counts = []int{3, huge / 2}
		}
		for _, count := range counts {
			for _, call := range slices.Concat(worldtest.Collectives[int32](), []worldtest.Call{worldtest.Lists[int32]("ring")}, worldtest.Messages[int32]()) {
				if err := call.Run(ctx, c, count, new(worldtest.BufferTracker)); err != nil {
					return fmt.Errorf("%s of %d elements: %w", call.Name, count, err)
				}
			}
		}
		return nil
	}, comm.WithTransport(linked.All()...), comm.WithTransportName(wire), comm.WithWrap(wrapBy(script)), comm.WithFlagHook(script.Publish))
	if err != nil {
		t.Error(err)
	}
	return &counted
}
