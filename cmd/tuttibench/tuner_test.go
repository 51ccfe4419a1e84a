package main

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/tutti-go/tutti/collective"
	"github.com/tutti-go/tutti/collective/choose"
	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/p2p"
)

func newWay(t testing.TB, verb collective.Verb, name string, segment int) *way {
	t.Helper()
	a, err := collective.Find(verb, name)
	if err != nil {
		t.Fatal(err)
	}
	return &way{algorithm: a, segment: segment}
}

// Each of the first calls of 16 KiB touches a new slot, and takes ten times as long as a later
// call. Five such calls must not make the tuner time shared memory in the first pass only.
func TestASlowBeginningDoesNotDecide(t *testing.T) {
	calls := 0
	iterate := func() (float64, error) {
		if calls++; calls <= 256 {
			return 20e-6, nil
		}
		return 2e-6, nil
	}
	seconds, err := repeat(iterate, budget{10 * time.Millisecond, maxIterations}, nil)
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(seconds)
	if got := (sample{seconds: seconds}).median(); got != 2e-6 {
		t.Errorf("got a median of %v s of %d calls, want 2e-06", got, len(seconds))
	}
}

func TestRepeatEndsWithAnErrorWithTheBudgetOrWithTheMostIterations(t *testing.T) {
	broken := errors.New("broken")
	for _, c := range []struct {
		name   string
		each   float64
		budget time.Duration
		fails  int // the number of the call that fails; 0 if none does
		want   int
	}{
		{"budget", 0.25, time.Second, 0, minIterations},
		{"few", 10, time.Second, 0, minIterations},
		{"none given", 10, 0, 0, minIterations},
		{"long budget", 0.25, 5 * time.Second, 0, 21},
		{"a clock that stands", 0, time.Second, 0, maxIterations},
		{"error", 0.25, time.Second, 2, 0},
	} {
		calls := 0
		got, err := repeat(func() (float64, error) {
			if calls++; calls == c.fails {
				return 0, broken
			}
			return c.each, nil
		}, budget{c.budget, maxIterations}, nil)
		if len(got) != c.want || (err == broken) != (c.fails > 0) {
			t.Errorf("%s: got %d times and %v, want %d", c.name, len(got), err, c.want)
		}
	}
}

// fakeVectors record how they are run.
type fakeVectors struct {
	ran    []int // numbers of elements
	loaded bool
	err    error
}

func (x *fakeVectors) on(*comm.Comm) vectors               { return x }
func (x *fakeVectors) alloc() (free func() error, _ error) { return nil, errors.ErrUnsupported }
func (x *fakeVectors) trial(count int) trial {
	return trial{bytes: 4 * count, load: func() { x.loaded = true }, run: func(context.Context) error {
		x.ran = append(x.ran, count)
		return x.err
	}}
}

func TestWarmTouchesAllSharedMemoryAndSkipsWaysWithoutAny(t *testing.T) {
	ring, shared := newWay(t, collective.VerbAllReduce, "ring", 0), newWay(t, collective.VerbAllReduce, "shared", 0)
	lost := fault.New(fault.PeerLost, "allreduce", 0, "gone")
	for _, c := range []struct {
		name  string
		err   error
		want  []*way
		fails bool
	}{
		{"all share", nil, []*way{ring, shared}, false},
		{"some share nothing", fault.New(fault.Misuse, "allreduce", 0, "no memory"), []*way{ring}, false},
		{"a peer is lost", lost, nil, true},
	} {
		x := &fakeVectors{err: c.err}
		got, err := warm(t.Context(), x, 1000, []*way{ring, shared})
		if !slices.Equal(got, c.want) || (err != nil) != c.fails {
			t.Errorf("%s: got %v and %v, want %v", c.name, got, err, c.want)
		}
		if !slices.Equal(x.ran, []int{1000}) || !x.loaded {
			t.Errorf("%s: got runs of %v elements, loaded before: %v, want one of 1000", c.name, x.ran, x.loaded)
		}
	}
	for n := 2; n <= 64; n++ { // comm shares memory among at most 64 ranks
		if need, got := p2p.SharedSize(n), 4*sharedElements(n); got < need || got/4%n != 0 {
			t.Errorf("%d ranks share %d bytes; got %d that are warmed", n, need, got)
		}
	}
}

// fakeTimes holds the times that each way returns, one per call. Calls after the last time return
// the last time again.
type fakeTimes map[*way][]float64

func (s fakeTimes) time(w *way) (float64, error) {
	left := s[w]
	if len(left) == 0 {
		return 0, errors.New("timed without need")
	}
	if len(left) > 1 {
		s[w] = left[1:]
	}
	return left[0], nil
}

