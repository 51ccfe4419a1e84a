package comm

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/tutti-go/tutti/fault"
)

// All survivors report the loss of a rank and go on. Then one of them ends. Errors must name that
// rank and not the rank that was lost first.
func TestARankThatGoesOnAfterALossIsBlamedForItsOwnEnd(t *testing.T) {
	const n, victim = 4, 3
	for name, goOn := range map[string]func(ctx context.Context, c *Comm) (*Comm, error){
		"shrink": func(ctx context.Context, c *Comm) (*Comm, error) { return c.Shrink(ctx) },
		"agree": func(ctx context.Context, c *Comm) (*Comm, error) {
			_, err := c.Agree(ctx, 1)
			return c, err
		},
		"sub": func(ctx context.Context, c *Comm) (*Comm, error) { return c.Sub(ctx, 0, 1, 2) },
	} {
		t.Run(name, func(t *testing.T) {
			deathJob(t, n, func(ctx context.Context, c *Comm, d *deathRun) error {
				if c.Rank() == victim {
					d.die(c)
					return nil
				}
				if err := wantLost(c.Barrier(ctx), victim); err != nil {
					return err
				}
				small, err := goOn(ctx, c)
				if err != nil {
					return err
				}
				if c.Rank() == 0 {
					// Reason: by then the other ranks have returned. No real time passes.
					time.Sleep(time.Second)
					d.die(c)
					return nil
				}
				return wantLost(receive(ctx, small, 0), 0)
			})
		})
	}
}

// A rank that has gone on after a loss closes. The errors of other ranks must name that rank,
// because the loss is not the cause of its goodbye.
func TestARankThatGoesOnAfterALossIsNamedWhenItCloses(t *testing.T) {
	const n, victim = 4, 3
	deathJob(t, n, func(ctx context.Context, c *Comm, d *deathRun) error {
		if c.Rank() == victim {
			d.die(c)
			return nil
		}
		if err := wantLost(c.Barrier(ctx), victim); err != nil {
			return err
		}
		small, err := c.Shrink(ctx)
		if err != nil {
			return err
		}
		if c.Rank() == 0 {
			// Reason: by then ranks 1 and 2 wait for rank 0. No real time passes.
			time.Sleep(time.Second)
			return c.Close(ctx)
		}
		err = receive(ctx, small, 0)
		var f *fault.Error
		if !errors.As(err, &f) || f.Kind != fault.Closed || len(f.Peers) != 1 || f.Peers[0].Rank != 0 {
			return fmt.Errorf("got %v, want %v that names rank 0", err, fault.Closed)
		}
		return nil
	})
}

// A report arrives while a communicator is being set up. The end of the set-up drops the reports
// that were there at its beginning, and must keep this newer report.
func TestAReportDuringSetupIsKept(t *testing.T) {
	rt := &rankRuntime{reactions: map[int]reaction{1: {&fault.Error{Kind: fault.PeerLost}, time.Now()}}}
	old := map[int]reaction{1: rt.reactions[1]}
	newer := &fault.Error{Kind: fault.PeerLost}
	rt.reactions[1] = reaction{newer, time.Now()}
	rt.dropReactions(old)
	if got := rt.reactionOf(1); got != newer {
		t.Errorf("got %v, want the newer report", got)
	}
	rt.dropReactions(map[int]reaction{1: rt.reactions[1]})
	if got := rt.reactionOf(1); got != nil {
		t.Errorf("got %v, want none", got)
	}
}

// Rank 0 reports the broken link between ranks 2 and 3, and then the loss of rank 2. Rank 1 must
// learn of both.
func TestALostRankIsReportedAfterItsLostLink(t *testing.T) {
	link := &fault.Error{Kind: fault.LinkLost, Peers: []fault.Peer{{Rank: 2}, {Rank: 3}}}
	rank := &fault.Error{Kind: fault.PeerLost, Peers: []fault.Peer{{Rank: 2}}}
	err := Local(4, func(ctx context.Context, c *Comm) error {
		if c.Rank() == 0 {
			c.rt.reportLoss(link)
			c.rt.reportLoss(rank)
		}
		if err := c.Barrier(ctx); err != nil {
			return err
		}
		defer c.Barrier(ctx)
		if c.Rank() != 1 {
			return nil
		}
		// Reason: a reaction of the runtime has no event. The loop ends with the reaction.
		for end := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
			if got := c.rt.reactionOf(0); got != nil && got.Kind == fault.PeerLost {
				return nil
			}
		}
		return fmt.Errorf("got %v, want %v", c.rt.reactionOf(0), rank)
	})
	if err != nil {
		t.Error(err)
	}
}

