package comm_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/test/starved"
	"github.com/tutti-go/tutti/internal/test/worldtest"
	"github.com/tutti-go/tutti/transport"
	"github.com/tutti-go/tutti/transport/flaky"
	rdma "github.com/tutti-go/tutti/transport/verbs"
	"github.com/tutti-go/tutti/transport/verbs/softdevice"
	linked "github.com/tutti-go/tutti/transport/wires"
)

// Time limits of a run. Over memory the time passes in a synctest bubble, and costs nothing.
const (
	callLimit    = 20 * time.Second // a call that needs longer hangs
	closeLimit   = 10 * time.Second
	runLimit     = 60 * time.Second      // a run that needs longer hangs outside the call
	verdictLimit = time.Second           // from a fault to the mesh's report, if time is exact
	frameDrain   = 50 * time.Millisecond // the time for frames that no call waits for

	maxStarved = 8 * time.Second // how much starvation may lengthen the wait for the report
)

// A faultCase is one call by the ranks of one job. A test runs it many times: first without faults,
// and then with one fault at each of its steps.
type faultCase struct {
	wire        string
	n           int
	algorithm   string // "allreduce:ring"; "" for messages
	call        worldtest.Call
	count       int
	label       string // a name for the options
	opts        []comm.Option
	during      phase          // the phase in which steps count
	only        flaky.StepKind // if not 0, only steps of this kind count
	deviceSteps bool           // only steps of the devices below verbs count
	hide        []flaky.StepKind
	every       int  // if not 0, a fault is injected only at every n-th step, except in a soak
	reuses      bool // without faults, each rank gets memory a second time after returning it
}

// A phase is a part of a job.
type phase int

const (
	calling phase = iota
	starting
	closing
)

func (s *faultCase) String() string {
	wire := s.wire
	if s.deviceSteps {
		wire += "' works"
	}
	return fmt.Sprintf("%s/%s/%s/%d ranks/%d elements%s", wire, s.call.Name, s.algorithm, s.n, s.count, s.label)
}

// An outcome is the result of one rank.
type outcome struct {
	err      error // the error of the call
	duration time.Duration
	verdict  *fault.Error // the first failure that its mesh reported
	closing  error        // the error of Close
	// bufferErr is set if memory was written to after its return, or a callback did not run.
	bufferErr   error
	firedBefore bool // the fault was injected before the rank began to wait for the report
	reused      int  // how often the rank got memory that it had returned
}

// A faultRun is one run of a faultCase.
type faultRun struct {
	tc       *faultCase
	rules    []flaky.Rule
	script   *flaky.Script
	counting atomic.Bool       // steps count while it is set
	mu       sync.Mutex        // guards steps
	steps    [][][]bool        // indexed by the ranks from and to; true for a step of a handshake
	phases   [3]sync.WaitGroup // done when all ranks have started, returned, and reported
	outcomes []outcome
	local    error
}

// newRun prepares a run that injects faults by the given rules.
func (s *faultCase) newRun(rules ...flaky.Rule) *faultRun {
	p := &faultRun{tc: s, rules: rules, outcomes: make([]outcome, s.n), steps: make([][][]bool, s.n)}
	for r := range p.steps {
		p.steps[r] = make([][]bool, s.n)
	}
	p.script = flaky.New(flaky.Options{Rules: rules, Counts: p.counts, Hide: s.hide})
	p.counting.Store(s.during == starting)
	return p
}

// controlHead is the length of a control message's head. No other message has a head of this
// length.
const controlHead = 40

// counts reports whether a step counts. It excludes the steps of other phases. During the call it
// also excludes control messages, which timers send.
func (p *faultRun) counts(st flaky.Step) bool {
	if only := p.tc.only; only != 0 && st.Kind != only || only == 0 && st.Kind == flaky.Chunk {
		return false
	}
	ofDevice := st.Kind == flaky.Post || st.Kind == flaky.Completion
	if ofDevice != p.tc.deviceSteps {
		return false
	}
	if st.Kind == flaky.Publish {
		return p.counting.Load() && p.record(st.From, st.From, false)
	}
	if !p.counting.Load() || p.tc.during == calling && (st.Kind == flaky.Frame || ofDevice) && len(st.Head) == controlHead {
		return false
	}
	if st.From != flaky.Unknown && st.To != flaky.Unknown {
		p.record(st.From, st.To, bytes.HasPrefix(st.Head, []byte(handshake)))
	}
	return true
}

