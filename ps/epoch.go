package ps

import (
	"context"
	"errors"
	"sync"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/bridge"
)

// An epoch is the time between two changes of the members. All messages of an epoch travel in its
// communicator, so no rank takes a message of another epoch. Without replicas there is one epoch.
//
//	          a loss                    Shrink, reports, transfers
//	(running) ------> (paused, sealed) ----------------------------> (running), the next epoch
//	                        ^                       | a further loss
//	                        +-----------------------+
type epoch struct {
	number uint64
	c      *comm.Comm
	wires  bridge.Communicator
	ranks  []int // by rank of node.c: the rank in c; -1: no member

	ctx    context.Context // ends with the epoch
	cancel context.CancelFunc
	tasks  sync.WaitGroup // the goroutines that send and receive
	broken chan error     // has room for one: why the epoch ends
}

// newEpoch returns the epoch of a communicator, which follows the epoch before. That is nil for the
// first one.
func (n *node) newEpoch(c *comm.Comm, before *epoch) *epoch {
	e := &epoch{number: 1, c: c, wires: c.Bridge(), broken: make(chan error, 1)}
	if before != nil {
		e.number = before.number + 1
	}
	e.ctx, e.cancel = context.WithCancel(n.ctx)
	byWorld := make(map[int]int)
	for r := range c.Size() {
		byWorld[c.WorldRank(r)] = r
	}
	for r := range n.c.Size() {
		own, in := byWorld[n.c.WorldRank(r)]
		if !in {
			own = -1
		}
		e.ranks = append(e.ranks, own)
	}
	return e
}

// present returns the present epoch.
func (n *node) present() *epoch {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.epoch
}

// has reports whether a rank of node.c is a member.
func (e *epoch) has(rank int) bool { return e.ranks[rank] >= 0 }

// end ends the epoch. Only the first reason counts.
func (e *epoch) end(why error) {
	select {
	case e.broken <- why:
	default:
	}
}

// outlet returns an outlet to a rank of node.c.
func (e *epoch) outlet(rank, headTag, bodyTag int, credit int64) *outlet {
	return newOutlet(e.wires, e.ranks[rank], headTag, bodyTag, credit)
}

// send starts to send the messages of an outlet. At the end it calls ended with the error, or nil.
func (e *epoch) send(o *outlet, ended func(error)) {
	stop := context.AfterFunc(e.ctx, func() { o.fail(e.ctx.Err()) })
	e.tasks.Go(func() {
		err := o.run(e.ctx)
		stop()
		ended(err)
	})
}

// replicated reports whether parts have several copies, so that the node goes on after the loss of a
// server.
func (n *node) replicated() bool { return n.opts.replicas > 1 }

// isLoss reports whether an error is about lost ranks, or about the end of an epoch that another rank
// has noticed.
func isLoss(err error) bool {
	var f *fault.Error
	if !errors.As(err, &f) {
		return false
	}
	switch f.Kind {
	case fault.PeerLost, fault.LinkLost, fault.Revoked, fault.Closed:
		return true
	}
	return false
}

// revoke ends the calls of all ranks in the present epoch.
func (n *node) revoke() { n.present().c.Revoke() }
