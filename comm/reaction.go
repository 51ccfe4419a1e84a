package comm

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/tutti-go/tutti/fault"
)

// A program that learns of a loss usually leaves: it closes, exits, or is ended by its launcher. Other
// ranks may wait for messages of that program, and not need the lost rank at all. Their errors must
// name the lost rank, and not the one that left because of it:
//
//	the lost rank   rank A, in a call that needs it        rank B, which waits for A
//	dies
//	                error that names the lost rank
//	                'l' flood with that error, fence  ->   reactions[A] is set
//	                closes, or exits                  ->   error that names the lost rank
//
// The fence comes before A's call returns, so B has the flood before it can see A leave.

// A reaction is a loss that the program of another rank knows of.
type reaction struct {
	loss *fault.Error
	at   time.Time
}

// reactionTime is how long after a reaction a rank that leaves does so because of the loss. A program
// that goes on for longer has another reason to end.
const reactionTime = time.Minute

// reportLoss tells the other ranks that this rank's program is about to get err, if err is about a
// loss of which the program does not know yet. It returns when the neighbours have handled that, or
// after fenceLimit: the program may then exit.
func (rt *rankRuntime) reportLoss(err error) {
	loss := lossIn(err)
	if loss == nil || rt.blamed(loss, rt.rank) {
		return
	}
	rt.mu.Lock()
	again := rt.reported[loss.Peers[0].Rank]
	rt.reported[loss.Peers[0].Rank] = true
	rt.mu.Unlock()
	if again {
		return
	}
	wire := loss.AppendWire(nil)
	if len(wire) > maxFlood {
		short := *loss
		short.Peers, short.Err = loss.Peers[:1], nil
		wire = short.AppendWire(nil)
	}
	rt.mesh.Flood(floodLoss, wire)
	rt.fence()
}

// callBack calls the callback of a named send or receive with its error. If the error is a loss, the
// other ranks get to know first. Another goroutine does that, because this one moves messages and
// must not wait.
func (rt *rankRuntime) callBack(err error, done func(error)) {
	err = blame(err)
	if lossIn(err) == nil || !rt.spawn(func(context.Context) {
		rt.reportLoss(err)
		done(err)
	}) {
		done(err)
	}
}

// handleReaction handles the reportLoss of another rank.
func (rt *rankRuntime) handleReaction(from int, body []byte) {
	e, err := fault.ParseWire(body)
	if err != nil || len(e.Peers) == 0 || !isLoss(e.Kind) || rt.blamed(e, from) {
		return
	}
	rt.mu.Lock()
	rt.reactions[from] = reaction{e, time.Now()}
	rt.mu.Unlock()
}

// reactionOf returns the loss because of which a rank leaves, or nil.
func (rt *rankRuntime) reactionOf(rank int) *fault.Error {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	if r, ok := rt.reactions[rank]; ok && time.Since(r.at) < reactionTime {
		return r.loss
	}
	return nil
}

// reasonFor returns the error of calls that need a rank which is lost with e: the loss because of
// which the rank has left, if there is one, else e.
func (rt *rankRuntime) reasonFor(rank int, e *fault.Error) *fault.Error {
	loss := rt.reactionOf(rank)
	if loss == nil {
		return e
	}
	end := "has ended"
	if e.Op == opAbort {
		end = "has called Abort"
	}
	return consequence(loss, rank, end, e.Err)
}

// consequence returns the error of calls that need a rank which has left because of a loss. It names
// the lost rank, and says which rank has left, and in which way: end is "has closed", for
// example.
func consequence(loss *fault.Error, rank int, end string, cause error) *fault.Error {
	out := *loss
	out.Err = fmt.Errorf("rank %d, which knew of this loss, %s", rank, end)
	if cause != nil {
		out.Err = fmt.Errorf("%w: %w", out.Err, cause)
	}
	return &out
}

// blame turns the error of a call that needs a rank which has closed because of a loss into an error
// about that loss. It returns every other error as it is.
func blame(err error) error {
	var f, loss *fault.Error
	if !errors.As(err, &f) || f.Kind != fault.Closed || len(f.Peers) == 0 || !errors.As(f.Err, &loss) || !isLoss(loss.Kind) {
		return err
	}
	return consequence(loss, f.Peers[0].Rank, "has closed", nil)
}

// lossIn returns the loss that an error reports, or nil.
func lossIn(err error) *fault.Error {
	var f *fault.Error
	for errors.As(err, &f) {
		if isLoss(f.Kind) && len(f.Peers) > 0 {
			return f
		}
		err = f.Err
	}
	return nil
}

// isLoss reports whether errors of this kind are about a lost rank or a lost link.
func isLoss(k fault.Kind) bool { return k == fault.PeerLost || k == fault.LinkLost }

// Lost returns the ranks of c that are lost, in ascending order, numbered as in c. A rank is lost
// when it has died, when it was silent for too long (WithHeartbeat), or when it has called Abort. All
// ranks agree on who is lost, and get to know it within a fraction of a second of each other. A rank
// that has closed in order is not lost. A rank that the others have declared lost lists itself.
//
// The result does not shrink. Calls that need a lost rank fail with fault.PeerLost.
func (c *Comm) Lost() []int {
	c.rt.mu.Lock()
	defer c.rt.mu.Unlock()
	var lost []int
	for rank := range c.rt.dead {
		if r, in := c.group.RankOf(rank); in {
			lost = append(lost, r)
		}
	}
	slices.Sort(lost)
	return lost
}
