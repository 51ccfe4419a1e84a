package comm_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/test/leak"
	"github.com/tutti-go/tutti/internal/test/relay"
	"github.com/tutti-go/tutti/ps"
	"github.com/tutti-go/tutti/ps/optimizer"
	"github.com/tutti-go/tutti/transport"
	"github.com/tutti-go/tutti/transport/flaky"
	"github.com/tutti-go/tutti/transport/verbs/softdevice"
	linked "github.com/tutti-go/tutti/transport/wires"
)

const (
	psRanks   = 3 // the last one serves
	psWorkers = psRanks - 1
	perWorker = 12 // pushes of each mode
	staleness = 2
)

// A psRun is a job in which two workers push ones to a tensor and a row, one tensor for each mode, and
// pull them. It counts the pushes, so that the pulls can be checked against the bounds of the modes.
type psRun struct {
	elements int
	victim   int // the rank that may fail; -1: none
	counting atomic.Bool
	modes    [2]psCounts  // asynchronous, bounded
	finished atomic.Int32 // workers whose calls have all succeeded
}

// A psCounts counts the pushes of each worker to the tensors of one mode.
type psCounts struct{ begun, acknowledged [psWorkers]atomic.Int64 }

func (r *psRun) rank(ctx context.Context, c *comm.Comm) error {
	if c.Rank() >= psWorkers {
		s, err := ps.NewServer(ctx, c, ps.WithLogger(discardLog))
		if err != nil {
			return err
		}
		if err := s.Serve(ctx); err != nil && r.victim < 0 {
			return err
		}
		return nil
	}
	err := r.work(ctx, c)
	if r.victim >= 0 && (c.Rank() == r.victim || errors.Is(err, fault.PeerLost)) {
		return nil // work has checked what was pulled before
	}
	return err
}

func (r *psRun) work(ctx context.Context, c *comm.Comm) error {
	cl, err := ps.Connect(ctx, c, ps.WithLogger(discardLog))
	if err != nil {
		return err
	}
	ended, end := context.WithCancel(context.Background())
	end()
	defer cl.Close(ended) // after an error
	var dense [2]*ps.Tensor[float32]
	var tables [2]*ps.Table[float32]
	for i, mode := range []ps.TensorOption{ps.Asynchronous(), ps.Bounded(staleness)} {
		sgd := ps.Optimizer(optimizer.SGD{Rate: 1})
		if dense[i], err = ps.Declare[float32](ctx, cl, fmt.Sprint("dense ", i), r.elements, mode, sgd); err != nil {
			return err
		}
		if tables[i], err = ps.DeclareTable[float32](ctx, cl, fmt.Sprint("table ", i), 3, mode, sgd); err != nil {
			return err
		}
	}
	if err := cl.Workers().Barrier(ctx); err != nil {
		return err
	}
	r.counting.Store(true)
	src, got, row := slices.Repeat([]float32{-1}, r.elements), make([]float32, r.elements), make([]float32, 3)
	me := cl.Workers().Rank()
	for n := int64(1); n <= perWorker; n++ {
		for i := range dense {
			counts := &r.modes[i]
			counts.begun[me].Store(n)
			if err := ps.WaitAll(ctx, dense[i].IPush(src), tables[i].IPush([]int64{7}, src[:3])); err != nil {
				return err
			}
			counts.acknowledged[me].Store(n)
			low := n + r.others(me, func(w int) int64 {
				if i == 1 {
					return max(counts.acknowledged[w].Load(), n-staleness)
				}
				return counts.acknowledged[w].Load()
			})
			if err := ps.WaitAll(ctx, dense[i].IPull(got), tables[i].IPull([]int64{7}, row)); err != nil {
				return err
			}
			high := n + r.others(me, func(w int) int64 {
				begun := counts.begun[w].Load()
				if i == 1 && begun < n-staleness {
					return -1 << 40 // the pull did not wait
				}
				return begun
			})
			for _, v := range append(row, got[0], got[r.elements-1]) {
				if v < float32(low) || v > float32(high) {
					return fmt.Errorf("mode %d, after %d pushes: pulled %v, want %d to %d", i, n, v, low, high)
				}
			}
		}
	}
	r.finished.Add(1)
	r.counting.Store(false)
	if err := cl.Close(ctx); r.victim < 0 {
		return err
	}
	return nil
}

