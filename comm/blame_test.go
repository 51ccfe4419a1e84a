package comm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/transport"
	"github.com/tutti-go/tutti/transport/flaky"
)

// A deathRun is a job over the transport memory, in a synctest bubble. Its ranks can die by calling
// the method die.
type deathRun struct {
	script *flaky.Script
	armed  []atomic.Bool
}

// deathJob runs f on n ranks, whose collectives use messages. A rank whose f has returned waits
// until all other ranks have returned from theirs. Otherwise the other ranks would report that this
// rank closed.
func deathJob(t *testing.T, n int, f func(ctx context.Context, c *Comm, d *deathRun) error, opts ...Option) {
	t.Helper()
	deathJobOn(t, n, false, f, opts...)
}

// deathJobOn is like deathJob, but collectives use shared memory if shared is true.
func deathJobOn(t *testing.T, n int, shared bool, f func(ctx context.Context, c *Comm, d *deathRun) error, opts ...Option) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		d := &deathRun{armed: make([]atomic.Bool, n)}
		var rules []flaky.Rule
		for r := range n {
			rules = append(rules, flaky.Die(flaky.Before, 1).From(r))
		}
		d.script = flaky.New(flaky.Options{Rules: rules, Counts: func(st flaky.Step) bool {
			return st.From >= 0 && st.From < n && d.armed[st.From].Load()
		}})
		opts := append([]Option{WithLogger(slog.New(slog.DiscardHandler)), WithParameters(Parameters{NoSharedMemory: !shared}),
			WithWrap(func(rank int, t transport.Transport) transport.Transport { return d.script.Wrap(t, rank) })}, opts...)
		// The result of Local is the error of a rank that died, so the test ignores it.
		Local(n, func(_ context.Context, c *Comm) error {
			err := f(context.Background(), c, d)
			// Reason: the other ranks may still be waiting for their errors. No real time passes.
			time.Sleep(time.Hour)
			if err != nil {
				t.Errorf("rank %d: %v", c.Rank(), err)
			}
			return nil
		}, opts...)
	})
}

// die ends this rank's connections and refuses new ones, as happens when its process ends.
func (d *deathRun) die(c *Comm) {
	d.armed[c.Rank()].Store(true)
	// The rank dies at this step.
	Send(context.Background(), c, (c.Rank()+1)%c.Size(), 99, []byte{1})
}

// wantLost checks that err reports a lost rank, names the victim and no other rank, and contains
// the given words.
func wantLost(err error, victim int, words ...string) error {
	var f *fault.Error
	if !errors.As(err, &f) || f.Kind != fault.PeerLost || len(f.Peers) != 1 || f.Peers[0].Rank != victim {
		return fmt.Errorf("got %v, want %v that names rank %d", err, fault.PeerLost, victim)
	}
	for _, word := range words {
		if !strings.Contains(err.Error(), word) {
			return fmt.Errorf("got %q, want %q in it", err, word)
		}
	}
	return nil
}

func receive(ctx context.Context, c *Comm, from int) error {
	_, err := Recv(ctx, c, from, 1, make([]byte, 1))
	return err
}

// Rank 2 waits in a collective, and rank 0 has received rank 2's fingerprint. Then rank 1 dies.
// Rank 0 learns of the death from a message call, and goes on with a different collective. No rank
// may report a mismatch.
func TestACollectiveAfterALossIsNoMismatch(t *testing.T) {
	const n, victim = 3, 1
	deathJob(t, n, func(ctx context.Context, c *Comm, d *deathRun) error {
		switch c.Rank() {
		case victim:
			// Reason: by then rank 0 has received rank 2's fingerprint. No real time passes.
			time.Sleep(500 * time.Millisecond)
			d.die(c)
			return nil
		case 2:
			return wantLost(AllReduce(ctx, c, []int32{1}, Sum), victim)
		}
		return errors.Join(wantLost(receive(ctx, c, victim), victim), wantLost(c.Barrier(ctx), victim))
	})
}

