// Package negotiate decides which named tensors the ranks of a coordinator execute, in which order,
// and which tensors are fused.
//
// It is Horovod's protocol as two pure state machines. Each rank has a Worker, which turns what the
// program submits into request lists. Rank 0 has the Coordinator, which receives all request lists
// and sends one sequence of response lists to all Workers, including the Worker of rank 0. Every
// Worker applies the same sequence, so every rank executes the same Buckets in the same order,
// whatever the order of its submissions.
//
//	        request lists                  response lists
//	Worker ───────────────► Coordinator ───────────────────► every Worker ──► Buckets to execute
//
// Step takes an input and the time, and returns outputs. The package uses no clock, no goroutine
// and no communicator, and touches no element of a tensor. Package coordinator executes its
// decisions. So the same code runs in a simulation of all ranks in one loop, in property tests over
// thousands of schedules, and in the transcripts under testdata.
//
// # Two steps of a program
//
// Two ranks submit w1 and w2 in each step, rank 1 in the other order. The first step sends requests
// in full and defines cache entries. From the second step on, each rank sends two bits:
//
//	rank 0 ► ack 0, allreduce w1 float32 [4] sum, allreduce w2 float32 [2 3] sum
//	rank 1 ► ack 0, allreduce w2 float32 [2 3] sum, allreduce w1 float32 [4] sum
//	       ◄ #1: entry 0 is w1; entry 1 is w2; run 0-1          both run w1 and w2 in one Bucket
//	rank 0 ► ack 1, cached 0 1
//	rank 1 ► ack 1, cached 0 1
//	       ◄ #2: run 0-1                                        the same Bucket again
//
// Transcripts of such exchanges, for every rule below, are in testdata.
//
// # When a tensor runs
//
// A tensor is ready when every rank of its process set has submitted its name or has joined. Ready
// tensors are launched in the order of their priority, then of their IDs. That order is made in one
// place, so ranks may submit in any order. A tensor above Config.Partition is launched in parts.
//
// After the first tensor with a priority, at most Config.Credit bytes may be launched and not yet
// executed by rank 0. So an urgent tensor can overtake large tensors that became ready before it.
// Until then Config.UnprioritizedCredit may allow more, so that ranks do not wait for orders.
//
// A launch waits until no tensor is pending, or Config.Fusion bytes are ready, or Config.Cycle has
// passed since the first tensor became ready. So small tensors are fused, and the last tensor of a
// step does not wait.
//
// # Fusion
//
// Small tensors of one operation, element type, operator, root and process set go into one Bucket.
// Tensors of different priorities share at most Config.Partition bytes, so that urgent tensors do
// not wait for a large Bucket.
//
// # The response cache
//
// A tensor gets a cache ID when it first runs. From then on a Worker whose program submits the same
// request under the same name sends one bit, and the Coordinator launches ranges of IDs. An ID
// means the same to all ranks at any time: the Coordinator gives an ID to another tensor only after
// every Worker has acknowledged that the old entry is evicted, and understands the old meaning
// until then.
//
// # When ranks disagree
//
// Ranks that submit a name with different operations, types, shapes, operators, roots, scales or
// priorities all get fault.Mismatch once all of them have submitted it. The error names two ranks
// that disagree: for each of two different requests, the lowest rank that made it. Other tensors
// are not affected, and the name can be used again.
//
// Ranks that submit a name in different groups get fault.Mismatch at once, because they may wait
// for tensors that the other ranks never submit. The error names both ranks, and the tensors of
// both groups. The Coordinator fails all tensors of these groups and, step by step, of all groups
// that share a tensor with them. Every later submission of these names fails, too, because it is
// unknown which submissions of different ranks belong together. Other tensors are not affected.
//
// A name that is submitted again while it is in flight is refused on that rank, with all tensors of
// its group. The error names both calls, and the first submission goes on.
//
// The n-th calls of a name on all ranks belong together, and a call that a rank refuses counts. So
// the other ranks get fault.Mismatch for the same call, each as soon as it has made the call. The
// error names the rank, its call and what is wrong with it. The names can be used again, and the
// next calls of all ranks belong together. If all ranks refuse the call, it has no further effect.
// The Coordinator forgets a refused call after Config.StallEnd, unless that is 0, and when all
// ranks have joined.
//
// # Ranks that run out of data
//
// A rank that has joined takes part in every operation without contributing data, until all ranks
// have joined. Bucket.Absent names such ranks. A rank that has shut down submits nothing more. A
// tensor that needs this rank fails with fault.Closed.
//
// # Stalls
//
// A tensor that some ranks have submitted and others have not is a stall. After Config.StallWarn
// the Coordinator asks the missing ranks where their programs are, and waits for the answers for at
// most a second. It then reports the tensor, the ranks that have submitted it, and the answers.
// After Config.StallEnd it ends the coordinator on all ranks, with a fault.Timeout that names the
// missing ranks. Only rank 0 needs to be alive for that.
//
// # Errors
//
//	what happens                        who gets what
//	ranks disagree about a tensor       fault.Mismatch for that tensor, on all ranks
//	ranks disagree about a group        the same for all tensors of the groups, from then on
//	a rank has closed                   fault.Closed for all tensors that need it, from then on
//	a rank misuses a call by itself     fault.Misuse for that call, on that rank; fault.Mismatch on
//	                                    the others that make the call
//	a rank is lost, or fails            ResponseAbort: the coordinator ends on all ranks
//	a list breaks the protocol          the same, with fault.Mismatch that blames the sender
//
// # Models
//
// Two models describe the protocol between the state machines for the model checker spin. `make
// model` explores all interleavings within small bounds. It checks that no deadlock occurs and that
// all ranks agree, and it shows that the checker finds planted bugs. Tests with random programs
// cover what the models leave out:
//
//	what                        model/negotiation.pml  model/groups.pml  tests
//	messages in flight          yes                    yes               schedule_test.go, groups_test.go
//	cache IDs given to others   yes                    no                schedule_test.go
//	joins                       yes                    no                schedule_test.go
//	groups that differ          no                     yes, of 2 names   groups_test.go, by an oracle
//	calls that a rank refuses   no                     yes               groups_test.go, testdata/refused.txt
//	process sets                no                     yes, one          groups_test.go
//	sizes, parts, credit, time  no                     no                schedule_test.go, groups_test.go
//
// # Wire form
//
// Integers are unsigned varints, signed ones zigzag. Texts and lists begin with their length. A
// request list has at most 512 requests; a Worker that has more sends several:
//
//	byte       version, 4
//	byte       flags: 1 join, 2 shutdown, 4 location, 8 fault, 16 refused, 32 the
//	           submissions go on in the next list
//	varint     the number of the last response list applied
//	bytes      a bit for each cached tensor that is submitted, least significant
//	           first, without the zero bytes at its end
//	list       requests
//	text       with flag 4: where this rank's program is
//	bytes      with flag 8: an error that ends the coordinator, as package fault
//	           writes it
//	list       with flag 16: (set, name) of the tensors of a refused call, then
//	           an error for the ranks that wait for it
//
// A request is a spec, then the rows (signed), the list of splits (signed) and
// the text of the call site. A spec is
//
//	varint     process set
//	text       name, at most MaxName bytes
//	byte       operation
//	byte       element type; byte: the type on the wire
//	list       shape (signed)
//	text       operator's name; 8 bytes: its id
//	varint     root (signed)
//	8 bytes    scale before; 8 bytes: scale after (float64)
//	varint     priority (signed)
//	8 bytes    group; varint: tensors in it
//	byte       flags: 1 the operator has no identity, 2 it is never cut into
//	           parts, 4 it has a codec
//	byte       with flag 4: the codec; varint: the elements that each rank keeps
//
// A response list:
//
//	byte       version, 4
//	varint     its number, from 1 on
//	list       cache entries: varint ID, byte 1 if transient, a spec,
//	           the list of rows (signed)
//	list       responses, each a byte for its kind, then
//	             run        list of (first ID, how many), part, parts, list of absent ranks
//	             fail       list of (set, name); list of ranks, empty for all; an error
//	             joined     varint: the rank that joined last
//	             addset     varint: its number; text: its name; list of ranks
//	             removeset  varint: its number; text: its name
//	             locate     list of ranks that are asked where they are
//	             abort      an error
//	             shutdown   nothing
//	             tune       varint: the cycle in ns; varint: bytes of fusion; byte:
//	                        1 the cache is used, 2 the settings are final; byte:
//	                        class of algorithm
//	list       IDs whose entries are evicted
//
// Decoders trust no input. They compare each length with the number of bytes present before they
// allocate memory. The state machines end the coordinator when a message breaks the protocol.
package negotiate
