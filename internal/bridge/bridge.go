// Package bridge declares the interfaces that comm offers to the other packages of this module, but
// not to programs. comm implements them, and comm.Comm.Bridge returns a Communicator. The
// interfaces may change with any commit.
package bridge

import (
	"context"
	"time"

	"github.com/tutti-go/tutti/reduce"
	"github.com/tutti-go/tutti/tensor"
)

// Communicator is a communicator with the additional calls that the coordinator and tuttibench
// need.
type Communicator interface {
	// AllReduceList runs an allreduce of several vectors as one operation, by the named algorithm,
	// and replaces each vector by its result. The vectors may be anywhere in memory. They must not
	// overlap, which AllReduceList does not check. All ranks must pass the same number of vectors,
	// of the same lengths. Each vector is passed as its bytes: whole elements of type d, aligned
	// for d. AllReduceList reads each vector and writes its result in place, without a copy. The
	// results have the same bits as a separate allreduce of each vector by that algorithm. The
	// algorithms "ring" and "shared" support lists; for other algorithms the error is fault.Misuse.
	// The caller owns the list again when the call returns.
	AllReduceList(ctx context.Context, algorithm string, d tensor.DType, vectors [][]byte, op reduce.Op) error

	// Algorithm returns the name of the algorithm that a blocking collective runs: the forced
	// algorithm, or else the choice of the communicator's table. The parameter bytes is the size of
	// the vector. For a collective whose vector consists of one part per rank, bytes is the size of
	// all parts together. The parameter verb is the collective's name in the form that errors use,
	// such as "reduce_scatter". The form with Counts has the suffix "v". For an unknown name the
	// result is "". A collective that does not reduce ignores op.
	Algorithm(verb string, bytes int, op reduce.Op) string

	// Explain returns what comm.Comm.Explain prints, as a struct.
	Explain(op string, bytes int) (*Explanation, error)

	// Wire returns the names of all transports between the ranks, such as "tcp", or "shm+tcp" where
	// some ranks share a host. The result is the same on all ranks, and "" if there is only one
	// rank. Rules of a tuning file refer to this name.
	Wire() string

	// Transport returns the name of the transport between this rank and another rank of the
	// communicator, such as "tcp". Where "auto" chose the transport, the result is the name of the
	// chosen one. The result is "self" for this rank itself, and "" for a rank that does not exist.
	// Two ranks agree on the transport between them.
	Transport(rank int) string

	// ReportLoss must run before the program gets an error that another rank sent. If the error is
	// about a lost rank or link, the program may end because of it. ReportLoss notifies the other
	// ranks, so that they name the lost rank then, and not this rank. It may wait 100 ms.
	ReportLoss(err error)

	// NewPoller returns a Poller for messages from some ranks. A Poller holds no resources and need
	// not be closed.
	NewPoller(from ...int) Poller

	// Timeout returns the communicator's Timeout, or 0 if there is none.
	Timeout() time.Duration

	// Send, ISend, Recv and IRecv exchange messages as the functions of comm do. They are for
	// goroutines of a package, which wait most of the time for messages that may never come: the
	// communicator's Timeout does not apply, no stall is reported, and they do not count as the
	// calls in which errors say that the program is.
	Send(ctx context.Context, to, tag int, b []byte) error
	ISend(to, tag int, b []byte) InFlight
	Recv(ctx context.Context, from, tag int, b []byte) (int, error)
	IRecv(from, tag int, b []byte) InFlight
}

// An InFlight is a message that is being sent or received.
type InFlight interface {
	// Wait waits until the buffer may be used again, and returns the size of a received message. If
	// ctx ends first, Wait withdraws a message that has not been matched. It must be called once.
	Wait(ctx context.Context) (int, error)
}

// A Poller lets a goroutine that waits for a callback of comm.Comm.OnNamed receive the messages of
// some ranks itself. Without a Poller, the transport must wake another goroutine to receive them,
// which takes longer. Besides, for up to two milliseconds after a call that polled, the transport
// wakes no goroutine. Only one goroutine at a time may use a Poller.
type Poller interface {
	// Poll moves messages until cond is met, ctx has ended, or it has polled for some hundred
	// microseconds without success. It reports whether cond is met. If not, the transport wakes a
	// goroutine for later messages. Ranks that share cores yield them between two polls.
	Poll(ctx context.Context, cond PollCondition) bool

	// Arm makes the transport wake a goroutine for later messages. The caller calls it when it
	// stops polling.
	Arm()
}

// A PollCondition is the condition that ends Poll. Met is called often and must be cheap; it may
// also run work that a callback has requested. Once it has returned true, it must return true until
// Poll returns.
type PollCondition interface{ Met() bool }
