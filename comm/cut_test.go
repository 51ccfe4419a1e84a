package comm_test

import (
	"context"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tutti-go/tutti/collective"
	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/internal/test/leak"
	"github.com/tutti-go/tutti/internal/test/worldtest"
	"github.com/tutti-go/tutti/p2p"
	"github.com/tutti-go/tutti/transport/flaky"
)

// soaking injects every fault at every step in memory, where otherwise they take turns.
var soaking = os.Getenv("TUTTI_SOAK") != ""

// seed selects the few steps over a transport at which a fault is injected, and with how many
// ranks, where not all are: TUTTI_SEED=1, 2, ... selects others than 0 does.
func seed(t *testing.T) int {
	t.Helper()
	text := os.Getenv("TUTTI_SEED")
	if text == "" {
		return 0
	}
	n, err := strconv.ParseUint(text, 10, 31)
	if err != nil {
		t.Fatalf("TUTTI_SEED=%s is no number: %v", text, err)
	}
	return int(n)
}

// rotating returns, for each step, one injection of each kind given, in turns.
func rotating(kinds ...[]injection) func(i int) []injection {
	return func(i int) []injection {
		var now []injection
		for _, injections := range kinds {
			if soaking {
				now = append(now, injections...)
				continue
			}
			now = append(now, injections[i%len(injections)])
		}
		return now
	}
}

// everyNth injects at every k-th step only, under the race detector.
func everyNth(k int, choose func(i int) []injection) func(i int) []injection {
	if !raceEnabled || soaking {
		return choose
	}
	return func(i int) []injection {
		if i%k != 0 {
			return nil
		}
		return choose(i / k)
	}
}

// segment is so small here that a message of a few segments costs nothing.
const segment = 256

// elements returns the length of a vector of int32 that has this many segments.
func elements(segments float64) int { return int(segments * segment / 4) }

// chunked are the algorithms of reductions whose messages are chunks, or a few of them.
var chunked = map[string]bool{"ring": true, "segmented_ring": true, "pairwise": true, "hierarchical_split": true, "rabenseifner": true, "recursive_halving": true}

// hasSeveralCalls reports whether there is more than one call of a collective.
func hasSeveralCalls(verb collective.Verb) bool {
	n := 0
	for _, call := range worldtest.Collectives[int32]() {
		if verbOf(call) == verb {
			n++
		}
	}
	return n > 1
}

func verbOf(call worldtest.Call) collective.Verb {
	verb, err := collective.ParseVerb(call.Verb)
	if err != nil {
		panic(err) // the list of calls has a wrong name
	}
	return verb
}

// collectiveCases are all collectives by all their algorithms, with messages of the given
// number of segments. Where a collective has several calls, they and its algorithms take
// turns, except in a soak.
func collectiveCases(wire string, n int, segments float64, opts ...comm.Option) []*faultCase {
	var all []*faultCase
	calls := map[collective.Verb]int{}
	for _, call := range worldtest.Collectives[int32]() {
		verb := verbOf(call)
		calls[verb]++
		for i, a := range collective.Algorithms(verb) {
			if a.NeedsShared() {
				continue // no frames; see TestADeathIsNoticedInSharedMemory
			}
			if !soaking && hasSeveralCalls(verb) && (i+calls[verb])%2 == 0 {
				continue
			}
			count := elements(segments)
			if call.Chunks && chunked[a.Name()] {
				count *= n
			}
			opts := append([]comm.Option{comm.WithParameters(comm.Parameters{Segment: segment, NoSharedMemory: true})}, opts...)
			if a.Hierarchical() {
				opts = append(opts, roundRobinHosts(2))
			}
			all = append(all, &faultCase{wire: wire, n: n, algorithm: a.String(), call: call, count: count, opts: opts})
		}
	}
	opts = append([]comm.Option{comm.WithParameters(comm.Parameters{Segment: segment, NoSharedMemory: true})}, opts...)
	return append(all, &faultCase{wire: wire, n: n, algorithm: "allreduce:ring", call: worldtest.Lists[int32](""), count: n * elements(segments), opts: opts})
}

// threeFrames is the length of a message that the receiver requests, and whose bytes come in
// three frames.
const threeFrames = 530_000 / 4

// messageCases are all ways to send, by all protocols: eager messages, and those whose bytes
// are requested, in one frame and in three.
func messageCases(wire string, n int, opts ...comm.Option) []*faultCase {
	protocols := []struct {
		name     string
		protocol string
		counts   []int
	}{
		{", auto", "auto", []int{0, elements(0.5), elements(2.5), threeFrames}},
		{", push", "eager", []int{elements(0.5), elements(2.5)}},
		{", pull", "rendezvous", []int{0, elements(0.5)}},
	}
	var all []*faultCase
	for _, call := range worldtest.Messages[int32]() {
		for _, d := range protocols {
			for _, count := range d.counts {
				if count == threeFrames && n > 2 && !soaking {
					continue
				}
				all = append(all, &faultCase{wire: wire, n: n, call: call, count: count, label: d.name,
					opts: append([]comm.Option{comm.WithParameters(comm.Parameters{Protocol: d.protocol, Threshold: segment, NoSharedMemory: true})}, opts...)})
			}
		}
	}
	return all
}

