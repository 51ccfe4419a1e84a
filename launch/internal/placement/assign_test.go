package placement

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/tutti-go/tutti/internal/cpu"
)

// machine returns the processors of a host: sockets of cores, of two threads each. As on most
// machines, the second threads are numbered after all first ones.
func machine(sockets, cores int) (cpus []cpu.Thread) {
	n := sockets * cores
	for thread := range 2 {
		for i := range n {
			cpus = append(cpus, cpu.Thread{ID: thread*n + i, Core: i, Socket: i / cores, NUMA: i / cores})
		}
	}
	return cpus
}

// hostsOf writes the host of each rank.
func hostsOf(places []Assignment) string {
	var b strings.Builder
	for _, p := range places {
		fmt.Fprint(&b, p.Host)
	}
	return b.String()
}

// policyOf returns the policy of options such as "map=node N=2".
func policyOf(t *testing.T, options string) (p Policy) {
	t.Helper()
	for o := range strings.FieldsSeq(options) {
		name, value, _ := strings.Cut(o, "=")
		var err error
		switch name {
		case "map":
			err = p.ParseMapBy(value)
		case "rank":
			err = p.ParseRankBy(value)
		case "bind":
			err = p.ParseBindTo(value)
		case "cpus":
			p.CPUs, err = ParseCPUs(value)
		case "over":
			p.Over = Allow
		case "wrap":
			p.Over = Wrap
		case "threads":
			p.Threads = true
		case "N":
			p.PerNode, err = number(value)
		default:
			t.Fatalf("unknown option %s", o)
		}
		if err != nil {
			t.Fatalf("%s: %v", o, err)
		}
	}
	return p
}

func TestRanksGoWhereOpenMPIAndHydraPutThem(t *testing.T) {
	for _, c := range []struct {
		hosts, options string
		ranks          int
		want           string // the host of each rank
	}{
		{"a:2,b:2", "", 4, "0011"},
		{"a:2,b:2", "", 3, "001"},
		{"a:2,b:2", "", 0, "0011"}, // without -np, all slots
		{"a:2,b:2", "map=node", 4, "0101"},
		{"a:3,b:1", "map=node", 4, "0100"},
		{"a:3,b:1", "map=node", 0, "0100"},
		{"a:2,b:2", "map=node rank=slot", 3, "001"},
		{"a:2,b:2", "rank=node", 4, "0101"},
		{"a:2,b:1", "over", 5, "00011"},
		{"a:2,b:1", "map=slot:oversubscribe", 6, "000011"},
		{"a:1,b:1", "map=node over", 5, "01010"},
		{"a:2,b:1", "map=node:oversubscribe", 6, "010100"},
		{"a:2,b:1", "wrap", 5, "00100"}, // launcher: mpiexec.hydra 4.0.2
		{"a:2,b:1", "wrap", 7, "0010010"},
		{"a,b", "wrap N=2", 8, "00110011"},
		{"a:2,b:2", "wrap N=3", 8, "00011100"},
		{"a:2,b", "wrap N=1", 5, "01010"},
		{"a:2,b", "wrap", 0, "001"},
		{"a:4,b:4", "map=ppr:2:node", 0, "0011"},
		{"a:4,b:4", "map=ppr:2:node", 3, "001"},
		{"a:4,b:4", "N=3", 0, "000111"},
		{"a,b", "N=2 over", 0, "0011"},
		{"a:4,b:4", "N=2 rank=node", 4, "0101"},
		{"a:8,b:8", "map=ppr:1:socket", 0, "0011"},
		{"a:8,b:8", "map=ppr:2:socket:pe=1", 0, "00001111"},
		{"a:*,b:*", "", 0, "00001111"}, // two sockets of two cores
		{"a:*,b:1", "threads", 0, "000000001"},
	} {
		hosts, err := ParseList(c.hosts)
		if err != nil {
			t.Fatal(err)
		}
		for i := range hosts {
			hosts[i].CPUs = machine(2, 2)
		}
		places, err := Assign(hosts, []Program{{Ranks: c.ranks}}, policyOf(t, c.options))
		if got := hostsOf(places); err != nil || got != c.want {
			t.Errorf("%s %s, %d ranks: got %s, %v, want %s", c.hosts, c.options, c.ranks, got, err, c.want)
		}
	}
}

func TestPlacesNumberRanksOnTheirHostsAndAcross(t *testing.T) {
	hosts := []Host{{Name: "idle", Slots: 1}, {Name: "b", Slots: 3}, {Name: "a", Slots: 1}}
	places, err := Assign(hosts, []Program{{Ranks: 1, Hosts: hosts[2:]}, {Ranks: 3, Hosts: hosts[1:2]}}, Policy{})
	want := []Assignment{
		{Host: 2, Node: 0, Program: 0, Local: 0, LocalSize: 1, Cross: 0, CrossSize: 2},
		{Host: 1, Node: 1, Program: 1, Local: 0, LocalSize: 3, Cross: 1, CrossSize: 2},
		{Host: 1, Node: 1, Program: 1, Local: 1, LocalSize: 3, Cross: 0, CrossSize: 1},
		{Host: 1, Node: 1, Program: 1, Local: 2, LocalSize: 3, Cross: 0, CrossSize: 1},
	}
	if err != nil || !reflect.DeepEqual(places, want) {
		t.Errorf("got %+v, %v, want %+v", places, err, want)
	}
}

