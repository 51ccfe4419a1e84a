package topology

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/tutti-go/tutti/fault"
)

// at parses a text such as "a/n0 a/n1 n2", which has one place per rank.
func at(text string) []Place {
	var places []Place
	for item := range strings.FieldsSeq(text) {
		rack, host, ok := strings.Cut(item, "/")
		if !ok {
			rack, host = "", item
		}
		places = append(places, Place{Host: host, Rack: rack})
	}
	return places
}

func TestOrderFollowsHostsThenRacks(t *testing.T) {
	for _, c := range []struct {
		name, places, want string
		inOrder            bool
		hosts, racks       int
	}{
		{"one rank", "n0", "n0[0]", true, 1, 1},
		{"one host", "n0 n0 n0", "n0[0 1 2]", true, 1, 1},
		{"host by host", "n0 n0 n1 n1", "n0[0 1] n1[2 3]", true, 2, 1},
		{"round robin", "n0 n1 n0 n1", "n0[0 2] n1[1 3]", false, 2, 1},
		{"names do not matter", "z a z a", "z[0 2] a[1 3]", false, 2, 1},
		{"uneven", "n0 n1 n2 n0 n0 n2", "n0[0 3 4] n1[1] n2[2 5]", false, 3, 1},
		{"racks over hosts", "a/n0 b/n1 a/n2 b/n3", "a/n0[0] a/n2[2] b/n1[1] b/n3[3]", false, 4, 2},
		{"racks and round robin", "a/n0 b/n1 a/n2 a/n0 b/n1 a/n2", "a/n0[0 3] a/n2[2 5] b/n1[1 4]", false, 3, 2},
		{"a rack without a name", "n0 b/n1 n2", "n0[0] n2[2] b/n1[1]", false, 3, 2},
	} {
		l := New(at(c.places))
		if got := l.String(); got != c.want {
			t.Errorf("%s: got %s, want %s", c.name, got, c.want)
		}
		if l.InOrder() != c.inOrder || l.Hosts() != c.hosts || l.Racks() != c.racks {
			t.Errorf("%s: in order %v, %d hosts, %d racks, want %v, %d, %d", c.name, l.InOrder(), l.Hosts(), l.Racks(), c.inOrder, c.hosts, c.racks)
		}
		for rank := range l.Size() {
			if got := l.Rank(l.Position(rank)); got != rank {
				t.Errorf("%s: at the place of rank %d is rank %d", c.name, rank, got)
			}
		}
	}
}

func TestOrderDoesNotDependOnWhoseNameIsFirst(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		places := scattered(rng)
		want := New(places).Order()
		for i := range places { // different names, but the same grouping
			places[i].Host += fmt.Sprint(len(places[i].Host))
			places[i].Host = reversed(places[i].Host)
		}
		if got := New(places).Order(); !slices.Equal(got, want) {
			t.Errorf("%v: got %v, want %v", places, got, want)
		}
	}
}

func reversed(s string) string {
	b := []byte(s)
	slices.Reverse(b)
	return string(b)
}

// scattered returns up to 20 ranks on hosts of several racks, in random order.
func scattered(rng *rand.Rand) []Place {
	hosts, racks := 1+rng.IntN(6), 1+rng.IntN(3)
	rackOf := make([]int, hosts)
	for h := range rackOf {
		rackOf[h] = rng.IntN(racks)
	}
	places := make([]Place, 1+rng.IntN(20))
	for i := range places {
		h := rng.IntN(hosts)
		places[i] = Place{Host: fmt.Sprintf("n%d", h), Rack: fmt.Sprintf("r%d", rackOf[h])}
	}
	return places
}

// From any root, a walk must visit every rank once, beginning with the root. It must leave a host
// or a rack only after all ranks of that host or rack.
func TestAWalkVisitsHostsAndRacksOneAfterTheOther(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for range 300 {
		places := scattered(rng)
		l := New(places)
		for root := range l.Size() {
			checkWalk(t, l, places, root)
		}
	}
}

