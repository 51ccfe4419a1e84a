package comm_test

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/test/worldtest"
	"github.com/tutti-go/tutti/transport/flaky"
)

// An injection is one fault at one step, and the report that all ranks should make.
type injection struct {
	rule func(k int) flaky.Rule
	// kind is the kind of the report. LinkLost names both ends, and PeerLost names the rank that
	// made the step.
	kind          fault.Kind
	mayBeHarmless bool // the fault may have no effect, and then no rank reports it
}

// The injections.
var (
	linkCuts = []injection{cutAt(flaky.Before), cutAt(flaky.Within), cutAt(flaky.After)}
	deaths   = []injection{dieAt(flaky.Before), dieAt(flaky.Within), dieAt(flaky.After)}
	// corruptHead may be harmless, because a frame into exposed memory sends its body separately
	// from its head.
	corruptHead = injection{rule: flaky.CorruptHead, kind: fault.LinkLost, mayBeHarmless: true}
	corruptBody = injection{rule: flaky.CorruptBody, kind: fault.LinkLost}
)

func cutAt(m flaky.Moment) injection {
	return injection{rule: func(k int) flaky.Rule { return flaky.Cut(m, k) }, kind: fault.LinkLost}
}

func dieAt(m flaky.Moment) injection {
	return injection{rule: func(k int) flaky.Rule { return flaky.Die(m, k) }, kind: fault.PeerLost}
}

// runCounts counts what a test has done over all its cases.
type runCounts struct{ steps, runs, fired atomic.Int64 }

// report logs the counts at the end of a test. It fails a test that has injected no fault, because
// such a test shows nothing.
func (c *runCounts) report(t *testing.T) {
	t.Logf("%d steps, %d plays, %d of them struck", c.steps.Load(), c.runs.Load(), c.fired.Load())
	if c.steps.Load() == 0 || c.fired.Load() == 0 {
		t.Error("there was nothing to strike at")
	}
}

// A step identifies one step of a case: the k-th frame from one rank to another. If the two ranks
// are equal, it is the k-th fragment that the rank publishes.
type step struct{ from, to, k int }

// baseline runs the case without a fault and returns its steps. The run must succeed on all ranks.
// Otherwise the test fails, and baseline returns no steps.
func (s *faultCase) baseline(t *testing.T, sum *runCounts) []step {
	t.Helper()
	p := s.newRun(flaky.Cut(flaky.After, 1<<30))
	p.execute(t)
	var all []step
	for a := range p.outcomes {
		o := &p.outcomes[a]
		if err := errors.Join(o.err, o.closing, o.bufferErr, p.local); err != nil || o.verdict != nil {
			t.Errorf("%v: unharmed, rank %d got %v, and the verdict %v", s, a, err, o.verdict)
			return nil
		}
		if s.reuses && o.reused == 0 {
			t.Errorf("%v: rank %d got no memory again that it had given back", s, a)
		}
		for b := range p.steps[a] {
			for k := range p.steps[a][b] {
				all = append(all, step{a, b, k + 1})
			}
		}
	}
	if len(all) == 0 {
		t.Errorf("%v: there are no steps", s)
	}
	sum.steps.Add(int64(len(all)))
	return all
}

// injectAll runs the case once for each of its steps and each injection that choose returns for the
// step. The argument of choose is a number that differs between neighbouring steps.
func (s *faultCase) injectAll(t *testing.T, sum *runCounts, choose func(i int) []injection) {
	every := max(s.every, 1)
	if soaking {
		every = 1
	}
	for i, at := range s.baseline(t, sum) {
		if i%every != 0 {
			continue
		}
		for _, b := range choose(i / every) {
			s.inject(t, sum, b, at)
		}
	}
}

// inject runs the case with one injection at one step.
func (s *faultCase) inject(t *testing.T, sum *runCounts, b injection, at step) {
	rule := b.rule(at.k).From(at.from).To(at.to)
	if at.from == at.to {
		rule = rule.To(flaky.Unknown)
	}
	p := s.newRun(rule)
	p.execute(t)
	sum.runs.Add(1)
	if p.fired() {
		sum.fired.Add(1)
	}
	if err := p.check(b, at); err != nil {
		t.Errorf("%v: %v, fired: %v: %v%s", s, rule, p.fired(), err, p.describe())
	}
}

