// Package coordinator reduces named tensors in the background, in one order on all ranks, whatever
// the order in which they become ready. It is Horovod's coordinator with BytePS's declared tensors
// and priorities.
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
// For an operation that happens once, AllReduce and similar functions declare and submit in one
// call. All of them return a Handle. The type Gradients implements the loop above.
//
// Each rank submits the tensors that it has. Rank 0 learns of all submissions, decides which
// tensors are ready on all ranks, fuses small tensors, and sends one order to all ranks. All ranks
// execute this order. So ranks may submit in any order, from any goroutine. If ranks submit
// different operations, they get an error instead of a wrong sum. Package negotiate makes the
// decisions. This package moves the messages of the negotiation and executes its decisions. It
// knows no algorithms, no transports, and not how ranks find each other.
//
// DeclarePushPull declares a tensor that goes over parameter servers instead. Its transfers share the
// priorities, the credit and the timeline with the collectives.
//
// # What is promised
//
// The buffers of a submission belong to the coordinator until its handle is done. A name stands for
// one tensor at a time in its process set. A name that is submitted again before it is done is
// refused with fault.Misuse. The error names both calls, and the first submission goes on. Ranks
// that submit a name with different operations, types, shapes, operators, roots, scales,
// compression, priorities or groups all get fault.Mismatch, which names both sides. Other tensors
// are not affected. The name can be used again, unless the groups differed.
//
// The n-th calls of a name on all ranks belong together, and a call that one rank refuses counts.
// The other ranks get fault.Mismatch for it at once. So a rank must not repeat a refused call
// unless the other ranks repeat it, too.
//
// Results are the same bits on every rank. They do not depend on fusion, on the order of
// submission, on the response cache or on timing. They depend on the number of ranks and on the
// algorithms that the communicator's table names for large vectors. For tensors above the size of
// WithPartition, they also depend on that size. A ReduceScatter is never fused, so it uses the
// algorithm that the table names for its own size.
//
// A mean is the sum divided once by the number of ranks that took part. Scales are factors in the
// element type. The first factor is applied before the reduction, and the second factor after the
// reduction and the division.
//
// # Fewer bytes, and other sums
//
// Compress sends each element in 16 bits. TopK sends only the elements that are furthest from zero.
// OneBit sends only the signs of elements. TopK and OneBit keep the part that was not sent for the
// next step. AllReduceSparse adds rows by their index. Adasum is an operator that adds the
// components of gradients that point in different directions. All of these give equal bits on all
// ranks, like plain sums, and do not depend on fusion.
//
// # What ends a wait
//
// A handle is done when its tensor is done or has failed. The loss of any rank ends the coordinator
// on all ranks. Every handle then ends with fault.PeerLost, which names the lost rank. A tensor
// that some ranks have submitted and others have not is reported after 60 s in the log of rank 0,
// with the file:line where the missing ranks are now. After 10 minutes it ends the coordinator on
// all ranks with fault.Timeout, which names the missing ranks. WithStallLimits changes both times.
// If a Wait is cancelled, its tensor stays in flight. An error inside a collective of the
// coordinator ends the coordinator on all ranks. The communicator that Start was given is not
// affected, and other coordinators go on.
//
// # Cost
//
// A coordinator has two goroutines and two communicators. When the coordinator is idle, both
// goroutines sleep on channels, and nothing is sent. A program's goroutine does the work of its own
// calls: Submit steps this rank's state machine, which takes a tenth of a microsecond, and Wait
// polls for the control messages for some hundred microseconds before it sleeps. See type progress
// for the work of each goroutine.
//
// If all names of a step were submitted before, the step costs each rank two messages: one to rank
// 0, with one bit for each tensor, and one from rank 0 with the order. Submissions wait for up to
// WithCycle to be sent together. They are sent earlier if the step has as many submissions as the
// previous step, if a group is submitted, or if a goroutine waits. Submit and Wait allocate nothing
// for a declared tensor.
//
// Tensors of at most WithMaxFusedTensor bytes are fused into calls of up to WithFusion bytes.
// Fusion saves calls, not copies, because most tensors are not copied at all:
//
//	how the ranks reduce                tensors of a fused call
//	shared memory                       read and written where they are
//	a ring of messages                  the same, but those up to 16 KiB are packed
//	other algorithms, 16-bit elements   packed into the fusion buffer, and unpacked
//
// # Timeline
//
// StartTimeline, or TUTTI_TIMELINE (or HOROVOD_TIMELINE) in a rank's own environment, makes a rank
// write a timeline of its tensors. The timeline shows how long each tensor was negotiated, queued,
// packed, in transfer and unpacked. Its format is Chrome's trace events, in rank 0's time.
// `tuttirun --timeline out.json` does so on all ranks and merges the parts; Perfetto
// (ui.perfetto.dev) shows the file. If the environment starts timelines for several coordinators of
// a process, the file of the coordinator that ends last is kept. Without a timeline, the only cost
// is one load of a pointer for each time that would be recorded.
//
// # Autotune
//
// WithAutotune makes rank 0 try settings while the program runs. Rank 0 keeps the initial settings
// unless others are better. There are four settings: how much is fused, how long submissions wait,
// whether the response cache is used, and the class of algorithm. The first three settings do not
// change a bit of any result. The class of algorithm changes the order of the folds, on all ranks
// at the same point in the order of tensors. The option Deterministic excludes this setting.
// Package autotune chooses the settings to try.
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
// Options of rank 0 apply to all ranks, and take precedence over rank 0's environment. If several
// variables are listed for an option, the first one that is set counts:
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
