package collective

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/test/teamtest"
	"github.com/tutti-go/tutti/p2p"
	"github.com/tutti-go/tutti/reduce"
	"github.com/tutti-go/tutti/tensor"
	"github.com/tutti-go/tutti/topology"
)

// onHosts places n ranks evenly on the given number of hosts, host by host.
func onHosts(n, hosts int) []topology.Place {
	placement := make([]topology.Place, n)
	for rank := range placement {
		placement[rank].Host = fmt.Sprintf("n%d", rank*hosts/n)
	}
	return placement
}

// at parses a text such as "a/n0 a/n1 n2", which has one place per rank.
func at(text string) []topology.Place {
	var placement []topology.Place
	for item := range strings.FieldsSeq(text) {
		rack, host, ok := strings.Cut(item, "/")
		if !ok {
			rack, host = "", item
		}
		placement = append(placement, topology.Place{Host: host, Rack: rack})
	}
	return placement
}

// placements returns the placements that tests use. They are in order and round robin, even and
// uneven, with racks and without racks.
func placements() []string {
	all := []string{
		"n0 n0 n1 n1",
		"n0 n1 n0 n1",
		"n0 n1 n2 n0 n1 n2",
		"n0 n1 n1 n1 n0 n2 n1",
		"n1 n0 n0 n0 n0",
		"a/n0 b/n1 a/n2 b/n3 a/n0 b/n1 a/n2 b/n3",
		"b/n1 a/n0 c/n2 a/n3 b/n4 a/n0 c/n2 a/n3 b/n1",
		"n0 n1 n2 n3 n4",
	}
	if underRace() {
		return all[3:6] // with the race detector, tests take fifteen times as long
	}
	return all
}

// atPlacements runs a test on a team for every placement, with and without shared memory within
// each host.
func atPlacements(t *testing.T, do func(t *testing.T, tm *teamtest.Team, placement []topology.Place)) {
	for _, text := range placements() {
		for _, share := range []bool{teamtest.SharedMemory, teamtest.NoSharedMemory} {
			t.Run(fmt.Sprintf("%s, shared %v", text, share), func(t *testing.T) {
				do(t, teamtest.StartAt(t, at(text), share, smallSegment, teamtest.NoWrapper), at(text))
			})
		}
	}
}

func TestEveryAlgorithmIsRightForAnyPlacement(t *testing.T) {
	long := 50_003 // takes several fragments of shared memory
	if underRace() {
		long = 20_003 // takes two
	}
	atPlacements(t, func(t *testing.T, tm *teamtest.Team, placement []topology.Place) {
		n := len(placement)
		everyAlgorithm(func(a Algorithm) {
			if a.NeedsShared() {
				return
			}
			for _, count := range []int{0, 1, n + 1, 1000} {
				for _, x := range testCases(a, n, count, true) {
					x.run(t, tm)
				}
			}
			for _, x := range testCases(a, n, long, true)[:1] {
				x.run(t, tm)
			}
		})
	})
}

// grouped returns the ranks by rack and by host, beginning with the root's rack and host. It
// computes the order in a simpler way than package topology, and serves as a reference.
func grouped(placement []topology.Place, root int) [][][]int {
	var racks [][][]int
	for rank, p := range placement {
		r := slices.IndexFunc(racks, func(hosts [][]int) bool { return placement[hosts[0][0]].Rack == p.Rack })
		if r < 0 {
			racks, r = append(racks, nil), len(racks)
		}
		h := slices.IndexFunc(racks[r], func(host []int) bool { return placement[host[0]].Host == p.Host })
		if h < 0 {
			racks[r], h = append(racks[r], nil), len(racks[r])
		}
		racks[r][h] = append(racks[r][h], rank)
	}
	rotate(racks, func(hosts [][]int) bool { return placement[hosts[0][0]].Rack == placement[root].Rack })
	rotate(racks[0], func(host []int) bool { return placement[host[0]].Host == placement[root].Host })
	rotate(racks[0][0], func(rank int) bool { return rank == root })
	return racks
}

// rotate rotates items until the given function returns true for items[0].
func rotate[T any](items []T, first func(T) bool) {
	for i := slices.IndexFunc(items, first); i > 0; i-- {
		item := items[0]
		copy(items, items[1:])
		items[len(items)-1] = item
	}
}

// inTree returns the order in which a binomial tree folds the items.
func inTree(items []*fold) *fold {
	f := items[0]
	for d := 1; d < len(items); d *= 2 {
		f = &fold{earlier: f, later: inTree(items[d:min(2*d, len(items))])}
	}
	return f
}

func shareOf(rank int) *fold { return &fold{rank: rank} }

func mapped[A, B any](items []A, f func(A) B) []B {
	var all []B
	for _, x := range items {
		all = append(all, f(x))
	}
	return all
}

