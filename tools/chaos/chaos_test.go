//go:build linux

package main

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/test/relay"
)

// faultNamed returns the fault with the given name.
func faultNamed(t *testing.T, name string) *injection {
	t.Helper()
	all := faults()
	i := slices.IndexFunc(all, func(f *injection) bool { return f.name == name })
	if i < 0 {
		t.Fatalf("no fault %q", name)
	}
	return all[i]
}

// check must detect each broken rule, and must pass a trial that keeps all rules. The victim is
// rank 0, and the other end of the link is rank 1.
func TestCheckNoticesEachBrokenRule(t *testing.T) {
	injected := time.Unix(100, 0)
	resumed := injected.Add(3 * S)
	at := func(d time.Duration) int64 { return injected.Add(d).UnixNano() }
	lost := func(d time.Duration, peers ...int) event {
		return event{Name: "error", Time: at(d), Peers: peers, Text: "lost"}
	}
	broken := func(d time.Duration, peers ...int) event {
		return event{Name: "error", Kind: fault.LinkLost.Error(), Time: at(d), Peers: peers, Text: "broken"}
	}
	failed := func(events ...event) outcome { return outcome{ended: true, code: 1, events: events} }
	done := outcome{ended: true, events: []event{{Name: "done"}}}
	killed := outcome{ended: true, code: -1}
	soon := 50 * time.Millisecond
	for _, c := range []struct {
		name, fault   string
		victim, other outcome
		want          string // the broken rule; "" if none
	}{
		{"all kept", "kill", killed, failed(lost(soon, 0)), ""},
		{"ended before the kill", "kill", done, done, ""},
		{"another error later", "kill", killed, failed(lost(0, 0), lost(time.Second, 1)), ""},
		{"another rank is named", "kill", killed, failed(lost(0, 1)), "blame"},
		{"another rank is named, too", "kill", killed, failed(lost(0, 0, 1)), "blame"},
		{"no rank is named", "kill", killed, failed(lost(0)), "blame"},
		{"an error for no reason", "kill", done, failed(lost(soon, 0)), "blame"},
		{"a late report", "kill", killed, failed(lost(faultNamed(t, "kill").limit+1, 0)), "hang"},
		{"a report that R delays", "kill with R", killed, failed(lost(faultNamed(t, "kill").limit+1, 0)), "hang"},
		{"no end", "kill", killed, outcome{code: -1, events: []event{lost(0, 0)}}, "hang"},
		{"a wrong result", "kill", killed, failed(event{Name: "wrong"}, lost(0, 0)), "wrong"},
		{"a panic", "kill", killed, outcome{ended: true, code: 2, events: []event{lost(0, 0)}}, "wrong"},
		{"no report", "kill", killed, outcome{ended: true}, "wrong"},
		{"a goroutine", "kill", killed, failed(lost(0, 0), event{Name: "goroutines"}), "left"},
		{"a descriptor", "kill", killed, failed(lost(0, 0), event{Name: "descriptors"}), "left"},

		{"told at once", "stop", failed(lost(3*S+soon, 0)), failed(lost(S, 0)), ""},
		{"told late", "stop", failed(lost(5*S, 0)), failed(lost(S, 0)), "hang"},
		{"not told", "stop", done, failed(lost(S, 0)), "blame"},
		{"told of another", "stop", failed(lost(3*S, 1)), failed(lost(S, 0)), "blame"},
		{"nothing lost", "pause", done, done, ""},
		{"lost for a pause", "pause", done, failed(lost(soon, 0)), "blame"},
		{"the paused rank loses", "pause", failed(lost(soon, 1)), done, "blame"},
		{"the link is named", "cut", failed(broken(soon, 0, 1)), failed(broken(soon, 1, 0)), ""},
		{"one end is named", "cut", failed(broken(soon, 0, 1)), failed(broken(soon, 0)), "blame"},
		{"both ends are named as lost", "cut", failed(broken(soon, 0, 1)), failed(lost(soon, 0, 1)), "blame"},
		{"the link is not mended", "mend", failed(broken(soon, 0, 1)), done, "blame"},
		{"the link is not mended in R", "outage", failed(broken(redialTime+soon, 0, 1)), done, ""},
		{"the link is lost late", "outage", failed(broken(redialTime+S, 0, 1)), done, "hang"},
		{"nothing lost by a cut", "cut", done, done, ""},
		{"a third rank is named", "cut", failed(broken(soon, 0, 2)), done, "blame"},
		{"the link is named late", "cut", failed(broken(2*S, 0, 1)), done, "hang"},
		{"nothing lost by a reset", "reset", done, done, ""},
		{"a rank lost by a reset", "reset", done, failed(lost(soon, 0)), "blame"},
		{"a shortage of one's own", "ulimit", failed(event{Name: "error", Kind: fault.Exhausted.Error()}), failed(lost(S, 0)), ""},
		{"a shortage of others", "ulimit", done, failed(event{Name: "error", Kind: fault.Exhausted.Error()}), "blame"},
		{"a lie", "drop", failed(event{Name: "altered", Time: at(0)}, broken(soon, 0, 1)), failed(broken(soon, 0, 1)), ""},
		{"a lie that nobody has told", "drop", done, failed(broken(soon, 0, 1)), "blame"},
	} {
		over := injected
		if c.fault == "stop" {
			over = resumed
		}
		var redial time.Duration
		if c.fault == "mend" || c.fault == "outage" || c.fault == "kill with R" {
			redial = redialTime
		}
		c.fault = strings.TrimSuffix(c.fault, " with R")
		if c.fault == "mend" {
			c.fault = "cut"
		}
		tr := &trial{fault: faultNamed(t, c.fault), ranks: 2, other: 1}
		tr.Redial = redial
		if c.fault == "drop" {
			tr.Lie = relay.Drop
		}
		if c.fault == "ulimit" {
			tr.Descriptors, tr.inInit = 5, true
		}
		v := check(tr, &result{injected: injected, over: over, outcomes: []outcome{c.victim, c.other}})
		if c.want == "" && len(v.broken) > 0 || c.want != "" && (len(v.broken) != 1 || v.broken[c.want] == 0) {
			t.Errorf("%s: got %v, want %q", c.name, v.broken, c.want)
		}
	}
}