// After a loss, a rank must compare no fingerprint, whichever way the fingerprint arrives.
func TestNothingIsComparedAfterALoss(t *testing.T) {
	err := Local(2, func(ctx context.Context, c *Comm) error {
		if err := c.Barrier(ctx); err != nil || c.Rank() == 1 {
			return err
		}
		loss := &fault.Error{Kind: fault.PeerLost, Peers: []fault.Peer{{Rank: 1}}}
		c.rt.lose(loss, func(*Comm) bool { return true })
		notice, _ := json.Marshal(fingerprintNotice{Comm: c.id, Seq: c.seq, Fingerprint: 1, Call: "another"})
		c.rt.handleFingerprint(1, notice)
		if by := c.revokedBy(); by != nil {
			t.Errorf("a fingerprint revokes the communicator: %v", by)
		}
		c.unexpected(1, c.seq, 1)
		if cf := c.conflict.Load(); cf != nil {
			t.Error("a message is taken for a mismatch")
		}
		c.blocking.callRecord = &c.history[c.seq%historySize]
		mismatch := &fault.Error{Kind: fault.Mismatch, Peers: []fault.Peer{{Rank: 1}}}
		return wantLost(c.collectiveError(&c.blocking, mismatch), 1)
	})
	if err != nil {
		t.Error(err)
	}
}

// A rank must mark all its communicators as lost before it wakes any call.
func TestALossReachesAllCommunicatorsBeforeAnyCallEnds(t *testing.T) {
	const n, victim, twins = 3, 1, 8
	deathJob(t, n, func(ctx context.Context, c *Comm, d *deathRun) error {
		var comms []*Comm
		for range twins {
			twin, err := c.Dup(ctx)
			if err != nil {
				return err
			}
			comms = append(comms, twin)
		}
		if c.Rank() == victim {
			d.die(c)
			return nil
		}
		errs := make(chan error, twins+1)
		check := func(err error) {
			err = wantLost(err, victim)
			for _, twin := range comms {
				if twin.currentLoss() == nil {
					err = errors.New("a call has ended before all communicators know of the loss")
				}
			}
			errs <- err
		}
		for _, twin := range comms {
			go func() { check(twin.Barrier(ctx)) }()
		}
		go func() { check(receive(ctx, c, victim)) }()
		var all error
		for range twins + 1 {
			all = errors.Join(all, <-errs)
		}
		return all
	})
}

// Rank 0 leaves because of a loss. Rank 1 waits for rank 0, and does not need the lost rank. Rank
// 1's error must name the lost rank and not rank 0.
func TestARankThatEndsBecauseOfALossIsNotBlamed(t *testing.T) {
	const n, victim = 4, 3
	for name, end := range map[string]func(ctx context.Context, c *Comm, d *deathRun) error{
		"closes": func(ctx context.Context, c *Comm, d *deathRun) error { return c.Close(ctx) },
		"exits":  func(ctx context.Context, c *Comm, d *deathRun) error { d.die(c); return nil },
		"aborts": func(ctx context.Context, c *Comm, d *deathRun) error { c.Abort(errors.New("disk full")); return nil },
	} {
		for wait, call := range map[string]func(ctx context.Context, c, rest *Comm) error{
			"recv":      func(ctx context.Context, c, rest *Comm) error { return receive(ctx, c, 0) },
			"irecv":     func(ctx context.Context, c, rest *Comm) error { return testUntilDone(IRecv(c, 0, 1, make([]byte, 1))) },
			"probe":     func(ctx context.Context, c, rest *Comm) error { _, err := c.Probe(ctx, 0, 1); return err },
			"recvnamed": func(ctx context.Context, c, rest *Comm) error { _, err := c.RecvNamed(ctx, 1, 0, "w", nil); return err },
			"onnamed": func(ctx context.Context, c, rest *Comm) error {
				result := make(chan error, 1)
				if err := c.OnNamed(1, 0, "w", nil, func(_ Tensor, err error) { result <- err }); err != nil {
					return err
				}
				return <-result
			},
			"collective": func(ctx context.Context, c, rest *Comm) error { return rest.Barrier(ctx) },
		} {
			t.Run(name+"/"+wait, func(t *testing.T) {
				deathJob(t, n, func(ctx context.Context, c *Comm, d *deathRun) error {
					var rest *Comm
					if c.Rank() != victim {
						var err error
						if rest, err = c.Sub(ctx, 0, 1, 2); err != nil {
							return err
						}
					}
					switch c.Rank() {
					case victim:
						d.die(c)
						return nil
					case 0:
						return errors.Join(wantLost(receive(ctx, c, victim), victim), end(ctx, c, d))
					}
					began := time.Now()
					err := wantLost(call(ctx, c, rest), victim, "rank 0")
					if elapsed := time.Since(began); elapsed > 3*time.Second {
						err = errors.Join(err, fmt.Errorf("told after %v", elapsed))
					}
					return err
				})
			})
		}
	}
}

