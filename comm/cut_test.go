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

// soaking makes tests in memory inject every fault at every step. Otherwise each step gets one
// fault of each kind, in turn.
var soaking = os.Getenv("TUTTI_SOAK") != ""

// seed returns TUTTI_SEED, or 0 if it is not set. Over a real transport a test injects faults only
// at a few steps, and with only one number of ranks. The seed selects the steps and the number.
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

// rotating returns a function that chooses the injections for a step: one injection from each list,
// in turn.
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

// everyNth restricts choose to every k-th step under the race detector.
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

// segment is the segment size in bytes. It is so small that a message of several segments costs
// little time.
const segment = 256

// elements returns the length of an int32 vector with the given number of segments.
func elements(segments float64) int { return int(segments * segment / 4) }

// chunked lists the reduction algorithms whose messages consist of one or a few chunks of the
// vector.
var chunked = map[string]bool{"ring": true, "segmented_ring": true, "pairwise": true, "hierarchical_split": true, "rabenseifner": true, "recursive_halving": true}

// hasSeveralCalls reports whether worldtest has more than one call of the collective.
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

// collectiveCases returns cases for all collectives with all their algorithms, with messages of the
// given number of segments. If a collective has several calls, each algorithm is tested with every
// second one of them. In a soak it is tested with all of them.
func collectiveCases(wire string, n int, segments float64, opts ...comm.Option) []*faultCase {
	var all []*faultCase
	calls := map[collective.Verb]int{}
	for _, call := range worldtest.Collectives[int32]() {
		verb := verbOf(call)
		calls[verb]++
		for i, a := range collective.Algorithms(verb) {
			if a.NeedsShared() {
				continue // sends no frames; see TestADeathIsNoticedInSharedMemory
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

// threeFrames is the length in elements of a message whose bytes travel in three frames. The
// message is so large that its receiver requests the bytes.
const threeFrames = 530_000 / 4

// messageCases returns cases for all ways to send, with eager messages, with requested messages of
// one frame, and with requested messages of three frames.
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

// preparedCase returns a case that sends named tensors step by step. The call itself prepares
// receives, and so does the parameter StaticTensors. In a bubble it is certain that some tensors
// are written directly. The steps resemble each other, so only one step in five gets a fault.
func preparedCase(wire string, n int) *faultCase {
	drained := func() {}
	inBubble := wire == "memory" || wire == "verbs"
	if inBubble {
		// Reason: this is the clock of a synctest bubble. No real time passes. The clock advances
		// only when all goroutines wait, and then no frame is in flight.
		drained = func() { time.Sleep(time.Millisecond) }
	}
	return &faultCase{wire: wire, n: n, call: worldtest.NamedSteps[int32](0, drained), count: 5000, label: ", prepared", every: 5, reuses: inBubble,
		opts: []comm.Option{comm.WithParameters(comm.Parameters{Protocol: "rendezvous", StaticTensors: 1 << 20, NoSharedMemory: true})}}
}

// The numbers of ranks that the tests use.
var (
	rankCounts = []int{2, 3, 4}
	fewRanks   = []int{3}
)

// injectInMemory injects faults at all steps of the cases, for each of the given numbers of ranks.
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

// A start of a persistent collective must end as a blocking call does.
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

// The test corrupts bodies. With checksums no call may return a wrong result, and no tensor is
// written directly: see comm.Parameters.StaticTensors.
func TestWithChecksumsNoCorruptedBodyLeadsToAWrongResult(t *testing.T) {
	injectInMemory(t, fewRanks, rotating([]injection{corruptBody}), func(n int) []*faultCase {
		return append(collectiveCases("memory", n, 1.5, comm.WithParameters(comm.Parameters{Checksums: true})), messageCases("memory", n, comm.WithParameters(comm.Parameters{Checksums: true}))...)
	})
}

// huge is a segment size above the largest eager message. Receivers request such segments, and
// expose their memory to the senders.
const huge = 256 << 10

// These segments are larger than an eager message may be. Receivers therefore request them, and
// expose their memory to the senders.
func TestCollectivesOfHugeSegmentsEndWhenAnyStepIsCut(t *testing.T) {
	injectInMemory(t, fewRanks, everyNth(3, rotating(linkCuts, deaths)), func(n int) []*faultCase {
		if n > 3 {
			// Each run of a soak would move megabytes, and show nothing that small segments do not
			// show.
			return nil
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

// Over verbs each frame takes several work requests and completions. The device may die after any
// of them, so this test injects faults at each. It also injects faults at frames, as over the other
// transports.
func TestVerbsEndWhenAnyFrameWorkOrCompletionIsCut(t *testing.T) {
	injectInMemory(t, fewRanks, everyNth(5, rotating(linkCuts, deaths)), func(n int) []*faultCase {
		if n > 3 {
			return nil // a device treats its third peer as it treats its second
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

// The call opens all Conns, and its frames have arrived before the ranks close. Close must end
// wherever one of the frames that are sent during Close is cut.
func TestCloseEndsWhenAnyFrameIsCut(t *testing.T) {
	injectInMemory(t, rankCounts, rotating(linkCuts, deaths, []injection{corruptHead}), func(n int) []*faultCase {
		return []*faultCase{{wire: "memory", n: n, call: worldtest.Call{Name: "close", Verb: "barrier", Run: func(ctx context.Context, c *comm.Comm, _ int, _ *worldtest.BufferTracker) error {
			for r := range c.Size() { // makes the Conns that the test cuts
				comm.IRecv(c, r, 1, make([]int32, 1))
				if err := comm.Send(ctx, c, r, 1, []int32{1}); err != nil {
					return err
				}
			}
			return c.Barrier(ctx)
		}}, during: closing}}
	})
}

// The victim carries out one collective in shared memory, which takes no frames, and sends a
// message, at which it dies. The other ranks are in the next collective by then, or begin it soon.
// They must get the loss of the victim.
func TestADeathIsNoticedInSharedMemory(t *testing.T) {
	var sum runCounts
	for n := 2; n <= 4; n++ {
		for _, call := range worldtest.Collectives[int32]() {
			a, err := collective.Find(verbOf(call), "shared")
			if err != nil || strings.HasPrefix(call.Name, "i") {
				continue // has no algorithm in shared memory, or only for blocking calls
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

// fragmentsOf returns the lengths of a call's vectors, in fragments. One vector is smaller than a
// fragment. Another is so long that each rank publishes some fragments before other ranks read
// them. For two of the calls, on two ranks over memory, a third vector fills all slots of both
// ranks, and then reuses some slots.
func fragmentsOf(call worldtest.Call, wire string, n int) []float64 {
	few := []float64{0.01, 4.5}
	if (call.Name == "allreduce" || call.Name == "broadcast from the last") && wire == "memory" && n == 2 && !raceEnabled {
		// The other data of a rank in the region takes less than a slot.
		slots := p2p.SharedSize(n) / n / p2p.SlotSize
		return append(few, float64(slots)+1.5)
	}
	return few
}

// publishCases returns cases for all collectives in shared memory, with vectors of several lengths.
func publishCases(wire string, n int) []*faultCase {
	var all []*faultCase
	for _, call := range append(worldtest.Collectives[int32](), worldtest.Lists[int32]("")) {
		a, err := collective.Find(verbOf(call), "shared")
		if err != nil || call.Name == "iallreduce" {
			continue // has no algorithm in shared memory, or only for blocking calls
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

// In each run a rank dies at one of the flags that it sets in shared memory. The other ranks wait
// for the flag, and no frame tells them of the death. Their calls must end all the same.
func TestCollectivesEndWhenARankDiesAtAnyFlagInSharedMemory(t *testing.T) {
	injectInMemory(t, rankCounts, everyNth(5, rotating([]injection{dieAt(flaky.Before), dieAt(flaky.After)})), func(n int) []*faultCase { return publishCases("memory", n) })
}

// lastCall returns a call that runs the given call twice. The victim runs the given call only once,
// and then sends the message at which it dies.
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

// injectOverWire injects faults at a few steps of the cases. It goes through the injections of all
// steps, and makes every injection whose number is a multiple of share; the seed shifts the
// numbers. In a soak it makes one injection at every step. Tests in memory cover every injection at
// every step, because a run in memory takes a tenth of the time.
func injectOverWire(t *testing.T, share int, injections []injection, cases func(n int) []*faultCase) {
	leak.Check(t)
	if raceEnabled {
		share *= 3 // a race shows at any step, so fewer steps suffice
	}
	var sum runCounts
	w := newInjectionPool()
	begin := seed(t)
	var chosen []*faultCase
	for n := 2; n <= 4; n++ {
		for j, s := range cases(n) {
			if soaking || (j+begin)%3 == n-2 {
				chosen = append(chosen, s)
			}
		}
	}
	i := begin
	for j, steps := range w.baselines(t, chosen, &sum) {
		for _, at := range steps {
			if soaking {
				w.inject(t, chosen[j], &sum, injections[i%len(injections)], at)
				i++
				continue
			}
			for _, b := range injections {
				if i++; i%share == 0 {
					w.inject(t, chosen[j], &sum, b, at)
				}
			}
		}
	}
	w.running.Wait()
	sum.report(t)
}

// frameCases returns cases for all collectives and all ways to send, by messages.
func frameCases(wire string) func(n int) []*faultCase {
	return func(n int) []*faultCase {
		all := append(collectiveCases(wire, n, 2.5), messageCases(wire, n)...)
		return append(all, preparedCase(wire, n))
	}
}

// frameInjections returns the faults that can happen to a frame.
func frameInjections() []injection { return append(append(linkCuts[:3:3], deaths...), corruptHead) }

func TestCutsOverTCP(t *testing.T)  { injectOverWire(t, 61, frameInjections(), frameCases("tcp")) }
func TestCutsOverGRPC(t *testing.T) { injectOverWire(t, 61, frameInjections(), frameCases("grpc")) }

func TestCutsOverSharedMemory(t *testing.T) {
	needsSharedMemory(t)
	injectOverWire(t, 61, frameInjections(), frameCases("shm"))
}

// A large body passes through the ring buffer in chunks, and any chunk may be the last to arrive.
// No memory is exposed in this test, so every body goes through the ring buffer.
func TestCutsAtAnyChunkInARing(t *testing.T) {
	needsSharedMemory(t)
	injectOverWire(t, 61, []injection{cutAt(flaky.After), dieAt(flaky.After)}, func(n int) []*faultCase {
		var all []*faultCase
		for _, s := range collectiveCases("shm", n, 1.5) {
			s.opts = []comm.Option{comm.WithParameters(comm.Parameters{Segment: huge, NoSharedMemory: true})}
			s.count *= huge / segment
			s.only, s.hide = flaky.Chunk, []flaky.StepKind{flaky.Expose}
			if s.call.Verb == "barrier" || n == 2 && strings.HasSuffix(s.call.Name, "v") {
				continue // moves no data, or none to other ranks
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

// needsSharedMemory skips tests over the transport shm on systems where shm is not built. shm needs
// memfds and abstract sockets, which only Linux has.
func needsSharedMemory(t *testing.T) {
	t.Helper()
	if runtime.GOOS != "linux" {
		// Reason: there is no shm to test on other systems; its tests run on Linux, in every gate.
		t.Skip("the wire shm is built on Linux only: it stands on memfds and abstract sockets")
	}
}