// documentedAt returns the order that the algorithm's header documents for one element, for ranks
// with the given placement. The element has offset i of count and lies in chunk c.
func documentedAt(t testing.TB, a Algorithm, placement []topology.Place, root, c, i, count int, commutes bool) *fold {
	n := len(placement)
	hosts := func(root int) [][]int { return slices.Concat(grouped(placement, root)...) }
	eachHost := func(root int) []*fold {
		return mapped(hosts(root), func(h []int) *fold { slices.Sort(h); return serial(h...) })
	}
	ring := func(chunk int) []int { // the ranks in ring order, from the rank after chunk to chunk
		order := slices.Concat(hosts(0)...)
		rotate(order, func(rank int) bool { return rank == chunk })
		return append(order[1:], order[0])
	}
	afterHost := func(h int) *fold { // the hosts in order, from the host after h to h
		folds := eachHost(0)
		return chain(append(folds[h+1:], folds[:h+1]...))
	}
	switch a.Name() {
	case "ring", "segmented_ring":
		return serial(ring(c)...)
	case "knomial4":
		nodes := topology.New(placement).From(root)
		var named func(f *fold) *fold
		named = func(f *fold) *fold {
			if f.earlier == nil {
				return &fold{rank: nodes.Rank(f.rank)}
			}
			return &fold{earlier: named(f.earlier), later: named(f.later)}
		}
		return named(upTree(n, 0, 0, n, 4))
	case "binomial", "reduce_broadcast":
		if a.Name() == "reduce_broadcast" {
			root = 0
		}
		if !commutes {
			return inTree(mapped(upTo(n, 0), shareOf))
		}
		return inTree(mapped(grouped(placement, root), func(rack [][]int) *fold {
			return inTree(mapped(rack, func(host []int) *fold { return inTree(mapped(host, shareOf)) }))
		}))
	case hierarchical:
		switch a.Verb() {
		case VerbAllReduce:
			return doubledOf(eachHost(0))
		case VerbReduce:
			var racks []*fold
			for _, rack := range grouped(placement, root) {
				racks = append(racks, inTree(mapped(rack, func(h []int) *fold { slices.Sort(h); return serial(h...) })))
			}
			return inTree(racks)
		}
		return afterHost(slices.IndexFunc(hosts(0), func(h []int) bool { return slices.Contains(h, c) }))
	case hierarchicalSplit:
		parts := n
		for _, h := range hosts(0) {
			parts = min(parts, len(h))
		}
		lo, hi := partAround(count, parts, i)
		h, _ := chunkAround(hi-lo, len(hosts(0)), i-lo)
		return afterHost(h)
	}
	return documented(t, a, n, root, c)
}

// chain returns the fold of a loop over the given folds.
func chain(folds []*fold) *fold {
	f := folds[0]
	for _, later := range folds[1:] {
		f = &fold{earlier: f, later: later}
	}
	return f
}

// doubledOf is like doubled, for folds instead of ranks.
func doubledOf(items []*fold) *fold {
	var put func(f *fold) *fold
	put = func(f *fold) *fold {
		if f.earlier == nil {
			return items[f.rank]
		}
		return &fold{earlier: put(f.earlier), later: put(f.later)}
	}
	return put(doubled(len(items)))
}

// partAround cuts count elements into parts, and returns the bounds of the part that contains
// element i.
func partAround(count, parts, i int) (lo, hi int) {
	p, _ := chunkAround(count, parts, i)
	return tensor.Chunk(count, parts, p)
}

// chunkAround returns which of n chunks contains element i.
func chunkAround(count, n, i int) (chunk, lo int) {
	for c := range n {
		if lo, hi := tensor.Chunk(count, n, c); i >= lo && i < hi {
			return c, lo
		}
	}
	return 0, 0
}

// Each element must have the bits of the order that the header documents. The test folds the
// elements one by one, because each may have a different order.
func TestFloatsHaveTheBitsOfTheDocumentedOrderForAnyPlacement(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 8))
	mean, err := reduce.Mean.Kernel(tensor.Float32)
	if err != nil {
		t.Fatal(err)
	}
	atPlacements(t, func(t *testing.T, tm *teamtest.Team, placement []topology.Place) {
		for _, count := range []int{1, 61} {
			inputs := randomInputs(rng, tensor.Float32, len(placement), count)
			reducing(func(a Algorithm) {
				if !a.NeedsShared() {
					checkPlacement(t, tm, folding{a, mean, len(placement) / 2, inputs}, placement)
				}
			})
		}
	})
}