// An injectionPool injects faults at the steps of several cases in parallel, over transports where
// real time passes.
type injectionPool struct {
	running sync.WaitGroup
	slots   chan struct{}
}

// parallelRuns is the number of parallel runs. It is high because a run mostly waits.
const parallelRuns = 8

func newInjectionPool() *injectionPool {
	return &injectionPool{slots: make(chan struct{}, parallelRuns)}
}

// baselines returns the steps of each case, as faultCase.baseline does.
func (w *injectionPool) baselines(t *testing.T, cases []*faultCase, sum *runCounts) [][]step {
	t.Helper()
	all := make([][]step, len(cases))
	for i, s := range cases {
		w.slots <- struct{}{}
		w.running.Go(func() {
			defer func() { <-w.slots }()
			all[i] = s.baseline(t, sum)
		})
	}
	w.running.Wait()
	return all
}

func (w *injectionPool) inject(t *testing.T, s *faultCase, sum *runCounts, b injection, at step) {
	w.slots <- struct{}{}
	w.running.Go(func() {
		defer func() { <-w.slots }()
		s.inject(t, sum, b, at)
	})
}

// check compares the outcomes of the ranks with the outcomes that the injection allows.
func (p *faultRun) check(b injection, at step) error {
	if steps := p.steps[at.from][at.to]; at.k <= len(steps) && steps[at.k-1] {
		b.mayBeHarmless = true // the ranks drop one of two Conns that were dialled at the same time
	}
	v := expectedVerdict{injection: b, at: at, ranks: []int{min(at.from, at.to), max(at.from, at.to)}}
	if b.kind == fault.PeerLost {
		v.ranks = []int{at.from}
	}
	if p.tc.during == starting {
		return p.checkStart()
	}
	if f := p.bystanderVerdict(at); (p.realTime() || p.tc.during == closing) && v.injection.kind == fault.LinkLost &&
		(blames(f, fault.PeerLost, at.from) || blames(f, fault.PeerLost, at.to)) {
		// The rank was too busy for its heartbeats, or the ranks that had received them had closed.
		v.injection.kind, v.ranks = fault.PeerLost, blamed(f)
	}
	v.split = p.splitVerdict(at)
	if p.local != nil {
		return fmt.Errorf("Local: %w", p.local)
	}
	for r := range p.outcomes {
		if err := p.checkRank(r, v); err != nil {
			return fmt.Errorf("rank %d: %w", r, err)
		}
	}
	return p.checkAgreement(v)
}

// bystanderVerdict returns the report of a rank at neither end of the fault. If all such ranks have
// closed, it returns the report in the error of a rank's Close.
func (p *faultRun) bystanderVerdict(at step) *fault.Error {
	f := p.bystander(at).verdict
	for r := range p.outcomes {
		if f == nil && p.tc.during == closing {
			f = verdictIn(p.outcomes[r].closing)
		}
	}
	return f
}

// splitVerdict reports whether the ranks made different reports of the fault. Three reports are
// possible: the link, and each of its two ends. The ranks can differ only where real time passes.
// The floods of the reports may then take so long that each side has already decided on its own
// report.
func (p *faultRun) splitVerdict(at step) bool {
	var a, b, link int
	for r := range p.outcomes {
		switch f := p.outcomes[r].verdict; {
		case blames(f, fault.PeerLost, at.from):
			a = 1
		case blames(f, fault.PeerLost, at.to):
			b = 1
		case blames(f, fault.LinkLost, min(at.from, at.to), max(at.from, at.to)):
			link = 1
		}
	}
	return p.realTime() && a+b+link > 1
}

// bystander returns the outcome of a rank at neither end of the fault. If there is no such rank, it
// returns the outcome of the rank at the receiving end.
func (p *faultRun) bystander(at step) *outcome {
	for r := range p.outcomes {
		if r != at.from && r != at.to {
			return &p.outcomes[r]
		}
	}
	return &p.outcomes[at.to]
}

// closedAfterFailure reports whether two conditions hold: err says that the receiver of a message
// closed without receiving it, and that receiver had failed before.
func (p *faultRun) closedAfterFailure(err error) bool {
	var f *fault.Error
	for errors.As(err, &f) {
		if f.Kind == fault.Closed && len(f.Peers) == 1 {
			return p.outcomes[f.Peers[0].Rank].err != nil
		}
		err = f.Err
	}
	return false
}

