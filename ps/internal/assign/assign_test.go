package assign

import (
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
)

func TestSharesAreThoseOfBytePS(t *testing.T) {
	for n := range 9 {
		for k := range 9 {
			if n+k == 0 {
				continue
			}
			var members []Member
			for i := range n + k {
				members = append(members, Member{Rank: i, Host: fmt.Sprint("h", i), Works: i < n, Serves: true})
			}
			b := NewBalance(members, 1)
			var all uint64
			for _, s := range b.servers {
				all += s.weight
			}
			for i, s := range b.servers {
				got, want := float64(s.weight)/float64(all), paperShare(n, k, i < n)
				if n+k == 1 {
					want = 1
				}
				if math.Abs(got-want) > 1e-12 {
					t.Errorf("n = %d, k = %d, server %d: got the share %v, want %v", n, k, i, got, want)
				}
			}
		}
	}
}

// paperShare returns the share of a host as the paper defines it.
func paperShare(n, k int, works bool) float64 {
	d := float64(n*n + k*n - 2*k)
	switch {
	case k >= n && works:
		return 0
	case k >= n:
		return 1 / float64(k)
	case works:
		return float64(n-k) / d
	}
	return 2 * float64(n-1) / d
}

func TestServersOfOneHostShareItsShare(t *testing.T) {
	b := NewBalance([]Member{
		{Rank: 0, Host: "a", Works: true},
		{Rank: 1, Host: "a", Serves: true},
		{Rank: 2, Host: "a", Serves: true},
		{Rank: 3, Host: "b", Works: true, Serves: true},
		{Rank: 4, Host: "c", Works: true},
		{Rank: 5, Host: "d", Serves: true},
	}, 1) // n = 3, k = 1: 4 for d, and 2 each for a and b
	for i, want := range []uint64{1, 1, 2, 4} {
		if got := b.servers[i].weight >> 20; got != want {
			t.Errorf("server %d: got the weight %d, want %d", b.servers[i].Rank, got, want)
		}
	}
}

// random returns a job with random members, hosts and parts.
func random(r *rand.Rand) *job {
	j := &job{copies: 1 + r.IntN(4)}
	n, hosts := 1+r.IntN(8), 1+r.IntN(5)
	for i := range n {
		j.members = append(j.members, Member{
			Rank: i * 3, Host: fmt.Sprint("h", r.IntN(hosts)), Works: r.IntN(3) == 0, Serves: i == 0 || r.IntN(4) > 0,
		})
	}
	return j
}

func sizes(r *rand.Rand) []int64 {
	all := make([]int64, 1+r.IntN(12))
	for i := range all {
		all[i] = 4096000
		if r.IntN(3) == 0 {
			all[i] = r.Int64N(1 << 22)
		}
	}
	return all
}

func (j *job) servers() (all []Member) {
	for _, m := range j.members {
		if m.Serves {
			all = append(all, m)
		}
	}
	return all
}

// distinctHosts returns the number of hosts of the ranks.
func (j *job) distinctHosts(ranks []int) int {
	set := map[string]bool{}
	for _, m := range j.members {
		if slices.Contains(ranks, m.Rank) {
			set[m.Host] = true
		}
	}
	return len(set)
}

func (p Placement) all() []int { return append([]int{p.Primary}, p.Replicas...) }

// repeat runs a subtest for each of some seeds.
func repeat(t *testing.T, test func(t *testing.T, r *rand.Rand)) {
	for seed := range uint64(1000) {
		if t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) { test(t, rand.New(rand.NewPCG(seed, 1))) }); t.Failed() {
			return
		}
	}
}

func TestAssignedPartsAreBalancedAndTheirCopiesSeparate(t *testing.T) {
	repeat(t, func(t *testing.T, r *rand.Rand) {
		j := random(r)
		var largest, all uint64
		for range 1 + r.IntN(4) {
			for _, p := range j.assign(sizes(r)) {
				holders := p.all()
				slices.Sort(holders)
				if want := min(j.copies, len(j.servers())); len(slices.Compact(slices.Clone(holders))) != want || len(holders) != want {
					t.Errorf("%+v: got copies on %v, want %d servers", j.members, holders, want)
				}
				var ranks []int
				for _, m := range j.servers() {
					ranks = append(ranks, m.Rank)
				}
				if got, want := j.distinctHosts(holders), min(len(holders), j.distinctHosts(ranks)); got != want {
					t.Errorf("%+v: got copies on %v, on %d hosts, want %d", j.members, holders, got, want)
				}
			}
		}
		for _, p := range j.parts {
			largest, all = max(largest, weigh(p.Bytes)), all+weigh(p.Bytes)
		}
		// A server gets its last part because no other server would have a lower load with it.
		b := j.balance()
		var weights, m uint64
		for _, s := range b.servers {
			weights += s.weight
			if s.weight > 0 {
				m++
			}
		}
		for _, s := range b.servers {
			if bound := float64(s.weight) / float64(weights) * float64(all+(m-1)*largest); float64(s.primary) > bound*(1+1e-9) {
				t.Errorf("%+v: server %d got %d bytes of %d, want at most %.0f", j.members, s.Rank, s.primary, all, bound)
			}
		}
	})
}