// The ranks of a program that shrinks must go on without the lost rank. The victim is rank 0.
func TestCheckNoticesARankThatDoesNotGoOn(t *testing.T) {
	injected := time.Unix(100, 0)
	joined := event{Name: "joined"}
	lost := event{Name: "error", Time: injected.UnixNano(), Peers: []int{0}}
	shrunk := func(d time.Duration, peers ...int) event {
		return event{Name: "shrunk", Time: injected.Add(d).UnixNano(), Peers: peers}
	}
	ended := func(code int, events ...event) outcome { return outcome{ended: true, code: code, events: events} }
	victim, other := ended(-1, joined), ended(0, joined, lost, shrunk(0, 0), event{Name: "done"})
	rejoined, started := ended(0, joined, lost, event{Name: "done"}), ended(0, joined, event{Name: "done"})
	for _, c := range []struct {
		name   string
		prog   string
		ranks  []outcome
		broken string // the broken rule; "" if none
	}{
		{"all go on", shrinks, []outcome{victim, other, other}, ""},
		{"one ends", shrinks, []outcome{victim, ended(1, joined, lost), other}, "wrong"},
		{"one goes on alone", shrinks, []outcome{victim, ended(0, joined, lost, shrunk(0, 0, 2), event{Name: "done"}), other}, "blame"},
		{"one goes on late", shrinks, []outcome{victim, ended(0, joined, lost, shrunk(2*reportTime+1, 0), event{Name: "done"}), other}, "hang"},
		{"half without the lowest rank ends", shrinks, []outcome{victim, ended(1, joined, lost)}, ""},
		{"half that knows of the death ends", shrinks, []outcome{victim, ended(1, joined, lost)}, "wrong"},
		{"a loss in Init", shrinks, []outcome{ended(-1), ended(1, lost), ended(1, lost)}, ""},
		{"a process is started again", rejoins, []outcome{victim, rejoined, started}, ""},
		{"it is not started again", rejoins, []outcome{victim, rejoined}, "wrong"},
		{"it does not end", rejoins, []outcome{victim, rejoined, ended(0, joined)}, "wrong"},
		{"a rank does not rejoin", rejoins, []outcome{victim, ended(1, joined, lost), started}, "wrong"},
	} {
		tr := &trial{fault: faultNamed(t, "kill"), ranks: len(c.ranks)}
		tr.Program, tr.recorded = c.prog, strings.Contains(c.name, "knows of the death")
		if c.prog == rejoins {
			tr.ranks = 2
		}
		v := check(tr, &result{injected: injected, over: injected, outcomes: c.ranks})
		if c.broken == "" && len(v.broken) > 0 || c.broken != "" && (len(v.broken) != 1 || v.broken[c.broken] == 0) {
			t.Errorf("%s: got %v, want %q", c.name, v.notes, c.broken)
		}
	}
}

