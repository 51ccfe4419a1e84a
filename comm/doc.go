// Package comm is what programs import: a communicator, messages between its ranks, and collective
// operations on slices.
//
//	c, err := comm.Init(ctx)
//	...
//	defer c.Close(ctx)
//	err = comm.AllReduce(ctx, c, grads, comm.Mean)
//
// Every blocking call takes a context; where it has no deadline, the communicator's Timeout
// applies. No call outlives a fault: when a rank dies, stalls beyond its limit or makes another
// call, all others get a *fault.Error that names it, and whose Kind (errors.Is) says what to do
// now. Ranks in errors are those of the job, also for communicators made by Split.
//
// The package knows communicators and element types. It does not know how bytes move, how ranks
// find each other, or how an algorithm works.
//
// # For maintainers
//
// A collective passes through these steps. A builder in collectives.go fills a plan with the
// arguments of the call. bind adds its options and finds its buffers, prepare checks it and
// chooses the algorithm (or the plan cache has it already), and begin admits it: it gets its
// number and its fingerprint, which other ranks compare with theirs. Then package collective
// carries it out in a p2p.Round, and finish turns an error into the caller's.
//
// What all communicators of a rank share is the rankRuntime. Its calls list what is under way, so
// that an error, a stall warning or another rank can say where this rank is. Locks are taken in
// this order: calls.mu (which is also the mu of every Comm), then rankRuntime.mu or call.mu.
//
// A mismatch is found in three ways: a message carries another fingerprint (p2p reports it), a
// rank that waits sends its fingerprint over the control links (failure.go), or a message arrives
// that no collective of this rank awaits (Comm.unexpected). All three revoke the communicator on
// every rank.
package comm
