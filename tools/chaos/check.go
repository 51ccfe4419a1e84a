//go:build linux

package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tutti-go/tutti/fault"
)

// A verdict says how a trial went. The field broken counts, for each name that rules returns, how
// often the rule was broken.
type verdict struct {
	injected bool            // the fault was injected while the job was running
	reports  []time.Duration // the time from the cause to each rank's first error; see trial.cause
	broken   map[string]int
	notes    []string
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

// rules returns the names of the rules that check checks. They are columns of a summary's table.
func rules() []string { return []string{"hang", "blame", "wrong", "left", "broken"} }

// maxDelay bounds how much longer a limit may get because the machine was busy.
const maxDelay = time.Minute

// check checks every rank of a job.
//
// Limits are for an idle machine. They are extended by the longest time for which one of the ranks
// was ready to run and had no processor, but at most by maxDelay.
func check(t *trial, res *result) *verdict {
	v := &verdict{}
	if res.err != nil {
		v.fail("broken", "%v", res.err)
		return v
	}
	at, met := res.injected, !has(res.outcomes[t.victim].events, "done")
	if t.fault.lives { // the victim lives, so it may have ended normally
		met = true
	}
	if t.Lie != "" {
		at, met = altered(res.outcomes)
	}
	if t.fault.none && !t.fault.lost && !t.fault.link && t.lasts < S && res.over.Sub(res.injected) > S-S/8 {
		return v // this machine was too slow for a fault that is shorter than S
	}
	v.injected = met
	for r := range res.outcomes {
		switch {
		case r != t.victim:
			v.checkRank(t, r, res.outcomes, at)
		case t.fault.lives && t.fault.rest == 0 && !t.fault.cutsHost: // stop: the victim cannot report while it is stopped
			v.checkRank(t, r, res.outcomes, res.over)
		case t.fault.lives:
			v.checkRank(t, r, res.outcomes, at)
		}
	}
	if t.Program == rejoins && met && len(res.outcomes) != t.ranks+1 {
		v.fail("wrong", "%d processes were started again, want 1", len(res.outcomes)-t.ranks)
	}
	if len(v.reports) > 0 && t.fault.lives && t.fault.rest == 0 && !t.fault.cutsHost && !has(res.outcomes[t.victim].events, "error") {
		v.fail("blame", "rank %d has not been told that the others count it as lost", t.victim)
	}
	return v
}

// altered returns when the first frame was altered, if a frame was altered.
func altered(outcomes []outcome) (at time.Time, ok bool) {
	for _, o := range outcomes {
		for _, e := range o.events {
			if when := time.Unix(0, e.Time); e.Name == "altered" && (!ok || when.Before(at)) {
				at, ok = when, true
			}
		}
	}
	return at, ok
}

// delay returns the longest time for which one of the ranks has waited for a processor between the
// injection and its first error, but at most maxDelay.
func delay(outcomes []outcome) (longest time.Duration) {
	for _, o := range outcomes {
		for _, e := range o.events {
			if e.Name == "error" {
				longest = max(longest, time.Duration(e.Starved)-o.starved)
				break
			}
		}
	}
	return min(longest, maxDelay)
}

func has(events []event, name string) bool {
	return slices.ContainsFunc(events, func(e event) bool { return e.Name == name })
}

// checkRank checks rank r. The parameter at is the time of the fault as it concerns this rank. The
// limit counts from then.
func (v *verdict) checkRank(t *trial, r int, outcomes []outcome, at time.Time) {
	o, delay, reported := &outcomes[r], delay(outcomes), false
	shrunk := has(o.events, "shrunk")
	for _, e := range o.events {
		switch e.Name {
		case "wrong":
			v.fail("wrong", "rank %d: %s", r, e.Text)
		case "goroutines", "descriptors":
			v.fail("left", "rank %d: %s after Close: %s", r, e.Name, e.Text)
		case "shrunk":
			late := time.Unix(0, e.Time).Sub(at)
			switch want, limit := t.leftOut(r), t.limit()+reportTime; {
			case t.fault.cutsHost && !t.hasQuorum(r):
				v.fail("blame", "rank %d goes on without ranks %v, though the others may go on", r, e.Peers)
			case !v.injected || !slices.Equal(e.Peers, want):
				v.fail("blame", "rank %d goes on without ranks %v, want %v", r, e.Peers, want)
			case late > limit+delay:
				v.fail("hang", "rank %d goes on after %v, want at most %v and %v for delays", r, late.Round(time.Millisecond), limit, delay)
			}
		case "error":
			if reported {
				continue // only the first error counts
			}
			reported = true
			late, limit := time.Unix(0, e.Time).Sub(t.cause(r, e, outcomes, at)), t.limit()
			if e.Kind == fault.NoQuorum.Error() { // Shrink has learned of the loss, and has ended because of it
				limit += reportTime
			}
			v.reports = append(v.reports, max(late, 0))
			switch {
			case !v.injected:
				v.fail("blame", "rank %d has an error, though nothing was injected into a running job: %s", r, e.Text)
			case !t.allows(r, e):
				v.fail("blame", "rank %d after %v, want %s: %s", r, late.Round(time.Millisecond), t.wanted(r), e.Text)
			case late > limit+delay:
				v.fail("hang", "rank %d reports after %v, want at most %v and %v for delays: %s", r, late.Round(time.Millisecond), limit, delay, e.Text)
			}
		}
	}
	done := has(o.events, "done")
	switch {
	case !o.ended:
		v.fail("hang", "rank %d has not ended: %v\n%s", r, o.events, o.stderr)
	case o.code != 0 && (o.code != 1 || !reported):
		v.fail("wrong", "rank %d exits with code %d: %s", r, o.code, o.stderr)
	case !reported && !done:
		v.fail("wrong", "rank %d has reported nothing: %s", r, o.stderr)
	case t.Program == rejoins && !done:
		v.fail("wrong", "rank %d does not go on: %v\n%s", r, o.events, o.stderr)
	case t.Program == shrinks && reported && !(shrunk && done) && t.goesOn(r, outcomes):
		v.fail("wrong", "rank %d does not go on: %v", r, o.events)
	}
}

// cause returns the earliest time at which rank r could make the report e. This is at, the time of
// the fault, unless the failed call waited for a rank that the fault did not meet. Such a call ends
// only when that rank closes or exits after its own error.
func (t *trial) cause(r int, e event, outcomes []outcome, at time.Time) time.Time {
	for _, w := range e.Waited {
		met := w == t.victim
		switch {
		case t.fault.cutsHost:
			met = t.isCutOff(w) != t.isCutOff(r)
		case !t.fault.lost:
			met = r == t.victim && w == t.other || r == t.other && w == t.victim
		}
		i := slices.IndexFunc(outcomes[w].events, func(e event) bool { return e.Name == "error" })
		if met || i < 0 {
			continue
		}
		left := time.Unix(0, outcomes[w].events[i].Time)
		if t.Reaction == "stay" {
			left = left.Add(stay)
		}
		if left.After(at) && !left.After(time.Unix(0, e.Time)) {
			at = left
		}
	}
	return at
}

// leftOut returns the ranks that Shrink leaves out on rank r: the victim or, after the loss of a
// link, the higher of its two ends or, after a cut, all ranks on the other side.
func (t *trial) leftOut(r int) []int {
	switch {
	case t.fault.cutsHost:
		return t.across(r)
	case t.fault.link:
		return []int{max(t.victim, t.other)}
	}
	return []int{t.victim}
}

// goesOn reports whether rank r is required to go on after a loss. If one of the ranks has never
// joined, no rank is required to.
func (t *trial) goesOn(r int, outcomes []outcome) bool {
	for _, o := range outcomes {
		if !has(o.events, "joined") {
			return false
		}
	}
	if t.fault.cutsHost {
		return t.hasQuorum(r)
	}
	// If two ranks lose each other, each is half of the job. If nobody records the deaths of the
	// processes, only the half with the lowest rank goes on.
	return !slices.Contains(t.leftOut(r), r) && (t.ranks > 2 || r == 0 || t.recorded)
}

// allows reports whether the error of a rank names the right ranks. Only a rank that had too few
// descriptors may report an error that names no rank.
func (t *trial) allows(r int, e event) bool {
	switch {
	case len(e.Peers) == 0:
		return t.Descriptors > 0 && r == t.victim && e.Kind == fault.Exhausted.Error()
	case t.fault.cutsHost:
		across := t.across(r)
		if e.Kind == fault.NoQuorum.Error() { // names also ranks on this side that have ended after their own errors
			return !t.hasQuorum(r) && isSubset(across, e.Peers)
		}
		return isSubset(e.Peers, across)
	case t.fault.lost:
		return len(e.Peers) == 1 && e.Peers[0] == t.victim
	case t.losesLink():
		return e.Kind == fault.LinkLost.Error() && len(e.Peers) == 2 && slices.Contains(e.Peers, t.victim) && slices.Contains(e.Peers, t.other)
	}
	return false
}

// isSubset reports whether all elements of part are in whole.
func isSubset(part, whole []int) bool {
	return !slices.ContainsFunc(part, func(x int) bool { return !slices.Contains(whole, x) })
}

// losesLink reports whether ranks may report that they have lost the trial's link.
func (t *trial) losesLink() bool { return t.fault.link && !(t.fault.mended && t.Redial > 0) }

// wanted describes the loss that allows accepts from rank r, for the texts of verdicts.
func (t *trial) wanted(r int) string {
	switch {
	case t.fault.cutsHost:
		return fmt.Sprintf("some of the ranks %v", t.across(r))
	case t.fault.lost:
		return fmt.Sprintf("rank %d", t.victim)
	case t.losesLink():
		return fmt.Sprintf("the link between ranks %d and %d", t.victim, t.other)
	}
	return "no error"
}

// A tally holds the sums over several trials: a row of a table.
type tally struct {
	trials, faults int
	reports        []time.Duration
	broken         map[string]int
}

// fail counts a rule that was broken n times.
func (c *tally) fail(rule string, n int) {
	if c.broken == nil {
		c.broken = make(map[string]int)
	}
	c.broken[rule] += n
}

// A summary numbers the trials of one fault, and adds up their verdicts in a table with a row for
// each transport.
type summary struct {
	fault         *injection
	next, running int // the number of the next trial, and how many are running

	byWire map[string]*tally
	total  tally
}

// add adds the verdict of a trial to the row of the trial's transport and to the last row.
func (s *summary) add(t *trial, v *verdict) {
	if s.byWire == nil {
		s.byWire = make(map[string]*tally)
	}
	if s.byWire[t.wire] == nil {
		s.byWire[t.wire] = &tally{}
	}
	for _, c := range []*tally{s.byWire[t.wire], &s.total} {
		c.trials++
		if v.injected {
			c.faults++
		}
		c.reports = append(c.reports, v.reports...)
		for rule, n := range v.broken {
			c.fail(rule, n)
		}
	}
}

// String returns the table.
func (s *summary) String() string {
	var b strings.Builder
	columns := append([]string{s.fault.name, "trials", "faults", "reports", "p50", "p99", "max"}, rules()...)
	fmt.Fprintf(&b, "| %s |\n|%s\n", strings.Join(columns, " | "), strings.Repeat("---|", len(columns)))
	row := func(name string, c *tally) {
		fmt.Fprintf(&b, "| %s | %d | %d | %d | %v | %v | %v |", name, c.trials, c.faults, len(c.reports),
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