// record records a step, and returns true. The step in which a rank publishes a fragment is
// recorded from the rank to itself.
func (p *faultRun) record(from, to int, ofHandshake bool) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.steps[from][to] = append(p.steps[from][to], ofHandshake)
	return true
}

// handshake is the magic number with which each frame of a handshake begins.
const handshake = "tuti"

// execute runs the case, in a bubble if the transport allows it. If a rank hangs, execute ends the
// test process and prints all stacks.
func (p *faultRun) execute(t *testing.T) {
	defer watchdog(p, 2*runLimit).Stop()
	if p.realTime() {
		p.local = p.run()
		return
	}
	synctest.Test(t, func(*testing.T) {
		defer watchdog(p, runLimit).Stop()
		p.local = p.run()
	})
}

func watchdog(p *faultRun, limit time.Duration) *time.Timer {
	return time.AfterFunc(limit, func() {
		buf := make([]byte, 4<<20)
		os.Stderr.Write(buf[:runtime.Stack(buf, true)])
		panic(fmt.Sprintf("%v hangs: %v%s", p.tc, p.rules, p.describe()))
	})
}

var discardLog = slog.New(slog.DiscardHandler)

func (p *faultRun) run() error {
	s := p.tc
	for i := range p.phases {
		p.phases[i].Add(s.n)
	}
	wire, wrap := s.wire, wrapBy(p.script)
	if wire == "verbs" {
		wire, wrap = "memory", p.overDevices(wrap)
	}
	opts := slices.Concat([]comm.Option{
		comm.WithTransport(linked.All()...), comm.WithTransportName(wire), comm.WithAlgorithm(s.algorithm), comm.WithLogger(discardLog), comm.WithWrap(wrap),
		comm.WithFlagHook(p.script.Publish),
	}, s.opts)
	return comm.Local(s.n, func(_ context.Context, c *comm.Comm) error {
		if s.during == starting {
			p.counting.Store(false)
			return nil // the other ranks may never reach the barrier
		}
		p.runRank(c, &p.outcomes[c.Rank()])
		return nil
	}, opts...)
}

// overDevices puts verbs with software devices below wrap. The work requests and completions of the
// devices are steps of the run.
func (p *faultRun) overDevices(wrap wrapFunc) wrapFunc {
	fabric := softdevice.NewFabric()
	fabric.SetHook(func(st softdevice.Action) softdevice.Break {
		kind := flaky.Post
		if st.Completion {
			kind = flaky.Completion
		}
		return map[flaky.Moment]softdevice.Break{flaky.Before: softdevice.BreakBefore, flaky.Within: softdevice.BreakWithin,
			flaky.After: softdevice.BreakAfter}[p.script.Device(kind, st.From, st.To, st.Head())]
	})
	return overVerbs(fabric, wrap)
}

// overVerbs puts verbs with software devices of the fabric below wrap.
func overVerbs(fabric *softdevice.Fabric, wrap wrapFunc) wrapFunc {
	return func(rank int, t transport.Transport) transport.Transport {
		v, err := rdma.New(rdma.Options{Setup: t, Device: fabric.Device(rank)})
		if err != nil {
			panic(err) // cannot fail, because the options are constant
		}
		return wrap(rank, v)
	}
}

// A wrapFunc puts something between a rank and its transport.
type wrapFunc = func(rank int, t transport.Transport) transport.Transport

// wrapBy puts a script between a rank and its transport.
func wrapBy(script *flaky.Script) wrapFunc {
	return func(rank int, t transport.Transport) transport.Transport { return script.Wrap(t, rank) }
}

