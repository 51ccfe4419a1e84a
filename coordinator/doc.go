// Package coordinator reduces named tensors in the background, in one order on
// all ranks, whatever the order they become ready in.
//
//	co, err := coordinator.Start(ctx, c)
//	...
//	for i := len(layers) - 1; i >= 0; i-- { // backward: gradients come one by one
//		handles[i] = coordinator.AllReduce(co, layers[i].Name, layers[i].Grad, comm.Mean)
//	}
//	err = coordinator.WaitAll(ctx, handles...)
//	...
//	err = co.Close(ctx)
//
// Each rank submits what it has; rank 0 learns of it, decides what is ready
// everywhere, puts small tensors together, and tells all ranks one order, which
// they carry out. So ranks may submit in any order, from any goroutine, and a
// rank that submits something else than the others gets an error instead of a
// wrong sum. The decisions are those of package negotiate, which see.
//
// # What is promised
//
// A submission's buffers belong to the coordinator until its handle is done. A
// name stands for one tensor at a time in its process set: submitted again before
// it is done, it is refused with fault.Misuse, naming both places, and the first
// goes on. Ranks that submit a name with different operations, types, shapes,
// operators, roots, scales, compression, priorities or groups all get fault.Mismatch, naming
// both sides; other tensors are not disturbed, and the name is free again.
//
// Results are the same bits on every rank, and do not depend on what a tensor was
// fused with, on the order of submission, on the cache or on timing. They depend
// on the number of ranks, on the algorithms that the communicator's table gives
// large vectors, for an allreduce or, where it is done in two calls, for a
// reduce-scatter; and for tensors above WithPartition on that size. A ReduceScatter,
// which is never fused, has the algorithm that the table gives its own size.
//
// A mean is the sum divided once by the number of ranks that took part. Scales
// are factors in the element type, the first before and the second after the
// fold, and after the division.
//
// # Fewer bytes, and other sums
//
// Compress has elements travel in 16 bits, TopK as the few that are furthest from
// zero, OneBit as their signs; the latter two keep what was not sent for the next
// step. AllReduceSparse adds rows by their index. Adasum is an operator that adds
// gradients as far as they point elsewhere. All of them promise equal bits on all
// ranks, whatever a tensor was fused with, as plain sums do.
//
// # What ends a wait
//
// A handle is done when its tensor is, or has failed. The loss of any rank ends
// the coordinator on all ranks, and every handle with fault.PeerLost naming it. A
// tensor that some ranks have submitted and others not is reported after
// DefaultStallWarn in the log of rank 0, with who has submitted it and the
// file:line where the others are now; after DefaultStallEnd it ends the
// coordinator on all ranks with fault.Timeout naming those. A Wait that is
// cancelled leaves its tensor under way. An error inside a collective of the
// coordinator's ends it on all ranks; c itself, and other coordinators, go on.
//
// # Cost
//
// A coordinator is two goroutines and two communicators. Idle, both sleep on
// channels, and nothing is sent. Who submits tells this rank's part of the negotiation
// by itself, which takes a tenth of a microsecond, and some more for what completes a
// step; who waits for a handle moves the negotiation's messages, for some hundred
// microseconds, before it sleeps, and WaitAll sleeps once for all of its handles. A step whose names were all submitted before
// costs each rank one message with a bit per tensor to rank 0, and one with the
// order back. Submissions wait up to WithCycle for company, unless one completes
// the names of the last step or a group, or somebody waits for one. A name that is
// submitted again as before, after a Wait for it has returned, costs no allocation:
// it gets the same Handle. Tensors of at most WithAlone bytes are fused, up to
// WithFusion bytes, which saves calls and no copies: ranks that share memory give all
// tensors of a call from where they lie, and get them there; so do ranks that pass
// chunks around a ring, but for tensors of at most 16 KiB, which are copied into a
// common buffer and back. Other algorithms, and compressed tensors, need that buffer
// for all.
//
// # Timeline
//
// StartTimeline, or TUTTI_TIMELINE (or HOROVOD_TIMELINE) in a rank's own
// environment, has a rank write how long each of its tensors was negotiated,
// queued, fused, on the wire and copied out, in rank 0's time, as Chrome's trace
// events. `tuttirun --timeline out.json` does so on all ranks and merges the parts;
// Perfetto (ui.perfetto.dev) shows the file. Of several coordinators in a process
// that the environment starts timelines for, the last to end is kept. Without a
// timeline it costs one load of a pointer where a clock would be read.
//
// # Autotune
//
// WithAutotune has rank 0 try settings while the program runs, and settle for the
// best: how much is fused, how long submissions wait for company, whether tensors
// are remembered, and the class of algorithm. The first three change no bit of any
// result. The last changes the order of the folds, on all ranks at the same place
// in the order of tensors; Deterministic leaves it alone. Package autotune decides.
//
//	WithAutotune       TUTTI_AUTOTUNE, HOROVOD_AUTOTUNE           1: on
//	Autotune.Log       TUTTI_AUTOTUNE_LOG, HOROVOD_AUTOTUNE_LOG   a file, of CSV
//	Autotune.Steps     TUTTI_AUTOTUNE_STEPS_PER_SAMPLE,           a number
//	                   HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE
//	Autotune.Samples   TUTTI_AUTOTUNE_MAX_SAMPLES,                a number
//	                   HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES
//	Autotune.File,     TUTTI_AUTOTUNE_FILE                        a file: loaded if it is
//	WithSettings                                                  there, else written
//
// # Configuration
//
// Options of rank 0 hold for all ranks, and win over its environment, where the
// first of these names counts that is set:
//
//	option             variables                                  unit
//	WithFusion         TUTTI_FUSION_THRESHOLD                     bytes
//	                   HOROVOD_FUSION_THRESHOLD
//	WithAlone          TUTTI_MAX_FUSED_TENSOR_BYTES                          bytes
//	WithCycle          TUTTI_CYCLE_TIME, HOROVOD_CYCLE_TIME       milliseconds
//	WithCache          TUTTI_CACHE_CAPACITY                       tensors
//	                   HOROVOD_CACHE_CAPACITY
//	WithPartition      TUTTI_PARTITION_BYTES                      bytes
//	                   BYTEPS_PARTITION_BYTES
//	WithCredit         TUTTI_CREDIT_BYTES                         bytes
//	WithStallLimits    TUTTI_STALL_CHECK_TIME_SECONDS             seconds to the report
//	                   HOROVOD_STALL_CHECK_TIME_SECONDS
//	                   TUTTI_STALL_SHUTDOWN_TIME_SECONDS          seconds to the end
//	                   HOROVOD_STALL_SHUTDOWN_TIME_SECONDS
//	                   TUTTI_STALL_CHECK_DISABLE                  1: neither
//	                   HOROVOD_STALL_CHECK_DISABLE
//	Deterministic      TUTTI_DETERMINISTIC                        1: autotune changes no bit
//
// docs/coordinator.md has the defaults, and what changes bits.
//
// The package does not know algorithms, transports, or how ranks find each other.
package coordinator
