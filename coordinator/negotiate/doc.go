// Package negotiate decides which named tensors the ranks of a coordinator execute next, in which
// order, and which of them together.
//
// It is Horovod's protocol as two pure state machines. Each rank has a Worker, which turns what the
// program submits into request lists. Rank 0 has the Coordinator, which receives all request lists
// and sends one sequence of response lists to all Workers, its own rank's included. Every Worker
// applies the same sequence, so every rank executes the same Buckets in the same order, whatever the
// order of its submissions.
//
//	        request lists                  response lists
//	Worker ───────────────► Coordinator ───────────────────► every Worker ──► Buckets to execute
//
// Step takes an input and the time, and returns outputs. The package knows no clock, no goroutine, no
// communicator and no element of any tensor; package coordinator executes what it decides. So the
// same code runs in a simulation of all ranks in a loop, in property tests over thousands of
// schedules, and in the transcripts under testdata.
//
// # Two steps of a program
//
// Two ranks submit w1 and w2 in each step, rank 1 in the other order. The first step sends requests in full
// and defines cache entries. From the second step on, each rank sends two bits:
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
// Once any tensor has had a priority, at most Config.Credit bytes are launched beyond what rank 0 has
// executed, so that an urgent tensor overtakes large ones that are ready before it. Until then
// Config.UnprioritizedCredit may allow more, so that ranks do not wait for orders.
//
// A launch waits until no tensor is pending, or Config.Fusion bytes are ready, or Config.Cycle has
// passed since the first of them became ready. So small tensors are fused, and the last tensor of a
// step waits for nothing.
//
// # Fusion
//
// Small tensors of one operation, element type, operator, root and process set go into one Bucket.
// Tensors of different priorities share at most Config.Partition bytes, so that the urgent ones do
// not wait for a large Bucket.
//
// # The response cache
//
// A tensor gets a cache ID when it first runs. From then on a Worker whose program submits the same
// request under the same name sends one bit, and the Coordinator launches ranges of IDs. An ID means
// the same to all ranks at any time: the Coordinator gives an ID to another tensor only after every
// Worker has acknowledged that the old entry is evicted, and understands the old one until then.
//
// # When ranks disagree
//
// Ranks that submit a name with different operations, types, shapes, operators, roots, scales or
// priorities all get fault.Mismatch once all of them have submitted it. The error names the lowest
// rank of each of two sides. Nothing else is disturbed, and the name can be used again.
//
// Ranks that submit a name in different groups get fault.Mismatch at once, since they may wait for
// tensors that the others never submit. The error names both ranks, and the tensors of both groups.
// It fails all tensors of these groups and, step by step, of all groups that share a tensor with
// them. These names fail whenever they are submitted again: nobody knows which submissions of
// different ranks belong together. Other tensors are not disturbed.
//
// A name that is submitted again while it is in flight is refused on that rank, with all tensors of
// its group; the error names both calls, and the first goes on. The other ranks wait for what was
// refused as for anything that the rank has not submitted.
//
// # Ranks that run out of data
//
// A rank that has joined takes part in everything without contributing, until all ranks have joined;
// Bucket.Absent names such ranks. A rank that has shut down submits nothing more, and what needs it
// fails with fault.Closed.
//
// # Stalls
//
// A tensor that some ranks have submitted and others have not is a stall. After Config.StallWarn the
// Coordinator asks the missing ranks where their programs are, for at most a second, and reports the tensor,
// who has submitted it, and the answers. After Config.StallEnd it ends the coordinator on all ranks with
// fault.Timeout that names the missing ones. No rank need be alive for that but rank 0.
//
// # Errors
//
//	what happens                        who gets what
//	ranks disagree about a tensor       fault.Mismatch for that tensor, on all ranks
//	ranks disagree about a group        the same for all tensors of the groups, from then on
//	a rank has closed                   fault.Closed for what needs it, from then on
//	a rank misuses a call by itself     fault.Misuse for that call, on that rank
//	a rank is lost, or fails            ResponseAbort: the coordinator ends on all ranks
//	a list breaks the protocol          the same, with fault.Mismatch that blames the sender
//
// # Models
//
// Two models for the model checker spin have the protocol between the machines; `make model` explores
// all interleavings within small bounds for deadlock and agreement, and shows that it finds the bugs
// that are planted in them. The tests with random programs reach what the models leave out:
//
//	what                        model/negotiation.pml  model/groups.pml  tests
//	messages in flight          yes                    yes               schedule_test.go, groups_test.go
//	cache IDs given to others   yes                    no                schedule_test.go
//	joins                       yes                    no                schedule_test.go
//	groups that differ          no                     yes, of 2 names   groups_test.go, by an oracle
//	process sets                no                     yes, one          groups_test.go
//	sizes, parts, credit, time  no                     no                schedule_test.go, groups_test.go
//
// # Wire form
//
// Integers are unsigned varints, signed ones zigzag. Texts and lists begin with their length. A request
// list has at most 512 requests; a Worker that has more sends several:
//
//	byte       version, 2
//	byte       flags: 1 join, 2 shutdown, 4 location, 8 fault
//	varint     the number of the last response list applied
//	bytes      a bit for each cached tensor that is submitted, least significant
//	           first, without the zero bytes at its end
//	list       requests
//	text       with flag 4: where this rank's program is
//	bytes      with flag 8: an error that ends the coordinator, as package fault
//	           writes it
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
//	byte       version, 2
//	varint     its number, from 1 on
//	list       cache entries: varint ID, byte 1 if transient, a spec,
//	           the list of rows (signed)
//	list       responses, each a byte for its kind, then
//	             run        list of (first ID, how many), part, parts, list of absent ranks
//	             fail       list of (set, name); an error
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
// Decoders trust nothing: lengths are checked against the bytes that are there before memory is
// allocated, and the state machines end the coordinator when a message breaks the protocol.
package negotiate
