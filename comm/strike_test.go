package comm_test

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/worldtest"
	"github.com/tutti-go/tutti/transport/flaky"
)

// A blow is one thing that is broken at one step, and what all ranks should then
// hear.
type blow struct {
	rule  func(k int) flaky.Rule
	kind  fault.Kind // of the verdict: LinkLost names both ends, PeerLost the one that took the step
	quiet bool       // it may do no harm, and have no verdict
}

// The blows.
var (
	cuts = []blow{cutAt(flaky.Before), cutAt(flaky.Within), cutAt(flaky.After)}
	dies = []blow{dieAt(flaky.Before), dieAt(flaky.Within), dieAt(flaky.After)}
	// A frame into exposed memory travels without its head.
	badHead = blow{rule: flaky.CorruptHead, kind: fault.LinkLost, quiet: true}
	badBody = blow{rule: flaky.CorruptBody, kind: fault.LinkLost}
)

func cutAt(m flaky.Moment) blow {
	return blow{rule: func(k int) flaky.Rule { return flaky.Cut(m, k) }, kind: fault.LinkLost}
}

func dieAt(m flaky.Moment) blow {
	return blow{rule: func(k int) flaky.Rule { return flaky.Die(m, k) }, kind: fault.PeerLost}
}

// A count of what a test has done, over all its scenes.
type count struct{ steps, plays, struck atomic.Int64 }

// report ends a test: one that has struck nothing has shown nothing.
func (c *count) report(t *testing.T) {
	t.Logf("%d steps, %d plays, %d of them struck", c.steps.Load(), c.plays.Load(), c.struck.Load())
	if c.steps.Load() == 0 || c.struck.Load() == 0 {
		t.Error("there was nothing to strike at")
	}
}

// A target is one step of a scene: the k-th of rank a towards rank b, or the k-th
// that it publishes, if both are the same.
type target struct{ a, b, k int }

// unharmed plays the scene without rules, in which all must go well, and returns
// its steps.
func (s *scene) unharmed(t *testing.T, sum *count) []target {
	t.Helper()
	p := s.newPlay(flaky.Cut(flaky.After, 1<<30))
	p.perform(t)
	var all []target
	for a := range p.outcomes {
		o := &p.outcomes[a]
		if err := errors.Join(o.err, o.closing, o.debt, p.local); err != nil || o.verdict != nil {
			t.Fatalf("%v: unharmed, rank %d got %v, and the verdict %v", s, a, err, o.verdict)
		}
		if s.reuses && o.reused == 0 {
			t.Errorf("%v: rank %d got no memory again that it had given back", s, a)
		}
		for b := range p.steps[a] {
			for k := range p.steps[a][b] {
				all = append(all, target{a, b, k + 1})
			}
		}
	}
	if len(all) == 0 {
		t.Fatalf("%v: there are no steps", s)
	}
	sum.steps.Add(int64(len(all)))
	return all
}

// strikeAll plays the scene once for each of its steps and each blow that choose
// deals there, which is given a number that is different for neighbouring steps.
func (s *scene) strikeAll(t *testing.T, sum *count, choose func(i int) []blow) {
	every := max(s.every, 1)
	if soak {
		every = 1
	}
	for i, at := range s.unharmed(t, sum) {
		if i%every != 0 {
			continue
		}
		for _, b := range choose(i / every) {
			s.strike(t, sum, b, at)
		}
	}
}

// strike plays the scene with one blow at one step.
func (s *scene) strike(t *testing.T, sum *count, b blow, at target) {
	rule := b.rule(at.k).From(at.a).To(at.b)
	if at.a == at.b {
		rule = rule.To(flaky.Unknown)
	}
	p := s.newPlay(rule)
	p.perform(t)
	sum.plays.Add(1)
	if p.fired() {
		sum.struck.Add(1)
	}
	if err := p.judge(b, at); err != nil {
		t.Errorf("%v: %v, fired: %v: %v%s", s, rule, p.fired(), err, p.describe())
	}
}

// A wave strikes at the steps of several scenes side by side, where real time
// passes.
type wave struct {
	work  sync.WaitGroup
	slots chan struct{}
}

// abreast is how many plays run at once: most of their time is waiting.
const abreast = 8

func newWave() *wave { return &wave{slots: make(chan struct{}, abreast)} }

func (w *wave) strike(t *testing.T, s *scene, sum *count, b blow, at target) {
	w.slots <- struct{}{}
	w.work.Go(func() {
		defer func() { <-w.slots }()
		s.strike(t, sum, b, at)
	})
}

// judge holds what the ranks got against what the blow allows.
func (p *play) judge(b blow, at target) error {
	if steps := p.steps[at.a][at.b]; at.k <= len(steps) && steps[at.k-1] {
		b.quiet = true // of two Conns that were dialled at once, one is given up
	}
	v := view{b: b, at: at, ranks: []int{min(at.a, at.b), max(at.a, at.b)}}
	if b.kind == fault.PeerLost {
		v.ranks = []int{at.a}
	}
	if p.scene.during == starting {
		return p.judgeStart()
	}
	if f := p.testimony(at); (p.hurried() || p.scene.during == closing) && v.b.kind == fault.LinkLost &&
		(blames(f, fault.PeerLost, at.a) || blames(f, fault.PeerLost, at.b)) {
		v.b.kind, v.ranks = fault.PeerLost, blamed(f) // it was too busy to say that it lives, or whoever had heard it had left
	}
	v.torn = p.torn(at)
	if p.local != nil {
		return fmt.Errorf("Local: %w", p.local)
	}
	for r := range p.outcomes {
		if err := p.judgeRank(r, v); err != nil {
			return fmt.Errorf("rank %d: %w", r, err)
		}
	}
	return p.agree(v)
}

