// Package comm is what programs import: a communicator, messages between its
// ranks, and collective operations on slices.
//
//	c, err := comm.Init(ctx)
//	...
//	defer c.Close(ctx)
//	err = comm.AllReduce(ctx, c, grads, comm.Mean)
//
// Every blocking call takes a context; where it has no deadline, the
// communicator's Timeout applies. No call outlives a fault: when a rank dies,
// stalls beyond its limit or calls something else, all others get a *fault.Error
// that names it, and whose Kind (errors.Is) says what to do now. Ranks in errors
// are those of the job, also for communicators made by Split.
//
// The package knows communicators and element types. It does not know how bytes
// move, how ranks find each other, or how an algorithm works.
package comm
