package comm

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/tutti-go/tutti/fault"
)

// A program that learns of a loss usually leaves: it closes, exits, or is ended by its launcher.
// Other ranks may wait for messages of that program, even if they do not need the lost rank. Their
// errors must name the lost rank, and not the rank that left because of it:
//
//	the lost rank   rank A, in a call that needs it        rank B, which waits for A
//	dies
//	                error that names the lost rank
//	                'l' flood with that error, fence  ->   reactions[A] is set
//	                closes, or exits                  ->   error that names the lost rank
//
// The fence comes before A's call returns, so B has the flood before it can notice that A has left.
//
// A rank that goes on after a loss will leave for another reason. B therefore deletes reactions[A]
// when it learns that A has entered an Agree or Shrink, and when both have made a communicator.

// A reaction records that another rank's program knows of a loss.
type reaction struct {
	loss *fault.Error
	at   time.Time
}

// reactionTime is the time after a reaction within which a rank is assumed to leave because of the
// loss, if nothing shows that it goes on. A program that goes on for longer is assumed to leave for
// another reason.
const reactionTime = time.Minute

// reportLoss runs before this rank's program gets err. If err is about a loss that the program does
// not know yet, reportLoss notifies the other ranks. It returns when the neighbours have handled
// the notice, or after fenceLimit. The program may then exit. If two calls report the same loss at
// the same time, the second waits for the first one's notice, because the program may exit after
// either call.
func (rt *rankRuntime) reportLoss(err error) {
	loss := lossIn(err)
	if loss == nil || rt.isEvicted(loss, rt.rank) {
		return
	}
	rt.mu.Lock()
	key := lossKey(loss)
	done := rt.reported[key]
	first := done == nil
	if first {
		done = make(chan struct{})
		rt.reported[key] = done
	}
	rt.mu.Unlock()
	if !first {
		<-done // within fenceLimit
		return
	}
	defer close(done)
	wire := loss.AppendWire(nil)
	if len(wire) > maxFlood {
		short := *loss
		short.Peers, short.Err = loss.Peers[:1], nil
		wire = short.AppendWire(nil)
	}
	rt.mesh.Flood(floodLoss, wire)
	rt.fence()
}

// isEvicted reports whether a loss is the loss of the given rank itself. Such a rank leaves because
// it was declared lost, and not as a reaction to another rank's loss. A rank at one end of a lost
// link is not evicted.
func (rt *rankRuntime) isEvicted(loss *fault.Error, rank int) bool {
	return loss.Kind == fault.PeerLost && rt.blamed(loss, rank)
}

// lossKey identifies a loss by its kind and all its ranks. The loss of a link and the loss of one
// of its ranks differ, and the other ranks must learn of both.
func lossKey(loss *fault.Error) string {
	key := fmt.Sprint(uint64(loss.Kind))
	for _, p := range loss.Peers {
		key = fmt.Sprint(key, " ", p.Rank)
	}
	return key
}

// callBack calls the callback of a named send or receive with its error. If the error is a loss, a
// new goroutine first notifies the other ranks, and then calls the callback, because the caller of
// callBack moves messages and must not wait.
func (rt *rankRuntime) callBack(err error, done func(error)) {
	err = rt.blame(err)
	if lossIn(err) == nil || !rt.spawn(func(context.Context) {
		rt.reportLoss(err)
		done(err)
	}) {
		done(err)
	}
}

// handleReaction records the loss that another rank has reported by reportLoss.
func (rt *rankRuntime) handleReaction(from int, body []byte) {
	e, err := fault.ParseWire(body)
	if err != nil || len(e.Peers) == 0 || !isLoss(e.Kind) || rt.isEvicted(e, from) {
		return
	}
	rt.mu.Lock()
	rt.reactions[from] = reaction{e, time.Now()}
	rt.mu.Unlock()
}

// membersReactions returns the reactions of the other members of c.
func (rt *rankRuntime) membersReactions(c *Comm) map[int]reaction {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	members := make(map[int]reaction)
	for rank, r := range rt.reactions {
		if _, in := c.group.RankOf(rank); in {
			members[rank] = r
		}
	}
	return members
}

// dropReactions deletes the given reactions of ranks that have recovered. If a rank has reported a
// newer reaction, that one stays.
func (rt *rankRuntime) dropReactions(old map[int]reaction) {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	for rank, r := range old {
		if rt.reactions[rank] == r {
			delete(rt.reactions, rank)
		}
	}
}

// goesOn deletes the reaction of a rank that has entered an agreement.
func (rt *rankRuntime) goesOn(rank int) {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	delete(rt.reactions, rank)
}

// reactionOf returns the loss because of which a rank probably leaves, or nil.
func (rt *rankRuntime) reactionOf(rank int) *fault.Error {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	if r, ok := rt.reactions[rank]; ok && time.Since(r.at) < reactionTime {
		return r.loss
	}
	return nil
}

// reasonFor returns the error of calls that need a rank which is lost with e. If the rank has left
// because of another loss, reasonFor returns that loss; otherwise it returns e.
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

// consequence returns the error of calls that need a rank which has left because of a loss. The
// error names the lost rank and the rank that has left. The parameter end says how that rank has
// left, for example "has closed".
func consequence(loss *fault.Error, rank int, end string, cause error) *fault.Error {
	out := *loss
	out.Err = fmt.Errorf("rank %d, which knew of this loss, %s", rank, end)
	if cause != nil {
		out.Err = fmt.Errorf("%w: %w", out.Err, cause)
	}
	return &out
}

// blame converts the error of a call that needs a closed rank: if the rank closed because of a
// loss, the result is an error about that loss. blame returns every other error unchanged. The
// error that Goodbye records for the closed rank contains the loss. An error from before the
// goodbye, such as that of a message which the closing rank has dropped, does not. blame then gets
// the loss from reactionOf.
func (rt *rankRuntime) blame(err error) error {
	var f, loss *fault.Error
	if !errors.As(err, &f) || f.Kind != fault.Closed || len(f.Peers) == 0 {
		return err
	}
	if !errors.As(f.Err, &loss) || !isLoss(loss.Kind) {
		loss = rt.reactionOf(f.Peers[0].Rank)
	}
	if loss == nil {
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
// when it has died, when it was silent for too long (Parameters.Silence), or when it has called
// Abort. All ranks agree on the lost ranks, and learn of a loss within a fraction of a second of
// each other. A rank that has left by Close is not lost. If the other ranks have declared this rank
// lost, Lost includes it.
//
// A later call of Lost returns at least the same ranks. Calls that need a lost rank fail with
// fault.PeerLost.
//
// Lost is for reports. To go on without the lost ranks, call Shrink. A Sub of the other ranks asks
// for no quorum: if the network is broken, the ranks of each side regard the other side as lost,
// and both sides would go on.
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