// preparedCase is named tensors step by step, with receives that the call and the static
// plan prepare. In a bubble it is certain that some are written directly. Its steps
// resemble each other, so a fault is injected at one of five, never the same ones.
func preparedCase(wire string, n int) *faultCase {
	drained := func() {}
	inBubble := wire == "memory" || wire == "verbs"
	if inBubble {
		// Reason: this is the clock of a synctest bubble, and no real time. It goes on only
		// when all goroutines wait, and then nothing is on its way any more.
		drained = func() { time.Sleep(time.Millisecond) }
	}
	return &faultCase{wire: wire, n: n, call: worldtest.NamedSteps[int32](0, drained), count: 5000, label: ", prepared", every: 5, reuses: inBubble,
		opts: []comm.Option{comm.WithParameters(comm.Parameters{Protocol: "rendezvous", StaticTensors: 1 << 20, NoSharedMemory: true})}}
}

// Numbers of ranks.
var (
	rankCounts = []int{2, 3, 4}
	fewRanks   = []int{3}
)

// injectInMemory injects at all steps of the cases for these numbers of ranks.
func injectInMemory(t *testing.T, ranks []int, choose func(i int) []injection, cases func(n int) []*faultCase) {
	defer debug.SetGCPercent(debug.SetGCPercent(400)) // each run begins with an empty heap
	if soaking {
		ranks = []int{2, 3, 4, 5}
	} else if raceEnabled {
		ranks = fewRanks
	}
	var sum runCounts
	t.Run("memory", func(t *testing.T) {
		for _, n := range ranks {
			for _, s := range cases(n) {
				t.Run(s.String(), func(t *testing.T) {
					t.Parallel()
					s.injectAll(t, &sum, choose)
				})
			}
		}
	})
	sum.report(t)
}

func TestCollectivesEndWhenAnyFrameIsCut(t *testing.T) {
	injectInMemory(t, rankCounts, rotating(linkCuts, deaths), func(n int) []*faultCase { return collectiveCases("memory", n, 2.5) })
}

// A start of a persistent collective ends as a blocking call does.
func TestPersistentsEndWhenAnyFrameIsCut(t *testing.T) {
	injectInMemory(t, fewRanks, rotating(linkCuts, deaths), func(n int) []*faultCase {
		var all []*faultCase
		for _, call := range worldtest.Persistent[int32]() {
			all = append(all, &faultCase{wire: "memory", n: n, call: call, count: elements(2.5),
				opts: []comm.Option{comm.WithParameters(comm.Parameters{Segment: segment, NoSharedMemory: true})}})
		}
		return all
	})
}

func TestMessagesEndWhenAnyFrameIsCut(t *testing.T) {
	injectInMemory(t, rankCounts, rotating(linkCuts, deaths), func(n int) []*faultCase {
		return append(messageCases("memory", n), preparedCase("memory", n))
	})
}

func TestNoCorruptedHeadLeadsToAWrongResult(t *testing.T) {
	injectInMemory(t, fewRanks, rotating([]injection{corruptHead}), func(n int) []*faultCase {
		return append(append(collectiveCases("memory", n, 1.5), messageCases("memory", n)...), preparedCase("memory", n))
	})
}

// Nothing is written directly with checksums: see comm.Parameters.StaticTensors.
func TestWithChecksumsNoCorruptedBodyLeadsToAWrongResult(t *testing.T) {
	injectInMemory(t, fewRanks, rotating([]injection{corruptBody}), func(n int) []*faultCase {
		return append(collectiveCases("memory", n, 1.5, comm.WithParameters(comm.Parameters{Checksums: true})), messageCases("memory", n, comm.WithParameters(comm.Parameters{Checksums: true}))...)
	})
}

// The segments of these are above what may be pushed, so receivers ask for them,
// and show their memory to the senders.
const huge = 256 << 10