// An expectedVerdict is the report that all living ranks should make.
type expectedVerdict struct {
	injection injection
	at        step
	ranks     []int
	split     bool // some ranks blame an end, and others the link
}

// dead reports whether rank r is declared lost. The report of a lost rank does not matter.
func (v *expectedVerdict) dead(r int) bool {
	return v.injection.kind == fault.PeerLost && r == v.ranks[0]
}

// realTime reports whether the run uses real time. Other work on the machine may then delay it for
// longer than ranks wait for each other.
func (p *faultRun) realTime() bool { return p.tc.wire != "memory" && p.tc.wire != "verbs" }

// matches reports whether f is the expected report.
func (v *expectedVerdict) matches(f *fault.Error) bool {
	if v.split {
		return blames(f, fault.PeerLost, v.at.from) || blames(f, fault.PeerLost, v.at.to) ||
			blames(f, fault.LinkLost, min(v.at.from, v.at.to), max(v.at.from, v.at.to))
	}
	return blames(f, v.injection.kind, v.ranks...)
}

// affects reports whether a message call of rank r may fail. Each rank exchanges messages with its
// neighbours in a ring.
func (v *expectedVerdict) affects(p *faultRun, r int) bool {
	switch {
	case v.split:
		return true
	case v.injection.kind == fault.LinkLost:
		return r == v.at.from || r == v.at.to
	}
	n, lost := p.tc.n, v.ranks[0]
	return (r+1)%n == lost || (lost+1)%n == r || p.tc.call.Name == "send to any"
}

func (p *faultRun) checkRank(r int, v expectedVerdict) error {
	o := &p.outcomes[r]
	if o.bufferErr != nil {
		return o.bufferErr
	}
	for _, err := range append(joinedErrors(o.err), joinedErrors(o.closing)...) {
		behind := verdictIn(err)
		switch {
		case err == nil:
		case worldtest.IsWrong(err):
			return err
		case !p.fired():
			return fmt.Errorf("nothing was broken, and it got: %w", err)
		case behind == nil && p.realTime() && p.closedAfterFailure(err):
		case behind == nil:
			return fmt.Errorf("no verdict is behind its error: %w", err)
		case !v.dead(r) && !v.matches(behind):
			return fmt.Errorf("want %v of %v behind its error: %w", v.injection.kind, v.ranks, err)
		}
	}
	switch {
	case !p.realTime() && o.duration > verdictLimit:
		return fmt.Errorf("it took %v", o.duration)
	case v.dead(r) || !p.fired():
	case p.tc.call.Verb == "" && !v.affects(p, r) && o.err != nil:
		return fmt.Errorf("its messages had nothing to do with it: %w", o.err)
	case p.tc.during == closing, v.injection.mayBeHarmless && o.verdict == nil:
	// The fault met a frame so late that no rank waited any more.
	case p.realTime() && !o.firedBefore && o.verdict == nil:
	case !v.matches(o.verdict):
		return fmt.Errorf("want the verdict %v of %v, got %v", v.injection.kind, v.ranks, o.verdict)
	}
	return nil
}

// checkAgreement checks that all living ranks made the same report.
func (p *faultRun) checkAgreement(v expectedVerdict) error {
	var first *fault.Error
	for r := range p.outcomes {
		received := p.outcomes[r].verdict
		switch {
		case v.dead(r) || received == nil || v.split && v.matches(received):
		case first == nil:
			first = received
		// Two ranks made this report at the same time.
		case p.realTime() && blames(received, first.Kind, blamed(first)...):
		case first.Error() != received.Error():
			return fmt.Errorf("two verdicts: %v, and %v", first, received)
		}
	}
	return nil
}

// checkStart checks that a job that failed to start ended soon, with the right kind of error.
func (p *faultRun) checkStart() error {
	var f *fault.Error
	switch {
	case p.local == nil:
		return nil
	case !p.fired():
		return fmt.Errorf("nothing was broken, and Local returned: %w", p.local)
	case !errors.As(p.local, &f):
		return fmt.Errorf("Local returned something else than a fault: %w", p.local)
	}
	switch f.Kind {
	case fault.PeerLost, fault.LinkLost, fault.Refused, fault.Closed, fault.Revoked:
		return nil
	}
	return fmt.Errorf("Local returned: %w", p.local)
}