// testimony is the verdict that a rank has which is at neither end of what was
// struck, or, where all such ranks have left, that an end went by as it closed.
func (p *play) testimony(at target) *fault.Error {
	f := p.bystander(at).verdict
	for r := range p.outcomes {
		if f == nil && p.scene.during == closing {
			f = verdictIn(p.outcomes[r].closing)
		}
	}
	return f
}

// torn reports whether, where real time passes, ranks took different ones for lost
// of the link and its ends: floods that took longer than ranks wait for them
// crossed, and each side had settled by then.
func (p *play) torn(at target) bool {
	var a, b, link int
	for r := range p.outcomes {
		switch f := p.outcomes[r].verdict; {
		case blames(f, fault.PeerLost, at.a):
			a = 1
		case blames(f, fault.PeerLost, at.b):
			b = 1
		case blames(f, fault.LinkLost, min(at.a, at.b), max(at.a, at.b)):
			link = 1
		}
	}
	return p.hurried() && a+b+link > 1
}

// bystander is the outcome of a rank that is at neither end of what was struck, if
// there is one.
func (p *play) bystander(at target) *outcome {
	for r := range p.outcomes {
		if r != at.a && r != at.b {
			return &p.outcomes[r]
		}
	}
	return &p.outcomes[at.b]
}

// leftEarly reports whether err is that of a message to a rank that has closed
// without taking it, because it had failed before.
func (p *play) leftEarly(err error) bool {
	var f *fault.Error
	for errors.As(err, &f) {
		if f.Kind == fault.Closed && len(f.Peers) == 1 {
			return p.outcomes[f.Peers[0].Rank].err != nil
		}
		err = f.Err
	}
	return false
}

// A view is the verdict that all living ranks should share.
type view struct {
	b     blow
	at    target
	ranks []int
	torn  bool // some blame an end, and some the link
}

// dead reports whether a rank is taken for dead: what it hears is its own affair.
func (v *view) dead(r int) bool { return v.b.kind == fault.PeerLost && r == v.ranks[0] }

// hurried reports whether real time passes, on a machine that may be busy with
// something else for as long as the ranks give each other.
func (p *play) hurried() bool { return p.scene.wire != "memory" && p.scene.wire != "verbs" }

// holds reports whether f is this verdict.
func (v *view) holds(f *fault.Error) bool {
	if v.torn {
		return blames(f, fault.PeerLost, v.at.a) || blames(f, fault.PeerLost, v.at.b) ||
			blames(f, fault.LinkLost, min(v.at.a, v.at.b), max(v.at.a, v.at.b))
	}
	return blames(f, v.b.kind, v.ranks...)
}

// concerns reports whether a message in the ring may fail on rank r.
func (v *view) concerns(p *play, r int) bool {
	switch {
	case v.torn:
		return true
	case v.b.kind == fault.LinkLost:
		return r == v.at.a || r == v.at.b
	}
	n, lost := p.scene.n, v.ranks[0]
	return (r+1)%n == lost || (lost+1)%n == r || p.scene.call.Name == "send to any"
}

func (p *play) judgeRank(r int, v view) error {
	o := &p.outcomes[r]
	if o.debt != nil {
		return o.debt
	}
	for _, err := range append(leaves(o.err), leaves(o.closing)...) {
		behind := verdictIn(err)
		switch {
		case err == nil:
		case worldtest.IsWrong(err):
			return err
		case !p.fired():
			return fmt.Errorf("nothing was broken, and it got: %w", err)
		case behind == nil && p.hurried() && p.leftEarly(err):
		case behind == nil:
			return fmt.Errorf("no verdict is behind its error: %w", err)
		case !v.dead(r) && !v.holds(behind):
			return fmt.Errorf("want %v of %v behind its error: %w", v.b.kind, v.ranks, err)
		}
	}
	switch {
	case !p.hurried() && o.took > soonEnough:
		return fmt.Errorf("it took %v", o.took)
	case v.dead(r) || !p.fired():
	case p.scene.call.Verb == "" && !v.concerns(p, r) && o.err != nil:
		return fmt.Errorf("its messages had nothing to do with it: %w", o.err)
	case p.scene.during == closing, v.b.quiet && o.verdict == nil:
	case p.hurried() && !o.heeded && o.verdict == nil: // it hit a frame that came so late that nobody listened
	case !v.holds(o.verdict):
		return fmt.Errorf("want the verdict %v of %v, got %v", v.b.kind, v.ranks, o.verdict)
	}
	return nil
}

// agree checks that all living ranks have heard the same words.
func (p *play) agree(v view) error {
	var first *fault.Error
	for r := range p.outcomes {
		heard := p.outcomes[r].verdict
		switch {
		case v.dead(r) || heard == nil || v.torn && v.holds(heard):
		case first == nil:
			first = heard
		case p.hurried() && blames(heard, first.Kind, blamed(first)...): // two ranks said so at once
		case first.Error() != heard.Error():
			return fmt.Errorf("two verdicts: %v, and %v", first, heard)
		}
	}
	return nil
}

// judgeStart wants to hear the truth about a job that did not come about, soon.
func (p *play) judgeStart() error {
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