func testUntilDone(r *Request) error {
	for {
		if _, done, err := r.Test(); done {
			return err
		}
		// Reason: Test does not block, so the bubble's clock moves only here.
		time.Sleep(time.Millisecond)
	}
}

// Rank 0 learns of the loss in a callback, and exits in that callback. Rank 1 waits for rank 0.
// Rank 1's error must name the lost rank.
func TestACallbackComesAfterTheOthersKnowOfTheLoss(t *testing.T) {
	const n, victim = 3, 2
	deathJob(t, n, func(ctx context.Context, c *Comm, d *deathRun) error {
		switch c.Rank() {
		case victim:
			d.die(c)
			return nil
		case 0:
			result := make(chan error, 1)
			if err := c.OnNamed(1, victim, "w", nil, func(_ Tensor, err error) { d.die(c); result <- err }); err != nil {
				return err
			}
			return wantLost(<-result, victim)
		}
		return wantLost(receive(ctx, c, 0), victim, "rank 0")
	})
}

// A rank goes on after a loss, and ends much later. The errors of other ranks must name that rank,
// because its end is no reaction to the loss.
func TestARankThatEndsLongAfterALossIsBlamed(t *testing.T) {
	const n, victim = 3, 2
	deathJob(t, n, func(ctx context.Context, c *Comm, d *deathRun) error {
		switch c.Rank() {
		case victim:
			d.die(c)
			return nil
		case 0:
			err := wantLost(receive(ctx, c, victim), victim)
			// Reason: rank 0 must end so late that its end cannot be a reaction to the loss. The
			// bubble's clock passes the time at once.
			time.Sleep(2 * reactionTime)
			d.die(c)
			return err
		}
		err := wantLost(receive(ctx, c, 0), 0)
		if got := c.Lost(); !slices.Equal(got, []int{0, victim}) {
			err = errors.Join(err, fmt.Errorf("lost: got %v, want [0 %d]", got, victim))
		}
		return err
	})
}

// If a rank leaves by Close, and knows of no loss, errors must name that rank.
func TestARankThatClosesInOrderIsNamed(t *testing.T) {
	deathJob(t, 2, func(ctx context.Context, c *Comm, _ *deathRun) error {
		if c.Rank() == 0 {
			return c.Close(ctx)
		}
		err := receive(ctx, c, 0)
		var f *fault.Error
		if !errors.As(err, &f) || f.Kind != fault.Closed || len(f.Peers) != 1 || f.Peers[0].Rank != 0 || errors.Is(err, fault.PeerLost) {
			return fmt.Errorf("got %v, want %v that names rank 0", err, fault.Closed)
		}
		if got := c.Lost(); len(got) > 0 {
			return fmt.Errorf("lost: got %v, want none", got)
		}
		return nil
	})
}

func TestLostListsTheDeadByTheirRankInTheCommunicator(t *testing.T) {
	const n, victim = 4, 2
	deathJob(t, n, func(ctx context.Context, c *Comm, d *deathRun) error {
		back, err := c.Split(ctx, 0, -c.Rank())
		if err != nil {
			return err
		}
		if c.Rank() == victim {
			d.die(c)
			return nil
		}
		err = wantLost(c.Barrier(ctx), victim)
		if got, twin := c.Lost(), back.Lost(); !slices.Equal(got, []int{victim}) || !slices.Equal(twin, []int{n - 1 - victim}) {
			err = errors.Join(err, fmt.Errorf("lost: got %v and %v, want %d and %d", got, twin, victim, n-1-victim))
		}
		rest, e := c.Sub(ctx, 0, 1, 3)
		if e == nil {
			e = rest.Barrier(ctx)
		}
		return errors.Join(err, e)
	})
}

