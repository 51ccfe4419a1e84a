package comm_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/coordinator"
	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/bridge"
	"github.com/tutti-go/tutti/reduce"
	linked "github.com/tutti-go/tutti/transport/wires"
)

// tuningFile writes a tuning file with the given rules and returns its name.
func tuningFile(t *testing.T, rules string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "tuning.json")
	text := `{"tutti_tuning": 1, "gamma_us_per_MiB": 1000,
 "links": [{"wire": "memory", "alpha_us": 100, "beta_us_per_MiB": 0}],
 "rules": [` + rules + "]}"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestATuningFileChoosesOnAllRanksAndForDerivedCommunicators(t *testing.T) {
	file := tuningFile(t, `
  {"op": "allreduce", "algorithm": "linear", "up_to_bytes": 100, "min_ranks": 4},
  {"op": "allreduce", "algorithm": "ring", "up_to_bytes": 100, "wire": "memory", "segment": 128},
  {"op": "allreduce", "algorithm": "linear", "up_to_bytes": 1000, "wire": "tcp"}`)
	check := func(c *comm.Comm, bytes int, want string) error {
		x, err := c.Bridge().Explain("allreduce", bytes)
		if err != nil {
			return err
		}
		if got := x.Chosen.String(); got != want {
			return fmt.Errorf("%d bytes on %d ranks: got %q, want %q", bytes, c.Size(), got, want)
		}
		if got := c.Bridge().Algorithm("allreduce", bytes, comm.Sum); got != x.Chosen.Algorithm {
			return fmt.Errorf("Algorithm says %q, Explain %q", got, x.Chosen.Algorithm)
		}
		return nil
	}
	err := comm.Local(4, func(ctx context.Context, c *comm.Comm) error {
		dup, err := c.Dup(ctx)
		if err != nil {
			return err
		}
		half, err := c.Split(ctx, c.Rank()/2, 0)
		if err != nil {
			return err
		}
		for _, x := range []*comm.Comm{c, dup} {
			if err := check(x, 100, "linear in segments of 65536 bytes: rule 1 of the tuning file"); err != nil {
				return err
			}
		}
		if err := check(half, 100, "ring in segments of 128 bytes: rule 2 of the tuning file"); err != nil {
			return err
		}
		if x, err := c.Bridge().Explain("allreduce", 101); err != nil || !strings.HasPrefix(x.Chosen.Reason, "default rule ") {
			return fmt.Errorf("got %v and %v, want a default rule", x, err)
		}
		// The vector takes one segment on c and on dup, and two segments on half.
		for _, x := range []*comm.Comm{c, dup, half} {
			v := []float64{float64(c.Rank()), 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}
			if err := comm.AllReduce(ctx, x, v, comm.Sum); err != nil {
				return err
			}
			if v[11] != float64(x.Size()) {
				return fmt.Errorf("got %v", v)
			}
		}
		return nil
	}, comm.WithParameters(comm.Parameters{Tuning: file}), comm.WithParameters(comm.Parameters{Segment: 64 << 10}))
	if err != nil {
		t.Error(err)
	}
}

func TestForcedAlgorithmsOverrideATuningFile(t *testing.T) {
	file := tuningFile(t, `{"op": "barrier", "algorithm": "shared"}, {"op": "allreduce", "algorithm": "ring"}`)
	err := comm.Local(2, func(_ context.Context, c *comm.Comm) error {
		x, err := c.Bridge().Explain("allreduce", 8)
		if err != nil || x.Chosen != (bridge.Selection{Algorithm: "linear", Segment: 256, Reason: "forced"}) {
			return fmt.Errorf("got %+v and %v", x, err)
		}
		return nil
	}, comm.WithParameters(comm.Parameters{Tuning: file}), comm.WithAlgorithm("allreduce:linear@256"))
	if err != nil {
		t.Error(err)
	}
}

