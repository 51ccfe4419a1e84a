package main

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// check must detect each broken rule, and must pass a trial that keeps all rules.
func TestCheckNoticesEachBrokenRule(t *testing.T) {
	killed := time.Unix(100, 0)
	at := func(d time.Duration) int64 { return killed.Add(d).UnixNano() }
	lost := func(d time.Duration, peers ...int) event {
		return event{Name: "error", Time: at(d), Peers: peers, Text: "lost"}
	}
	dead := outcome{ended: true, code: -1}
	ok := outcome{ended: true, code: 1, events: []event{lost(50*time.Millisecond, 0)}}
	for name, c := range map[string]struct {
		victim, other outcome
		left          []string
		want          string // the broken rule; "" if none
	}{
		"all kept":                   {dead, ok, nil, ""},
		"ended before the kill":      {dead, outcome{ended: true, events: []event{{Name: "done"}}}, nil, ""},
		"another error later":        {dead, outcome{ended: true, code: 1, events: []event{lost(0, 0), lost(time.Second, 1)}}, nil, ""},
		"another rank is named":      {dead, outcome{ended: true, code: 1, events: []event{lost(0, 1)}}, nil, "blame"},
		"another rank is named, too": {dead, outcome{ended: true, code: 1, events: []event{lost(0, 0, 1)}}, nil, "blame"},
		"no rank is named":           {dead, outcome{ended: true, code: 1, events: []event{lost(0)}}, nil, "blame"},
		"an error for no reason":     {outcome{ended: true, events: []event{{Name: "done"}}}, ok, nil, "blame"},
		"a late report":              {dead, outcome{ended: true, code: 1, events: []event{lost(reportLimit+1, 0)}}, nil, "hang"},
		"no end":                     {dead, outcome{code: -1, events: []event{lost(0, 0)}}, nil, "hang"},
		"a wrong result":             {dead, outcome{ended: true, code: 1, events: []event{{Name: "wrong"}, lost(0, 0)}}, nil, "wrong"},
		"a panic":                    {dead, outcome{ended: true, code: 2, events: []event{lost(0, 0)}}, nil, "wrong"},
		"silence":                    {dead, outcome{ended: true}, nil, "wrong"},
		"a goroutine":                {dead, outcome{ended: true, code: 1, events: []event{lost(0, 0), {Name: "goroutines"}}}, nil, "left"},
		"a file":                     {dead, ok, []string{"/dev/shm/tutti"}, "left"},
	} {
		v := check(&trial{ranks: 2}, &result{killed: killed, outcomes: []outcome{c.victim, c.other}, left: c.left})
		if c.want == "" && len(v.broken) > 0 || c.want != "" && (len(v.broken) != 1 || v.broken[c.want] == 0) {
			t.Errorf("%s: got %v, want %q", name, v.broken, c.want)
		}
	}
}

func TestATrialIsRepeatedByItsSeedAndNumber(t *testing.T) {
	programs, transports := map[string]bool{}, map[string]bool{}
	for i := range 400 {
		a, b := newTrial(7, i), newTrial(7, i)
		if *a != *b {
			t.Fatalf("got %v and %v", a, b)
		}
		if a.ranks < 2 || a.ranks > 7 || a.victim >= a.ranks || a.pause > maxPause {
			t.Fatalf("out of range: %v", a)
		}
		programs[a.Program], transports[a.wire] = true, true
	}
	if len(programs) != len(programNames()) || len(transports) != 4 {
		t.Errorf("400 trials have %d programs and %d transports", len(programs), len(transports))
	}
}

func TestSummaryCountsByTransport(t *testing.T) {
	var s summary
	v := &verdict{killed: true, reports: []time.Duration{time.Second, 3 * time.Second}}
	s.add(&trial{wire: "tcp"}, v)
	if s.failed() {
		t.Error("a summary of trials that passed has failed")
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
			t.Errorf("no line %q in\n%v", want, &s)
		}
	}
	if !s.failed() {
		t.Error("a summary with a broken rule has not failed")
	}
}