// checkPlacement compares every element with the documented order.
func checkPlacement(t testing.TB, tm *teamtest.Team, x folding, placement []topology.Place) {
	t.Helper()
	n, size := len(placement), x.k.DType().Size()
	count := len(x.inputs[0]) / size
	if x.a.isScan() {
		x.scan(t, tm) // scans fold in rank order on any placement
		return
	}
	var want []byte
	for i := range count {
		c, _ := chunkAround(count, n, i)
		f := documentedAt(t, x.a, placement, x.root, c, i, count, x.k.Op().Commutative())
		elem := f.of(x.k, func(rank int) []byte { return aligned8(x.inputs[rank][i*size:][:size]) })
		x.k.Finish(elem, n)
		want = append(want, elem...)
	}
	tm.Run(t, func(ctx context.Context, r *p2p.Round) error {
		got, expected, err := x.call(ctx, r, cutEvenly(want, n, size))
		if err == nil && !slices.Equal(got, expected) {
			err = fmt.Errorf("%v of %d elements, root %d: got %x, want %x", x.a, count, x.root, got, expected)
		}
		return err
	})
}

func TestOperatorsThatDoNotCommuteGetRankOrderForAnyPlacement(t *testing.T) {
	k, err := reduce.Func("compose", reduce.RankOrder, compose).Kernel(tensor.Uint64)
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(9, 10))
	atPlacements(t, func(t *testing.T, tm *teamtest.Team, placement []topology.Place) {
		n, l := len(placement), topology.New(placement)
		inputs := randomInputs(rng, tensor.Uint64, n, 500)
		want := serial(upTo(n, 0)...).of(k, func(rank int) []byte { return inputs[rank] })
		reducing(func(a Algorithm) {
			switch {
			case a.NeedsShared() || !a.SupportsOrder(reduce.RankOrder):
			case a.isScan():
				checkScan(t, tm, folding{a, k, 0, inputs})
			case a.SupportsOrderOn(reduce.RankOrder, l):
				checkExactly(t, tm, folding{a, k, 0, inputs}, want)
			default:
				tm.Run(t, func(ctx context.Context, r *p2p.Round) error {
					_, _, err := folding{a, k, 0, inputs}.call(ctx, r, cutEvenly(want, n, 8))
					if !errors.Is(err, fault.Misuse) {
						return fmt.Errorf("%v on %v: got %v, want fault.Misuse", a, l, err)
					}
					return nil
				})
			}
		})
	})
}

// crossings counts the messages of a recorded run that enter and leave each group. The parameter
// group returns the name of a rank's group.
func crossings(all []*message, group func(rank int) string) (entries, exits map[string]int, pairs map[[2]int]bool) {
	entries, exits, pairs = map[string]int{}, map[string]int{}, map[[2]int]bool{}
	for _, m := range all {
		from, to := group(m.from), group(m.to)
		if from == to {
			continue
		}
		entries[to]++
		exits[from]++
		pairs[[2]int{m.from, m.to}] = true
	}
	return entries, exits, pairs
}

// groupings returns the groups whose boundaries are counted.
func groupings(placement []topology.Place) map[string]func(rank int) string {
	return map[string]func(rank int) string{
		"host": func(rank int) string { return placement[rank].Rack + "/" + placement[rank].Host },
		"rack": func(rank int) string { return placement[rank].Rack },
	}
}

func TestARingCrossesEachBoundaryOncePerDirectionAndStep(t *testing.T) {
	for _, text := range placements() {
		placement := at(text)
		n := len(placement)
		tm, seen := newRecordedTeamAt(t, placement, teamtest.SharedMemory)
		for _, c := range []struct {
			a     Algorithm
			steps int
		}{
			{find(t, VerbAllReduce, "ring"), 2 * (n - 1)},
			{find(t, VerbReduceScatter, "ring"), n - 1},
			{find(t, VerbAllGather, "ring"), n - 1},
			{find(t, VerbAllGatherV, "ring"), n - 1},
		} {
			all := record(t, tm, seen, c.a, 0, 2, 0)
			for what, group := range groupings(placement) {
				enter, exits, pairs := crossings(all, group)
				for name := range enter {
					if enter[name] != c.steps || exits[name] != c.steps {
						t.Errorf("%v on %s: %d messages enter %s %s, and %d leave it, want %d each", c.a, text, enter[name], what, name, exits[name], c.steps)
					}
				}
				if len(pairs) != len(enter) {
					t.Errorf("%v on %s: %d links join %d %ss, want one into each", c.a, text, len(pairs), len(enter), what)
				}
			}
		}
	}
}

func TestATreeEntersEachHostAndRackOnce(t *testing.T) {
	for _, text := range placements() {
		placement := at(text)
		tm, seen := newRecordedTeamAt(t, placement, teamtest.SharedMemory)
		for _, verb := range []Verb{VerbBroadcast, VerbReduce, VerbGather, VerbScatter} {
			for _, name := range []string{"binomial", hierarchical} {
				a, err := Find(verb, name)
				if err != nil {
					continue // there is no hierarchical gather
				}
				for root := range placement {
					checkTree(t, record(t, tm, seen, a, root, 2, 0), a, placement, root)
				}
			}
		}
	}
}