// change loses and adds random members, and lets logs end at different indices.
func (j *job) change(r *rand.Rand) (added bool) {
	for i := range j.parts {
		for c := range j.parts[i].Copies {
			j.parts[i].Copies[c].Index += uint64(r.IntN(2))
		}
	}
	for range r.IntN(3) {
		if n := len(j.servers()); n > 1 {
			j.lose(j.servers()[r.IntN(n)].Rank)
		}
	}
	for range r.IntN(3) {
		rank := 0
		for slices.ContainsFunc(j.members, func(m Member) bool { return m.Rank == rank }) {
			rank++
		}
		j.members = append(j.members, Member{Rank: rank, Host: fmt.Sprint("h", r.IntN(5)), Works: r.IntN(3) == 0, Serves: true, Added: true})
	}
	return slices.ContainsFunc(j.members, func(m Member) bool { return m.Added })
}

func TestPlansAreRightThroughRandomChanges(t *testing.T) {
	repeat(t, func(t *testing.T, r *rand.Rand) {
		j := random(r)
		for range 6 {
			j.assign(sizes(r))
			added := j.change(r)
			plan := NewPlan(j.members, j.copies, j.parts)
			j.check(t, plan, added)
			j.checkOrder(t, r, plan)
			j.transfer(plan)
			if r.IntN(4) == 0 {
				continue // a further change comes before the drops
			}
			j.drop(plan)
			if t.Failed() {
				t.Fatalf("members %+v\nparts %+v\nplan %+v", j.members, j.parts, plan)
			}
		}
	})
}

// checkOrder checks that the order of members, parts and copies does not matter.
func (j *job) checkOrder(t *testing.T, r *rand.Rand, plan Plan) {
	members, parts := slices.Clone(j.members), slices.Clone(j.parts)
	r.Shuffle(len(members), func(i, k int) { members[i], members[k] = members[k], members[i] })
	r.Shuffle(len(parts), func(i, k int) { parts[i], parts[k] = parts[k], parts[i] })
	for i := range parts {
		copies := slices.Clone(parts[i].Copies)
		r.Shuffle(len(copies), func(i, k int) { copies[i], copies[k] = copies[k], copies[i] })
		parts[i].Copies = copies
	}
	if again := NewPlan(members, j.copies, parts); !reflect.DeepEqual(again, plan) {
		t.Errorf("in another order: got %+v, want %+v", again, plan)
	}
}

// check checks what a plan promises for each part.
func (j *job) check(t *testing.T, plan Plan, added bool) {
	planned := map[uint64]Placement{}
	for _, p := range plan.Parts {
		planned[p.ID] = p.Placement
	}
	isAdded := func(rank int) bool {
		return slices.ContainsFunc(j.members, func(m Member) bool { return m.Rank == rank && m.Added })
	}
	for _, p := range j.parts {
		pl, ok := planned[p.ID]
		if lost := slices.Contains(plan.Lost, p.ID); lost != (len(p.Copies) == 0) || ok == lost {
			t.Errorf("part %d with copies %v: got planned %v and lost %v", p.ID, p.Copies, ok, lost)
		}
		if !ok {
			continue
		}
		var best uint64
		var survivors, current []int
		for _, c := range p.Copies {
			best = max(best, c.Index)
		}
		for _, c := range p.Copies {
			survivors = append(survivors, c.Rank)
			if c.Index == best {
				current = append(current, c.Rank)
			}
		}
		holders := pl.all()
		want := min(j.copies, len(j.servers()))
		if distinct := slices.Compact(slices.Sorted(slices.Values(holders))); len(distinct) != want || len(holders) != want {
			t.Errorf("part %d: got copies on %v, want %d different servers", p.ID, holders, want)
		}
		if !slices.Contains(current, pl.Primary) && !slices.ContainsFunc(holders, isAdded) {
			t.Errorf("part %d: got the primary %d, want one of %v, which have the index %d", p.ID, pl.Primary, current, best)
		}
		for _, rank := range survivors {
			dropped := slices.Contains(plan.Drops, Drop{p.ID, rank})
			if kept := slices.Contains(holders, rank); kept == dropped || !kept && !added && len(survivors) <= want {
				t.Errorf("part %d: rank %d holds it before the plan, kept %v, dropped %v; survivors %v, want %d copies", p.ID, rank, kept, dropped, survivors, want)
			}
		}
		if !added && len(survivors) > 0 && slices.ContainsFunc(p.Copies, func(c Copy) bool { return c.Primary && c.Index == best && c.Rank != pl.Primary }) && len(survivors) <= want {
			t.Errorf("part %d: got the primary %d, want the primary to stay; copies %+v", p.ID, pl.Primary, p.Copies)
		}
		j.checkTransfers(t, plan, p, holders, current)
		if len(survivors) <= want && j.distinctHosts(holders) < j.distinctHosts(survivors) {
			t.Errorf("part %d: got copies on %v, on fewer hosts than %v", p.ID, holders, survivors)
		}
	}
}

