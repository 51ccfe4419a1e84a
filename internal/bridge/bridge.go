// Package bridge names what comm offers to the other packages of this module and not to
// programs. It declares interfaces only: comm implements Comm, and comm.Comm.Bridge returns
// it. What is here may change with any commit.
package bridge

import (
	"context"

	"github.com/tutti-go/tutti/reduce"
	"github.com/tutti-go/tutti/tensor"
)

// Communicator is a communicator with the calls that the coordinator and tuttibench need.
type Communicator interface {
	// AllReduceList is an allreduce by the named algorithm of several vectors as one
	// operation, which replaces each of them. They may lie anywhere, but must not overlap,
	// which is not checked. Every rank gives equally many, and equally long ones. They are
	// given as their bytes: whole elements of type d, aligned for it. Nothing is copied
	// beforehand: each vector is read, and its result written, where it lies. Results are
	// to the bit those of an allreduce of each vector by that algorithm. Algorithms "ring"
	// and "shared" support lists; another one is fault.Misuse. The list is the caller's
	// again when the call returns.
	AllReduceList(ctx context.Context, algorithm string, d tensor.DType, vectors [][]byte, op reduce.Op) error

	// Algorithm is comm.Comm.Algorithm for one operator, which need not commute.
	Algorithm(verb string, bytes int, op reduce.Op) string

	// Explain is comm.Comm.Explain with its parts.
	Explain(op string, bytes int) (*Explanation, error)

	// Wire names all wires between the ranks, equally on all of them: "tcp", or "shm+tcp"
	// where some are on one host and some are not. Rules of a tuning file name it. It is
	// "" on one rank alone.
	Wire() string

	// NewPoller returns a Poller for messages from some ranks. It holds nothing, and needs
	// no end.
	NewPoller(from ...int) Poller
}

// A Poller is for a goroutine that waits for what a callback of comm.Comm.OnNamed brings. It
// moves the messages of some ranks itself, as long as that pays. Without it they are moved
// when the wire wakes another goroutine, which takes longer; and for up to two milliseconds
// after a call that polled, the wire wakes nobody. One goroutine at a time may use it.
type Poller interface {
	// Poll moves messages until cond is met, which it reports, or ctx has ended, or it has
	// polled for some hundred microseconds without success: then the wires wake somebody
	// for what comes. Ranks that share cores yield them between two polls.
	Poll(ctx context.Context, cond PollCondition) bool

	// Arm has the wires wake somebody for what comes, from now on: nobody polls any more.
	Arm()
}

// A PollCondition is what Poll waits for. Met is called often and must be cheap; it may do what
// a callback has asked for. Once true it stays true until Poll returns.
type PollCondition interface{ Met() bool }