func TestUnreadableTuningFileEndsInit(t *testing.T) {
	for name, c := range map[string]struct{ file, want string }{
		"missing":     {filepath.Join(t.TempDir(), "none.json"), "no such file"},
		"a directory": {t.TempDir(), "want a regular file"},
		"not a rule":  {tuningFile(t, "\n{\"op\": \"allreduce\", \"algorithm\": \"rung\"}"), "tuning.json:4: rules[0].algorithm: "},
	} {
		err := comm.Local(2, func(context.Context, *comm.Comm) error { return nil }, comm.WithParameters(comm.Parameters{Tuning: c.file}))
		if !errors.Is(err, fault.Misuse) || !strings.Contains(err.Error(), c.want) || strings.Count(err.Error(), fault.Misuse.Error()) != 1 {
			t.Errorf("%s: got %v, want fault.Misuse, said once, with %q", name, err, c.want)
		}
	}
}

func TestExplainListsTheCandidatesWithTheirCosts(t *testing.T) {
	file := tuningFile(t, "")
	err := comm.Local(4, func(_ context.Context, c *comm.Comm) error {
		x, err := c.Bridge().Explain("allreduce", 1<<20)
		if err != nil {
			return err
		}
		text := x.String()
		for _, want := range []string{
			"allreduce of 1048576 bytes on 4 ranks over memory\n", "\n  runs ", ": default rule ",
			"where the operator does not commute: ",
			"1350.0 us  ring                only for operators that commute\n", // 6α, and ¾ MiB folded
			"shared              impossible here: the ranks share no memory\n",
		} {
			if !strings.Contains(text, want) {
				return fmt.Errorf("no %q in\n%s", want, text)
			}
		}
		if _, err := c.Bridge().Explain("allsum", 1); !errors.Is(err, fault.Misuse) {
			return fmt.Errorf("got %v for no collective, want fault.Misuse", err)
		}
		return nil
	}, comm.WithParameters(comm.Parameters{Tuning: file}), comm.WithParameters(comm.Parameters{NoSharedMemory: true}))
	if err != nil {
		t.Error(err)
	}
}

