package coordinator_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/coordinator"
	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/test/leak"
	linked "github.com/tutti-go/tutti/transport/wires"
)

func TestRanksThatDisagreeBothGetBothSidesAndTheJobGoesOn(t *testing.T) {
	leak.Check(t)
	err := comm.Local(3, with(func(ctx context.Context, c *comm.Comm, co *coordinator.Coordinator) error {
		size := 4
		if c.Rank() == 2 {
			size = 5
		}
		good := vector(3, c.Rank())
		other := coordinator.AllReduce(co, "good", good, comm.Sum)
		err := coordinator.AllReduce(co, "bad", make([]float32, size), comm.Sum).Wait(ctx)
		if !errors.Is(err, fault.Mismatch) {
			return fmt.Errorf("got %v, want a mismatch", err)
		}
		for _, want := range []string{"rank 0, last in allreduce bad float32 [4] sum at faults_test.go", "rank 2, last in allreduce bad float32 [5] sum at faults_test.go", "shape"} {
			if !strings.Contains(err.Error(), want) {
				return fmt.Errorf("%q does not say %q", err, want)
			}
		}
		if err := other.Wait(ctx); err != nil {
			return err
		}
		if err := coordinator.AllReduce(co, "bad", make([]float32, 4), comm.Sum).Wait(ctx); err != nil {
			return fmt.Errorf("the name is not free again: %w", err)
		}
		return equal("good", good, sum(3, 3))
	}))
	if err != nil {
		t.Error(err)
	}
}

func TestANameSubmittedTwiceIsRefusedAndTheFirstGoesOn(t *testing.T) {
	leak.Check(t)
	err := comm.Local(2, with(func(ctx context.Context, c *comm.Comm, co *coordinator.Coordinator) error {
		buf := vector(3, c.Rank())
		first := coordinator.AllReduce(co, "w", buf, comm.Sum)
		if c.Rank() == 0 { // rank 1 has not submitted it, so it is in flight
			err := coordinator.AllReduce(co, "w", make([]float32, 3), comm.Max).Wait(ctx)
			if !errors.Is(err, fault.Misuse) || strings.Count(err.Error(), "faults_test.go:") < 2 {
				return fmt.Errorf("got %v, want misuse with both places", err)
			}
		}
		if err := c.Barrier(ctx); err != nil {
			return err
		}
		if err := first.Wait(ctx); err != nil {
			return err
		}
		return equal("w", buf, sum(3, 2))
	}, coordinator.WithCycle(time.Hour))) // nothing is sent before a goroutine waits
	if err != nil {
		t.Error(err)
	}
}

func TestWhatCannotBeIsRefusedAtOnce(t *testing.T) {
	leak.Check(t)
	err := comm.Local(2, with(func(ctx context.Context, c *comm.Comm, co *coordinator.Coordinator) error {
		f := make([]float32, 6)
		for what, h := range map[string]*coordinator.Handle{
			"no name":     coordinator.AllReduce(co, "", f, comm.Sum),
			"long name":   coordinator.AllReduce(co, strings.Repeat("x", 513), f, comm.Sum),
			"shape":       coordinator.AllReduce(co, "a", f, comm.Sum, coordinator.Shape(2, 2)),
			"operator":    coordinator.AllReduce(co, "b", f, comm.BitAnd),
			"integers":    coordinator.AllReduce(co, "c", []int{1}, comm.Mean),
			"scale":       coordinator.AllReduce(co, "d", []int{1}, comm.Sum, coordinator.Scale(2, 1)),
			"root":        coordinator.Broadcast(co, "e", f, 2),
			"splits":      coordinator.AllToAll(co, "f", new(coordinator.Rows[float32]), f, []int{1, 2}),
			"no dst":      coordinator.AllGather(co, "j", nil, f),
			"dst's size":  coordinator.ReduceScatter(co, "g", f, f, comm.Sum),
			"dst in src":  coordinator.ReduceScatter(co, "k", f[2:5], f, comm.Sum),
			"nine dims":   coordinator.AllReduce(co, "h", f[:1], comm.Sum, coordinator.Shape(1, 1, 1, 1, 1, 1, 1, 1, 1)),
			"minus shape": coordinator.AllReduce(co, "i", f, comm.Sum, coordinator.Shape(-2, -3)),
		} {
			select {
			case <-h.Done():
			default:
				return fmt.Errorf("%s: not refused at once", what)
			}
			if err := h.Wait(ctx); !errors.Is(err, fault.Misuse) {
				return fmt.Errorf("%s: got %v, want misuse", what, err)
			}
		}
		return nil
	}))
	if err != nil {
		t.Error(err)
	}
}

