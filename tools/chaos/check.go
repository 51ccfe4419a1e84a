package main

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// A verdict says how a trial went. The field broken counts the broken rules, by the names of the
// columns.
type verdict struct {
	killed  bool            // the victim was running when it was killed
	reports []time.Duration // from the kill to each survivor's first error
	broken  map[string]int
	notes   []string
}

// fail counts a broken rule.
func (v *verdict) fail(rule, format string, args ...any) {
	if v.broken == nil {
		v.broken = make(map[string]int)
	}
	v.broken[rule]++
	v.notes = append(v.notes, rule+": "+fmt.Sprintf(format, args...))
}

// String returns the broken rules, or the time of the last report.
func (v *verdict) String() string {
	if len(v.notes) > 0 {
		return strings.Join(v.notes, "\n    ")
	}
	if len(v.reports) == 0 {
		return "ok, no rank had an error"
	}
	return fmt.Sprintf("ok, the last of %d reports after %v", len(v.reports), slices.Max(v.reports).Round(time.Millisecond))
}

// rules returns the names of the rules, in the order of the columns.
func rules() []string { return []string{"hang", "blame", "wrong", "left", "broken"} }

// check checks every rank except the victim.
func check(t *trial, res *result) *verdict {
	v := &verdict{}
	if res.err != nil {
		v.fail("broken", "%v", res.err)
		return v
	}
	victim := &res.outcomes[t.victim]
	v.killed = !has(victim.events, "done")
	for r := range res.outcomes {
		if r != t.victim {
			v.checkRank(t, r, &res.outcomes[r], res.killed)
		}
	}
	for _, name := range res.left {
		v.fail("left", "%s", name)
	}
	return v
}

func has(events []event, name string) bool {
	return slices.ContainsFunc(events, func(e event) bool { return e.Name == name })
}

// checkRank checks one survivor.
func (v *verdict) checkRank(t *trial, r int, o *outcome, killed time.Time) {
	reported := false
	for _, e := range o.events {
		switch e.Name {
		case "wrong":
			v.fail("wrong", "rank %d: %s", r, e.Text)
		case "goroutines":
			v.fail("left", "rank %d: goroutines after Close: %s", r, e.Text)
		case "error":
			if reported {
				continue // only the first error counts
			}
			reported = true
			late := time.Unix(0, e.Time).Sub(killed)
			v.reports = append(v.reports, max(late, 0))
			switch {
			case !v.killed:
				v.fail("blame", "rank %d has an error, though the victim had ended in order: %s", r, e.Text)
			case len(e.Peers) != 1 || e.Peers[0] != t.victim:
				v.fail("blame", "rank %d after %v, want rank %d: %s", r, late.Round(time.Millisecond), t.victim, e.Text)
			case late > reportLimit:
				v.fail("hang", "rank %d reports after %v: %s", r, late.Round(time.Millisecond), e.Text)
			}
		}
	}
	switch {
	case !o.ended:
		v.fail("hang", "rank %d has not ended: %v\n%s", r, o.events, o.stderr)
	case o.code != 0 && (o.code != 1 || !reported):
		v.fail("wrong", "rank %d exits with code %d: %s", r, o.code, o.stderr)
	case !reported && !has(o.events, "done"):
		v.fail("wrong", "rank %d has reported nothing: %s", r, o.stderr)
	}
}

// A tally adds up the trials of one transport.
type tally struct {
	trials, kills int
	reports       []time.Duration
	broken        map[string]int
}

// A summary adds up all trials.
type summary struct {
	byWire map[string]*tally
	total  tally
}

// add adds a trial.
func (s *summary) add(t *trial, v *verdict) {
	if s.byWire == nil {
		s.byWire = make(map[string]*tally)
	}
	if s.byWire[t.wire] == nil {
		s.byWire[t.wire] = &tally{}
	}
	for _, c := range []*tally{s.byWire[t.wire], &s.total} {
		c.trials++
		if v.killed {
			c.kills++
		}
		c.reports = append(c.reports, v.reports...)
		for rule, n := range v.broken {
			if c.broken == nil {
				c.broken = make(map[string]int)
			}
			c.broken[rule] += n
		}
	}
}

// failed reports whether any rule was broken.
func (s *summary) failed() bool { return len(s.total.broken) > 0 }

// String returns the table.
func (s *summary) String() string {
	var b strings.Builder
	columns := append([]string{"transport", "trials", "kills", "reports", "p50", "p99", "max"}, rules()...)
	fmt.Fprintf(&b, "| %s |\n|%s\n", strings.Join(columns, " | "), strings.Repeat("---|", len(columns)))
	row := func(name string, c *tally) {
		fmt.Fprintf(&b, "| %s | %d | %d | %d | %v | %v | %v |", name, c.trials, c.kills, len(c.reports),
			percentile(c.reports, 50), percentile(c.reports, 99), percentile(c.reports, 100))
		for _, rule := range rules() {
			fmt.Fprintf(&b, " %d |", c.broken[rule])
		}
		b.WriteByte('\n')
	}
	for _, wire := range transports() {
		if c := s.byWire[wire]; c != nil {
			row(wire, c)
		}
	}
	row("all", &s.total)
	return b.String()
}

// percentile returns the p-th percentile in whole milliseconds, or 0 if there are no durations.
func percentile(ds []time.Duration, p int) time.Duration {
	if len(ds) == 0 {
		return 0
	}
	ds = slices.Sorted(slices.Values(ds))
	return ds[(len(ds)-1)*p/100].Round(time.Millisecond)
}