// others returns the sum of f over the other workers.
func (r *psRun) others(me int, f func(worker int) int64) (sum int64) {
	for w := range psWorkers {
		if w != me {
			sum += f(w)
		}
	}
	return sum
}

// counts reports whether a step counts: a frame of the pushes and pulls.
func (r *psRun) counts(st flaky.Step) bool {
	return r.counting.Load() && st.Kind == flaky.Frame && len(st.Head) != controlHead && !strings.HasPrefix(string(st.Head), handshake)
}

// Frames are delayed for up to two seconds, at random. Every pull of an asynchronous tensor sees all
// pushes that were acknowledged before, and every pull of a bounded one those that its bound asks for.
func TestDelaysKeepTheBoundsOfParameterServers(t *testing.T) {
	runs := uint64(60)
	if raceEnabled {
		runs = 15
	}
	var delayed int
	for seed := range runs {
		random := rand.New(rand.NewPCG(seed, 1))
		r := &psRun{elements: 1000, victim: -1}
		options := flaky.Options{Counts: r.counts}
		for range 20 {
			options.Rules = append(options.Rules, flaky.Delay(1+random.IntN(150), time.Duration(random.Int64N(int64(2*time.Second)))))
		}
		script := flaky.New(options)
		synctest.Test(t, func(t *testing.T) {
			err := comm.Local(psRanks, r.rank, comm.WithTransportName("memory"), comm.WithWrap(wrapBy(script)), comm.WithLogger(discardLog))
			if err != nil || r.finished.Load() != psWorkers {
				t.Errorf("seed %d: %v; %d workers have finished", seed, err, r.finished.Load())
			}
		})
		for i := range options.Rules {
			if script.Fired(i) {
				delayed++
			}
		}
	}
	if t.Logf("%d frames were delayed", delayed); delayed < int(runs) {
		t.Errorf("%d frames were delayed, want at least %d", delayed, runs)
	}
}

// Connections are reset again and again, and dialled again. No push may be lost or applied twice. Each
// connection lasts long enough for a push or a reply.
func TestRedialsKeepTheBoundsOfParameterServers(t *testing.T) {
	leak.Check(t)
	for _, bytes := range []int{50_000, 130_001} {
		for _, up := range []bool{true, false} { // on the way of the dialling rank, or of the other one
			var connections atomic.Int32
			wrap := func(_ int, tr transport.Transport) transport.Transport {
				return &cuttingWire{Transport: tr, tb: t, relays: make(map[string]string), cutters: func(int) (relay.Cutter, relay.Cutter) {
					connections.Add(1)
					if up {
						return relay.CutAfter(bytes), relay.CutAfter(-1)
					}
					return relay.CutAfter(-1), relay.CutAfter(bytes)
				}}
			}
			r := &psRun{elements: 5000, victim: -1}
			err := comm.Local(psRanks, r.rank, comm.WithTransport(linked.All()...), comm.WithTransportName("tcp"),
				comm.WithWrap(wrap), comm.WithLogger(discardLog), comm.WithRedial(30*time.Second))
			if err != nil || r.finished.Load() != psWorkers {
				t.Errorf("cut after %d bytes: %v; %d workers have finished", bytes, err, r.finished.Load())
			}
			if t.Logf("%d connections", connections.Load()); connections.Load() < 12 {
				t.Errorf("got %d connections, want at least 12, of which most were cut", connections.Load())
			}
		}
	}
}

