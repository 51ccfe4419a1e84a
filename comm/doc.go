// Package comm is the package that programs import. It provides communicators, messages between
// their ranks, and collective operations on slices.
//
//	c, err := comm.Init(ctx)
//	...
//	defer c.Close(ctx)
//	err = comm.AllReduce(ctx, c, grads, comm.Mean)
//
// Every blocking call takes a context. If the context has no deadline, the communicator's Timeout
// applies. No call hangs after a fault. When a rank dies, stalls beyond its limit or makes a
// different call, all other ranks get a *fault.Error that names that rank. The error's Kind
// (errors.Is) says what the program can do. Errors number ranks as in the job, also for
// communicators made by Split.
//
// The package knows communicators and element types. It does not know how bytes move, how ranks
// find each other, or how an algorithm works.
//
// # Calls
//
// Functions that depend on an element type are generic and take the communicator as an argument.
// All other calls are methods of Comm. docs/migration.md lists the equivalent calls of MPI and
// Horovod.
//
//	blocking      AllReduce(ctx, c, buf, op)                 returns when this rank's part is done
//	non-blocking  r := IAllReduce(c, buf, op)                starts it; r.Wait(ctx) ends it
//	persistent    r := IAllReduce(c, buf, op, Persistent())  prepares it; r.Start(ctx) starts it
//
// A collective works in place on its buffer. The option From gives it a separate input, Counts
// gives it unequal parts, and Algorithm forces an algorithm.
//
// # Messages
//
// A message matches a receive by communicator, source rank and tag. Send and Recv make no copy that
// the transport does not need. Named tensors (SendNamed, RecvNamed, OnNamed) match by step and name
// instead. A named send never blocks, and a named receive may come before or after it.
//
// # Hosts
//
// Ranks are on one host if they report the same host name (os.Hostname) when they join the job.
// Therefore a container that has its own host name is a host, even if other containers run on the
// same machine. Containers that use the name of their machine are one host with it, even if they
// cannot share memory. Machines need different names, because machines of one name count as one
// host. Hierarchical algorithms use the same hosts.
//
// LocalRank, LocalSize and HostRank count the ranks and hosts of one communicator. So a rank may
// get other values from a communicator that Split, Sub, Shrink or Rejoin has made. The values of a
// communicator never change, not even after a loss or after Close. The three calls and Host send no
// message and cannot fail. They ignore the variables of launchers, such as LOCAL_RANK.
//
// # Faults
//
// A deadline or a cancellation inside a collective revokes the communicator on every rank, because
// half a collective cannot be undone. Other communicators of the job stay usable. The kinds of
// errors, and what a program does about them:
//
//	Misuse              this call is wrong; nothing was sent, and the communicator is usable
//	Mismatch            the ranks made different calls; the error has both, with file and line
//	Timeout, Canceled   the context or the Timeout ended the call; the error names who is missing
//	PeerLost, LinkLost  a rank or a link is gone; start the job again without it, or go on with
//	                    the communicator that Shrink returns
//	NoQuorum            too few ranks are left, and others may go on; end this process
//	Revoked             another rank's error ended the communicator; the error contains it
//	Closed              this rank, or a rank that the call needs, has closed
//
// A rank that closes or exits because of a loss is not blamed. Calls that wait for it get the error
// of that loss, which names the rank that was lost first.
//
// # For maintainers
//
// A collective passes through these steps:
//
//  1. A builder in collectives.go fills a plan with the arguments of the call.
//  2. bind adds the options and finds the buffers.
//  3. prepare checks the plan and chooses the algorithm, unless the plan cache has done so before.
//  4. begin admits the collective: it assigns the number, and the fingerprint, which other ranks
//     compare with theirs.
//  5. Package collective carries out the collective in a p2p.Round.
//  6. finish converts an error to the error that the caller gets.
//
// Only transports.go knows transports. Only init.go knows the mesh and the matching engine, and
// assembles them. The other files send messages by package p2p. The archtest checks these imports.
//
// The rankRuntime holds what all communicators of a rank share. Its list of the calls under way
// (calls) shows where this rank is, for errors, stall warnings and questions of other ranks. Locks
// are taken in this order: first calls.mu, which is also the mu of every Comm, then rankRuntime.mu
// or call.mu.
//
// A mismatch is detected in three ways. A message carries a different fingerprint (p2p reports it).
// A rank that waits sends its fingerprint over the control links (failure.go). A message arrives
// that no collective of this rank awaits (Comm.unexpected). In all three cases the communicator is
// revoked on every rank.
package comm
