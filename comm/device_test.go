package comm_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/internal/test/leak"
	"github.com/tutti-go/tutti/internal/test/worldtest"
	"github.com/tutti-go/tutti/transport"
	rdma "github.com/tutti-go/tutti/transport/verbs"
	"github.com/tutti-go/tutti/transport/verbs/softdevice"
	linked "github.com/tutti-go/tutti/transport/wires"
)

// overDevice names the transports of these tests in `make test-verbs`, which uses soft-RoCE.
const overDevice = "grpc+verbs"

// needsDevice skips a test where there is no RDMA device. `make test-verbs` provides one.
func needsDevice(t *testing.T) {
	t.Helper()
	if _, err := rdma.Explain(); err != nil {
		// Reason: the test is for a real device, which `make test-verbs` has. Other tests use
		// software devices.
		t.Skipf("there is no usable RDMA device: %v", err)
	}
}

// onDevice returns the options of a job whose frames travel over a real device. overSoftware
// returns the options for software devices, which need no hardware. Every test of this file also
// runs with software devices, everywhere and under the race detector, except the tests of waiters
// and of kernel devices.
func onDevice() []comm.Option {
	return []comm.Option{comm.WithTransport(linked.All()...), comm.WithTransportName(overDevice)}
}

func overSoftware() []comm.Option { return overFabric(softdevice.NewFabric()) }

func overFabric(f *softdevice.Fabric) []comm.Option {
	asIs := func(_ int, t transport.Transport) transport.Transport { return t }
	return []comm.Option{comm.WithTransportName("memory"), comm.WithWrap(overVerbs(f, asIs))}
}

func TestDeviceCarriesEveryCollective(t *testing.T) {
	needsDevice(t)
	carriesEveryCollective(t, onDevice)
}

func TestSoftwareDeviceCarriesEveryCollective(t *testing.T) { carriesEveryCollective(t, overSoftware) }

func carriesEveryCollective(t *testing.T, over func() []comm.Option) {
	for _, n := range []int{1, 2, 3, 4} {
		t.Run(fmt.Sprintf("%d ranks", n), func(t *testing.T) {
			leak.Check(t)
			if err := comm.Local(n, deviceCalls, over()...); err != nil {
				t.Error(err)
			}
		})
	}
}

// A tuning rule for verbs must apply where RDMA carries the messages.
func TestTuningRulesForVerbsHoldOverRDMA(t *testing.T) {
	leak.Check(t)
	file := tuningFile(t, `{"op": "allreduce", "algorithm": "linear", "wire": "verbs"}, {"op": "allreduce", "algorithm": "ring"}`)
	err := comm.Local(2, func(_ context.Context, c *comm.Comm) error {
		if got := c.Bridge().Wire() + " " + c.Bridge().Algorithm("allreduce", 1000, comm.Sum); got != "verbs linear" {
			t.Errorf("got %s, want verbs linear", got)
		}
		return nil
	}, append(overSoftware(), comm.WithParameters(comm.Parameters{Tuning: file}))...)
	if err != nil {
		t.Error(err)
	}
}

// deviceCalls makes every call with vectors of three kinds: some fit an eager message, some travel
// through the eager-RDMA ring, and some are requested by the receiver.
func deviceCalls(ctx context.Context, c *comm.Comm) error {
	calls := append(worldtest.Collectives[float32](), worldtest.Messages[int32]()...)
	calls = append(calls, worldtest.Persistent[int32]()...)
	for _, count := range []int{0, 1000, 70_001} {
		for _, call := range calls {
			if err := call.Run(ctx, c, count, new(worldtest.BufferTracker)); err != nil {
				return fmt.Errorf("%s of %d elements: %w", call.Name, count, err)
			}
		}
	}
	return nil
}

// The sender must write recurring tensors straight into the receiver's prepared buffers.
func TestDeviceWritesTensorsDirectly(t *testing.T) {
	needsDevice(t)
	writesTensorsDirectly(t, onDevice())
}

func TestSoftwareDeviceWritesTensorsDirectly(t *testing.T) {
	writesTensorsDirectly(t, overSoftware())
}

func writesTensorsDirectly(t *testing.T, over []comm.Option) {
	leak.Check(t)
	// A tensor is written directly once its sender has seen the Release, after at most this number
	// of steps.
	const most = 40
	err := comm.Local(3, func(ctx context.Context, c *comm.Comm) error {
		for i := range uint64(most) {
			var tracker worldtest.BufferTracker
			if err := worldtest.NamedSteps[int32](i*worldtest.Steps, func() {}).Run(ctx, c, 100_000, &tracker); err != nil {
				return err
			}
			reused := []int32{int32(tracker.Reused())}
			if err := comm.AllReduce(ctx, c, reused, comm.Min); err != nil || reused[0] > 0 {
				return err
			}
		}
		return errors.New("some rank's tensors came to no prepared buffer a second time")
	}, append(over, comm.WithParameters(comm.Parameters{Protocol: "rendezvous", StaticTensors: 4 << 20}))...)
	if err != nil {
		t.Error(err)
	}
}