// Abort must also end messages between two ranks other than the aborting rank.
func TestAbortEndsEveryCallOfEveryRank(t *testing.T) {
	const n, aborter = 4, 3
	deathJob(t, n, func(ctx context.Context, c *Comm, d *deathRun) error {
		rest, err := c.Split(ctx, c.Rank()/aborter, 0)
		if err != nil {
			return err
		}
		if c.Rank() == aborter {
			// Reason: by then all other ranks wait. The bubble's clock passes the time at once.
			time.Sleep(time.Second)
			c.Abort(errors.New("disk full"))
			return wantLost(c.Barrier(ctx), aborter, "disk full")
		}
		began := time.Now()
		if c.Rank() == 2 {
			err = rest.Barrier(ctx)
		} else {
			err = receive(ctx, c, 1-c.Rank())
		}
		err = wantLost(err, aborter, "disk full")
		if elapsed := time.Since(began); elapsed > 2*time.Second {
			err = errors.Join(err, fmt.Errorf("told %v after the abort, want at most 1 s", elapsed-time.Second))
		}
		return errors.Join(err, wantLost(Send(ctx, c, 1-c.Rank()%2, 1, []byte{1}), aborter), wantLost(rest.Barrier(ctx), aborter))
	})
}

// A rank that does not answer must be asked only once, for its current call. It must not be asked
// again for each collective in the history.
func TestAMismatchWithASilentRankIsReportedWithinTwoSeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var silent atomic.Bool
		script := flaky.New(flaky.Options{
			Rules:  []flaky.Rule{flaky.Delay(1, time.Hour).From(1)},
			Counts: func(flaky.Step) bool { return silent.Load() },
		})
		// The result is the loss of rank 1, which follows, so the test ignores it.
		Local(2, func(ctx context.Context, c *Comm) error {
			for range 10 {
				if err := c.Barrier(ctx); err != nil {
					return err
				}
			}
			if c.Rank() == 1 {
				<-ctx.Done()
				return nil
			}
			silent.Store(true)
			cl := &call{callRecord: &c.history[c.seq%historySize], c: c}
			began := time.Now()
			f := c.mismatchWith(cl, 1, nil)
			if elapsed := time.Since(began); f.Kind != fault.Mismatch || elapsed > 2*askLimit {
				t.Errorf("got %v after %v, want a mismatch within %v", f, elapsed, 2*askLimit)
			}
			return errors.New("the end")
		}, WithLogger(slog.New(slog.DiscardHandler)), WithParameters(Parameters{NoSharedMemory: true}),
			WithWrap(func(rank int, t transport.Transport) transport.Transport { return script.Wrap(t, rank) }))
	})
}

// A suspended rank is evicted, and the other ranks go on. When it resumes, it reads shared memory
// that no longer fits its call. It must report its eviction and not a mismatch.
func TestAnEvictedRankReportsNoMismatch(t *testing.T) {
	err := Local(2, func(ctx context.Context, c *Comm) error {
		if err := c.Barrier(ctx); err != nil || c.Rank() == 1 {
			return err
		}
		c.rt.Failed(&fault.Error{Kind: fault.PeerLost, Op: "mesh", Rank: 1, Peers: []fault.Peer{{Rank: 0}}})
		c.blocking.callRecord = &c.history[c.seq%historySize]
		mismatch := &fault.Error{Kind: fault.Mismatch, Peers: []fault.Peer{{Rank: 1}}}
		return errors.Join(wantLost(c.collectiveError(&c.blocking, mismatch), 0), wantLost(c.Barrier(ctx), 0))
	})
	if err != nil {
		t.Error(err)
	}
}

// One rank closes a communicator. The other ranks begin a collective that the first rank has not
// called. They must get fault.Closed.
func TestACollectiveOnACommunicatorThatARankHasClosedGetsClosed(t *testing.T) {
	const n, closer = 3, 1
	for _, shared := range []bool{false, true} {
		deathJobOn(t, n, shared, func(ctx context.Context, c *Comm, _ *deathRun) error {
			twin, err := c.Dup(ctx)
			if err != nil {
				return err
			}
			if err := twin.Barrier(ctx); err != nil {
				return err
			}
			if got := twin.releaseMemory != nil; got != shared {
				return fmt.Errorf("shared memory: got %v, want %v", got, shared)
			}
			if c.Rank() == closer {
				return twin.Close(ctx)
			}
			began := time.Now()
			err = twin.Barrier(ctx)
			var f *fault.Error
			if !errors.As(err, &f) || f.Kind != fault.Closed || len(f.Peers) != 1 || f.Peers[0].Rank != closer {
				return fmt.Errorf("got %v, want %v that names rank %d", err, fault.Closed, closer)
			}
			if elapsed := time.Since(began); elapsed > time.Second {
				return fmt.Errorf("told after %v, want at most 1 s", elapsed)
			}
			return nil
		})
	}
}