// checkTree checks that one message enters each group except the root's group, if the operation is
// a broadcast or a scatter. In a reduction or a gather, one message must leave each of these
// groups.
func checkTree(t *testing.T, all []*message, a Algorithm, placement []topology.Place, root int) {
	t.Helper()
	for what, group := range groupings(placement) {
		enter, exits, pairs := crossings(all, group)
		once := enter // a broadcast or scatter enters every group once, except the root's group
		if a.Verb() == VerbReduce || a.Verb() == VerbGather {
			once = exits
		}
		groups := map[string]bool{}
		for rank := range placement {
			groups[group(rank)] = true
		}
		for name := range groups {
			want := 1
			if name == group(root) {
				want = 0
			}
			if once[name] != want {
				t.Errorf("%v from root %d on %v: %d messages cross the boundary of %s %s, want %d", a, root, placement, once[name], what, name, want)
			}
		}
		if len(pairs) != len(groups)-1 {
			t.Errorf("%v from root %d on %v: %d links join %d %ss", a, root, placement, len(pairs), len(groups), what)
		}
	}
}

// The number of bytes that a hierarchical algorithm moves between hosts must be the number that its
// cost counts, times the number of hosts. The test does not count the bytes of the algorithms whose
// hosts send different numbers of bytes. Within a host the ranks share memory, so they send no
// messages there, except for the chunks that a reduce-scatter distributes at its end.
func TestHierarchicalAlgorithmsSendBetweenHostsWhatTheirCostCounts(t *testing.T) {
	placement := at("n0 n1 n2 n0 n1 n2 n0 n1 n2")
	const hosts, width = 3, 6
	tm, seen := newRecordedTeamAt(t, placement, teamtest.SharedMemory)
	everyAlgorithm(func(a Algorithm) {
		if !a.Hierarchical() {
			return
		}
		all := record(t, tm, seen, a, 0, width, 0)
		// The leaders of the hosts are ranks 0 to 2. At the end of a reduce-scatter, each of them
		// sends every other rank of its host its chunk.
		scatters := a.Verb() == VerbReduceScatter || a.Verb() == VerbReduceScatterV
		var between []*message
		within := make([]int, len(placement)) // the messages that each rank gets from its host
		for _, m := range all {
			if placement[m.from] != placement[m.to] {
				between = append(between, m)
				continue
			}
			within[m.to]++
			if !scatters || m.from >= hosts || m.bytes != 8*width {
				t.Errorf("%v: got a message of %d bytes from rank %d to rank %d on one host, want shared memory there", a, m.bytes, m.from, m.to)
			}
		}
		if want := []int{0, 0, 0, 1, 1, 1, 1, 1, 1}; scatters && !slices.Equal(within, want) {
			t.Errorf("%v: got %v messages within hosts to each rank, want %v", a, within, want)
		}
		bytes := 0
		for _, m := range between {
			bytes += m.bytes
		}
		_, beta, _ := a.Cost(hosts, 8*len(placement)*width, 1<<20)
		if a.Verb() != VerbBroadcast && a.Verb() != VerbReduce && a != find(t, VerbAllReduce, hierarchical) {
			beta *= hosts // each host sends beta bytes
			if bytes != int(beta+.5) {
				t.Errorf("%v: %d bytes between hosts, want %v", a, bytes, beta)
			}
		}
	})
}

func TestHierarchicalRulesNeedSeveralHostsWithSeveralRanks(t *testing.T) {
	for _, c := range []struct {
		placement string
		bytes     int
		commutes  bool
		want      string
	}{
		{"n0 n0 n1 n1", 64, true, hierarchical},
		{"n0 n0 n1 n1", 1 << 20, true, hierarchicalSplit},
		{"n0 n0 n1 n1", 64, false, hierarchical},
		{"n0 n0 n1 n1", 1 << 20, false, "pairwise"},
		{"n0 n1 n0 n1", 64, false, "recursive_doubling"},
		{"n0 n1 n0 n1", 64, true, hierarchical},
		{"n0 n1 n2 n3", 64, true, "recursive_doubling"},
		{"n0 n0 n0 n0", 64, true, "recursive_doubling"},
	} {
		chooser := DefaultTable().ChooserOn(topology.New(at(c.placement)), "tcp")
		if got := chooser.Choose(VerbAllReduce, c.bytes, c.commutes, false).Algorithm.Name(); got != c.want {
			t.Errorf("%s, %d bytes, commutes %v: got %s, want %s", c.placement, c.bytes, c.commutes, got, c.want)
		}
	}
}