func TestSeveralProgramsShareTheSlots(t *testing.T) {
	hosts := []Host{{Name: "a", Slots: 2}, {Name: "b", Slots: 3}}
	places, err := Assign(hosts, []Program{{Ranks: 1}, {Ranks: 2}, {}}, Policy{})
	if got := hostsOf(places); err != nil || got != "00111" {
		t.Errorf("got %s, %v, want 00111", got, err)
	}
	_, err = Assign(hosts, []Program{{Ranks: 3}, {Ranks: 3}}, Policy{})
	if err == nil || !strings.Contains(err.Error(), "got 3 ranks, want at most 2") {
		t.Errorf("got %v, want an error that counts the slots left by the first program", err)
	}
}

func TestAssignErrorsNameTheRemedy(t *testing.T) {
	for _, c := range []struct {
		hosts, options string
		ranks          int
		want           string
	}{
		{"a:2,b:1", "", 4, "got 4 ranks, want at most 3, the slots that are free; give the hosts more slots, as in n1:4 or slots=4, or allow more ranks with --oversubscribe"},
		{"a:4,b", "N=2", 0, "host b: got 2 ranks, want at most 1"},
		{"a:4,b:4", "N=2", 5, "got 5 ranks, want at most 4"},
		{"a:8,b:8", "map=ppr:2:node", 5, "want at most 4"},
		{"a:max", "over", 4, "max_slots allow no more"},
		{"a:max", "wrap", 4, "max_slots allow no more"},
		{"a:*", "", 1, "host a: got no slots, and its processors are unknown; give the number of slots, as in a:2"},
		{"a:2", "bind=core", 2, "want one for --bind-to"},
		{"a:2", "map=ppr:1:socket", 2, "its processors are unknown"},
	} {
		hosts := []Host{{Name: "a", Slots: 2, Max: 3}}
		if c.hosts != "a:max" {
			var err error
			if hosts, err = ParseList(c.hosts); err != nil {
				t.Fatal(err)
			}
		}
		places, err := Assign(hosts, []Program{{Ranks: c.ranks}}, policyOf(t, c.options))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s %s, %d ranks: got %s, %v, want %q", c.hosts, c.options, c.ranks, hostsOf(places), err, c.want)
		}
	}
	if _, err := Assign(nil, []Program{{Ranks: 1}}, Policy{}); err == nil {
		t.Error("a job without hosts has places")
	}
	if _, err := Assign([]Host{{Name: "a", Slots: 1}}, []Program{{Hosts: []Host{{Name: "b", Slots: 1}}}}, Policy{}); err == nil {
		t.Error("a program has a place on a host that the job does not have")
	}
}

func TestBinding(t *testing.T) {
	for _, c := range []struct {
		options string
		ranks   int
		want    string // the processors of each rank on a host of two sockets of two cores of two threads
	}{
		{"", 2, "[] []"},
		{"bind=none", 2, "[] []"},
		{"bind=core", 4, "[0 4] [1 5] [2 6] [3 7]"},
		{"bind=hwthread", 8, "[0] [4] [1] [5] [2] [6] [3] [7]"},
		{"bind=core:2", 2, "[0 1 4 5] [2 3 6 7]"},
		{"map=slot:pe=2", 2, "[0 1 4 5] [2 3 6 7]"},
		{"bind=socket", 4, "[0 1 4 5] [0 1 4 5] [2 3 6 7] [2 3 6 7]"},
		{"bind=package", 1, "[0 1 4 5]"},
		{"bind=numa map=numa", 3, "[0 1 4 5] [2 3 6 7] [0 1 4 5]"},
		{"map=socket bind=socket", 4, "[0 1 4 5] [2 3 6 7] [0 1 4 5] [2 3 6 7]"},
		{"map=socket bind=core", 4, "[0 4] [2 6] [1 5] [3 7]"},
		{"map=ppr:1:socket bind=core", 2, "[0 4] [2 6]"},
		{"bind=core:overload-allowed over", 5, "[0 4] [1 5] [2 6] [3 7] [0 4]"},
		{"cpus=1,2-3", 2, "[1 2 3] [1 2 3]"},
		{"cpus=1,2 bind=core", 2, "[1] [2]"},
		{"bind=user:0,7", 1, "[0 7]"},
		{"bind=socket over", 9, "[0 1 4 5] [0 1 4 5] [2 3 6 7] [2 3 6 7] [0 1 4 5] [0 1 4 5] [2 3 6 7] [2 3 6 7] [0 1 4 5]"},
	} {
		p := policyOf(t, c.options)
		places, err := Assign([]Host{{Name: "a", Slots: 8, CPUs: machine(2, 2)}}, []Program{{Ranks: c.ranks}}, p)
		var got []string
		for _, place := range places {
			got = append(got, fmt.Sprint(place.CPUs))
		}
		if err != nil || strings.Join(got, " ") != c.want {
			t.Errorf("%s, %d ranks: got %s, %v, want %s", c.options, c.ranks, got, err, c.want)
		}
	}
	for options, want := range map[string]string{
		"bind=core over":    "host a: got 9 ranks, each to be bound to 1 of the host's 4 cores or threads, want at most 4 ranks; --bind-to none",
		"bind=core:5 over":  "got 5 processors or cores for each rank, want at most the 4",
		"cpus=9 over":       "got processors [9], want some that exist",
		"bind=core cpus=64": "got processors [64]",
	} {
		_, err := Assign([]Host{{Name: "a", Slots: 9, CPUs: machine(2, 2)}}, []Program{{Ranks: 9}}, policyOf(t, options))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", options, err, want)
		}
	}
}