// With several waiters no frame may be lost. The tests of transport/verbs check that the queues are
// spread over the waiters.
func TestDeviceWithSeveralWaitersCarriesEveryCall(t *testing.T) {
	needsDevice(t)
	leak.Check(t)
	t.Setenv("TUTTI_VERBS_WAITERS", "3")
	if err := comm.Local(4, deviceCalls, comm.WithTransport(linked.All()...), comm.WithTransportName(overDevice)); err != nil {
		t.Error(err)
	}
}

// This process is one rank of a job on two machines, which the environment describes. Every call
// must give the right result.
func TestDevicesOfTwoMachinesCarryEveryCall(t *testing.T) {
	if os.Getenv("TUTTI_HOSTS") == "" {
		// Reason: the test needs a second machine and a launcher. tools/test-verbs.sh starts it on
		// two machines.
		t.Skip("this process is no rank of a job: `make test-verbs` runs this test on two machines")
	}
	needsDevice(t)
	leak.Check(t)
	ctx := t.Context()
	c, err := comm.Init(ctx, comm.WithTransport(linked.All()...), comm.WithTransportName(overDevice))
	if err != nil {
		t.Fatal(err)
	}
	if c.Size() < 2 {
		t.Errorf("%d ranks, want 2", c.Size())
	}
	if err := errors.Join(deviceCalls(ctx, c), c.Close(ctx)); err != nil {
		t.Error(err)
	}
}

// Calls over the kernel's device must end when a frame is cut. The test covers all ways to send and
// a few collectives. Other tests inject faults at every frame of all calls over software devices,
// so only the kernel's device is new here.
//
// The device is emulated, and a loss takes seconds on a slow machine. So the test injects no more
// faults once half of the time limit is over.
func TestDeviceEndsWhenAnyFrameIsCut(t *testing.T) {
	needsDevice(t)
	leak.Check(t)
	const each = 16 // one of this many cases is run
	begin := time.Now()
	limit, limited := t.Deadline()
	half := begin.Add(limit.Sub(begin) / 2)
	var sum runCounts
	injections, i := frameInjections(), 0
	cases := frameCases(overDevice)(3)
	for j, s := range cases {
		// The last case has prepared receives, whose written frames no handler sees.
		last := j == len(cases)-1
		if !soaking && j%each != 0 && !last {
			continue
		}
		for k, at := range s.baseline(t, &sum) {
			if !soaking && last && k%29 != 0 {
				continue
			}
			if limited && time.Now().After(half) {
				t.Logf("half of the time limit is over: no more faults after %d", i)
				sum.report(t)
				return
			}
			i++
			s.inject(t, &sum, injections[i%len(injections)], at)
		}
	}
	sum.report(t)
}

// The test exchanges tensors that grow and shrink, some of them named, for thousands of steps. The
// numbers of goroutines, pinned pages and objects of the kernel's device must not grow with the
// steps. TUTTI_SOAK is the number of steps, if it is a number above 1.
func TestDeviceSoakReleasesEverything(t *testing.T) {
	needsDevice(t)
	steps, _ := strconv.Atoi(os.Getenv("TUTTI_SOAK"))
	if steps <= 1 {
		// Reason: ten thousand steps and their loss runs take too long for the 12 minutes of `make
		// test-verbs`.
		t.Skip("it takes long: `make soak-verbs` runs it")
	}
	leak.Check(t)
	// With a small cache, buffers are registered and deregistered often.
	t.Setenv("TUTTI_VERBS_CACHE", strconv.Itoa(8<<20))
	before := resourcesInUse(t)
	var early, late resources
	err := comm.Local(2, func(ctx context.Context, c *comm.Comm) error {
		r := rand.New(rand.NewPCG(1, 2)) // the same on both ranks
		for step := range steps {
			if err := soakStep(ctx, c, step, r); err != nil {
				return fmt.Errorf("step %d: %w", step, err)
			}
			if (step+1)%(steps/10) != 0 {
				continue
			}
			if c.Rank() == 0 {
				runtime.GC()
				late = resourcesInUse(t)
				t.Logf("after %d steps: %+v", step+1, late)
				if step+1 == steps/10*2 {
					early = late
				}
			}
			if err := c.Barrier(ctx); err != nil { // the count includes what the other rank holds
				return err
			}
		}
		return nil
	}, comm.WithTransport(linked.All()...), comm.WithTransportName(overDevice))
	if err != nil {
		t.Error(err)
	}
	if late.pairs != early.pairs || late.goroutines > early.goroutines+3 || late.regions > 2*early.regions+20 {
		t.Errorf("from a fifth of the steps to the end, this grew: %+v, %+v", early, late)
	}
	if after := resourcesInUse(t); after.pairs != before.pairs || after.queues != before.queues || after.regions != before.regions || after.pinnedKB > before.pinnedKB {
		t.Errorf("left behind: %+v, before %+v", after, before)
	}
}

