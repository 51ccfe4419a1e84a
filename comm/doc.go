// Package comm is what programs import: a communicator, messages between its ranks, and
// collective operations on slices.
//
//	c, err := comm.Init(ctx)
//	...
//	defer c.Close(ctx)
//	err = comm.AllReduce(ctx, c, grads, comm.Mean)
//
// Every blocking call takes a context; where it has no deadline, the communicator's Timeout
// applies. No call outlives a fault: when a rank dies, stalls beyond its limit or makes
// another call, all others get a *fault.Error that names it, and whose Kind (errors.Is) says
// what to do now. Ranks in errors are those of the job, also for communicators made by Split.
//
// The package knows communicators and element types. It does not know how bytes move, how
// ranks find each other, or how an algorithm works.
//
// # Calls
//
// Functions that depend on an element type are generic and take the communicator as an
// argument; all others are methods of Comm. docs/migration.md lists the calls of MPI and
// Horovod beside these.
//
//	blocking       AllReduce(ctx, c, buf, op)                      returns when this rank's part is done
//	non-blocking   r := IAllReduce(c, buf, op)                     starts it; r.Wait(ctx) ends it
//	persistent     r := IAllReduce(c, buf, op, Persistent())       prepares it; r.Start(ctx) starts it, again and again
//
// A collective works in place on its buffer. The option From gives it a separate input, Counts
// unequal parts, Algorithm a certain algorithm.
//
// # Messages
//
// Messages are found by communicator, source rank and tag; Send and Recv copy nothing that the
// transport does not need. Named tensors (SendNamed, RecvNamed, OnNamed) are found by step and
// name instead. A named send never blocks, and a named receive may come before or after it.
//
// # Faults
//
// A deadline or a cancellation inside a collective revokes the communicator on every rank,
// because half a collective cannot be undone; other communicators of the job go on. The kinds
// of errors, and what a program does about them:
//
//	Misuse              this call is wrong; nothing was sent, and the communicator is usable
//	Mismatch            the ranks made different calls; the error has both, with file and line
//	Timeout, Canceled   the context or the Timeout ended the call; the error names who is missing
//	PeerLost, LinkLost  a rank or a link is gone; start the job again without it, or go on with
//	                    the communicator that Shrink returns
//	NoQuorum            too few ranks are left, and others may go on; end this process
//	Revoked             another rank's error ended the communicator; it is the cause
//	Closed              this rank, or one that the call needs, has closed
//
// A rank that closes or exits because of a loss is not blamed: calls that wait for it get the error
// of that loss, which names the rank that was lost first.
//
// # For maintainers
//
// A collective passes through these steps. A builder in collectives.go fills a plan with the
// arguments of the call. bind adds its options and finds its buffers, prepare checks it and
// chooses the algorithm (or the plan cache has it already), and begin admits it: it gets its
// number and its fingerprint, which other ranks compare with theirs. Then package collective
// carries it out in a p2p.Round, and finish turns an error into the caller's.
//
// Only transports.go knows transports, and only init.go the mesh and the matching engine, which it
// assembles. The other files send messages by package p2p. The archtest checks these imports.
//
// What all communicators of a rank share is the rankRuntime. Its calls list what is under way,
// so that an error, a stall warning or another rank can say where this rank is. Locks are
// taken in this order: calls.mu (which is also the mu of every Comm), then rankRuntime.mu or
// call.mu.
//
// A mismatch is found in three ways: a message carries another fingerprint (p2p reports it), a
// rank that waits sends its fingerprint over the control links (failure.go), or a message
// arrives that no collective of this rank awaits (Comm.unexpected). All three revoke the
// communicator on every rank.
package comm