// Two calls of rank 0 fail because of one loss. Rank 1 is slow to handle the notice of the first
// call. Both calls must wait for rank 1, or until fenceLimit, because rank 0's program may exit
// after either call.
func TestASecondCallThatFailsWaitsForTheNoticeOfTheFirst(t *testing.T) {
	loss := &fault.Error{Kind: fault.PeerLost, Peers: []fault.Peer{{Rank: 2}}}
	other := make(chan *rankRuntime, 1)
	err := Local(3, func(ctx context.Context, c *Comm) error {
		if c.Rank() == 1 {
			other <- c.rt
		}
		if err := c.Barrier(ctx); err != nil {
			return err
		}
		defer c.Barrier(ctx)
		if c.Rank() != 0 {
			return nil
		}
		slow := <-other
		slow.mu.Lock() // rank 1 cannot handle the notice
		defer slow.mu.Unlock()
		began := time.Now()
		first := make(chan struct{})
		go func() {
			defer close(first)
			c.rt.reportLoss(loss)
		}()
		for begun := false; !begun; runtime.Gosched() {
			c.rt.mu.Lock()
			begun = len(c.rt.reported) > 0
			c.rt.mu.Unlock()
		}
		c.rt.reportLoss(loss)
		elapsed := time.Since(began)
		<-first
		if elapsed < fenceLimit {
			return fmt.Errorf("the second call returns after %v, before the first has ended its wait of %v", elapsed, fenceLimit)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// The link between ranks 0 and 2 breaks, and rank 0 leaves because of that. Rank 1 waits for rank
// 0. Rank 1's error must name the two ends of the link.
func TestARankThatEndsBecauseOfALostLinkIsNotBlamed(t *testing.T) {
	wantLink := func(err error) error {
		var f *fault.Error
		if !errors.As(err, &f) || f.Kind != fault.LinkLost || len(f.Peers) != 2 || f.Peers[0].Rank != 0 || f.Peers[1].Rank != 2 {
			return fmt.Errorf("got %v, want %v that names ranks 0 and 2", err, fault.LinkLost)
		}
		return nil
	}
	for name, end := range map[string]func(ctx context.Context, c *Comm, d *deathRun){
		"closes": func(ctx context.Context, c *Comm, d *deathRun) { c.Close(ctx) },
		"exits":  func(ctx context.Context, c *Comm, d *deathRun) { d.die(c) },
	} {
		t.Run(name, func(t *testing.T) {
			deathJob(t, 3, func(ctx context.Context, c *Comm, d *deathRun) error {
				switch c.Rank() {
				case 0:
					c.rt.mesh.Suspect(2, errors.New("the link is cut"))
					err := wantLink(receive(ctx, c, 2))
					end(ctx, c, d)
					return err
				case 1:
					return wantLink(receive(ctx, c, 0))
				}
				return wantLink(receive(ctx, c, 0))
			})
		})
	}
}

// A rank that closes because of a loss drops a message. The sender may learn of the drop before the
// goodbye. The sender's error must name the lost rank even then.
func TestAMessageThatIsDroppedBecauseOfALossNamesTheLostRank(t *testing.T) {
	loss := &fault.Error{Kind: fault.PeerLost, Peers: []fault.Peer{{Rank: 2}}}
	rt := &rankRuntime{reactions: map[int]reaction{1: {loss, time.Now()}}}
	dropped := &fault.Error{Kind: fault.Closed, Op: "send", Peers: []fault.Peer{{Rank: 1}}, Err: errors.New("closed without receiving")}
	if err := wantLost(rt.blame(dropped), 2, "rank 1"); err != nil {
		t.Error(err)
	}
	dropped.Peers[0].Rank = 0
	if err := rt.blame(dropped); !errors.Is(err, fault.Closed) {
		t.Errorf("of a rank that knows of no loss: got %v, want it unchanged", err)
	}
}