// runRank runs one rank. It waits until all other ranks have returned from the call and have their
// reports, so that they do not report this rank's Close.
func (p *faultRun) runRank(c *comm.Comm, o *outcome) {
	var buffers worldtest.BufferTracker
	p.barrier(0)
	p.counting.Store(p.tc.during == calling)
	ctx, cancel := context.WithTimeout(context.Background(), callLimit)
	began := time.Now()
	o.err = p.tc.call.Run(ctx, c, p.tc.count, &buffers)
	o.duration = time.Since(began)
	cancel()
	o.reused = buffers.Reused()
	buffers.Returned()
	p.barrier(1)
	p.counting.Store(false)
	// Frames of the call may still be in flight, and one of them may meet the fault. This sleep
	// lets them arrive before the next phase. Over memory the sleep uses the bubble's clock.
	// Reason: no call waits for frames that are in flight afterwards.
	time.Sleep(frameDrain)
	if o.firedBefore = p.fired(); o.firedBefore {
		p.awaitVerdict(c)
	}
	o.verdict = c.Verdict()
	p.barrier(2)
	p.counting.Store(p.tc.during == closing)
	ctx, cancel = context.WithTimeout(context.Background(), closeLimit)
	defer cancel()
	o.closing = c.Close(ctx)
	o.bufferErr = buffers.Check()
}

// barrier returns when all ranks have reached the phase.
func (p *faultRun) barrier(phase int) {
	p.phases[phase].Done()
	p.phases[phase].Wait()
}

// awaitVerdict waits for the mesh's report, at most for a fixed time. Where real time passes, it
// waits longer by the time for which this process was starved of the CPU. This extra time has a
// limit: the starvation of several threads adds up to more than the elapsed time, and a dial that
// succeeds in the end is never reported.
func (p *faultRun) awaitVerdict(c *comm.Comm) {
	since := func() time.Duration { return 0 }
	if p.realTime() {
		since = starved.Since(os.Getpid())
	}
	for began := time.Now(); c.Verdict() == nil && time.Since(began) < 2*verdictLimit+min(since(), maxStarved); {
		// Reason: a verdict wakes only calls, and no call is under way here. The loop ends with the
		// verdict, and the pause bounds how often it polls.
		time.Sleep(5 * time.Millisecond)
	}
}

// fired reports whether the fault was injected. A run has at most one rule.
func (p *faultRun) fired() bool { return p.script.Fired(0) }

// A joinedError combines several errors, as errors.Join does.
type joinedError interface{ Unwrap() []error }

// joinedErrors returns the errors that errors.Join has joined in err.
func joinedErrors(err error) []error {
	var f *fault.Error
	if f2, ok := err.(*fault.Error); ok {
		f = f2
	}
	many, ok := err.(joinedError)
	if f != nil || !ok {
		return []error{err}
	}
	var all []error
	for _, e := range many.Unwrap() {
		all = append(all, joinedErrors(e)...)
	}
	return all
}

// verdictIn returns the report of the mesh that caused err, or nil if no report caused it.
func verdictIn(err error) *fault.Error {
	var f *fault.Error
	for errors.As(err, &f) {
		if (f.Kind == fault.PeerLost || f.Kind == fault.LinkLost) && len(f.Peers) > 0 {
			return f
		}
		err = f.Err
	}
	return nil
}

func blames(f *fault.Error, kind fault.Kind, ranks ...int) bool {
	return f != nil && f.Kind == kind && slices.Equal(blamed(f), ranks)
}

func blamed(f *fault.Error) (ranks []int) {
	for _, p := range f.Peers {
		ranks = append(ranks, p.Rank)
	}
	slices.Sort(ranks)
	return ranks
}

// describe lists the outcomes of all ranks, for the text of a failed test.
func (p *faultRun) describe() string {
	var b strings.Builder
	for r := range p.outcomes {
		o := &p.outcomes[r]
		fmt.Fprintf(&b, "\n\trank %d after %v: %v\n\t\tverdict: %v\n\t\tclose: %v", r, o.duration, o.err, o.verdict, o.closing)
	}
	return b.String()
}
