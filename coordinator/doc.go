// Package coordinator reduces named tensors in the background, in one order on all ranks, whatever the
// order in which they become ready. It is Horovod's coordinator with BytePS's declared tensors and
// priorities.
//
//	co, err := coordinator.Start(ctx, c)
//	...
//	for i, layer := range layers {
//		tensors[i] = coordinator.Declare(co, layer.Name, layer.Grad, comm.Mean)
//	}
//	for each step {
//		for i := len(layers) - 1; i >= 0; i-- { // backward: gradients come one by one
//			... compute layers[i].Grad ...
//			tensors[i].Submit()
//		}
//		err = coordinator.WaitAll(ctx, tensors...)
//	}
//	err = co.Close(ctx)
//
// AllReduce and its siblings declare and submit in one call, for what happens once. All of them return
// a Handle. Gradients does the loop above.
//
// Each rank submits what it has. Rank 0 learns of it, decides what is ready everywhere, fuses small
// tensors, and sends all ranks one order, which they execute. So ranks may submit in any order, from any
// goroutine, and a rank that submits something else than the others gets an error instead of a wrong
// sum. Package negotiate decides; this package moves its messages, executes its decisions, and knows no
// algorithms, no transports, and not how ranks find each other.
//
// # What is promised
//
// The buffers of a submission belong to the coordinator until its handle is done. A name stands for one
// tensor at a time in its process set. Submitted again before it is done, it is refused with
// fault.Misuse that names both calls, and the first goes on. Ranks that submit a name with different
// operations, types, shapes, operators, roots, scales, compression, priorities or groups all get
// fault.Mismatch that names both sides. Other tensors are not disturbed, and the name is free again,
// except after groups that differ.
//
// Results are the same bits on every rank. They do not depend on what a tensor was fused with, on the
// order of submission, on the response cache or on timing. They depend on the number of ranks, on the
// algorithms that the communicator's table gives large vectors, and, for tensors above WithPartition, on
// that size. A ReduceScatter is never fused, so it has the algorithm that the table gives its own size.
//
// A mean is the sum divided once by the number of ranks that took part. Scales are factors in the
// element type; the first is applied before the reduction, the second after it and after the division.
//
// # Fewer bytes, and other sums
//
// Compress has elements travel in 16 bits, TopK as the few that are furthest from zero, OneBit as their
// signs. TopK and OneBit keep what was not sent for the next step. AllReduceSparse adds rows by their
// index. Adasum is an operator that adds gradients as far as they point in different directions. All of
// them promise equal bits on all ranks, whatever a tensor was fused with, as plain sums do.
//
// # What ends a wait
//
// A handle is done when its tensor is, or has failed. The loss of any rank ends the coordinator on all
// ranks, and every handle with fault.PeerLost that names the rank. A tensor that some ranks have
// submitted and others have not is reported after 60 s in the log of rank 0, with the file:line where
// the others are now. After comm.DefaultTimeout it ends the coordinator on all ranks with fault.Timeout
// that names them. A Wait that is cancelled leaves its tensor in flight. An error inside a collective of
// the coordinator ends it on all ranks. The communicator that Start was given and other coordinators go
// on.
//
// # Cost
//
// A coordinator has two goroutines and two communicators. Idle, both goroutines sleep on channels, and
// nothing is sent. A program's goroutine does the work of its own calls: Submit steps this rank's state
// machine, which takes a tenth of a microsecond, and Wait polls for the control messages for some
// hundred microseconds before it sleeps. See type progress for who does what.
//
// A step whose names were all submitted before costs each rank one message to rank 0, with one bit for
// each tensor, and one message with the order back. Submissions wait up to WithCycle to be sent
// together, unless one completes the names of the last step or a group, or a goroutine waits. To submit
// and to wait for a declared tensor allocates nothing.
//
// Tensors of at most WithMaxFusedTensor bytes are fused into calls of up to WithFusion bytes. Fusion
// saves calls, not copies, since most tensors are not copied at all:
//
//	how the ranks reduce                tensors of a fused call
//	shared memory                       read and written where they are
//	a ring of messages                  the same, but those up to 16 KiB are packed
//	other algorithms, 16-bit elements   packed into the fusion buffer, and unpacked
//
// # Timeline
//
// StartTimeline, or TUTTI_TIMELINE (or HOROVOD_TIMELINE) in a rank's own environment, has a rank write
// how long each of its tensors was negotiated, queued, packed, in transfer and unpacked, in rank 0's time,
// as Chrome's trace events. `tuttirun --timeline out.json` does so on all ranks and merges the parts;
// Perfetto (ui.perfetto.dev) shows the file. If the environment starts timelines for several coordinators
// of a process, the file of the last to end is kept. Without a timeline it costs one load of a pointer
// for each time that would be taken.
//
// # Autotune
//
// WithAutotune has rank 0 try settings while the program runs, and keep those that it began with unless
// others are better: how much is fused, how long submissions wait, whether the response cache is used,
// and the class of algorithm. The first three change no bit of any result. The last changes the order of
// the folds, on all ranks at the same point in the order of tensors; Deterministic excludes it. Package
// autotune decides what to try.
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
// Options of rank 0 hold for all ranks and win over its environment. Of the variables in a row, the
// first that is set counts:
//
//	option             variables                                  unit
//	WithFusion         TUTTI_FUSION_THRESHOLD                     bytes
//	                   HOROVOD_FUSION_THRESHOLD
//	WithMaxFusedTensor TUTTI_MAX_FUSED_TENSOR_BYTES               bytes
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
// docs/coordinator.md has the defaults, and which options change bits.
package coordinator