// If a call with a forced algorithm fails, Explain must say that it fails. For any other call,
// Explain must not say so. The test compares each answer of Explain with what the call does.
func TestExplainReportsThatAForcedAlgorithmFails(t *testing.T) {
	for name, x := range map[string]struct {
		force, blocks, inOrder, noShared string // parts of the errors, by algorithm; "" if it runs
		opts                             []comm.Option
	}{
		"no memory is shared": {"allreduce:shared", "memory", "memory", "memory", []comm.Option{comm.WithParameters(comm.Parameters{NoSharedMemory: true})}},
		"memory is shared":    {"allreduce:shared", "", "", "blocking", nil},
		"it needs to commute": {"allreduce:ring", "", "commutes", "", nil},
	} {
		err := comm.Local(2, func(ctx context.Context, c *comm.Comm) error {
			e, err := c.Bridge().Explain("allreduce", 64)
			if err != nil {
				return err
			}
			inOrder := reduce.Func("left", reduce.RankOrder, func(a, _ int64) int64 { return a })
			_, startErr := comm.IAllReduce(c, make([]int64, 8), comm.Sum).Wait(ctx)
			for _, k := range []struct {
				call, want string
				selection  bridge.Selection
				err        error
			}{
				{"blocking", x.blocks, e.Chosen, comm.AllReduce(ctx, c, make([]int64, 8), comm.Sum)},
				{"in order", x.inOrder, e.NonCommutative, comm.AllReduce(ctx, c, make([]int64, 8), inOrder)},
				{"apart", x.noShared, e.NonBlocking, startErr},
			} {
				if failed := errors.Is(k.err, fault.Misuse); failed != (k.want != "") || !failed && k.err != nil {
					return fmt.Errorf("%s: got %v", k.call, k.err)
				}
				if (k.selection.Fails != "") != (k.want != "") || !strings.Contains(k.selection.Fails, k.want) {
					return fmt.Errorf("%s: got %q, want something of %q", k.call, k.selection.Fails, k.want)
				}
			}
			last := e.Predictions[len(e.Predictions)-1].Algorithm
			if fails := strings.Contains(e.String(), "\n  fails: shared is forced, and needs memory"); fails != (x.blocks != "") || fails && last != "shared" {
				return fmt.Errorf("got\n%v", e)
			}
			return nil
		}, append(x.opts, comm.WithAlgorithm(x.force))...)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestDupRunsTheAlgorithmsOfItsList(t *testing.T) {
	err := comm.Local(3, func(ctx context.Context, c *comm.Comm) error {
		for _, list := range []string{"allreduce:linear", "allreduce:ring@128,barrier:dissemination", ""} {
			d, err := c.Dup(ctx, comm.Algorithm(list))
			if err != nil {
				return err
			}
			v := make([]int64, 100)
			v[99] = 1
			if err := comm.AllReduce(ctx, d, v, comm.Sum); err != nil {
				return err
			}
			want, _, _ := strings.Cut(strings.TrimPrefix(list, "allreduce:"), "@")
			if list == "" {
				want = c.Bridge().Algorithm("allreduce", 800, comm.Sum)
			}
			if got := d.Bridge().Algorithm("allreduce", 800, comm.Sum); got != want || v[99] != 3 {
				return fmt.Errorf("%q: got %s and %d, want %s and 3", list, got, v[99], want)
			}
			if err := d.Close(ctx); err != nil {
				return err
			}
		}
		if _, err := c.Dup(ctx, comm.Algorithm("allreduce:rung")); !errors.Is(err, fault.Misuse) {
			return fmt.Errorf("got %v for no algorithm, want fault.Misuse", err)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

func TestRanksThatForceDifferentAlgorithmsDisagree(t *testing.T) {
	lists := []string{"allreduce:ring", "allreduce:linear"}
	err := comm.Local(2, func(ctx context.Context, c *comm.Comm) error {
		if _, err := c.Dup(ctx, comm.Algorithm(lists[c.Rank()])); !errors.Is(err, fault.Mismatch) {
			return fmt.Errorf("got %v, want fault.Mismatch", err)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

func TestSegmentsAndAlgorithmsArePartOfTheFingerprint(t *testing.T) {
	sum := func(ctx context.Context, c *comm.Comm) error {
		return comm.AllReduce(ctx, c, make([]int64, 100), comm.Sum)
	}
	cases := []struct {
		name    string
		lists   [2]string
		call    func(ctx context.Context, c *comm.Comm) error
		details [2]string // what every rank reports of each call, because their texts are equal
	}{
		{"segments", [2]string{"allreduce:ring@128", "allreduce:ring@256"}, sum,
			[2]string{"int64 x100 sum by ring in segments of 128 bytes", "int64 x100 sum by ring in segments of 256 bytes"}},
		{"algorithms", [2]string{"allreduce:ring@128", "allreduce:pairwise@128"}, sum,
			[2]string{"sum by ring in segments of 128 bytes", "sum by pairwise in segments of 128 bytes"}},
		{"algorithms of nothing", [2]string{"allreduce:ring@128", "allreduce:linear@128"},
			func(ctx context.Context, c *comm.Comm) error {
				if err := comm.AllReduce(ctx, c, []int64{}, comm.Sum); err != nil {
					return err
				}
				return c.Barrier(ctx)
			},
			[2]string{"x0 sum by ring in segments of 128 bytes", "x0 sum by linear in segments of 128 bytes"}},
		{"counts", [2]string{"allgatherv:ring@128", "allgatherv:ring@128"},
			func(ctx context.Context, c *comm.Comm) error {
				return comm.AllGather(ctx, c, make([]int8, 5), comm.From(make([]int8, 3)), comm.Counts([]int{3 - c.Rank(), 2 + c.Rank()}))
			},
			[2]string{"segments of 128 bytes with counts of hash ", "segments of 128 bytes with counts of hash "}},
	}
	for _, x := range cases {
		for _, wire := range transports {
			errs := perRank(t, 2, func(ctx context.Context, c *comm.Comm) error {
				if err := c.ForceHere(x.lists[c.Rank()]); err != nil {
					return err
				}
				return x.call(ctx, c)
			}, comm.WithTransport(linked.All()...), comm.WithTransportName(wire))
			for r, err := range errs {
				if !errors.Is(err, fault.Mismatch) {
					t.Errorf("%s over %s: rank %d got %v, want fault.Mismatch", x.name, wire, r, err)
					continue
				}
				for _, detail := range x.details {
					if !strings.Contains(err.Error(), detail) {
						t.Errorf("%s over %s: rank %d is told %v, want %q in it", x.name, wire, r, err, detail)
					}
				}
			}
		}
	}
}

// If the texts of two calls differ, a mismatch error must omit the details.
func TestMismatchOmitsDetailsWhenTheCallsDiffer(t *testing.T) {
	errs := perRank(t, 2, func(ctx context.Context, c *comm.Comm) error {
		return comm.AllReduce(ctx, c, make([]int64, 100+c.Rank()), comm.Sum)
	})
	for r, err := range errs {
		if !errors.Is(err, fault.Mismatch) || strings.Contains(err.Error(), "segments") {
			t.Errorf("rank %d got %v, want fault.Mismatch without a word of segments", r, err)
		}
	}
}

// Calls must run the algorithm that a tuning file names, on the job's communicator, on a duplicate,
// and in a coordinator. The bits of a sum show which algorithm ran, because each algorithm adds in
// a different order.
func TestTheAlgorithmOfATuningFileIsTheOneThatRuns(t *testing.T) {
	algorithms := []string{"ring", "pairwise", "recursive_doubling", "linear"}
	for i, tuned := range algorithms {
		file := tuningFile(t, fmt.Sprintf(`{"op": "allreduce", "algorithm": %q}`, tuned))
		err := comm.Local(5, func(ctx context.Context, c *comm.Comm) error {
			input := make([]float32, 1000)
			random := rand.New(rand.NewPCG(1, uint64(c.Rank())))
			for k := range input {
				input[k] = float32(random.NormFloat64() * math.Pow(2, 20*random.Float64()))
			}
			var forced [][]float32
			for _, a := range algorithms {
				sum := slices.Clone(input)
				if err := comm.AllReduce(ctx, c, sum, comm.Sum, comm.Algorithm(a)); err != nil {
					return err
				}
				for k, other := range forced {
					if slices.Equal(other, sum) {
						return fmt.Errorf("%s and %s give equal bits: this test compares nothing", algorithms[k], a)
					}
				}
				forced = append(forced, sum)
			}
			return compareTunedCalls(ctx, c, input, forced[i], tuned == "ring" || tuned == "pairwise")
		}, comm.WithParameters(comm.Parameters{Tuning: file}), comm.WithParameters(comm.Parameters{NoSharedMemory: true}))
		if err != nil {
			t.Errorf("tuned to %s: %v", tuned, err)
		}
	}
}

// compareTunedCalls returns an error if an allreduce of input that names no algorithm gives other
// bits than want. If coordinated is true, it also checks a coordinator. Only algorithms that a
// coordinator takes from the table are compared with it; for others it uses a reduce-scatter and an
// allgather.
func compareTunedCalls(ctx context.Context, c *comm.Comm, input, want []float32, coordinated bool) error {
	dup, err := c.Dup(ctx)
	if err != nil {
		return err
	}
	co, err := coordinator.Start(ctx, c)
	if err != nil {
		return err
	}
	sum := make([]float32, len(input))
	persistent := comm.IAllReduce(dup, sum, comm.Sum, comm.Persistent())
	wait := func(r *comm.Request) error {
		_, err := r.Wait(ctx)
		return err
	}
	calls := []struct {
		name string
		call func() error
	}{
		{"blocking", func() error { return comm.AllReduce(ctx, c, sum, comm.Sum) }},
		{"non-blocking", func() error { return wait(comm.IAllReduce(c, sum, comm.Sum)) }},
		{"on a duplicate", func() error { return comm.AllReduce(ctx, dup, sum, comm.Sum) }},
		{"persistent", func() error { return errors.Join(persistent.Start(ctx), wait(persistent)) }},
		{"coordinator", func() error { return coordinator.AllReduce(co, "w", sum, comm.Sum).Wait(ctx) }},
	}
	if !coordinated {
		calls = calls[:4]
	}
	for _, x := range calls {
		for range 2 { // the second call uses what the first has cached
			copy(sum, input)
			if err := x.call(); err != nil {
				return fmt.Errorf("%s: %w", x.name, err)
			}
			if !slices.Equal(sum, want) {
				return fmt.Errorf("%s: got bits of another algorithm", x.name)
			}
		}
	}
	return errors.Join(persistent.Free(), co.Close(ctx), dup.Close(ctx))
}
