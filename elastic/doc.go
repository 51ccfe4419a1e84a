// Package elastic keeps a training going when ranks are lost and when ranks join. It offers what
// Horovod users know as hvd.elastic: a State with Commit, Restore and Sync, and Run, which calls
// the training function again after each change of the members.
//
//	params, velocity, epoch := make([]float64, n), make([]float64, n), 0
//	state := elastic.States(elastic.Tensors(params, velocity), elastic.Values(&epoch))
//	err := elastic.Run(ctx, state, func(ctx context.Context, job *elastic.Job) error {
//		for epoch < epochs {
//			if err := trainEpoch(ctx, job.Comm(), params, velocity); err != nil {
//				return err
//			}
//			epoch++
//			if err := job.Commit(ctx); err != nil {
//				return err
//			}
//		}
//		return nil
//	})
//
// # One attempt after the other
//
// An attempt is one call of the training function on one communicator. Run makes attempts until one
// succeeds on all ranks:
//
//	                       .---------------------------------------------.
//	                       v                                             |
//	first communicator -> Sync -> reset callbacks -> train -> vote -> next communicator
//	                              (not the first time)         |
//	                                                           '-> all ranks are done: return nil
//
// The vote is a Comm.Agree. The next communicator comes from Comm.Rejoin: it has the remaining
// ranks, and then the processes that tuttirun has started meanwhile. If tuttirun does not decide
// which processes are ranks, the next communicator comes from Comm.Shrink, and no process can join.
//
// Every attempt begins with the state of the rank that is furthest, so train must read from the
// state how far the training is. If another rank is lost before the end, Run may call train again
// on a rank where it has already returned nil. Train then finds nothing left to do and returns nil
// again.
//
// Each Commit and each Step of a rank counts as progress. The rank that is furthest is the lowest
// of the ranks with the highest progress.
//
// Some objects belong to one attempt: further communicators made from the Job's communicator, its
// requests, a coordinator with its process sets, and values derived from Comm.Layout. Train must
// make them at its beginning and close them by defer, so that every attempt has new ones. A Sampler
// needs none of this: Batch divides the data by the rank and size of its communicator.
//
// # With and without rollback
//
// A program may change its state at any time and call Commit now and then, as with Horovod. After a
// loss, Run calls Restore, and the work since the last Commit is done again.
//
// Alternatively, a program changes its state only in the second function of Job.Step. Then nothing
// is rolled back: the ranks that were still in the step repeat it, or get the state of a rank that
// has finished it. Such a program needs Commit only to let other processes join.
//
// # What ends an attempt
//
//	train returns                             Run
//	nil                                       votes for the end
//	PeerLost, LinkLost, Timeout; Closed or    votes for another attempt
//	  Revoked because of another rank
//	ErrHostsUpdated                           votes for another attempt
//	Misuse, Mismatch                          aborts the job: the program is wrong
//	any other error                           returns it; the other ranks go on without this rank
//
// Kinds are those of package fault. If a Timeout names a rank that is alive but hangs, the vote
// waits for that rank, too, until the communicator's Timeout ends the vote. With Rejoin, Run then
// waits until tuttirun has killed that rank (--elastic-timeout). Without Rejoin, Run returns the
// error of the vote.
//
// A rank that may not go on gets fault.NoQuorum from Run. End its process.
//
// # What bounds it
//
// Run returns fault.Exhausted on all ranks in three cases:
//
//   - after more resets than WithMaxResets allows
//   - after two resets in a row without progress and without a change of the members
//   - after more than 100 resets in a row without progress
//
// All waits of Run end when ctx ends. Waits for other ranks also end by the communicator's Timeout.
// The exception is Rejoin, which --elastic-timeout ends.
//
// The package does not know how a communicator agrees on who is left, nor who starts processes.
package elastic