// These segments are larger than an eager message may be, so receivers request them, and
// expose their memory to the senders.
func TestCollectivesOfHugeSegmentsEndWhenAnyStepIsCut(t *testing.T) {
	injectInMemory(t, fewRanks, everyNth(3, rotating(linkCuts, deaths)), func(n int) []*faultCase {
		if n > 3 {
			return nil // megabytes for each run of a soak, and nothing that small segments do not show
		}
		var few []*faultCase
		for i, s := range collectiveCases("memory", n, 1.5) {
			if !soaking && i%7 != 0 {
				continue
			}
			s.opts = []comm.Option{comm.WithParameters(comm.Parameters{Segment: huge, NoSharedMemory: true})}
			s.count *= huge / segment
			few = append(few, s)
		}
		return few
	})
}

// Over verbs each frame takes several work requests and completions, of which any may be the
// last that a device carries out. Faults are also injected at frames, as over the other
// transports.
func TestVerbsEndWhenAnyFrameWorkOrCompletionIsCut(t *testing.T) {
	injectInMemory(t, fewRanks, everyNth(5, rotating(linkCuts, deaths)), func(n int) []*faultCase {
		if n > 3 {
			return nil // a device does for its third peer what it does for its second
		}
		var few []*faultCase
		for i, s := range append(collectiveCases("verbs", n, 2.5), messageCases("verbs", n)...) {
			if !soaking && i%5 > 1 {
				continue
			}
			s.deviceSteps = i%5 == 1
			few = append(few, s)
		}
		works := preparedCase("verbs", n)
		works.deviceSteps = true
		return append(few, preparedCase("verbs", n), works)
	})
}

func idle(context.Context, *comm.Comm, int, *worldtest.BufferTracker) error { return nil }

func TestStartEndsWhenAnyFrameIsCut(t *testing.T) {
	injectInMemory(t, rankCounts, rotating(linkCuts, []injection{corruptHead}), func(n int) []*faultCase {
		return []*faultCase{{wire: "memory", n: n, call: worldtest.Call{Name: "start", Run: idle}, during: starting}}
	})
}

// What was sent before is still on its way when the ranks close.
func TestCloseEndsWhenAnyFrameIsCut(t *testing.T) {
	injectInMemory(t, rankCounts, rotating(linkCuts, deaths, []injection{corruptHead}), func(n int) []*faultCase {
		return []*faultCase{{wire: "memory", n: n, call: worldtest.Call{Name: "close", Verb: "barrier", Run: func(ctx context.Context, c *comm.Comm, _ int, _ *worldtest.BufferTracker) error {
			for r := range c.Size() { // so that there are Conns to cut
				comm.IRecv(c, r, 1, make([]int32, 1))
				if err := comm.Send(ctx, c, r, 1, []int32{1}); err != nil {
					return err
				}
			}
			return c.Barrier(ctx)
		}}, during: closing}}
	})
}

// A rank that is about to die carries out one more collective in shared memory than it should
// have frames for, sends a message, and then calls nothing. The others are in the next
// collective by then, or soon.
func TestADeathIsNoticedInSharedMemory(t *testing.T) {
	var sum runCounts
	for n := 2; n <= 4; n++ {
		for _, call := range worldtest.Collectives[int32]() {
			a, err := collective.Find(verbOf(call), "shared")
			if err != nil || strings.HasPrefix(call.Name, "i") {
				continue // there is none, or not for calls that do not block
			}
			for victim := range n {
				s := &faultCase{wire: "memory", n: n, algorithm: a.String(), call: lastCall(call, victim), count: 100}
				s.inject(t, &sum, deaths[victim%3], step{victim, (victim + 1) % n, 1})
			}
		}
	}
	sum.steps.Add(sum.runs.Load())
	sum.report(t)
}

// fragmentElements is how many elements one fragment of shared memory holds.
const fragmentElements = p2p.SlotSize / 4

// fragmentsOf returns how many fragments a call's vectors have: a small one, and enough that
// each rank publishes some ahead of those that it reads. The vectors of two calls, one with a
// stage and one with two, fill all slots of two ranks, and then some of them again.
func fragmentsOf(call worldtest.Call, wire string, n int) []float64 {
	few := []float64{0.01, 4.5}
	if (call.Name == "allreduce" || call.Name == "broadcast from the last") && wire == "memory" && n == 2 && !raceEnabled {
		slots := p2p.SharedSize(n) / n / p2p.SlotSize // what else a rank has in there is less than a slot
		return append(few, float64(slots)+1.5)
	}
	return few
}

// publishCases are all collectives in shared memory, with vectors of several lengths.
func publishCases(wire string, n int) []*faultCase {
	var all []*faultCase
	for _, call := range append(worldtest.Collectives[int32](), worldtest.Lists[int32]("")) {
		a, err := collective.Find(verbOf(call), "shared")
		if err != nil || call.Name == "iallreduce" {
			continue // there is none, or not for calls that do not block
		}
		for _, fragments := range fragmentsOf(call, wire, n) {
			count := int(fragments * fragmentElements)
			if call.Chunks {
				count *= n
			}
			if raceEnabled && fragments < 1 {
				continue
			}
			all = append(all, &faultCase{wire: wire, n: n, algorithm: a.String(), call: call, count: count, only: flaky.Publish})
		}
	}
	return all
}