func TestHeats(t *testing.T) {
	const bytes = 1 << 10 // the default table chooses recursive_doubling for this size
	usual := newWay(t, collective.VerbAllReduce, "recursive_doubling", 0)
	ring := newWay(t, collective.VerbAllReduce, "ring", 0)
	small := newWay(t, collective.VerbAllReduce, "ring", 64)
	large := newWay(t, collective.VerbAllReduce, "ring", 1<<10)
	for _, c := range []struct {
		name   string
		script fakeTimes
		want   map[*way]float64
		picked *way
	}{
		{"the default is ahead", fakeTimes{usual: {1}, ring: {5}}, map[*way]float64{usual: 1, ring: 5}, usual},
		{"a way beyond secondPass has one heat", fakeTimes{usual: {1}, ring: {50, 1e-3}}, map[*way]float64{usual: 1, ring: 50}, usual},
		{"a slow moment does not put a way out", fakeTimes{usual: {10, 10}, ring: {20, 5}, small: {30}}, map[*way]float64{usual: 10, ring: 5, small: 30}, ring},
		{"a way's luck does not last", fakeTimes{usual: {10}, ring: {5, 12}, small: {30}}, map[*way]float64{usual: 10, ring: 12, small: 30}, usual},
		{"the machine's pace changes", fakeTimes{usual: {10, 10, 10, 5}, ring: {10, 10, 5}, small: {30}}, map[*way]float64{usual: 5, ring: 5, small: 30}, usual},
		{"one slow turn does not save the default", fakeTimes{usual: {10, 10, 10, 10, 4, 10}, ring: {5}, small: {30}}, map[*way]float64{usual: 4, ring: 2, small: 30}, ring},
		{"segments are tried where a message has several", fakeTimes{usual: {10}, ring: {9}, small: {5}}, map[*way]float64{usual: 10, ring: 9, small: 5}, small},
		{"one rival after the other", fakeTimes{usual: {10}, ring: {5, 5, 5, 12}, small: {6, 6, 11}}, map[*way]float64{usual: 10, ring: 12, small: 11}, usual},
	} {
		h := newHeats(4, bytes, "tcp", []*way{usual, ring, small, large})
		h.time = c.script.time
		if err := h.run(); err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		for w, want := range c.want {
			if got, _ := h.seconds(w); got != want {
				t.Errorf("%s: got %v for %v in segments of %d, want %v", c.name, got, w.algorithm, w.segment, want)
			}
		}
		if u := choose.Rules(h.times())[0]; u.Algorithm != c.picked.algorithm || int(u.Segment) != c.picked.segment {
			t.Errorf("%s: got the rule %v, want %v", c.name, u, c.picked.algorithm)
		}
		if _, timed := h.got[large]; timed {
			t.Errorf("%s: messages of one segment were timed in segments", c.name)
		}
	}
}

// The machine is faster while the second rival takes its turns. This makes the usual way's time
// shorter, but must not change the ratios of the first rival.
func TestARivalsTurnsHoldWhenTheUsualWayIsQuickerLater(t *testing.T) {
	usual := newWay(t, collective.VerbAllReduce, "recursive_doubling", 0)
	first, second := newWay(t, collective.VerbAllReduce, "ring", 0), newWay(t, collective.VerbAllReduce, "pairwise", 0)
	s := fakeTimes{usual: {10, 10, 10, 10, 10, 10, 10, 10, 8}, first: {7, 7, 7, 8.5}, second: {7.5, 7.5, 7.5, 8}}
	h := newHeats(4, 1<<10, "tcp", []*way{usual, first, second})
	h.time = s.time
	if err := h.run(); err != nil {
		t.Fatal(err)
	}
	for w, want := range map[*way]float64{usual: 8, first: 6.8, second: 8} {
		if got, _ := h.seconds(w); got != want {
			t.Errorf("got %v for %v, want %v", got, w.algorithm, want)
		}
	}
	if u := choose.Rules(h.times())[0]; u.Algorithm != first.algorithm {
		t.Errorf("got the rule %v, want %v", u, first.algorithm)
	}
}

// A call that cannot use shared memory has another usual way than a call that can. A rival must
// beat both ways. If the rival loses to one of them, the rule must name the usual way through
// shared memory.
func TestARivalOfTwoUsualWaysDoesNotLeadToTheOneThatItLostTo(t *testing.T) {
	shared := newWay(t, collective.VerbAllReduce, "shared", 0)
	doubling := newWay(t, collective.VerbAllReduce, "recursive_doubling", 0)
	ring := newWay(t, collective.VerbAllReduce, "ring", 0)
	for _, c := range []struct {
		name   string
		script fakeTimes
		want   float64 // the time of ring
		picked *way
	}{
		{"it loses to the first and beats the second", fakeTimes{shared: {10}, doubling: {16}, ring: {8, 8, 8, 11, 11, 11, 11, 11, 8}}, 11, shared},
		{"it beats both", fakeTimes{shared: {10}, doubling: {16}, ring: {8}}, 8, ring},
		{"it beats both by as much, each in its turns", fakeTimes{shared: {10}, doubling: {16}, ring: {8, 8, 8, 8, 8, 8, 8, 8, 12.8}}, 8, ring},
		{"it beats the first and loses to the second", fakeTimes{shared: {10}, doubling: {16}, ring: {8, 8, 8, 8, 8, 8, 8, 8, 16}}, 16, shared},
	} {
		h := newHeats(4, 1<<10, "shm", []*way{shared, doubling, ring})
		h.time = c.script.time
		if err := h.run(); err != nil {
			t.Fatal(err)
		}
		if got, _ := h.seconds(ring); got != c.want {
			t.Errorf("%s: got %v for ring, want %v", c.name, got, c.want)
		}
		if u := choose.Rules(h.times())[0]; u.Algorithm != c.picked.algorithm {
			t.Errorf("%s: got the rule %v, want %v", c.name, u, c.picked.algorithm)
		}
	}
}

func TestHeatsEndWithTheFirstError(t *testing.T) {
	w := newWay(t, collective.VerbBarrier, "dissemination", 0)
	h := newHeats(2, 0, "tcp", []*way{w})
	h.time = fakeTimes{}.time
	if err := h.run(); err == nil {
		t.Error("got no error")
	}
}