// checkTransfers checks that each holder that needs a copy gets one, once, of the highest index.
func (j *job) checkTransfers(t *testing.T, plan Plan, p Part, holders, current []int) {
	for _, rank := range holders {
		var sent []Transfer
		for _, tr := range plan.Transfers {
			if tr.ID == p.ID && tr.To == rank {
				sent = append(sent, tr)
			}
		}
		want := 1
		if slices.Contains(current, rank) {
			want = 0
		}
		if len(sent) != want || want == 1 && (!slices.Contains(current, sent[0].From) || sent[0].Bytes != p.Bytes) {
			t.Errorf("part %d to %d: got the transfers %+v, want %d from one of %v", p.ID, rank, sent, want, current)
		}
	}
}

// Without replicas, the only limit on a move is its size.
func TestAddedServersGetTheirShareWithFewBytes(t *testing.T) {
	repeat(t, func(t *testing.T, r *rand.Rand) {
		j := random(r)
		j.copies = 1
		for range 4 {
			j.assign(sizes(r))
		}
		for i := range 1 + r.IntN(2) {
			j.members = append(j.members, Member{Rank: 100 + i, Host: fmt.Sprint("added ", i), Serves: true, Added: true})
		}
		before := j.balance()
		plan := NewPlan(j.members, 1, j.parts)
		j.transfer(plan)
		j.drop(plan)
		b := j.balance()
		var largest uint64
		for _, p := range j.parts {
			largest = max(largest, weigh(p.Bytes))
		}
		var received uint64
		for i, s := range b.servers {
			if s.Rank < 100 {
				if s.total > before.servers[i].total {
					t.Errorf("server %d has got parts and was not added", s.Rank)
				}
				continue
			}
			received += s.total
			if share := b.share(s); s.total+largest < share || s.total > share+largest {
				t.Errorf("added server %d: got %d bytes, want %d, or up to %d more or less", s.Rank, s.total, share, largest)
			}
		}
		var sent uint64
		for _, tr := range plan.Transfers {
			sent += weigh(tr.Bytes)
		}
		if sent != received {
			t.Errorf("got %d bytes of transfers, want the %d bytes that the added servers hold", sent, received)
		}
	})
}

func TestAddIgnoresRanksThatDoNotServe(t *testing.T) {
	b := NewBalance([]Member{{Rank: 0, Serves: true}, {Rank: 1, Serves: true}, {Rank: 2, Works: true}}, 2)
	b.Add(Placement{Primary: 2, Replicas: []int{0, 9}}, 10)
	if s := b.servers[0]; s.primary != 0 || s.total != 10 || b.servers[1].total != 0 {
		t.Errorf("got %+v and %+v, want 10 bytes as a replica of rank 0", s, b.servers[1])
	}
}

func BenchmarkPlan(b *testing.B) {
	j := &job{copies: 2}
	for i := range 16 {
		j.members = append(j.members, Member{Rank: i, Host: fmt.Sprint(i), Serves: true})
	}
	j.assign(slices.Repeat([]int64{4096000}, 10000)) // 40 GB
	j.lose(3)
	j.members = append(j.members, Member{Rank: 16, Host: "16", Serves: true, Added: true})
	for b.Loop() {
		if plan := NewPlan(j.members, 2, j.parts); len(plan.Parts) != 10000 || len(plan.Lost) > 0 {
			b.Fatalf("got %d parts and %d lost", len(plan.Parts), len(plan.Lost))
		}
	}
}