// A cuttingWire is the transport of a rank that dials the other ranks through relays, which cut the
// connections.
type cuttingWire struct {
	transport.Transport
	tb      testing.TB
	cutters func(conn int) (up, down relay.Cutter)

	mu     sync.Mutex        // guards relays
	relays map[string]string // by the address behind the relay
}

func (w *cuttingWire) Dial(ctx context.Context, addr string) (transport.Conn, error) {
	w.mu.Lock()
	through, ok := w.relays[addr]
	if !ok {
		through = relay.StartCutting(w.tb, addr, w.cutters)
		w.relays[addr] = through
	}
	w.mu.Unlock()
	return w.Transport.Dial(ctx, through)
}

// A rank dies at each of some steps. All calls end, and what was pulled before is within the bounds.
func TestDeathsEndTheCallsOfParameterServersWithinTheirBounds(t *testing.T) {
	stride := 3
	if raceEnabled {
		stride = 17
	}
	deaths := 0
	for victim := range psRanks {
		for k := 1 + victim; ; k += stride {
			r := &psRun{elements: 1000, victim: victim}
			script := flaky.New(flaky.Options{Rules: []flaky.Rule{flaky.Die(flaky.After, k).From(victim)}, Counts: r.counts})
			synctest.Test(t, func(t *testing.T) {
				err := comm.Local(psRanks, r.rank, comm.WithTransportName("memory"), comm.WithWrap(wrapBy(script)), comm.WithLogger(discardLog))
				if err != nil {
					t.Errorf("rank %d dies at its frame %d: %v", victim, k, err)
				}
			})
			if !script.Fired(0) {
				break
			}
			deaths++
		}
	}
	if t.Logf("%d deaths", deaths); deaths < 5 {
		t.Errorf("%d deaths are too few to prove anything", deaths)
	}
}

func TestDeviceCarriesParameterServers(t *testing.T) {
	needsDevice(t)
	leak.Check(t)
	carriesParameterServers(t, onDevice())
}

func TestSoftwareDeviceCarriesParameterServers(t *testing.T) {
	leak.Check(t)
	fabric := softdevice.NewFabric()
	carriesParameterServers(t, overFabric(fabric))
	if pairs, regions := fabric.Held(); pairs+regions > 0 {
		t.Errorf("%d queue pairs and %d regions are left", pairs, regions)
	}
}

// carriesParameterServers pushes and pulls in all modes, with bodies that travel in one eager message,
// through the eager-RDMA ring, and on request.
func carriesParameterServers(t *testing.T, over []comm.Option) {
	for _, elements := range []int{3, 1500, 20_000, 300_000} {
		r := &psRun{elements: elements, victim: -1}
		err := comm.Local(psRanks, r.rank, over...)
		if err != nil || r.finished.Load() != psWorkers {
			t.Errorf("%d elements: %v; %d workers have finished", elements, err, r.finished.Load())
		}
		err = comm.Local(psRanks, func(ctx context.Context, c *comm.Comm) error {
			return ps.Run(ctx, c, ps.Servers(1), func(ctx context.Context, cl *ps.Client) error { return synchronousSums(ctx, cl, elements) }, nil)
		}, over...)
		if err != nil {
			t.Errorf("%d elements, synchronous: %v", elements, err)
		}
	}
}

// synchronousSums checks the sum of each version.
func synchronousSums(ctx context.Context, cl *ps.Client, elements int) error {
	w, err := ps.Declare[float32](ctx, cl, "w", elements, ps.Reduce(comm.Sum))
	if err != nil {
		return err
	}
	for step := range 4 {
		buf := slices.Repeat([]float32{float32(step + cl.Workers().Rank())}, elements)
		if err := w.PushPull(ctx, buf, buf); err != nil {
			return err
		}
		want := float32(2*step + 1)
		if at := slices.IndexFunc(buf, func(v float32) bool { return v != want }); at >= 0 {
			return fmt.Errorf("step %d: element %d: got %v, want %v", step, at, buf[at], want)
		}
	}
	return nil
}