// The limit grows by the time for which the rank that starved longest had no processor, and by at
// most maxDelay.
func TestLimitsGrowByMeasuredDelays(t *testing.T) {
	injected := time.Unix(100, 0)
	f := faultNamed(t, "kill")
	report := func(late, starved time.Duration) outcome {
		e := event{Name: "error", Time: injected.Add(late).UnixNano(), Peers: []int{0}, Starved: int64(time.Hour + starved)}
		return outcome{ended: true, code: 1, events: []event{e}, starved: time.Hour}
	}
	for _, c := range []struct {
		late, starved time.Duration
		want          int
	}{
		{f.limit + time.Second, 0, 1},
		{f.limit + time.Second, time.Second, 0},
		{f.limit + 2*time.Second, time.Second, 1},
		{f.limit + 2*maxDelay, 2 * maxDelay, 1},
	} {
		res := &result{injected: injected, over: injected, outcomes: []outcome{{ended: true, code: -1}, report(c.late, c.starved)}}
		if v := check(&trial{fault: f, ranks: 2}, res); v.broken["hang"] != c.want {
			t.Errorf("%v late with %v of delay: got %v, want %d", c.late, c.starved, v.broken, c.want)
		}
	}
}

// In a program that passes messages along, the limit of a rank that waits for a live rank begins
// when that rank closes or exits. The victim is rank 0.
func TestAReportCountsFromItsCause(t *testing.T) {
	injected := time.Unix(100, 0)
	f := faultNamed(t, "kill")
	report := func(late time.Duration, waited ...int) outcome {
		e := event{Name: "error", Time: injected.Add(late).UnixNano(), Peers: []int{0}, Waited: waited}
		return outcome{ended: true, code: 1, events: []event{e}}
	}
	soon, hop := 50*time.Millisecond, f.limit
	for _, c := range []struct {
		name     string
		reaction string
		second   outcome       // of rank 2; rank 1 reports soon after the kill
		want     time.Duration // how long the second report has taken
		hangs    bool
	}{
		{"all ranks are needed", "close", report(soon + hop), soon + hop, true},
		{"the victim is needed", "close", report(soon+hop, 0), soon + hop, true},
		{"a live rank is needed, and closes", "close", report(soon+hop, 1), hop, false},
		{"a live rank is needed, and stays", "stay", report(soon+stay+hop, 1), hop, false},
		{"a live rank has closed for too long", "close", report(soon+hop+1, 1), hop + 1, true},
		{"a live rank stays for longer than it takes", "stay", report(soon, 1), soon, false},
		{"a live rank does not leave", "close", report(hop+1, 3), hop + 1, true},
	} {
		tr := &trial{fault: f, ranks: 4}
		tr.Reaction = c.reaction
		outcomes := []outcome{{ended: true, code: -1}, report(soon, 0), c.second, {ended: true, events: []event{{Name: "done"}}}}
		v := check(tr, &result{injected: injected, over: injected, outcomes: outcomes})
		if v.reports[1] != c.want || v.broken["hang"] > 0 != c.hangs {
			t.Errorf("%s: got %v and %v, want %v and hang %v", c.name, v.reports, v.notes, c.want, c.hangs)
		}
	}
	link := &trial{fault: faultNamed(t, "cut"), ranks: 3, victim: 0, other: 1}
	far, left := event{Name: "error", Waited: []int{1}, Time: injected.Add(S).UnixNano()}, []outcome{{}, report(soon), {}}
	if got := link.cause(0, far, left, injected); !got.Equal(injected) {
		t.Errorf("an end of the link that waits for the other one: got %v, want %v", got, injected)
	}
	if got := link.cause(2, far, left, injected); !got.Equal(injected.Add(soon)) {
		t.Errorf("a third rank that waits for an end of the link: got %v, want %v", got, injected.Add(soon))
	}
}

func TestATrialIsRepeatedByItsSeedFaultAndNumber(t *testing.T) {
	for _, f := range faults() {
		programs, wires := map[string]bool{}, map[string]bool{}
		for i := range 400 {
			a, b := newTrial(f, 7, i), newTrial(f, 7, i)
			a.fault, b.fault = nil, nil
			if *a != *b {
				t.Fatalf("got %v and %v", a, b)
			}
			if a.ranks < 2 || a.ranks > 7 && f.name != "load" || a.victim >= a.ranks || a.pause > maxPause || a.other >= a.ranks {
				t.Fatalf("out of range: %+v", a)
			}
			if f.name != "kill" && a.other == a.victim {
				t.Fatalf("%s: the link of rank %d has one end", f.name, a.other)
			}
			programs[a.Program], wires[a.wire] = true, true
		}
		want := len(programNames())
		switch f.name {
		case "restart":
			want = 1
		case "load":
			want = 5
		}
		if len(programs) != want || len(wires) != len(f.wires) {
			t.Errorf("%s: 400 trials have %d programs and %d transports, want %d and %d", f.name, len(programs), len(wires), want, len(f.wires))
		}
	}
}