func checkWalk(t *testing.T, l *Layout, places []Place, root int) {
	t.Helper()
	w := l.From(root)
	if w.Rank(0) != root {
		t.Fatalf("%v: the walk from %d begins at %d", l, root, w.Rank(0))
	}
	seen := make(map[int]bool)
	left := make(map[string]bool)
	last := Place{}
	for node := range l.Size() {
		rank := w.Rank(node)
		if seen[rank] || w.Node(rank) != node {
			t.Fatalf("%v from %d: node %d is rank %d, whose node is %d", l, root, node, rank, w.Node(rank))
		}
		seen[rank] = true
		p := places[rank]
		if node > 0 && p != last {
			left["host "+last.Rack+"/"+last.Host] = true
			if p.Rack != last.Rack {
				left["rack "+last.Rack] = true
			}
		}
		if left["host "+p.Rack+"/"+p.Host] || left["rack "+p.Rack] {
			t.Fatalf("%v from %d: node %d comes back to %v", l, root, node, p)
		}
		last = p
		checkSpot(t, l, w, node, rank)
	}
	if got := w.RackStart(w.Racks()); got != l.Size() {
		t.Fatalf("%v from %d: the racks end at node %d", l, root, got)
	}
}

func checkSpot(t *testing.T, l *Layout, w Walk, node, rank int) {
	t.Helper()
	s := w.Coordinates(rank)
	start, end := w.HostStart(s.Rack, s.Host), w.HostStart(s.Rack, s.Host+1)
	if node != start+s.Local || node >= end || start < w.RackStart(s.Rack) || end > w.RackStart(s.Rack+1) || s.Host >= w.HostsOf(s.Rack) {
		t.Fatalf("%v: node %d is %+v, of a host from %d to %d, in a rack from %d to %d", l, node, s, start, end, w.RackStart(s.Rack), w.RackStart(s.Rack+1))
	}
	for n := start; n < end; n++ {
		if l.HostOf(w.Rank(n)) != l.HostOf(rank) {
			t.Fatalf("%v: nodes %d and %d are not on one host", l, n, node)
		}
	}
}

func TestAFlatLayoutIsOneHostInRankOrder(t *testing.T) {
	l := Flat(5)
	if !l.InOrder() || l.Hosts() != 1 || l.Racks() != 1 || l.MinRanksPerHost() != 5 || l.MaxRanksPerHost() != 5 || l.String() != "[0 1 2 3 4]" {
		t.Errorf("got %v with %d hosts and %d racks", &l, l.Hosts(), l.Racks())
	}
	w := l.From(3)
	for node := range 5 {
		if got, want := w.Rank(node), (3+node)%5; got != want || w.Node(want) != node {
			t.Errorf("node %d from rank 3 is rank %d, want %d", node, got, want)
		}
	}
}

func TestAcrossIsTheHostsByRack(t *testing.T) {
	l := New(at("a/n0 b/n1 a/n2 b/n1 a/n0"))
	if l.MinRanksPerHost() != 1 || l.MaxRanksPerHost() != 2 {
		t.Errorf("from %d to %d ranks on a host, want 1 to 2", l.MinRanksPerHost(), l.MaxRanksPerHost())
	}
	across := l.HostLayout()
	if got, want := across.String(), "[0 1] [2]"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if across.Size() != 3 || across.Hosts() != 2 || across.HostOf(2) != 1 {
		t.Errorf("got %d nodes in %d racks, node 2 in rack %d", across.Size(), across.Hosts(), across.HostOf(2))
	}
	flat := Flat(4)
	if one := flat.HostLayout(); one.Size() != 1 || one.Hosts() != 1 {
		t.Errorf("across one host: %d nodes", one.Size())
	}
}

func TestAHostInSeveralRacksIsRefused(t *testing.T) {
	if err := Check(at("a/n0 b/n1 a/n0 b/n1")); err != nil {
		t.Error(err)
	}
	err := Check(at("a/n0 b/n1 a/n2 b/n2"))
	if !errors.Is(err, fault.Mismatch) || !strings.Contains(err.Error(), `rack of host "n2": got "a" from rank 2 and "b" from rank 3`) {
		t.Errorf("got %v", err)
	}
}

func TestALongLayoutIsPrintedInPart(t *testing.T) {
	places := make([]Place, 4000)
	for i := range places {
		places[i].Host = fmt.Sprintf("node%d", i)
	}
	if got := New(places).String(); len(got) > maxText+100 || !strings.HasSuffix(got, "… 4000 hosts") {
		t.Errorf("%d bytes: …%q", len(got), got[max(0, len(got)-40):])
	}
}