// A rank is lost while the other ranks wait. Every handle must end with an error that names the
// lost rank. The ranks wait in the negotiation; inside the collective; until all ranks have joined
// or agreed on a process set; while a report asks the lost rank where it is; or until all ranks
// have closed. In the phase idle, they submit only after the loss. Package comm has the test that
// such a failure is detected within a second.
func TestALostRankEndsEveryHandleNamingIt(t *testing.T) {
	for _, wire := range wires() {
		for _, dead := range []int{0, 1} {
			for _, phase := range []string{"negotiation", "collective", "idle", "join", "process set", "stall", "close"} {
				t.Run(fmt.Sprintf("%s/rank %d/%s", wire, dead, phase), func(t *testing.T) {
					leak.Check(t)
					loseARank(t, wire, dead, phase)
				})
			}
		}
	}
}

func loseARank(t *testing.T, wire string, dead int, phase string) {
	cause := errors.New("pulled the plug")
	var ready sync.WaitGroup
	ready.Add(3)
	quiet := slog.New(slog.DiscardHandler)
	rank := func(ctx context.Context, c *comm.Comm) error {
		co, err := coordinator.Start(ctx, c, coordinator.WithLogger(quiet), coordinator.WithStallLimits(stallLimit(phase), time.Minute))
		if err != nil {
			return err
		}
		var hs []*coordinator.Handle
		if c.Rank() != dead && (phase == "negotiation" || phase == "stall") {
			hs = append(hs, coordinator.AllReduce(co, "w", make([]float32, 4), comm.Sum))
		}
		if phase == "collective" {
			for i := range 50 {
				hs = append(hs, coordinator.AllReduce(co, fmt.Sprint(i), make([]float32, 1<<20), comm.Sum))
			}
			if err := hs[0].Wait(ctx); err != nil {
				return err
			}
		}
		ready.Done()
		if ready.Wait(); c.Rank() == dead {
			c.Abort(cause)
			return cause // without Close, like a process that dies
		}
		switch phase {
		case "join":
			_, err = co.Join(context.Background())
		case "process set":
			_, err = co.AddProcessSet(context.Background(), "some", 0, 1)
		}
		if (phase == "join" || phase == "process set") && !names(err, dead) {
			return fmt.Errorf("rank %d: got %v", c.Rank(), err)
		}
		if phase == "idle" {
			hs = append(hs, coordinator.AllReduce(co, "later", make([]float32, 4), comm.Sum))
		}
		err = coordinator.WaitAll(context.Background(), hs...)
		for _, h := range hs {
			if err := h.Wait(ctx); err != nil && !names(err, dead) {
				return fmt.Errorf("rank %d got %v, want a loss naming rank %d", c.Rank(), err, dead)
			}
		}
		if phase != "collective" && phase != "close" && err == nil && len(hs) > 0 {
			return fmt.Errorf("rank %d got nothing", c.Rank())
		}
		// In these two phases the loss may not be known yet.
		if phase != "collective" && phase != "close" {
			if err := submitAfterLoss(co, dead); err != nil {
				return fmt.Errorf("rank %d, before Close: %w", c.Rank(), err)
			}
		}
		if err := co.Close(context.Background()); !names(err, dead) {
			return fmt.Errorf("rank %d: Close says %v", c.Rank(), err)
		}
		if err := submitAfterLoss(co, dead); err != nil {
			return fmt.Errorf("rank %d, after Close: %w", c.Rank(), err)
		}
		return nil
	}
	err := comm.Local(3, func(ctx context.Context, c *comm.Comm) error {
		err := rank(ctx, c)
		if c.Rank() != dead && err != nil {
			t.Error(err) // the error of Local has the cause in any case
		}
		return err
	}, comm.WithTransport(linked.All()...), comm.WithTransportName(wire))
	if !errors.Is(err, cause) {
		t.Error(err)
	}
}