// A rank dies at each flag that it sets in shared memory: the others wait for it there, and no
// frame tells them.
func TestCollectivesEndWhenARankDiesAtAnyFlagInSharedMemory(t *testing.T) {
	injectInMemory(t, rankCounts, everyNth(5, rotating([]injection{dieAt(flaky.Before), dieAt(flaky.After)})), func(n int) []*faultCase { return publishCases("memory", n) })
}

// lastCall is two calls, of which the victim makes one.
func lastCall(call worldtest.Call, victim int) worldtest.Call {
	twice := call
	twice.Name += " before a death"
	twice.Run = func(ctx context.Context, c *comm.Comm, count int, l *worldtest.BufferTracker) error {
		if err := call.Run(ctx, c, count, l); err != nil {
			return err
		}
		if c.Rank() == victim {
			return comm.Send(ctx, c, (victim+1)%c.Size(), 1, []int32{1})
		}
		return call.Run(ctx, c, count, l)
	}
	return twice
}

// injectOverWire injects at a few steps of the cases: one of share steps, which the seed
// shifts. In a soak it injects at all, one injection each in turn; every injection at every
// step is tested in memory, where a run takes a tenth of the time.
func injectOverWire(t *testing.T, share int, injections []injection, cases func(n int) []*faultCase) {
	leak.Check(t)
	if raceEnabled {
		share *= 3 // a race shows at any step
	}
	var sum runCounts
	w := newInjectionPool()
	begin := seed(t)
	i := begin
	for n := 2; n <= 4; n++ {
		for j, s := range cases(n) {
			if !soaking && (j+begin)%3 != n-2 {
				continue
			}
			for _, at := range s.baseline(t, &sum) {
				if soaking {
					w.inject(t, s, &sum, injections[i%len(injections)], at)
					i++
					continue
				}
				for _, b := range injections {
					if i++; i%share == 0 {
						w.inject(t, s, &sum, b, at)
					}
				}
			}
		}
	}
	w.running.Wait()
	sum.report(t)
}

// frameCases are all collectives and all ways to send, by messages.
func frameCases(wire string) func(n int) []*faultCase {
	return func(n int) []*faultCase {
		all := append(collectiveCases(wire, n, 2.5), messageCases(wire, n)...)
		return append(all, preparedCase(wire, n))
	}
}

// frameInjections are the faults that a frame can have.
func frameInjections() []injection { return append(append(linkCuts[:3:3], deaths...), corruptHead) }

func TestCutsOverTCP(t *testing.T)  { injectOverWire(t, 61, frameInjections(), frameCases("tcp")) }
func TestCutsOverGRPC(t *testing.T) { injectOverWire(t, 61, frameInjections(), frameCases("grpc")) }

func TestCutsOverSharedMemory(t *testing.T) {
	needsSharedMemory(t)
	injectOverWire(t, 61, frameInjections(), frameCases("shm"))
}

// A large body passes through the ring in chunks, of which any may be the last to arrive. No
// memory is exposed here, so the ring is not bypassed.
func TestCutsAtAnyChunkInARing(t *testing.T) {
	needsSharedMemory(t)
	injectOverWire(t, 61, []injection{cutAt(flaky.After), dieAt(flaky.After)}, func(n int) []*faultCase {
		var all []*faultCase
		for _, s := range collectiveCases("shm", n, 1.5) {
			s.opts = []comm.Option{comm.WithParameters(comm.Parameters{Segment: huge, NoSharedMemory: true})}
			s.count *= huge / segment
			s.only, s.hide = flaky.Chunk, []flaky.StepKind{flaky.Expose}
			if s.call.Verb == "barrier" || n == 2 && strings.HasSuffix(s.call.Name, "v") {
				continue // it moves nothing, or nothing to others
			}
			all = append(all, s)
		}
		return all
	})
}

func TestDeathsAtAnyFlagInMemoryThatProcessesShare(t *testing.T) {
	needsSharedMemory(t)
	injectOverWire(t, 17, []injection{dieAt(flaky.Before), dieAt(flaky.After)}, func(n int) []*faultCase { return publishCases("shm", n) })
}

// needsSharedMemory skips tests over the transport shm where it is not built: it needs memfds
// and abstract sockets, which no other system has.
func needsSharedMemory(t *testing.T) {
	t.Helper()
	if runtime.GOOS != "linux" {
		// Reason: there is no shm to test on other systems; its tests run on Linux, in every gate.
		t.Skip("the wire shm is built on Linux only: it stands on memfds and abstract sockets")
	}
}
