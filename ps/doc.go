// Package ps is a parameter server beside the collectives of a job. Some ranks serve: they hold
// tensors. Other ranks work: they push gradients to the servers and pull values from them. A rank
// may do both.
//
//	err := ps.Run(ctx, c, ps.Servers(2), func(ctx context.Context, cl *ps.Client) error {
//		w, err := ps.Declare[float32](ctx, cl, "w", 1000)
//		...
//		return w.PushPull(ctx, grads, grads)
//	}, nil)
//
// # Tensors
//
// Declare makes a dense tensor, and DeclareTable a table of rows that programs address by an int64
// index. Every worker declares the tensors that it uses, by name, with the same arguments. The
// servers cut a dense tensor into parts (WithPart), and spread the parts over the servers. They
// spread the rows of a table by a hash of the index. A row exists from its first use on.
//
// # Consistency
//
//	Synchronous    the n-th pushes of all workers make version n. A pull waits for the version of
//	               this worker's last push. The pushes are folded in the order of the workers' ranks,
//	               so equal runs give equal bits.
//	Asynchronous   a push changes the value when it arrives. A pull waits for nothing but the
//	               earlier pushes of its own worker.
//	Bounded        as Asynchronous, but the pull of a worker that has pushed n times waits until every
//	               worker has pushed at least n - staleness times (stale synchronous parallel).
//
// # Snapshots
//
// Client.Snapshot saves all tensors while other workers push. Client.Restore brings them back, also
// in a job with another number of servers.
//
// # Timeline
//
// TUTTI_TIMELINE in a rank's environment, which `tuttirun --timeline` sets, makes the rank write the
// phases of its requests to a file when it closes.
//
// # Faults
//
// No call hangs after a fault. With WithReplicas, other copies take over from a lost server, and calls
// go on. If a part has no other copy, every call that needs the part fails with
// fault.PeerLost, which names the server and lists the lost parts. If a worker is lost, the calls that wait
// for its pushes fail.
//
// The package does not know transports, or how a job finds its ranks.
package ps