// Rank 2 learns of the loss of rank 3 and tells the others through the coordinator, before rank 0's
// own connections show the loss. Rank 0's program then closes. Rank 1, which waits for rank 0, gets
// an error about rank 3.
func TestARankThatEndsAfterARelayedLossIsNotBlamed(t *testing.T) {
	leak.Check(t)
	lost := &fault.Error{Kind: fault.PeerLost, Op: "mesh", Rank: 2, Peers: []fault.Peer{{Rank: 3}}}
	err := comm.Local(4, func(ctx context.Context, c *comm.Comm) error {
		co, err := coordinator.Start(ctx, c)
		if err != nil {
			return err
		}
		if c.Rank() == 2 {
			coordinator.Fail(co, lost)
		}
		if c.Rank() == 1 {
			_, err = comm.Recv(ctx, c, 0, 1, make([]int32, 1))
		} else {
			err = coordinator.AllReduce(co, fmt.Sprint("of rank ", c.Rank()), make([]float32, 1), comm.Sum).Wait(ctx)
		}
		co.Close(ctx)
		var f *fault.Error
		if c.Rank() < 2 && (!errors.As(err, &f) || f.Kind != fault.PeerLost || len(f.Peers) != 1 || f.Peers[0].Rank != 3) {
			return fmt.Errorf("got %v, want the loss of rank 3", err)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// submitAfterLoss checks that all kinds of submissions fail, and that their errors name the lost
// rank.
func submitAfterLoss(co *coordinator.Coordinator, dead int) error {
	ctx := context.Background()
	declared := coordinator.Declare(co, "declared", make([]float32, 4), comm.Sum)
	declared.Submit()
	var grouped *coordinator.Handle
	co.Group(func(g *coordinator.TensorGroup) {
		grouped = coordinator.AllReduce(g, "grouped", make([]float32, 4), comm.Sum)
	})
	_, joinErr := co.Join(ctx)
	_, setErr := co.AddProcessSet(ctx, "after the loss", 0, 1)
	for what, err := range map[string]error{
		"a tensor":          coordinator.AllReduce(co, "after", make([]float32, 4), comm.Sum).Wait(ctx),
		"a declared tensor": declared.Wait(ctx),
		"a group":           grouped.Wait(ctx),
		"a join":            joinErr,
		"a process set":     setErr,
	} {
		if !names(err, dead) {
			return fmt.Errorf("%s: got %v, want a loss naming rank %d", what, err, dead)
		}
	}
	return nil
}

// stallLimit returns the limit after which a report begins: at once in the phase with a report,
// else never.
func stallLimit(phase string) time.Duration {
	if phase == "stall" {
		return time.Millisecond
	}
	return 0
}

// names reports whether err says that the given rank is lost.
func names(err error, rank int) bool {
	var f *fault.Error
	if !errors.As(err, &f) || !errors.Is(err, fault.PeerLost) {
		return false
	}
	for _, p := range f.Peers {
		if p.Rank == rank {
			return true
		}
	}
	return false
}

// By the bubble's clock, the answers of the ranks must arrive before the second limit.
func TestAStalledTensorIsReportedWithWhereTheMissingRanksAre(t *testing.T) {
	leak.Check(t)
	synctest.Test(t, reportAStall)
}

func reportAStall(t *testing.T) {
	var mu sync.Mutex
	var log bytes.Buffer
	logger := slog.New(slog.NewTextHandler(&lockedWriter{&mu, &log}, nil))
	release := make(chan struct{})
	var once sync.Once
	err := comm.Local(2, func(ctx context.Context, c *comm.Comm) error {
		co, err := coordinator.Start(ctx, c, coordinator.WithStallLimits(50*time.Millisecond, 500*time.Millisecond), coordinator.WithLogger(logger))
		if err != nil {
			return err
		}
		if c.Rank() == 1 {
			<-release
			if err := co.Close(ctx); !errors.Is(err, fault.Timeout) {
				return fmt.Errorf("Close says %v", err)
			}
			return nil
		}
		err = coordinator.AllReduce(co, "late", make([]float32, 4), comm.Sum).Wait(ctx)
		once.Do(func() { close(release) })
		var f *fault.Error
		if !errors.As(err, &f) || f.Kind != fault.Timeout || len(f.Peers) != 1 || f.Peers[0].Rank != 1 || !strings.HasPrefix(f.Peers[0].At, "faults_test.go:") {
			return fmt.Errorf("got %v, want a timeout that names rank 1 and where it is", err)
		}
		co.Close(ctx)
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	mu.Lock()
	defer mu.Unlock()
	if text := log.String(); !strings.Contains(text, "allreduce late") || !strings.Contains(text, "rank 1 at faults_test.go:") {
		t.Errorf("the log says %q", text)
	}
}

type lockedWriter struct {
	mu *sync.Mutex
	b  *bytes.Buffer
}

func (w *lockedWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.b.Write(p)
}

func TestARankThatClosesFailsWhatNeedsItAndNothingElse(t *testing.T) {
	leak.Check(t)
	err := comm.Local(3, func(ctx context.Context, c *comm.Comm) error {
		co, err := coordinator.Start(ctx, c)
		if err != nil {
			return err
		}
		buf := vector(10, c.Rank())
		last := coordinator.AllReduce(co, "last", buf, comm.Sum)
		if c.Rank() != 1 {
			err := coordinator.AllReduce(co, "never", make([]float32, 4), comm.Sum).Wait(ctx)
			var f *fault.Error
			// Another rank may have learned that rank 1 has closed, and have closed, too, before
			// this rank submits.
			byOne := func(p fault.Peer) bool { return p.Rank == 1 }
			if !errors.As(err, &f) || f.Kind != fault.Closed || !slices.ContainsFunc(f.Peers, byOne) {
				return fmt.Errorf("got %v, want closed by rank 1", err)
			}
		}
		if err := co.Close(ctx); err != nil {
			return err
		}
		if err := last.Wait(ctx); err != nil {
			return err
		}
		if err := coordinator.Barrier(co, "after").Wait(ctx); !errors.Is(err, fault.Closed) {
			return fmt.Errorf("after Close: got %v", err)
		}
		return equal("last", buf, sum(10, 3))
	})
	if err != nil {
		t.Error(err)
	}
}

func TestCloseThatOthersDoNotJoinEndsByItsContext(t *testing.T) {
	leak.Check(t)
	var closed sync.WaitGroup
	closed.Add(1)
	err := comm.Local(2, func(ctx context.Context, c *comm.Comm) error {
		co, err := coordinator.Start(ctx, c)
		if err != nil {
			return err
		}
		if c.Rank() == 0 {
			limited, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
			defer cancel()
			err := co.Close(limited)
			closed.Done()
			if !errors.Is(err, fault.Timeout) {
				return fmt.Errorf("got %v, want a timeout", err)
			}
			return nil
		}
		closed.Wait()
		if err := co.Close(ctx); err == nil {
			return errors.New("the other rank's end was not heard")
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

func TestACancelledWaitKeepsTheTensorInFlight(t *testing.T) {
	leak.Check(t)
	err := comm.Local(2, with(func(ctx context.Context, c *comm.Comm, co *coordinator.Coordinator) error {
		buf := vector(4, c.Rank())
		if c.Rank() == 0 {
			h := coordinator.AllReduce(co, "w", buf, comm.Sum)
			short, cancel := context.WithCancel(ctx)
			cancel()
			if err := h.Wait(short); !errors.Is(err, fault.Canceled) {
				return fmt.Errorf("got %v, want canceled", err)
			}
			if err := c.Barrier(ctx); err != nil {
				return err
			}
			if err := h.Wait(ctx); err != nil {
				return err
			}
			return equal("w", buf, sum(4, 2))
		}
		if err := c.Barrier(ctx); err != nil {
			return err
		}
		return coordinator.AllReduce(co, "w", buf, comm.Sum).Wait(ctx)
	}))
	if err != nil {
		t.Error(err)
	}
}