// The test exchanges the same tensors over software devices, which report resources that were not
// released.
func TestSoftwareDeviceSoakReleasesEverything(t *testing.T) {
	leak.Check(t)
	fabric := softdevice.NewFabric()
	t.Setenv("TUTTI_VERBS_CACHE", strconv.Itoa(1<<20))
	steps := 100
	if raceEnabled {
		steps = 25
	}
	err := comm.Local(2, func(ctx context.Context, c *comm.Comm) error {
		r := rand.New(rand.NewPCG(1, 2)) // the same on both ranks
		for step := range steps {
			if err := soakStep(ctx, c, step, r); err != nil {
				return fmt.Errorf("step %d: %w", step, err)
			}
		}
		return nil
	}, overFabric(fabric)...)
	if err != nil {
		t.Error(err)
	}
	if pairs, regions := fabric.Held(); pairs+regions > 0 {
		t.Errorf("%d queue pairs and %d memory regions are left behind", pairs, regions)
	}
}

// soakStep makes an allreduce, a send by name and an exchange. Both ranks draw the same random
// length for each.
func soakStep(ctx context.Context, c *comm.Comm, step int, r *rand.Rand) error {
	length := func() int { return 1 + int(float64(r.IntN(40_000))*r.Float64()*r.Float64()) }
	sum := make([]float32, length())
	for i := range sum {
		sum[i] = float32(i % 7)
	}
	if err := comm.AllReduce(ctx, c, sum, comm.Sum); err != nil {
		return err
	}
	for i, x := range sum {
		if x != float32(2*(i%7)) {
			return fmt.Errorf("element %d of %d is %v", i, len(sum), x)
		}
	}
	n := length()
	got, sent := make([]int32, n), make([]int32, n)
	for i := range sent {
		sent[i] = int32(i + c.Rank())
	}
	peer := 1 - c.Rank()
	if _, err := comm.SendRecv(ctx, c, peer, 3, sent, peer, 3, got); err != nil {
		return err
	}
	for i, x := range got {
		if x != int32(i+peer) {
			return fmt.Errorf("element %d of %d received is %v", i, n, x)
		}
	}
	return named(ctx, c, step, r)
}

// named sends one tensor by its name. The length of the tensor differs from step to step.
func named(ctx context.Context, c *comm.Comm, step int, r *rand.Rand) error {
	n := 1 + r.IntN(300_000)
	peer := 1 - c.Rank()
	out := make([]byte, n)
	for i := range out {
		out[i] = byte(i + c.Rank())
	}
	sent := make(chan error, 1)
	if err := c.SendNamed(uint64(step), peer, "weights", comm.NewTensor(out), func(err error) { sent <- err }); err != nil {
		return err
	}
	got, err := c.RecvNamed(ctx, uint64(step), peer, "weights", nil)
	for i, x := range got.Data {
		if err == nil && x != byte(i+peer) {
			return fmt.Errorf("byte %d of %d received by name is %v", i, n, x)
		}
	}
	return errors.Join(err, <-sent)
}

// resources counts what the process and the kernel's devices hold.
type resources struct{ goroutines, pairs, queues, regions, pinnedKB int }

var resource = regexp.MustCompile(`\b(qp|cq|mr) (\d+)`)

func resourcesInUse(t *testing.T) (h resources) {
	h.goroutines = runtime.NumGoroutine()
	out, err := exec.Command("rdma", "resource", "show").CombinedOutput()
	if err != nil {
		t.Errorf("rdma resource show: %v: %s", err, out)
	}
	for _, m := range resource.FindAllStringSubmatch(string(out), -1) {
		n, _ := strconv.Atoi(m[2])
		switch m[1] {
		case "qp":
			h.pairs = n
		case "cq":
			h.queues = n
		case "mr":
			h.regions = n
		}
	}
	status, _ := os.ReadFile("/proc/self/status")
	for line := range strings.Lines(string(status)) {
		fmt.Sscanf(line, "VmPin: %d kB", &h.pinnedKB)
	}
	return h
}