// One rank closes a communicator while its own collective is under way. The other ranks, which are
// in that collective or enter it later, must get fault.Closed.
func TestACollectiveThatACloseEndsGetsClosedOnAllRanks(t *testing.T) {
	const n, closer = 3, 1
	deathJob(t, n, func(ctx context.Context, c *Comm, _ *deathRun) error {
		twin, err := c.Dup(ctx)
		if err != nil {
			return err
		}
		if err := twin.Barrier(ctx); err != nil {
			return err
		}
		if c.Rank() == 2 {
			// Reason: by then rank 1 has closed. The bubble's clock passes the time at once.
			time.Sleep(75 * time.Millisecond)
		}
		began := time.Now()
		r := IAllReduce(twin, make([]int32, 3<<16), Sum) // each rank sums up a part, which the others need
		if c.Rank() == closer {
			// Reason: by then rank 0 waits in the collective. No real time passes.
			time.Sleep(50 * time.Millisecond)
			return twin.Close(ctx)
		}
		_, err = r.Wait(ctx)
		var f *fault.Error
		if !errors.As(err, &f) || f.Kind != fault.Closed || len(f.Peers) != 1 || f.Peers[0].Rank != closer {
			return fmt.Errorf("got %v, want %v that names rank %d", err, fault.Closed, closer)
		}
		if elapsed := time.Since(began); elapsed > time.Second {
			return fmt.Errorf("told after %v, want at most 1 s", elapsed)
		}
		return nil
	}, WithTimeout(5*time.Second))
}

// A rank that has finished a collective closes the communicator while other ranks are still in that
// collective. The collective must succeed on all ranks.
func TestClosingACommunicatorDoesNotEndACollectiveThatIsComplete(t *testing.T) {
	const n = 3
	deathJob(t, n, func(ctx context.Context, c *Comm, _ *deathRun) error {
		twin, err := c.Dup(ctx)
		if err != nil {
			return err
		}
		if c.Rank() == 2 {
			// Reason: by then the other ranks have waited and closed. No real time passes.
			time.Sleep(2 * time.Second)
		}
		// The root only sends, so its call ends before the other ranks have begun theirs.
		if err := Broadcast(ctx, twin, []int32{1}, 0); err != nil {
			return err
		}
		return twin.Close(ctx)
	})
}

func TestTheClosedCommunicatorsThatARankRemembersAreBounded(t *testing.T) {
	var cc closedComms
	for id := range uint64(3 * maxClosed) {
		cc.add(id, closedComm{last: uint32(id)})
	}
	if len(cc.comms) != maxClosed || len(cc.order) != maxClosed || cc.comms[3*maxClosed-1].last != 3*maxClosed-1 {
		t.Errorf("%d and %d are kept, want the last %d", len(cc.comms), len(cc.order), maxClosed)
	}
}

func TestErrorsOnASubCommunicatorNameRanksOfTheJob(t *testing.T) {
	const n, victim = 4, 3
	deathJob(t, n, func(ctx context.Context, c *Comm, d *deathRun) error {
		if c.Rank() < 2 {
			return nil
		}
		sub, err := c.Sub(ctx, 2, 3)
		if err != nil {
			return err
		}
		if c.Rank() == victim {
			// Reason: by then the receive of rank 2 with the short context has ended, and rank 2
			// waits in the next receive. The bubble's clock passes the time at once.
			time.Sleep(time.Second)
			d.die(c)
			return nil
		}
		short, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
		defer cancel()
		_, timeout := Recv(short, sub, 1, 1, make([]byte, 1))
		if !strings.Contains(fmt.Sprint(timeout), "recv uint8 x1 with rank 3 tag 1: ") {
			t.Errorf("got %v, want it to name rank 3", timeout)
		}
		_, test := Recv(ctx, sub, 1, 1, make([]byte, 1))
		return errors.Join(wantLost(test, victim, "recv uint8 x1 with rank 3 tag 1: "),
			wantLost(Broadcast(ctx, sub, []int32{1}, 1), victim, "broadcast int32 x1 root 3: "))
	})
}