func TestPoliciesRefuseWhatTheyDoNotKnow(t *testing.T) {
	var p Policy
	for what, err := range map[string]error{
		"map by l2cache":        p.ParseMapBy("l2cache"),
		"map by nothing":        p.ParseMapBy("ppr"),
		"ppr of a cache":        p.ParseMapBy("ppr:2:l3cache"),
		"ppr of no number":      p.ParseMapBy("ppr:x:node"),
		"unknown modifier":      p.ParseMapBy("node:magic"),
		"pe without number":     p.ParseMapBy("node:pe="),
		"rank by a cache":       p.ParseRankBy("l2cache"),
		"rank by socket alone":  p.ParseRankBy("socket"),
		"bind to a cache":       p.ParseBindTo("l3cache"),
		"bind to slots":         p.ParseBindTo("slot"),
		"unknown bind modifier": p.ParseBindTo("core:tight"),
		"user without list":     p.ParseBindTo("user:x"),
	} {
		if err == nil || !strings.Contains(err.Error(), "want ") {
			t.Errorf("%s: got %v, want an error that says what is wanted", what, err)
		}
	}
	for _, list := range []string{"", "1,", "3-1", "-1", "0-99999999", "a"} {
		if cpus, err := ParseCPUs(list); err == nil {
			t.Errorf("processors %q: got %v, want an error", list, cpus)
		}
	}
}

func TestNeedsCPUs(t *testing.T) {
	known := []Host{{Name: "a", Slots: 1}}
	for options, want := range map[string]bool{
		"": false, "map=node": false, "N=2": false, "bind=core": true, "map=ppr:1:socket": true, "cpus=0": true, "bind=none": false,
	} {
		p := policyOf(t, options)
		if got := p.NeedsCPUs(known); got != want {
			t.Errorf("%s: got %v, want %v", options, got, want)
		}
	}
	if p := (Policy{}); !p.NeedsCPUs([]Host{{Name: "a"}}) {
		t.Error("got no need for the processors of a host without slots")
	}
}

func FuzzAssign(f *testing.F) {
	f.Add(uint8(5), uint8(2), uint8(1), uint8(0), uint8(0), uint8(0), uint8(0))
	f.Add(uint8(7), uint8(2), uint8(1), uint8(3), uint8(2), uint8(1), uint8(2))
	f.Fuzz(func(t *testing.T, ranks, slotsA, slotsB, limit, over, mapBy, perNode uint8) {
		hosts := []Host{{Name: "a", Slots: int(slotsA), CPUs: machine(2, 2)}, {Name: "b", Slots: int(slotsB), Max: int(limit), CPUs: machine(1, 2)}}
		p := Policy{Over: Overload(over % 3), MapBy: Unit(mapBy % 6), RankBy: Unit(mapBy / 6 % 2), PerNode: int(perNode % 4)}
		places, err := Assign(hosts, []Program{{Ranks: int(ranks)}, {Ranks: 1}}, p)
		if err != nil {
			return
		}
		if ranks > 0 && len(places) != int(ranks)+1 {
			t.Fatalf("got %d places for %d ranks", len(places), ranks+1)
		}
		n := map[int]int{}
		for _, place := range places {
			if place.Local != n[place.Host] || place.Local >= place.LocalSize || place.Cross >= place.CrossSize {
				t.Fatalf("got %+v", places)
			}
			n[place.Host]++
		}
		if limit > 0 && n[1] > int(limit) {
			t.Fatalf("got %d ranks on b, want at most %d", n[1], limit)
		}
	})
}