// After a cut, each side may report that it has lost ranks of the other side, and only one side may
// go on. Ranks 0, 2 and 4 are on host 0, which is cut off, and ranks 1 and 3 are on host 1.
func TestCheckExaminesBothSidesOfACut(t *testing.T) {
	injected := time.Unix(100, 0)
	f := faultNamed(t, "hosts-cut")
	at := func(d time.Duration) int64 { return injected.Add(d).UnixNano() }
	joined := event{Name: "joined"}
	lost := func(peers ...int) event {
		return event{Name: "error", Kind: fault.PeerLost.Error(), Time: at(S), Peers: peers}
	}
	alone := func(d time.Duration, peers ...int) event {
		return event{Name: "error", Kind: fault.NoQuorum.Error(), Time: at(d), Peers: peers}
	}
	failed := func(e event) outcome { return outcome{ended: true, code: 1, events: []event{joined, e}} }
	goesOn := func(peers ...int) outcome {
		return outcome{ended: true, events: []event{joined, lost(1), {Name: "shrunk", Time: at(S), Peers: peers}, {Name: "done"}}}
	}
	for _, c := range []struct {
		name, prog string
		cut, rest  outcome // of ranks 0, 2 and 4; of ranks 1 and 3
		rule       string  // the rule that is broken; "" if none
	}{
		{"each side loses the other", "ring", failed(lost(1)), failed(lost(0, 2)), ""},
		{"a rank of the same side is lost", "ring", failed(lost(2)), failed(lost(0)), "blame"},
		{"no rank is named", "ring", failed(lost()), failed(lost(0)), "blame"},
		{"the majority goes on", shrinks, goesOn(1, 3), failed(alone(f.limit+reportTime, 0, 2, 4)), ""},
		{"the majority does not go on", shrinks, failed(lost(1)), failed(lost(0)), "wrong"},
		{"the majority has no quorum", "ring", failed(alone(S, 1, 3)), failed(lost(0)), "blame"},
		{"the majority keeps a rank", shrinks, goesOn(1), failed(lost(0)), "blame"},
		{"the minority names a rank that has given up", shrinks, goesOn(1, 3), failed(alone(S, 0, 1, 2, 4)), ""},
		{"the minority does not name all", shrinks, goesOn(1, 3), failed(alone(S, 0)), "blame"},
		{"the minority ends late", shrinks, goesOn(1, 3), failed(alone(f.limit+reportTime+1, 0, 2, 4)), "hang"},
		{"both sides go on", shrinks, goesOn(1, 3), goesOn(0, 2, 4), "blame"},
	} {
		tr := &trial{fault: f, ranks: 5, hosts: 2}
		tr.Program = c.prog
		outcomes := []outcome{c.cut, c.rest, c.cut, c.rest, c.cut}
		v := check(tr, &result{injected: injected, over: injected.Add(2 * S), outcomes: outcomes})
		if c.rule == "" && len(v.broken) > 0 || c.rule != "" && (len(v.broken) != 1 || v.broken[c.rule] == 0) {
			t.Errorf("%s: got %v, want %q", c.name, v.notes, c.rule)
		}
	}
}

func TestSummaryCountsByTransport(t *testing.T) {
	s := &summary{fault: faultNamed(t, "kill")}
	v := &verdict{injected: true, reports: []time.Duration{time.Second, 3 * time.Second}}
	s.add(&trial{wire: "tcp"}, v)
	d := &director{tables: []*summary{s}}
	if d.failed() {
		t.Error("a table of trials that passed has failed")
	}
	v.fail("blame", "rank 1")
	s.add(&trial{wire: "grpc"}, v)
	lines := strings.Split(s.String(), "\n")
	for _, want := range []string{
		"| tcp | 1 | 1 | 2 | 1s | 1s | 3s | 0 | 0 | 0 | 0 | 0 |",
		"| grpc | 1 | 1 | 2 | 1s | 1s | 3s | 0 | 1 | 0 | 0 | 0 |",
		"| all | 2 | 2 | 4 | 1s | 3s | 3s | 0 | 1 | 0 | 0 | 0 |",
	} {
		if !slices.Contains(lines, want) {
			t.Errorf("no line %q in\n%v", want, s)
		}
	}
	if !d.failed() {
		t.Error("a table with a broken rule has not failed")
	}
}

func TestASectionOfAPageIsReplacedOrAdded(t *testing.T) {
	page := "# page\n\nintroduction\n"
	for _, c := range [][3]string{
		{"a", "one\n", "# page\n\nintroduction\n\n## `a`\n\none\n"},
		{"b", "two\n", "# page\n\nintroduction\n\n## `a`\n\none\n\n## `b`\n\ntwo\n"},
		{"a", "three\n", "# page\n\nintroduction\n\n## `a`\n\nthree\n\n## `b`\n\ntwo\n"},
	} {
		if page = replaceSection(page, c[0], c[1]); page != c[2] {
			t.Fatalf("section %s: got %q, want %q", c[0], page, c[2])
		}
	}
}
